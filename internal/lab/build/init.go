package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/privilege"
)

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
// is not enough, since anybody can give it: init mounts things, which it may do only
// where it is process 1 of a namespace of its own.
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
	readyR, readyW, err := os.Pipe()
	if err != nil {
		aliveW.Close()
		return nil, fmt.Errorf("start the lab's init: %w", err)
	}
	defer readyR.Close()
	cmd := &exec.Cmd{
		Path: self, Args: []string{initName, mount}, Dir: "/",
		ExtraFiles:  []*os.File{initAliveFd - 3: aliveR, initReadyFd - 3: readyW},
		SysProcAttr: &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true},
	}
	err = cmd.Start()
	readyW.Close()
	if err != nil {
		aliveW.Close()
		return nil, fmt.Errorf("start the lab's init in PID and mount namespaces of its own: %w", privilege.Denied(err, privilege.SysAdmin))
	}
	p := &initProcess{pid: cmd.Process.Pid, alive: aliveW, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	if err := awaitReady(ctx, readyR, startTimeout); err != nil {
		return nil, errors.Join(fmt.Errorf("start the lab's init: %w", err), p.stop())
	}
	return p, nil
}

// awaitReady reads one line: empty where all is well, otherwise what is not.
func awaitReady(ctx context.Context, r *os.File, limit time.Duration) error {
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
