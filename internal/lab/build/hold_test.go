package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// hold keeps a lab up until the end of the test, and sees that nothing is left.
func hold(t *testing.T, h Hold) State {
	t.Helper()
	testutil.NeedRoot(t)
	h.Dir = t.TempDir()
	state, err := h.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(h.Dir, state); err != nil {
			t.Error(err)
		}
		awaitNothingLeft(t, h.Dir)
	})
	return state
}

func dirOf(state State, t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", state.InitPID))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.Split(string(text), "\x00")[1])
}

func TestHeldLabIsEnteredAndTakenDown(t *testing.T) {
	state := hold(t, Hold{Name: "table-full", Server: Builtin, Stage: "nat"})
	dir := dirOf(state, t)
	up, err := States(dir)
	if err != nil || len(up) != 1 || up[0].Name != "table-full" || up[0].PID != state.PID {
		t.Fatalf("labs up: %+v, error %v", up, err)
	}
	if len(leftovers(dir)) < 3 { // holder, init, server and the state file
		t.Fatalf("what a lab could leave is not seen while it is there: %v", leftovers(dir))
	}
	l, err := Attach(dir, state)
	if err != nil {
		t.Fatal(err)
	}
	mustGet(t, l, gatewayPort)
	if out := run(t, l, "gateway", "", "cat", "/proc/1/comm"); out != initName+"\n" {
		t.Errorf("process 1 is %q", out)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	again := Hold{Name: "table-full", Server: Builtin, Dir: dir}
	if _, err := again.Start(t.Context()); !errors.Is(err, errAlreadyUp) {
		t.Errorf("a second lab of the name: error %v", err)
	}
	if err := Down(dir, state); err != nil {
		t.Fatal(err)
	}
	awaitNothingLeft(t, dir)
	if err := Down(dir, state); err != nil {
		t.Errorf("a lab that is down already: %v", err)
	}
	if _, err := Attach(dir, state); err == nil {
		t.Error("a lab that is down can be entered")
	}
}

func TestOnlyOneOfTwoAtOnceStands(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	type result struct {
		state State
		err   error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			state, err := Hold{Name: "table-full", Server: Builtin, Dir: dir}.Start(context.Background())
			results <- result{state, err}
		}()
	}
	first, second := <-results, <-results
	if first.err != nil {
		first, second = second, first
	}
	if first.err != nil || !strings.Contains(fmt.Sprint(second.err), "it is up already") {
		t.Errorf("errors %v and %v, want one lab up and one refused", first.err, second.err)
	}
	if first.err == nil {
		if err := Down(dir, first.state); err != nil {
			t.Error(err)
		}
	}
	awaitNothingLeft(t, dir)
}

// TestKilledHolderLeavesOnlyItsFile kills the process that owns the lab, as it
// would kill natkit in the middle of a run.
func TestKilledHolderLeavesOnlyItsFile(t *testing.T) {
	kind := Builtin
	if _, err := findNginx(t.Context()); err == nil {
		kind = Nginx // its master and workers are three processes more to end
	}
	state := hold(t, Hold{Name: "table-full", Server: kind, Stage: "nat", Bridge: true})
	dir := dirOf(state, t)
	l, err := Attach(dir, state)
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Start(t.Context(), "client", Command{Path: "sh", Args: []string{"-c", "trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(state.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // ends with the lab, or the test's own deadline comes
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		if left := leftovers(dir); len(left) != 1 || left[0] != "file "+statePath(dir, state.Name) {
			return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		return nil
	})
	up, err := States(dir)
	if err != nil || len(up) != 0 {
		t.Errorf("labs up: %+v, error %v", up, err)
	}
	awaitNothingLeft(t, dir)
}

// TestKilledHolderLeavesPinsToSweep: programs that are pinned are all that outlives a holder, until they are swept. Those
// of a lab that is up stay.
func TestKilledHolderLeavesPinsToSweep(t *testing.T) {
	testutil.NeedFeature(t, testutil.BTF)
	pins := func(s State) string {
		l, err := Attach(dirOf(s, t), s)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ns := l.Node("gateway").Netns
		state, err := engine.Standard.Read(ns, nil, false)
		if err != nil || !state.Present || len(state.Modes) != 2 {
			t.Fatalf("%+v, error %v", state, err)
		}
		for _, mode := range state.Modes {
			if mode != string(plane.XDP) {
				t.Errorf("programs are attached at %s", mode)
			}
		}
		id, err := netns.IDOf(ns)
		if err != nil {
			t.Fatal(err)
		}
		return plane.PinsOf(fmt.Sprintf("netns-%d-%d", id.Inode, id.Cookie)).Dir()
	}
	killed := hold(t, Hold{Name: "stateless", Server: Builtin, Stage: "xdp"})
	kept := hold(t, Hold{Name: "stateless", Server: Builtin, Stage: "xdp"})
	left, stays := pins(killed), pins(kept)
	if err := unix.Kill(killed.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // the kernel removes namespaces in its own time
		removed, err := engine.Standard.Sweep()
		if err != nil || slices.Contains(removed, stays) {
			t.Fatalf("removed %v, error %v", removed, err)
		}
		if !slices.Contains(removed, left) {
			return fmt.Errorf("%s is still there; removed %v", left, removed)
		}
		return nil
	})
	if pins(kept) != stays {
		t.Errorf("%s is gone", stays)
	}
	if err := Down(dirOf(kept, t), kept); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if there, err := os.ReadDir(stays); err == nil {
			return fmt.Errorf("%s has %d files", stays, len(there))
		}
		return nil
	})
}

// inOtherPIDNamespace starts the test binary as process 1 of a PID namespace, as a
// container's first process is.
func inOtherPIDNamespace(t *testing.T, mode, dir string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), elsewhereEnv+"="+mode, "DIR="+dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	_, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

func TestLabOfAnotherPIDNamespaceIsUp(t *testing.T) {
	state := hold(t, Hold{Name: "table-full", Server: Builtin})
	dir := dirOf(state, t)
	_, out := inOtherPIDNamespace(t, "list", dir)
	count, _ := out.ReadString('\n')
	line, _ := out.ReadString('\n')
	if count != "1 <nil>\n" || strings.Count(line, "run natkit there") != 2 {
		t.Errorf("seen from there: %s%s", count, line)
	}
	if up, err := States(dir); err != nil || len(up) != 1 {
		t.Errorf("labs up: %+v, error %v", up, err)
	}
}

func TestLabEndsWithItsContainer(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	cmd, out := inOtherPIDNamespace(t, "hold", dir)
	if line, err := out.ReadString('\n'); line != "up <nil>\n" {
		t.Fatalf("%s%v", line, err)
	}
	if up, err := States(dir); err != nil || len(up) != 1 {
		t.Errorf("labs up: %+v, error %v", up, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if up, err := States(dir); err != nil || len(up) != 0 {
		t.Errorf("labs up after kill -9 of process 1: %+v, error %v", up, err)
	}
	awaitNothingLeft(t, dir)
}

func TestKilledInitEndsTheHolder(t *testing.T) {
	state := hold(t, Hold{Name: "table-full", Server: Builtin})
	dir := dirOf(state, t)
	if err := unix.Kill(state.InitPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitNothingLeft(t, dir)
}

func TestHoldErrorsAreOneLine(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tc := range []struct {
		name string
		hold Hold
		want string
	}{
		{"scenario", Hold{Name: "nothing"}, `unknown scenario "nothing"; there are: `},
		{"file", Hold{File: "mine.yaml", Text: `"x"`}, "mine.yaml:1:1: "},
		{"stage", Hold{Name: "table-full", Stage: "late"}, `scenario table-full has no stage "late"`},
		{"server", Hold{Name: "table-full", Server: "apache"}, `unknown server "apache"; expected auto, nginx or builtin`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.hold.Dir = t.TempDir()
			_, err := tc.hold.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
			awaitNothingLeft(t, tc.hold.Dir)
		})
	}
}

// TestStateOfAnEarlierVersion: its holder has no lock, and is up as long as its process.
func TestStateOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	boot, errBoot := journal.ReadBootID("/proc")
	own, err := journal.ReadProcess("/proc", os.Getpid())
	if err := errors.Join(errBoot, err); err != nil {
		t.Fatal(err)
	}
	alive := State{Schema: StateSchema, Name: "alive", Process: own, BootID: boot}
	reused, rebooted := alive, alive
	reused.Name, reused.StartTicks = "reused", own.StartTicks+1
	rebooted.Name, rebooted.BootID = "rebooted", "another"
	for _, s := range []State{alive, reused, rebooted} {
		file, err := s.write(dir)
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	if up, err := States(dir); err != nil || len(up) != 1 || up[0].Name != alive.Name {
		t.Errorf("up: %+v, error %v", up, err)
	}
}

// TestHolderLeavesAnothersFile: at its end it removes its own file only.
func TestHolderLeavesAnothersFile(t *testing.T) {
	state := hold(t, Hold{Name: "table-full", Server: Builtin})
	dir := dirOf(state, t)
	path := statePath(dir, state.Name)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := state.write(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	defer other.Close()
	fd, err := unix.PidfdOpen(state.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil || !ended(fd, startTimeout) {
		t.Fatalf("the holder does not end: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file of another lab: %v", err)
	}
}

func TestStatesThatAreNotUp(t *testing.T) {
	dir := t.TempDir()
	if up, err := States(dir); err != nil || len(up) != 0 {
		t.Errorf("without a directory: %v, error %v", up, err)
	}
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	own, err := journal.ReadProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	alive := State{Schema: StateSchema, Name: "alive", Process: own, OwnerLock: true, BootID: boot}
	reused, elsewhere := alive, alive
	reused.Name, reused.StartTicks = "reused", own.StartTicks+1
	elsewhere.Name, elsewhere.Namespace = "elsewhere", own.Namespace+1
	ended := elsewhere
	ended.Name = "ended"
	for _, s := range []State{alive, reused, elsewhere, ended} {
		file, err := s.write(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if s.Name == ended.Name || s.Name == reused.Name {
			file.Close()
		}
	}
	if _, err := alive.write(dir); !errors.Is(err, errAlreadyUp) {
		t.Errorf("a second file of the name: error %v", err)
	}
	up, err := States(dir)
	if err != nil || len(up) != 2 || up[0].Name != "alive" || up[1].Name != "elsewhere" {
		t.Errorf("up: %+v, error %v", up, err)
	}
	files, err := os.ReadDir(stateDir(dir))
	if err != nil || len(files) != 2 {
		t.Errorf("files %v, error %v; want those of living labs only", files, err)
	}
	if err := Down(dir, reused); err != nil {
		t.Errorf("Down of a lab whose process id is another's: %v", err)
	}
	for _, name := range []string{"../alive", "", "gone"} {
		if _, err := ReadState(dir, name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("lab %q: error %v", name, err)
		}
	}
	if err := os.WriteFile(statePath(dir, "odd"), bytes.Repeat([]byte("{"), 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := States(dir); err == nil || !strings.Contains(err.Error(), "remove it by hand") {
		t.Errorf("a file that is none: error %v", err)
	}
}

func TestNginxConfiguration(t *testing.T) {
	old := parseNginx("/usr/sbin/nginx", "nginx version: nginx/1.14.2\nconfigure arguments: --without-http_scgi_module --without-http_uwsgi_module")
	if old.version != "nginx/1.14.2" || old.atLeast(1, 19, 5) {
		t.Errorf("old nginx: %+v", old)
	}
	config := old.config("/x", listening{at: []netip.AddrPort{serverPort}}, 1024, "nobody nogroup")
	for _, want := range []string{"worker_rlimit_nofile 1024;", "worker_connections 960;", "user nobody nogroup;", "listen 198.19.0.2:80 backlog=65535;", "keepalive_timeout 0;", "proxy_temp_path /x/proxy;"} {
		if !strings.Contains(config, want) {
			t.Errorf("no %q in\n%s", want, config)
		}
	}
	for _, unwanted := range []string{"scgi", "uwsgi"} {
		if strings.Contains(config, unwanted) {
			t.Errorf("%s, which this nginx does not know, in\n%s", unwanted, config)
		}
	}
	for _, arg := range old.command("/x").Args {
		if arg == "-e" {
			t.Error("-e for an nginx that does not know it")
		}
	}
	modern := parseNginx("/usr/sbin/nginx", "nginx version: nginx/1.22.1")
	if !modern.atLeast(1, 19, 5) || !parseNginx("", "angie").atLeast(1, 19, 5) {
		t.Error("a newer or unknown nginx counts as old")
	}
	if config := modern.config("/x", listening{at: []netip.AddrPort{serverPort}}, 1<<20, "root"); !strings.Contains(config, fmt.Sprintf("worker_connections %d;", wantConnections)) {
		t.Errorf("many files are not used:\n%s", config)
	}
	second := netip.MustParseAddrPort("[2001:db8::2]:80")
	kept := modern.config("/x", listening{at: []netip.AddrPort{serverPort, second}, keep: true}, 1024, "root")
	for _, want := range []string{"listen 198.19.0.2:80 backlog=65535;", "listen [2001:db8::2]:80 backlog=65535;", "keepalive_timeout 75;"} {
		if !strings.Contains(kept, want) {
			t.Errorf("no %q in\n%s", want, kept)
		}
	}
	if strings.Contains(kept, "keepalive_timeout 0;") {
		t.Errorf("connections are not kept:\n%s", kept)
	}
	if len(page) != pageBytes {
		t.Errorf("the page has %d bytes", len(page))
	}
}

// Whoever calls natkit by the names of a lab's processes gets natkit: without the
// pipes of a lab, and as init without a PID namespace too, nothing is mounted or built.
func TestNameAloneMakesNoInit(t *testing.T) {
	testutil.NeedRoot(t)
	for _, c := range []struct {
		name  string
		flags uintptr
		pipes int
	}{
		{name: initName},
		{name: initName, pipes: 2},
		{name: initName, flags: unix.CLONE_NEWPID},
		{name: holderName},
	} {
		// Its mounts are its own in any case: a failing test must not mount on the host.
		cmd := &exec.Cmd{Path: self, Args: []string{c.name, "-test.run=^$"}, SysProcAttr: &unix.SysProcAttr{Cloneflags: c.flags | unix.CLONE_NEWNS}}
		for range c.pipes {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, r)
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "no tests to run") {
			t.Errorf("%s, clone flags %#x, %d pipes: %v, %q; want what the program does by any name", c.name, c.flags, c.pipes, err, out)
		}
	}
}
