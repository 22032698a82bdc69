package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/permit"
)

// mostHooks is how many commands of a Hook run at a time: a host with many findings at once is busy.
const mostHooks = 4

// Hook runs a command of the user for each event, one at a time for each finding. Meanwhile its newest event waits.
type Hook struct {
	// Command is for /bin/sh, which has Limit to end.
	Command string
	Limit   time.Duration
	// Output is where its output goes.
	Output io.Writer
	// Failed receives why a command failed.
	Failed func(error)

	mutex   sync.Mutex
	running map[string]bool
	waiting map[string]diagnose.Event
	slots   chan struct{}
	all     sync.WaitGroup
}

// Run runs the command for an event, without waiting for it. It is killed when ctx ends.
func (h *Hook) Run(ctx context.Context, e diagnose.Event) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.running == nil {
		h.running, h.waiting, h.slots = map[string]bool{}, map[string]diagnose.Event{}, make(chan struct{}, mostHooks)
	}
	id := series(e)
	if h.running[id] {
		h.waiting[id] = e
		return
	}
	h.running[id] = true
	h.all.Go(func() { h.series(ctx, e) })
}

// Wait returns when no command runs any more.
func (h *Hook) Wait() { h.all.Wait() }

// series runs the command for an event, and for those of the same finding that came meanwhile.
func (h *Hook) series(ctx context.Context, e diagnose.Event) {
	for more := true; more; e, more = h.next(series(e)) {
		h.slots <- struct{}{}
		err := h.one(ctx, e)
		<-h.slots
		if err != nil && ctx.Err() == nil {
			h.Failed(err)
		}
	}
}

// next takes what waits; where nothing does, the series has ended.
func (h *Hook) next(id string) (e diagnose.Event, more bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	e, more = h.waiting[id]
	delete(h.waiting, id)
	if !more {
		delete(h.running, id)
	}
	return e, more
}

// one runs the command for one event. The kernel kills a child with the thread that started it (PR_SET_PDEATHSIG), so
// that thread is kept until the child has ended; and its group is killed with it.
func (h *Hook) one(ctx context.Context, e diagnose.Event) error {
	if err := permit.Change("run the command of --exec"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	document, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("run --exec for %s: %w", eventName(e), err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, h.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", h.Command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(document, '\n')), h.Output, h.Output
	cmd.Env = append(os.Environ(), variables(e)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for those that have left the group and hold the output
	err = cmd.Run()
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("run --exec for %s: killed after %s; raise --exec-time, or have the command end sooner", eventName(e), h.Limit)
	case err != nil:
		return fmt.Errorf("run --exec for %s: %w", eventName(e), err)
	}
	return nil
}

func eventName(e diagnose.Event) string { return fmt.Sprintf("%s (%s)", series(e), e.Kind) }

// series names the events of which one waits at most: those of a finding, or of the same rules without a result, which
// have no ID.
func series(e diagnose.Event) string { return cmp.Or(e.ID, strings.Join(e.Checks, ", ")) }

// variables are those of the environment that tell of an event.
func variables(e diagnose.Event) []string {
	return []string{
		"NATKIT_EVENT=" + string(e.Kind), "NATKIT_ID=" + e.ID, "NATKIT_SEVERITY=" + e.Severity.String(), "NATKIT_WAS=" + e.Was.String(),
		"NATKIT_TITLE=" + strings.ReplaceAll(e.Title, "\x00", ""), "NATKIT_CHECKS=" + strings.Join(e.Checks, ","), "NATKIT_NETNS=" + e.Netns,
		"NATKIT_TIME=" + e.At.Format(time.RFC3339), "NATKIT_SINCE=" + e.Since.Format(time.RFC3339), "NATKIT_TIMES=" + strconv.Itoa(e.Times),
	}
}
