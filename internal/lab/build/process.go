package build

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sandbox is the lab's PID and mount namespaces, seen from outside.
type sandbox struct {
	initPID  int
	pid, mnt *os.File
	// root is the root directory inside: of the host's, or of the chroot that
	// natkit runs in.
	root *os.File
	// mount is where the lab's own file system is, inside.
	mount string
}

func openSandbox(initPID int, mount string) (*sandbox, error) {
	if err := insideOnly(mount); err != nil {
		return nil, err
	}
	b := &sandbox{initPID: initPID, mount: mount}
	for name, file := range map[string]**os.File{"ns/pid": &b.pid, "ns/mnt": &b.mnt, "root": &b.root} {
		var err error
		if *file, err = os.Open(fmt.Sprintf("/proc/%d/%s", initPID, name)); err != nil {
			return nil, errors.Join(fmt.Errorf("open the lab's %s: %w", name, err), b.close())
		}
	}
	return b, nil
}

// insideOnly fails where the lab's mount propagated to the host in spite of makePrivate,
// and unmounts it there.
func insideOnly(mount string) error {
	var here, parent unix.Stat_t
	if err := errors.Join(unix.Stat(mount, &here), unix.Stat(filepath.Dir(mount), &parent)); err != nil {
		return fmt.Errorf("stat %s: %w", mount, err)
	}
	if here.Dev == parent.Dev {
		return nil
	}
	return errors.Join(
		fmt.Errorf("%s is a mount point on the host: the lab's own file system came out by mount propagation", mount),
		unix.Unmount(mount, unix.MNT_DETACH))
}

func (b *sandbox) close() (err error) {
	for _, f := range []*os.File{b.pid, b.mnt, b.root} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// file is the path, from outside, of a file in the lab's own file system.
func (b *sandbox) file(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.initPID), b.mount, name)
}

// Command is a program to start in a node.
type Command struct {
	// Path is searched in PATH if it has no slash, and natkit is this binary;
	// Name is argv[0], Path where empty.
	Path, Name string
	// Args do not contain the program's name.
	Args []string
	// Dir is the working directory, "/" where empty.
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Foreground leaves the program in this process's session, so that it gets
	// the terminal and its signals.
	Foreground bool
}

// waitDelay is how long the end of a program's output is waited for after the
// end of the program itself: children of its own may hold it open.
const waitDelay = time.Second

// Process is a program that runs in a lab.
type Process struct {
	cmd  *exec.Cmd
	tail tail
	done chan struct{}
	err  error // valid once done is closed
}

// Start runs a program in a node, in the lab's own PID and mount namespaces.
// ctx bounds the starting, not the program.
func (l *Lab) Start(ctx context.Context, node string, c Command) (*Process, error) {
	n, err := l.FindNode(node)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path, err := l.box.program(c.Path)
	if err != nil {
		return nil, fmt.Errorf("start in %s: %w", node, err)
	}
	p := &Process{done: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path: path, Args: append([]string{cmp.Or(c.Name, c.Path)}, c.Args...), Env: l.box.environment(), Dir: cmp.Or(c.Dir, "/"),
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: p.stderr(c.Stderr),
		SysProcAttr: &unix.SysProcAttr{Setsid: !c.Foreground},
		WaitDelay:   waitDelay,
	}
	if err := l.box.start(n, p.cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", c.Path, node, err)
	}
	go func() {
		p.err = p.explain(p.cmd.Wait())
		close(p.done)
	}()
	l.mu.Lock()
	l.processes = append(l.processes, p)
	l.mu.Unlock()
	return p, nil
}

// program is the path, inside, of a program.
func (b *sandbox) program(name string) (string, error) {
	if name == ownName {
		return filepath.Join(binDir(b.mount), ownName), nil
	}
	return exec.LookPath(name)
}

// environment is that of this process, but the lab's natkit comes first in PATH.
func (b *sandbox) environment() []string {
	path := binDir(b.mount)
	if rest := os.Getenv("PATH"); rest != "" {
		path += ":" + rest
	}
	return append(os.Environ(), "PATH="+path) // of two of a name exec.Cmd takes the last
}

// start forks from a thread that is in the lab's namespaces and then ends. A
// thread may enter a mount namespace only without sharing its working directory.
// Entering a PID namespace counts for children only.
func (b *sandbox) start(n *Node, cmd *exec.Cmd) error {
	return n.Netns.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the shared working directory: %w", err)
		}
		if err := unix.Setns(int(b.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the lab's mount namespace: %w", err)
		}
		// setns(2) left a chroot, if natkit runs in one: its programs and files are
		// those of the chroot.
		if err := errors.Join(unix.Fchdir(int(b.root.Fd())), unix.Chroot(".")); err != nil {
			return fmt.Errorf("enter the lab's root directory: %w", err)
		}
		if err := unix.Setns(int(b.pid.Fd()), unix.CLONE_NEWPID); err != nil {
			return fmt.Errorf("enter the lab's PID namespace: %w", err)
		}
		err := cmd.Start()
		if errors.Is(err, unix.ENOMEM) {
			// fork(2) fails so once a PID namespace's init has ended.
			return fmt.Errorf("%w (the lab has ended)", err)
		}
		return err
	})
}

// stderr keeps the end of what the program writes, except where it writes to a
// file or terminal itself.
func (p *Process) stderr(w io.Writer) io.Writer {
	switch w := w.(type) {
	case nil:
		return &p.tail
	case *os.File:
		return w
	default:
		return io.MultiWriter(w, &p.tail)
	}
}

func (p *Process) explain(err error) error {
	if err == nil {
		return nil
	}
	name := filepath.Base(p.cmd.Args[0])
	if line := p.tail.lastLine(); line != "" {
		return fmt.Errorf("%s: %w: %s", name, err, line)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// PID is the program's process id as this process sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns when the program has ended. Its error wraps *exec.ExitError and
// names the last line that the program wrote to its standard error.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Signal sends the program a signal; without effect once it has ended.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the program at once, with its process group unless it runs in the
// foreground, and waits for its end.
func (p *Process) Kill() {
	select {
	case <-p.done: // its process id may be another's by now
		return
	default:
	}
	if p.cmd.SysProcAttr.Setsid {
		_ = unix.Kill(-p.PID(), unix.SIGKILL)
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}
