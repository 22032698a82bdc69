package apply

import (
	"bufio"
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
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune/journal"
)

const (
	// guardLook is how often a guard in deadline mode looks at the journal.
	guardLook = 250 * time.Millisecond
	// guardAttempts to undo, guardPause apart, before it is left to `lab clean`.
	guardAttempts = 30
	guardPause    = 200 * time.Millisecond
)

// guardMain undoes one transaction when its owner dies or its deadline passes.
func guardMain() int {
	if permit.Built {
		return 1 // a guard is started by a natkit that applies
	}
	hideName()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP)
	// Someone ends the guard, for instance a shutdown: what it promised comes first.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)

	in := bufio.NewReader(os.Stdin)
	ready := os.NewFile(3, "ready")
	w, err := readBrief(in)
	if err != nil {
		fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	fmt.Fprintln(ready, wordReady)
	ready.Close()
	if w.ownerFinished(in) || w.deadlineCancelled(term) {
		return 0
	}
	return w.undo()
}

// hideName gives all threads the guard's name: after the exec of /proc/self/exe
// they are called "exe", or, on kernels that name a process after the file that
// it really runs, "natkit". Threads to come inherit it, but for those that a thread which
// had not got it yet makes meanwhile: it looks until all have it.
func hideName() {
	for renamed := true; renamed; {
		renamed = false
		tasks, _ := filepath.Glob("/proc/self/task/*/comm")
		for _, comm := range tasks {
			if name, err := os.ReadFile(comm); err == nil && strings.TrimSpace(string(name)) != guardName {
				renamed = os.WriteFile(comm, []byte(guardName), 0) == nil || renamed
			}
		}
	}
}

// watch is the guard's work.
type watch struct {
	opt Options
	// last is the transaction as last read: if the journal becomes unusable the
	// values are put back all the same.
	last *journal.Transaction
}

func readBrief(in *bufio.Reader) (*watch, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read the brief: %w", err)
	}
	var b guardBrief
	if err := json.Unmarshal(line, &b); err != nil {
		return nil, fmt.Errorf("read the brief: %w", err)
	}
	j, err := journal.At(b.Journal)
	if err != nil {
		return nil, err
	}
	opt := Options{Journal: j, ProcRoot: b.ProcRoot, Root: b.Root}.withDefaults()
	tx, err := j.Load(b.ID)
	if err != nil {
		return nil, err
	}
	return &watch{opt: opt, last: tx}, nil
}

// ownerFinished waits for the owner's word or end; true where the guard has no
// work. In between SIGTERM is ignored: natkit is stopped by stopping its owner.
func (w *watch) ownerFinished(in *bufio.Reader) bool {
	word, err := in.ReadString('\n')
	switch {
	case err != nil:
		w.last.Confirm = nil // died before all was written: nothing to wait for
		return false
	default:
		return strings.TrimSpace(word) == wordDone
	}
}

// deadlineCancelled waits for the deadline; true where the transaction was
// confirmed or undone before it.
func (w *watch) deadlineCancelled(term <-chan os.Signal) bool {
	if w.last.Confirm == nil {
		return false
	}
	tick := time.NewTicker(guardLook)
	defer tick.Stop()
	for {
		if tx, err := w.opt.Journal.Reload(w.last); err == nil && tx.Confirm != nil {
			w.last = tx
		}
		left := time.Duration(w.last.Confirm.BoottimeNS) - w.opt.Clock.Boottime()
		switch {
		case w.last.Finished() || w.last.Confirm.Confirmed:
			return true
		case left <= 0:
			return false
		case left < guardLook:
			tick.Reset(left)
		}
		select {
		case <-tick.C:
		case <-term:
			return false
		}
	}
}

// undo takes the transaction back, unless it was confirmed or undone meanwhile.
func (w *watch) undo() int {
	for range guardAttempts {
		if w.tryUndo() == nil {
			return 0
		}
		time.Sleep(guardPause)
	}
	return 1
}

// expire records that a transaction is undone because it was not confirmed.
func expire(tx *journal.Transaction) {
	if tx.Complete && tx.Unconfirmed() {
		tx.Confirm.Expired = true
	}
}

func (w *watch) tryUndo() error {
	tx, err := undoOwn(w.last, w.opt, func(tx *journal.Transaction) error {
		stays := tx.Complete && !tx.Lifeline && tx.Confirm == nil // all was written before the owner died
		if tx.Finished() || stays || tx.Confirm != nil && tx.Confirm.Confirmed {
			return errMeanwhile
		}
		expire(tx)
		return nil
	})
	if errors.Is(err, errMeanwhile) || tx != nil && tx.Finished() {
		return nil // also where the values are back and the journal cannot be written
	}
	return err
}

const (
	// guardName is all that others see of the guard (argv and comm, at most 15
	// bytes): `pkill -f natkit` must not find it. Who looks for the file that it
	// runs (`pidof /usr/bin/natkit`, `fuser -k`) still does; then the journal is
	// left.
	guardName = "nk-guard"
	// guardPatience is how long the guard may take to start or to end.
	guardPatience = 10 * time.Second
	// guardFarewell is how long an undo or a confirmation waits for a guard that
	// is no longer needed.
	guardFarewell = 3 * time.Second

	wordReady = "ready"
	wordDone  = "done"  // undone by the owner: nothing is left to do
	wordLeave = "leave" // the owner may go, the deadline holds from now on
)

// guardBrief is what the guard needs to know. It goes through the pipe, as
// argv is for everyone to see and to match.
type guardBrief struct {
	Journal  string `json:"journal"`
	ID       string `json:"id"`
	ProcRoot string `json:"proc_root"`
	Root     string `json:"root"`
}

// guard is the owner's end of a guard process. A nil guard is none.
type guard struct {
	process journal.Process
	cmd     *exec.Cmd
	// line's other end reads EOF when the owner dies, however it dies.
	line *os.File
}

// startGuard returns once the guard stands ready to undo the transaction.
func startGuard(ctx context.Context, opt Options, id string) (*guard, error) {
	if !armed { // it would start itself over and over
		return nil, errors.New("start the guard process: this program did not call apply.Init")
	}
	g, ready, err := spawnGuard()
	if err != nil {
		return nil, fmt.Errorf("start the guard process: %w", err)
	}
	defer ready.Close()
	if err := g.introduce(ctx, ready, opt, id); err != nil {
		// Not by its pipe: it would wait for the lock, which this process holds.
		g.cmd.Process.Kill()
		g.line.Close()
		g.reap()
		return nil, fmt.Errorf("start the guard process: %w", err)
	}
	return g, nil
}

func spawnGuard() (*guard, *os.File, error) {
	lineR, lineW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer lineR.Close()
	readyR, readyW, err := os.Pipe()
	if err != nil {
		lineW.Close()
		return nil, nil, err
	}
	defer readyW.Close()
	cmd := &exec.Cmd{
		Path:  "/proc/self/exe", // also right when the file was replaced meanwhile
		Args:  []string{guardName},
		Env:   []string{"GOMAXPROCS=1"},
		Dir:   "/",
		Stdin: lineR, // stdout and stderr are /dev/null, or `natkit … | tee` would not end
		// A session of its own: no Ctrl-C, no hang-up reaches it.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		ExtraFiles:  []*os.File{readyW},
	}
	if err := cmd.Start(); err != nil {
		lineW.Close()
		readyR.Close()
		return nil, nil, err
	}
	return &guard{cmd: cmd, line: lineW}, readyR, nil
}

func (g *guard) introduce(ctx context.Context, ready *os.File, opt Options, id string) error {
	process, err := journal.ReadProcess("/proc", g.cmd.Process.Pid)
	if err != nil {
		return err
	}
	g.process = process
	brief, err := json.Marshal(guardBrief{opt.Journal.Dir(), id, opt.ProcRoot, opt.Root})
	if err != nil {
		return err
	}
	if _, err := g.line.Write(append(brief, '\n')); err != nil {
		return err
	}
	if err := ready.SetReadDeadline(time.Now().Add(guardPatience)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	defer stop()
	answer, err := bufio.NewReader(ready).ReadString('\n')
	answer = strings.TrimSpace(answer)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case answer == wordReady:
		return nil
	case errors.Is(err, io.EOF) && answer == "":
		return errors.New("it ended at once")
	case err != nil:
		return err
	}
	return errors.New(answer)
}

// leave sends the guard into deadline mode, in which it survives the owner.
func (g *guard) leave() error {
	_, err := io.WriteString(g.line, wordLeave+"\n")
	return errors.Join(err, g.line.Close())
}

// dismiss ends the guard of a transaction that is undone or confirmed.
func (g *guard) dismiss() {
	if g == nil {
		return
	}
	if _, err := io.WriteString(g.line, wordDone+"\n"); err != nil {
		// It is gone, or waits for the deadline: then it looks at the journal now,
		// or, where there is none, finds the values as they were.
		g.cmd.Process.Signal(syscall.SIGTERM)
	}
	g.line.Close()
	g.reap()
}

// reap waits for the guard's end; one that does not come to an end is ended.
func (g *guard) reap() {
	timer := time.AfterFunc(guardPatience, func() { g.cmd.Process.Kill() })
	defer timer.Stop()
	g.cmd.Wait()
}

// retireGuard sends a guard that waits for a deadline home, now that the journal
// says that it has nothing to do, and waits until it has left. By itself it would
// look guardLook later; where it does not come to an end, it still does.
func retireGuard(tx *journal.Transaction) {
	g := tx.Guard
	elsewhere := g.Namespace != 0 && g.Namespace != journal.NamespaceInode("/proc", "pid")
	if tx.Confirm == nil || g.PID <= 0 || g.PID == os.Getpid() || elsewhere {
		return
	}
	// Held before it is looked at, so that its number cannot come to be another's.
	p, err := os.FindProcess(g.PID)
	if err != nil {
		return
	}
	defer p.Release()
	if !g.Alive("/proc") || p.Signal(syscall.SIGTERM) != nil {
		return
	}
	for deadline := time.Now().Add(guardFarewell); g.Alive("/proc") && time.Now().Before(deadline); {
		time.Sleep(2 * time.Millisecond)
	}
}
