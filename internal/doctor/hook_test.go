package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/testutil"
)

// hooked is a Hook in a directory of its own, with what failed.
type hooked struct {
	Hook
	dir    string
	mutex  sync.Mutex
	failed []string
}

func newHook(t *testing.T, command string) *hooked {
	h := &hooked{dir: t.TempDir()}
	h.Hook = Hook{Command: "cd " + h.dir + " || exit 9\n" + command, Limit: testutil.Patience(time.Minute), Output: os.Stderr, Failed: func(err error) {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.failed = append(h.failed, err.Error())
	}}
	return h
}

func (h *hooked) lines(t *testing.T, name string) (lines []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(h.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

func event(id string, times int) diagnose.Event {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return diagnose.Event{Schema: diagnose.EventSchema, At: at.Add(time.Minute), Kind: diagnose.Changed, Netns: "gw", Was: diagnose.Notice,
		Standing: diagnose.Standing{ID: id, Severity: diagnose.Critical, Title: "it's $(touch made); \"full\"", Since: at, Times: times}}
}

// TestHook: the command has the event in its environment and as a document, nothing of which the shell takes for a command.
func TestHook(t *testing.T) {
	h := newHook(t, `cat >document; env | grep ^NATKIT_ | sort >variables`)
	e := event("ct-table-full", 3)
	h.Run(t.Context(), e)
	h.Wait()
	want := []string{"NATKIT_CHECKS=", "NATKIT_EVENT=changed", "NATKIT_ID=ct-table-full", "NATKIT_NETNS=gw", "NATKIT_SEVERITY=critical",
		"NATKIT_SINCE=2026-03-01T12:00:00Z", "NATKIT_TIME=2026-03-01T12:01:00Z", "NATKIT_TIMES=3", "NATKIT_TITLE=" + e.Title, "NATKIT_WAS=notice"}
	var ours []string
	for _, line := range h.lines(t, "variables") {
		name, _, _ := strings.Cut(line, "=")
		if _, inherited := os.LookupEnv(name); !inherited {
			ours = append(ours, line)
		}
	}
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	var got diagnose.Event
	document := strings.Join(h.lines(t, "document"), "")
	if err := json.Unmarshal([]byte(document), &got); err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	if diff := cmp.Diff(e, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	if h.lines(t, "made") != nil || len(h.failed) > 0 {
		t.Errorf("failed %q, and the title was run: %v", h.failed, h.lines(t, "made"))
	}
}

// TestHookOfChecks: of several events of rules without a result each runs the command, though none has an ID.
func TestHookOfChecks(t *testing.T) {
	h := newHook(t, `echo "begin" >>log; until [ -e go ]; do sleep 0.02; done; echo "$NATKIT_CHECKS" >>checks`)
	for _, checks := range [][]string{{"a", "b"}, {"c"}, {"d"}} {
		e := event("", 1)
		e.Kind, e.Severity, e.Checks = diagnose.Unchecked, 0, checks
		h.Run(t.Context(), e)
	}
	testutil.Eventually(t, "all of them run", func() bool { return len(h.lines(t, "log")) == 3 })
	if err := os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Wait()
	got := h.lines(t, "checks")
	slices.Sort(got)
	if diff := cmp.Diff([]string{"a,b", "c", "d"}, got); diff != "" || len(h.failed) > 0 {
		t.Errorf("(-want +got), failed %q:\n%s", h.failed, diff)
	}
}

// TestHookSeries: for one finding one command runs at a time, and of the events that come meanwhile the newest gets
// the next; another finding's runs beside it.
func TestHookSeries(t *testing.T) {
	h := newHook(t, `echo "begin $NATKIT_ID $NATKIT_TIMES" >>log
		[ "$NATKIT_ID$NATKIT_TIMES" != a1 ] || until [ -e go ]; do sleep 0.02; done
		echo "end $NATKIT_ID $NATKIT_TIMES" >>log; [ $NATKIT_ID != b ] || touch go`)
	for i := range 5 {
		h.Run(t.Context(), event("a", i+1))
		if i == 0 {
			testutil.Eventually(t, "the first command begins", func() bool { return len(h.lines(t, "log")) == 1 })
		}
	}
	h.Run(t.Context(), event("b", 1))
	h.Wait()
	var a []string
	for _, line := range h.lines(t, "log") {
		if strings.Contains(line, " a ") {
			a = append(a, line)
		}
	}
	if diff := cmp.Diff([]string{"begin a 1", "end a 1", "begin a 5", "end a 5"}, a); diff != "" || len(h.failed) > 0 {
		t.Errorf("%v (-want +got):\n%s", h.failed, diff)
	}
}

// TestHookFails: a failure is a line, and one that does not end is killed with all of its processes.
func TestHookFails(t *testing.T) {
	h := newHook(t, `exit 3`)
	h.Run(t.Context(), event("a", 1))
	h.Wait()
	if diff := cmp.Diff([]string{"run --exec for a (changed): exit status 3"}, h.failed); diff != "" {
		t.Error(diff)
	}
	h = newHook(t, `sleep 1000 & echo $! >child; wait`)
	h.Limit = testutil.Patience(2 * time.Second)
	h.Run(t.Context(), event("a", 1))
	h.Wait()
	if diff := cmp.Diff([]string{"run --exec for a (changed): killed after " + h.Limit.String() + "; raise --exec-time, or have the command end sooner"}, h.failed); diff != "" {
		t.Error(diff)
	}
	h.wantDead(t)
	ctx, stop := context.WithCancel(t.Context())
	h = newHook(t, `sleep 1000 & echo $! >child; wait`)
	h.Run(ctx, event("a", 1))
	h.Run(ctx, event("a", 2))
	testutil.Eventually(t, "the command begins", func() bool { return len(h.lines(t, "child")) == 1 })
	stop()
	h.Wait()
	if len(h.failed) > 0 {
		t.Errorf("its end with natkit is a failure: %q", h.failed)
	}
	h.wantDead(t)
}

// wantDead waits for the end of the command's child.
func (h *hooked) wantDead(t *testing.T) {
	t.Helper()
	lines := h.lines(t, "child")
	if len(lines) != 1 {
		t.Fatalf("children: %q", lines)
	}
	pid, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the end of the command's child", func() bool {
		state, err := os.ReadFile("/proc/" + lines[0] + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ") || unix.Kill(pid, 0) != nil
	})
}
