package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// holdTimeout bounds the building of a held lab; the greatest fill takes half of it.
const holdTimeout = time.Minute

// Hold is a lab to be kept up in the background.
type Hold struct {
	// Name of a scenario that natkit brings along; or File and Text of another.
	Name string `json:"name,omitempty"`
	File string `json:"file,omitempty"`
	Text string `json:"text,omitempty"`

	Bridge bool       `json:"bridge"`
	Server ServerKind `json:"server"`
	// Stage whose NAT rules and fill the lab gets; empty for none.
	Stage string `json:"stage"`
	// Dir is Options.Dir.
	Dir string `json:"dir"`
}

// Scenario returns the scenario to be built.
func (h Hold) Scenario() (*lab.Scenario, error) {
	var s *lab.Scenario
	var err error
	if h.Name != "" {
		s, err = lab.Find(h.Name)
	} else {
		s, err = lab.Parse(h.File, []byte(h.Text))
	}
	if err != nil {
		return nil, err
	}
	if h.Stage != "" {
		stage, ok := s.Stage(h.Stage)
		switch {
		case !ok:
			return nil, fmt.Errorf("scenario %s has no stage %q", s.Name, h.Stage)
		case len(stage.Host) > 0:
			return nil, fmt.Errorf("stage %s of scenario %s changes values of the whole host, which only 'natkit lab run --allow-host' does and puts back", h.Stage, s.Name)
		}
	}
	return s.With(lab.Overrides{Bridge: h.Bridge})
}

// Start builds the lab in a process of its own, the holder, and returns when it
// stands. The holder keeps it until Down, or until it is killed.
func (h Hold) Start(ctx context.Context) (State, error) {
	if err := permit.Change("build a lab"); err != nil {
		return State{}, err
	}
	s, err := h.Scenario()
	if err != nil {
		return State{}, err
	}
	if _, err := ReadState(h.Dir, s.Name); err == nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, errAlreadyUp)
	} else if !errors.Is(err, os.ErrNotExist) {
		return State{}, err
	}
	request, err := json.Marshal(h)
	if err != nil {
		return State{}, err
	}
	cmd := &exec.Cmd{
		Path: self, Args: []string{holderName, dirOr(h.Dir), s.Name}, Dir: "/",
		Stdin:       bytes.NewReader(request),
		SysProcAttr: &unix.SysProcAttr{Setsid: true},
	}
	if err := startReady(ctx, cmd, holdTimeout); err != nil {
		if cmd.Process != nil {
			// It may be building still; it removes everything on SIGTERM.
			_ = cmd.Process.Signal(unix.SIGTERM)
			_ = cmd.Wait()
			return State{}, err
		}
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, err)
	}
	if err := cmd.Process.Release(); err != nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, err)
	}
	return ReadState(h.Dir, s.Name)
}

// holderMain is the main function of a holder. It reads a Hold, and answers with
// one line, empty once the lab stands.
func holderMain() int {
	_ = os.WriteFile("/proc/self/comm", []byte("natkit-lab-hold"), 0)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	// The terminal that `lab up` was called from goes away; the lab stays.
	signal.Ignore(unix.SIGHUP, unix.SIGPIPE)
	ready := os.NewFile(holderReadyFd, "ready")
	unix.CloseOnExec(holderReadyFd)
	fail := func(err error) int {
		fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	var h Hold
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 2<<20)).Decode(&h); err != nil {
		return fail(fmt.Errorf("read what to build: %w", err))
	}
	l, file, err := h.build(ctx)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	fmt.Fprintln(ready)
	ready.Close()
	select {
	case <-ctx.Done():
	case <-l.Done():
	}
	// It may have been removed, and another lab may have its name by now.
	if path := statePath(h.Dir, l.scenario.Name); disk.IsAt(file, path) {
		_ = os.Remove(path)
	}
	if err := l.Close(); err != nil {
		return 1
	}
	return 0
}

// build returns the lab, and the file that marks it as up.
func (h Hold) build(ctx context.Context) (*Lab, *os.File, error) {
	s, err := h.Scenario()
	if err != nil {
		return nil, nil, err
	}
	l, err := Up(ctx, s, Options{Dir: h.Dir})
	if err != nil {
		return nil, nil, err
	}
	file, err := h.furnish(ctx, l)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start lab %s: %w", s.Name, err), l.Close())
	}
	return l, file, nil
}

// furnish starts the server, sets the stage's rules and fill, and writes it all down.
func (h Hold) furnish(ctx context.Context, l *Lab) (*os.File, error) {
	server, err := l.StartServer(ctx, h.Server)
	if err != nil {
		return nil, err
	}
	if stage, ok := l.scenario.Stage(h.Stage); ok {
		if err := l.Furnish(ctx, stage); err != nil {
			return nil, err
		}
		limit, err := ConntrackMax()
		if err == nil {
			err = l.SetFill(ctx, stage.Fill, limit)
		}
		if err != nil {
			return nil, err
		}
	}
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		return nil, err
	}
	own, err := journal.ReadProcess("/proc", os.Getpid())
	if err != nil {
		return nil, err
	}
	state := State{
		Schema: StateSchema, Name: l.scenario.Name, Title: l.scenario.Title,
		Stage: h.Stage, Server: server.Name, Topology: l.scenario.Lines(), Started: time.Now().UTC(),
		Process: own, OwnerLock: true, BootID: boot, InitPID: l.init.pid,
	}
	for _, n := range l.nodes {
		state.Nodes = append(state.Nodes, NodeState{Name: n.Name, Fd: n.Netns.Fd()})
	}
	return state.write(h.Dir)
}

// self is the running program, also after its file was replaced on disk.
const self = "/proc/self/exe"

// ownName is what calls natkit in a lab: a link in binDir, which comes first in the
// PATH of the lab's programs.
const ownName = "natkit"

// binDir is in the lab's own file system.
func binDir(mount string) string { return filepath.Join(mount, "bin") }

// Names that a re-executed natkit has as argv[0].
const (
	initName   = "natkit-lab-init"
	holderName = "natkit-lab-holder"
)

// startTimeout bounds the start of a lab's own processes.
const startTimeout = 10 * time.Second

// IsInit reports whether natkit started this process as a part of a lab; main must
// then call InitMain, and nothing else, and exit with what it returns. The name alone
// is not enough, since any process can have it: init mounts things, which it may do only
// if it is process 1 of a namespace of its own.
func IsInit() bool {
	if len(os.Args) < 2 {
		return false
	}
	switch os.Args[0] {
	case initName:
		return os.Getpid() == 1 && isPipe(initAliveFd) && isPipe(initReadyFd)
	case holderName:
		return isPipe(holderReadyFd)
	}
	return false
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// InitMain is the main function of such a process.
func InitMain() int {
	if permit.Built {
		return 1 // a lab's processes are started by a natkit that makes labs
	}
	if os.Args[0] == holderName {
		return holderMain()
	}
	return initMain(os.Args[1])
}

// File descriptors that a lab's init and holder are started with.
const (
	initAliveFd   = 3
	initReadyFd   = 4
	holderReadyFd = 3
)

// initMain is PID 1 of the lab's PID namespace. When its owner ends, however
// that happens, the pipe that only the owner holds open for writing ends too;
// with PID 1 the kernel ends every process of the namespace.
func initMain(mount string) int {
	// Without this ps(1) would show "exe", the name in the path it was started by.
	_ = os.WriteFile("/proc/self/comm", []byte(initName), 0)
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	ready := os.NewFile(initReadyFd, "ready")
	if err := ownMounts(mount); err != nil {
		fmt.Fprintf(ready, "%v\n", err)
		return 1
	}
	go reap()
	fmt.Fprintln(ready)
	ready.Close()
	_, _ = io.Copy(io.Discard, os.NewFile(initAliveFd, "owner"))
	return 0
}

// ownMounts gives the lab a /proc that shows its own processes, and a memory
// file system for its servers' files that disappears with it.
func ownMounts(mount string) error {
	if err := makePrivate(mount); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("natkit-lab", mount, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64m,mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", mount, err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount the lab's /proc: %w", err)
	}
	return linkSelf(binDir(mount))
}

// linkSelf makes natkit a program of the lab, wherever its file is, also after that
// was replaced or removed: it is what process 1 of the lab runs.
func linkSelf(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make natkit a program of the lab: %w", err)
	}
	if err := os.Symlink("/proc/1/exe", filepath.Join(dir, ownName)); err != nil {
		return fmt.Errorf("make natkit a program of the lab: %w", err)
	}
	return nil
}

// makePrivate keeps what is mounted here from coming out to the host. In a chroot
// "/" is no mount point, and the mount that it lies in cannot be named from
// within; init may leave it for a moment, since its mount namespace is its own.
func makePrivate(mount string) error {
	private := func() error { return unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }
	err := private()
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	// A process whose working directory is outside its root climbs without limit.
	if err := errors.Join(unix.Chroot(mount), root.Chdir()); err != nil {
		return err
	}
	for {
		var here, up unix.Stat_t
		if err := errors.Join(unix.Stat(".", &here), unix.Stat("..", &up), unix.Chdir("..")); err != nil {
			return err
		}
		if here.Dev == up.Dev && here.Ino == up.Ino {
			break
		}
	}
	if err := errors.Join(unix.Chroot("."), private()); err != nil {
		return err
	}
	return errors.Join(root.Chdir(), unix.Chroot("."))
}

// reap collects orphans, which the kernel hands to PID 1.
func reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for range children {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

// initProcess is the owner's side of a lab's init.
type initProcess struct {
	pid   int
	alive *os.File
	done  chan struct{}
}

func startInit(ctx context.Context, mount string) (*initProcess, error) {
	aliveR, aliveW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the lab's init: %w", err)
	}
	defer aliveR.Close()
	cmd := &exec.Cmd{
		Path: self, Args: []string{initName, mount}, Dir: "/",
		ExtraFiles:  []*os.File{initAliveFd - 3: aliveR},
		SysProcAttr: &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true},
	}
	p := &initProcess{alive: aliveW, done: make(chan struct{})}
	err = startReady(ctx, cmd, startTimeout)
	if cmd.Process == nil {
		aliveW.Close()
		return nil, fmt.Errorf("start the lab's init in PID and mount namespaces of its own: %w", netns.Denied(err, netns.SysAdmin))
	}
	p.pid = cmd.Process.Pid
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the lab's init: %w", err), p.stop())
	}
	return p, nil
}

// startReady starts a process whose last extra file is a pipe, and reads one line from
// it: empty where all is well, otherwise what is not. After an error cmd.Process is nil
// where it did not start.
func startReady(ctx context.Context, cmd *exec.Cmd, limit time.Duration) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })()
	text, err := io.ReadAll(io.LimitReader(r, 4096))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("not ready after %s", limit)
	case err != nil:
		return err
	case len(text) == 0:
		return errors.New("it ended before it was ready")
	}
	if line := strings.TrimSpace(string(text)); line != "" {
		return errors.New(line)
	}
	return nil
}

// stop returns when every process of the lab has ended: the kernel lets PID 1's
// end be seen only after that of all others (zap_pid_ns_processes).
func (p *initProcess) stop() error {
	p.alive.Close()
	select {
	case <-p.done:
		return nil
	case <-time.After(startTimeout):
	}
	_ = unix.Kill(p.pid, unix.SIGKILL)
	<-p.done
	return nil
}
