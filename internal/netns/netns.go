//go:build linux

// Package netns runs functions inside network namespaces without letting a
// thread that was moved there back into Go's pool.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// Handle keeps a network namespace alive by a file descriptor and names it in
// errors. An anonymous namespace disappears with its last Handle.
type Handle struct {
	file  *os.File
	name  string
	inode uint64
}

// New creates an anonymous network namespace. Needs CAP_SYS_ADMIN.
func New(name string) (*Handle, error) {
	if err := permit.ChangeOf("create network namespace", name); err != nil {
		return nil, err
	}
	var h *Handle
	err := OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace %s: %w", name, Denied(err, SysAdmin))
		}
		var err error
		h, err = ofThread(name)
		return err
	})
	return h, err
}

// Current is the namespace of the calling process.
func Current() (*Handle, error) { return open("/proc/self/ns/net", "") }

func ofThread(name string) (*Handle, error) { return open("/proc/thread-self/ns/net", name) }

// namedDirs are where ip-netns(8) keeps namespaces; which one it is depends on how
// iproute2 was built.
var namedDirs = []string{"/run/netns", "/var/run/netns"}

// Names are those of 'ip netns list', in order.
func Names() []string {
	var names []string
	for _, dir := range namedDirs {
		entries, _ := os.ReadDir(dir) // not there before the first one is made
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // one directory may be a link to the other
}

// Named is the namespace that ip-netns(8) calls name.
func Named(name string) (*Handle, error) {
	if name == "" || strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("open network namespace %q: not a name; 'ip netns list' shows them", name)
	}
	for _, dir := range namedDirs {
		h, err := open(filepath.Join(dir, name), name)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return h, err
		}
	}
	return nil, fmt.Errorf("open network namespace %q: %w; 'ip netns list' shows them", name, os.ErrNotExist)
}

// OfPID is the namespace of a process, for instance of a container's first one.
func OfPID(pid int) (*Handle, error) {
	h, err := open(fmt.Sprintf("/proc/%d/ns/net", pid), fmt.Sprintf("pid %d", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open network namespace of pid %d: no such process", pid)
	}
	return h, err
}

// At is the namespace that a path leads to, such as a file descriptor of another
// process below /proc/PID/fd.
func At(path, name string) (*Handle, error) { return open(path, name) }

// open looks at what stands at the path before it opens it: a process may put something
// else in the place of a descriptor meanwhile, such as a FIFO, on which an open waits.
func open(path, name string) (*Handle, error) {
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, Denied(err, Ptrace))
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(at, &fs); err != nil {
		return nil, fmt.Errorf("stat network namespace %s: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("open network namespace %s: %w", path, errOther)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	h := &Handle{file: os.NewFile(uintptr(fd), path), name: name}
	if err := h.identify(); err != nil {
		h.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return h, nil
}

// errOther: what was opened is something else.
var errOther = errors.New("it is not a network namespace")

// identify makes sure of the type of the namespace and reads its inode.
func (h *Handle) identify() error {
	kind, err := unix.IoctlRetInt(h.Fd(), unix.NS_GET_NSTYPE)
	if err != nil {
		return err
	}
	if kind != unix.CLONE_NEWNET {
		return errOther
	}
	var st unix.Stat_t
	if err := unix.Fstat(h.Fd(), &st); err != nil {
		return err
	}
	h.inode = st.Ino
	return nil
}

// Name returns the namespace's name in messages; empty for the current one.
func (h *Handle) Name() string { return h.name }

// Inode identifies the namespace, as in `ls -L -i /proc/PID/ns/net` and in the
// kernel's "table full in netns N" line.
func (h *Handle) Inode() uint64 { return h.inode }

// Fd stays valid until Close.
func (h *Handle) Fd() int { return int(h.file.Fd()) }

// Close lets go of the namespace; of nil, which stands for the one natkit runs in,
// it is nothing.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	return h.file.Close()
}

// Enter moves the calling thread into the namespace. The caller runs in
// [OnThread], so that the thread ends with it.
func (h *Handle) Enter() error {
	if err := unix.Setns(h.Fd(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", h.name, Denied(err, SysAdmin))
	}
	runtime.KeepAlive(h.file)
	return nil
}

// Do runs fn in the namespace on a thread of its own and waits for it. What fn
// starts with `go` runs elsewhere: sockets made in fn stay in the namespace,
// goroutines do not. A nil Handle stands for the calling thread's namespace, in which fn
// runs at once.
func (h *Handle) Do(fn func() error) error {
	if h == nil {
		return fn()
	}
	return OnThread(func() error {
		if err := h.Enter(); err != nil {
			return err
		}
		return fn()
	})
}

// Dup returns another Handle of the same namespace, which is closed separately.
func (h *Handle) Dup() (*Handle, error) {
	defer runtime.KeepAlive(h.file)
	return open(fmt.Sprintf("/proc/self/fd/%d", h.Fd()), h.name)
}

// CommandIn quotes a command for a shell so that it runs in ns, or in the calling thread's
// where that is nil; as it is where that is the one natkit was started in. Where no name
// and no process leads there, it says where.
func CommandIn(ns *Handle, command string) string {
	if ns == nil {
		var err error
		if ns, err = ofThread(""); err != nil {
			return "'" + command + "'"
		}
		defer ns.Close()
	}
	switch way := Way(ns); way {
	case "":
		return "'" + command + "'"
	case noWay:
		return fmt.Sprintf("'%s' in network namespace %d", command, ns.inode)
	default:
		return "'" + way + " " + command + "'"
	}
}

// plain is what no shell reads otherwise.
var plain = regexp.MustCompile(`^[\w./:@%+-]+$`)

// noWay leaves it to the reader to find a way.
const noWay = "nsenter --net=FILE"

// Way is the command that enters the namespace from where natkit was started: by its name
// if it has one, or else by a process in it or a mount. What a process holds by a
// descriptor may be closed at any time. It is empty for the one natkit was started in, for
// which nil stands.
func Way(h *Handle) string {
	if h == nil {
		return ""
	}
	if here, err := Current(); err == nil {
		defer here.Close()
		if here.inode == h.inode {
			return ""
		}
	}
	if name := NameOf(h.inode); name != "" {
		return "ip netns exec " + name
	}
	self := fmt.Sprintf("/proc/%d/", os.Getpid())
	for p := range new(search).places() {
		process, in := strings.CutSuffix(p.path, "/ns/net")
		switch {
		case p.inode != h.inode || strings.HasPrefix(p.path, self) || !plain.MatchString(p.path):
		case in:
			return "nsenter -t " + filepath.Base(process) + " -n"
		case strings.Contains(p.path, "/root/"):
			return "nsenter --net=" + p.path
		}
	}
	return noWay
}

// NameOf is a name of 'ip netns list' of the namespace of that inode; empty where it has none
// that a shell reads as it is.
func NameOf(inode uint64) string {
	for _, name := range Names() {
		named, err := Named(name)
		if err != nil {
			continue
		}
		named.Close()
		if named.inode == inode && plain.MatchString(name) {
			return name
		}
	}
	return ""
}

// Sysctl reads a sysctl of a namespace (nil: the calling thread's) by its dotted name. One
// of the whole machine has the same value in each.
func Sysctl(ns *Handle, name string) (value string, err error) {
	err = ns.Do(func() error {
		text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		value = strings.TrimSpace(string(text))
		return err
	})
	return value, err
}

// OnThread runs fn on an operating-system thread that ends with it, so that what fn changes
// of the thread (namespaces, file table, credentials, CPUs) reaches nothing else of the
// process, and waits for it. What fn starts with `go`
// runs elsewhere.
//
// The runtime destroys a thread whose goroutine ends while locked to it, except
// the process's first one, which it parks for good. That one stands for the
// process: /proc/PID/ns and /proc/PID/fd are its namespaces and its file table. So
// fn never runs there: the first thread is held until fn has run on another.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(fn)
			return
		}
		done <- fn() // never unlocked
	}()
	return <-done
}
