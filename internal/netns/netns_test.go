package netns_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestDoIsElsewhereAndComesBack(t *testing.T) {
	testutil.NeedRoot(t)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if ns.Inode() == here.Inode() {
		t.Fatal("New returned the namespace it was called in")
	}
	for range 20 { // threads that come back to the pool would show up soon
		err = ns.Do(func() error {
			links, err := net.Interfaces()
			if err == nil && (len(links) != 1 || links[0].Name != "lo") {
				t.Errorf("a new namespace has the interfaces %v", links)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		now, err := netns.At("/proc/thread-self/ns/net", "")
		if err != nil {
			t.Fatal(err)
		}
		if now.Inode() != here.Inode() {
			t.Fatalf("after Do a goroutine runs in namespace %d, not in %d", now.Inode(), here.Inode())
		}
		now.Close()
	}
}

// Sockets are the calling thread's; so is the namespace that nil stands for.
func TestInodeOfNilIsTheThreads(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		inode, err := netns.InodeOf(nil)
		if inode != ns.Inode() {
			t.Errorf("in namespace %d nil is %d", ns.Inode(), inode)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOfPID(t *testing.T) {
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	own, err := netns.OfPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if own.Inode() != here.Inode() {
		t.Errorf("OfPID(self) is %d, Current is %d", own.Inode(), here.Inode())
	}
	if _, err := netns.OfPID(1 << 30); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("OfPID of no process: %v", err)
	}
}

func TestNamedRefusesPaths(t *testing.T) {
	for _, name := range []string{"", "../../proc/1/ns/net", "a/b", "does-not-exist"} {
		if h, err := netns.Named(name); err == nil {
			h.Close()
			t.Errorf("Named(%q) opened something", name)
		} else if !strings.Contains(err.Error(), "ip netns list") {
			t.Errorf("Named(%q): %v: does not say what to do", name, err)
		}
	}
}

func TestAllSeesWhatADescriptorHolds(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("held")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	all, err := netns.All()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.CloseAll(all)
	for _, h := range all {
		if h.Inode() == ns.Inode() {
			return
		}
	}
	t.Errorf("namespace %d, held by this process, is not among %d found", ns.Inode(), len(all))
}

// A descriptor that was opened by the path of a mount leads to "/" when that is unmounted,
// as 'ip netns del' does: the namespace is not gone.
func TestHeldAfterItsMountIsGone(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("held")
	if err != nil {
		t.Fatal(err)
	}
	id, err := netns.IDOf(ns)
	if err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(place, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), place, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(place)
	if err := errors.Join(err, unix.Unmount(place, unix.MNT_DETACH), ns.Close()); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	found, err := netns.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	found.Close()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	// Who looks for namespaces meanwhile holds it a moment longer; before Linux 5.14 another
	// one may have its inode.
	testutil.Eventually(t, "the unheld namespace to be gone", func() bool {
		found, err := netns.Open(id)
		if err == nil {
			found.Close()
		}
		unread := errors.Is(err, os.ErrPermission) // a process that may do more than this one leaves a doubt
		return errors.Is(err, os.ErrNotExist) || unread
	})
}

func TestAllHasEachOnce(t *testing.T) {
	all, err := netns.All()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.CloseAll(all)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	count := map[uint64]int{}
	for _, h := range all {
		count[h.Inode()]++
	}
	for inode, n := range count {
		if n != 1 {
			t.Errorf("namespace %d stands %d times", inode, n)
		}
	}
	if count[here.Inode()] != 1 {
		t.Errorf("this namespace (%d) is missing in %v", here.Inode(), count)
	}
}

// The runtime cannot end the process's first thread: were it left in another
// namespace, /proc/self would be of that one for good.
func TestFirstThreadStaysAtHome(t *testing.T) {
	testutil.NeedRoot(t)
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		ns, err := netns.New("elsewhere")
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != home {
			t.Fatalf("the process is in %s (%v), and was in %s", now, err, home)
		}
	}
}

// A process may replace what it held by something else: opening it must not block.
func TestWhatIsNoNamespaceIsRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, file, "/proc/self/ns/pid", "/dev/null"} {
		done := make(chan error, 1)
		go func() {
			h, err := netns.At(path, "")
			h.Close()
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), "not a network namespace") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(testutil.Patience(5 * time.Second)):
			t.Errorf("%s: still waits", path)
		}
	}
}

// TestFewDescriptorsAreNotGone lets the process open only a few files more than it has:
// the one namespace is found among many, or the error does not say that it is gone.
func TestFewDescriptorsAreNotGone(t *testing.T) {
	testutil.NeedRoot(t)
	var all []*netns.Handle
	defer func() { netns.CloseAll(all) }()
	for range 30 {
		ns, err := netns.New("many")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ns)
	}
	last := all[len(all)-1]
	for free := 0; free < last.Fd(); { // numbers that are free below would count as well
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		free = int(f.Fd())
	}
	id, err := netns.IDOf(last)
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	for more := range uint64(9) {
		for _, wanted := range []netns.ID{id, {Inode: id.Inode}} {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(last.Fd()) + 2 + more, Max: limit.Max}); err != nil {
				t.Fatal(err)
			}
			ns, err := netns.Open(wanted)
			if more == 8 && err != nil || errors.Is(err, os.ErrNotExist) || err == nil && ns.Inode() != id.Inode {
				t.Errorf("%d descriptors, %+v: %v", more, wanted, err)
			}
			ns.Close()
			if err := netns.Each(func(*netns.Handle) error { return nil }); err == nil && more < 2 {
				t.Errorf("%d descriptors: all namespaces were opened", more)
			}
		}
	}
}

// TestNumberOfAnother: a namespace that is gone is not taken for a later one of its
// number.
func TestNumberOfAnother(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id, err := netns.IDOf(ns)
	if err != nil {
		t.Fatal(err)
	}
	testutil.NeedFeature(t, testutil.NetnsCookie)
	former := id
	former.Cookie--
	inside := func(netns.ID) (err error) {
		return ns.Do(func() error { h, err := netns.Open(former); h.Close(); return err })
	}
	outside := func(id netns.ID) error { h, err := netns.Open(id); h.Close(); return err }
	for _, open := range []func(netns.ID) error{inside, outside} {
		if err := open(former); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "is gone") {
			t.Errorf("%v", err)
		}
	}
	if err := outside(id); err != nil {
		t.Error(err)
	}
	if id.Is(former) || !id.Is(netns.ID{Inode: id.Inode}) {
		t.Error("which are the same")
	}
}

// TestHeldByNoProcess: a namespace is not gone as long as a socket in it is open, or a
// descriptor of it is on its way to another process.
func TestHeldByNoProcess(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.NetnsHandle)
	for how, keep := range map[string]func(ns *netns.Handle) (fds []int, err error){
		"socket": func(ns *netns.Handle) (fds []int, err error) {
			err = ns.Do(func() error {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				fds = []int{fd}
				return err
			})
			return fds, err
		},
		"message": func(ns *netns.Handle) ([]int, error) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(ns.Fd()), nil, 0)
			}
			return pair[:], err
		},
	} {
		t.Run(how, func(t *testing.T) {
			ns, err := netns.New("test")
			if err != nil {
				t.Fatal(err)
			}
			id, err := netns.IDOf(ns)
			if err != nil {
				t.Fatal(err)
			}
			fds, err := keep(ns)
			if err := errors.Join(err, ns.Close()); err != nil {
				t.Fatal(err)
			}
			testutil.Eventually(t, "the thread ends that was in it", func() bool {
				h, err := netns.OfInode(id.Inode)
				h.Close()
				return err != nil
			})
			found, err := netns.Open(id)
			if err != nil {
				t.Fatal(err)
			}
			if now, err := netns.IDOf(found); err != nil || now != id {
				t.Errorf("%+v, %v; wanted %+v", now, err, id)
			}
			found.Close()
			for _, fd := range fds {
				unix.Close(fd)
			}
			testutil.Eventually(t, "it goes", func() bool {
				h, err := netns.Open(id)
				h.Close()
				return errors.Is(err, os.ErrNotExist)
			})
		})
	}
}

// TestSearchGoesOnWithWhatIsThereThen: what a process holds is looked up when what the
// processes are in has been.
func TestSearchGoesOnWithWhatIsThereThen(t *testing.T) {
	testutil.NeedRoot(t)
	var late *netns.Handle
	defer func() { late.Close() }()
	found := false
	netns.EachPlace(func(inode uint64) {
		if late == nil {
			var err error
			if late, err = netns.New("late"); err != nil {
				t.Fatal(err)
			}
		}
		found = found || inode == late.Inode()
	})
	if !found {
		t.Error("a namespace that was made after the first was found is missing")
	}
}

// pidChildEnv makes the test binary a process of another PID namespace that looks for the
// network namespace with that inode, noted in that PID namespace.
const pidChildEnv = "NATKIT_TEST_NETNS_FROM_ELSEWHERE"

func TestMain(m *testing.M) {
	if how := os.Getenv(threadChildEnv); how != "" {
		holdInThread(how)
	}
	if text := os.Getenv(pidChildEnv); text != "" {
		var id netns.ID
		_, err := fmt.Sscan(text, &id.Inode, &id.SeenFrom, &id.Cookie)
		if err == nil && os.Getpid() == 1 {
			err = testutil.OwnProc()
		}
		if err == nil {
			_, err = netns.Open(id)
		}
		fmt.Println(errors.Is(err, os.ErrNotExist), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestFromAnotherPIDNamespace: what cannot be seen from there is not gone.
func TestFromAnotherPIDNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s 0", pidChildEnv, ns.Inode(), strings.Trim(link, "pid:[]")))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "false ") || !strings.Contains(string(out), "PID namespace") {
		t.Errorf("%s, %v", out, err)
	}
}

// TestFromAnotherUserNamespace: what may not be opened from there is not gone.
func TestFromAnotherUserNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id, err := netns.IDOf(ns)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d 0 %d", pidChildEnv, id.Inode, id.Cookie))
	root := []syscall.SysProcIDMap{{Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		testutil.Impossible(t, "a user namespace cannot be made here (a chroot, a limit)")
	}
	if err != nil || !strings.HasPrefix(string(out), "false ") {
		t.Errorf("%s, %v", out, err)
	}
}

// TestCommandIn runs a command as it is printed.
func TestCommandIn(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nsenter")
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const command = "readlink /proc/self/ns/net"
	if got, want := netns.CommandIn(ns, command), fmt.Sprintf("'%s' in network namespace %d", command, ns.Inode()); got != want {
		t.Errorf("%s, wanted %s", got, want)
	}
	want := func(h *netns.Handle, way string, inode uint64) {
		t.Helper()
		printed := netns.CommandIn(h, command)
		if printed != "'"+way+command+"'" {
			t.Errorf("%s, wanted by %q", printed, way)
		}
		out, err := exec.Command("sh", "-c", strings.Trim(printed, "'")).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != fmt.Sprintf("net:[%d]", inode) {
			t.Errorf("%s: %s, %v; wanted %d", printed, out, err, inode)
		}
	}
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	want(nil, "", here.Inode())
	want(here, "", here.Inode())
	inside := ""
	if err := ns.Do(func() error { inside = netns.CommandIn(nil, command); return nil }); err != nil || inside != netns.CommandIn(ns, command) {
		t.Errorf("%s, %v", inside, err)
	}
	process := exec.Command("sleep", "infinity")
	if err := ns.Do(process.Start); err != nil {
		t.Fatal(err)
	}
	defer process.Wait()
	defer process.Process.Kill()
	want(ns, fmt.Sprintf("nsenter -t %d -n ", process.Process.Pid), ns.Inode())
	testutil.NeedProgram(t, "ip")
	testutil.NeedFeature(t, testutil.OwnMounts) // by 'ip netns exec'
	name := fmt.Sprintf("natkit-test-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "attach", name, fmt.Sprint(process.Process.Pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer exec.Command("ip", "netns", "delete", name).Run()
	want(ns, "ip netns exec "+name+" ", ns.Inode())
}

// threadChildEnv makes the test binary a process that holds a network namespace in a
// thread only.
const threadChildEnv = "NATKIT_TEST_NETNS_IN_THREAD"

func init() {
	if os.Getenv(threadChildEnv) != "" {
		runtime.LockOSThread() // TestMain runs in the leader
	}
}

// holdInThread prints the number of a namespace that a thread is in, or holds by
// descriptors of its own, and stays until its input ends.
func holdInThread(how string) {
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, _ := netns.Current()
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_FILES)
		there, errThere := netns.At("/proc/thread-self/ns/net", "")
		if how == "files" {
			errThere = errors.Join(errThere, home.Enter())
		}
		fmt.Println(there.Inode())
		if how != "files" {
			there.Close()
		}
		made <- errors.Join(err, errThere)
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := <-made; err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if how == "ended" {
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	select {}
}

// TestHeldByAThread: a namespace is there where a thread besides the leader is in it or
// holds it, also when the leader has ended.
func TestHeldByAThread(t *testing.T) {
	testutil.NeedRoot(t)
	for _, how := range []string{"in", "ended", "files"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), threadChildEnv+"="+how)
			in, errIn := cmd.StdinPipe()
			out, errOut := cmd.StdoutPipe()
			if err := errors.Join(errIn, errOut, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer in.Close()
			var inode uint64
			if _, err := fmt.Fscan(out, &inode); err != nil {
				t.Fatal(err)
			}
			if how == "ended" {
				testutil.Eventually(t, "the leader ends", func() bool {
					_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
					return err != nil
				})
			}
			// The inode alone: by the cookie the kernel finds it, since 6.18.
			ns, err := netns.OfInode(inode)
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			if ns.Inode() != inode {
				t.Errorf("%d, wanted %d", ns.Inode(), inode)
			}
		})
	}
}

// TestEndingProcessIsNotMissed: what ended during the search leaves no doubt.
func TestEndingProcessIsNotMissed(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	task := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if ok, missed := netns.ReadMountinfo(task); ok || missed != nil {
		t.Errorf("%v, missed %v", ok, missed)
	}
}

// TestFirstThreadStaysAsItIs gives many functions a file table of their own, all at
// once, so that one of them would get the process's first thread, which is idle.
// What the process opens afterwards must still be among its files.
func TestFirstThreadStaysAsItIs(t *testing.T) {
	const functions = 50
	var all, started sync.WaitGroup
	started.Add(functions)
	for range functions {
		all.Go(func() {
			err := netns.OnThread(func() error {
				started.Done()
				started.Wait() // each keeps its thread until all have one
				if unix.Gettid() == unix.Getpid() {
					return errors.New("runs on the process's first thread")
				}
				return unix.Unshare(unix.CLONE_FILES)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()))
	if err != nil || to != os.DevNull {
		t.Errorf("an open file of the process is not in its /proc directory: %q, %v", to, err)
	}
}

func TestError(t *testing.T) {
	want := errors.New("failed")
	if err := netns.OnThread(func() error { return want }); err != want {
		t.Errorf("%v", err)
	}
}
