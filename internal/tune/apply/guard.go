package apply

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/tune/journal"
)

const (
	// guardLook is how often a guard in deadline mode looks at the journal.
	guardLook = 250 * time.Millisecond
	// guardAttempts to undo, guardPause apart, before it is left to `lab clean`.
	guardAttempts = 30
	guardPause    = 200 * time.Millisecond
)

// Every binary that can start a guard, test binaries included, is the guard and
// nothing else when it is called by the guard's name. An init, as a program that
// forgot to dispatch would otherwise start itself over and over.
func init() {
	if len(os.Args) == 1 && os.Args[0] == guardName {
		os.Exit(guardMain())
	}
}

// guardMain undoes one transaction when its owner dies or its deadline passes.
func guardMain() int {
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
// work. In between SIGTERM is left alone: whoever stops natkit stops its owner.
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

// expire notes that a transaction is undone because nobody confirmed it.
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
