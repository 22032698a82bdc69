package dump

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// watching runs Watch until stop is called, which returns what it did.
func watching(t *testing.T, ns *netns.Handle, o WatchOptions, fn func(Event) error) (stop func() Watched) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	o.Ready = func() { close(ready) }
	var done Watched
	go func() {
		var err error
		done, err = Watch(ctx, ns, o, fn)
		ended <- err
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("Watch ended: %v", err)
	}
	stop = sync.OnceValue(func() Watched {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch: %v", err)
		}
		return done
	})
	t.Cleanup(func() { stop() })
	return stop
}

// setEvents sets nf_conntrack_events of a namespace.
func setEvents(t *testing.T, ns *netns.Handle, value string) {
	t.Helper()
	if err := ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_events", []byte(value), 0)
	}); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// heard are events, by the port of the entry.
type heard struct {
	sync.Mutex
	events map[uint16][]Event
	n      int
}

func (h *heard) take(e Event) error {
	h.Lock()
	defer h.Unlock()
	if h.events == nil {
		h.events = map[uint16][]Event{}
	}
	entry := e.Entry.Clone()
	e.Entry = &entry
	h.events[entry.Orig.SrcPort] = append(h.events[entry.Orig.SrcPort], e)
	h.n++
	return nil
}

func (h *heard) count() int {
	h.Lock()
	defer h.Unlock()
	return h.n
}

func TestWatch(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	var all, ends heard
	stop := watching(t, ns, WatchOptions{Kinds: AllEvents, Filter: &conntrack.Filter{Mark: testMark, MarkMask: ^uint32(0)}, Remember: 1000}, all.take)
	stopEnds := watching(t, ns, WatchOptions{Kinds: DestroyEvents}, ends.take)
	fill(t, ns, 0, 10, nil)
	fill(t, ns, 50, 5, func(e *conntrack.Entry) { e.Mark = 1 })
	made := entries(t, ns)
	if d, err := DeleteKeys(t.Context(), ns, keys(t, made, nil)); err != nil || d.Deleted != 15 {
		t.Fatalf("DeleteKeys = %+v, %v", d, err)
	}
	eventually(t, "20 events, 15 ends", func() bool { return all.count() >= 20 && ends.count() >= 15 })
	if d := stop(); d != (Watched{Events: 20}) {
		t.Errorf("Watch = %+v", d)
	}
	if d := stopEnds(); d != (Watched{Events: 15}) {
		t.Errorf("Watch of ends = %+v", d)
	}
	for port, events := range all.events {
		if len(events) != 2 || events[0].Kind != NewEvents || events[1].Kind != DestroyEvents || events[0].Entry.TCPState != conntrack.TCPEstablished {
			t.Errorf("port %d: %+v", port, events)
		}
	}
}

// TestWatchRepairs stops reading in the middle of more events than the buffer
// holds; afterwards every entry's beginning and end must have been reported once.
func TestWatchRepairs(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	setEvents(t, ns, "1")    // those before have no events by the value 2
	fill(t, ns, 0, 300, nil) // these are there before
	var h heard
	var gaps []Gap
	blocked, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o := WatchOptions{Kinds: AllEvents, Remember: 10000, Buffer: 20000, Gap: func(g Gap) {
		h.Lock()
		defer h.Unlock()
		gaps = append(gaps, g)
	}}
	stop := watching(t, ns, o, func(e Event) error {
		once.Do(func() { close(blocked); <-resume })
		return h.take(e)
	})
	goOn := sync.OnceFunc(func() { close(resume) })
	t.Cleanup(goOn) // before the watch ends, also where the test fails
	fill(t, ns, 1000, 1, nil)
	<-blocked
	old := keys(t, entries(t, ns), nil)
	fill(t, ns, 2000, 3000, nil)
	if d, err := DeleteKeys(t.Context(), ns, old); err != nil || d.Deleted != 301 {
		t.Fatalf("DeleteKeys = %+v, %v", d, err)
	}
	goOn()
	eventually(t, "a repaired gap", func() bool { h.Lock(); defer h.Unlock(); return len(gaps) > 0 })
	fill(t, ns, 6000, 1, nil) // is heard of as usual again
	eventually(t, "the last beginning", func() bool { h.Lock(); defer h.Unlock(); return len(h.events[established(6000).Orig.SrcPort]) > 0 })
	done := stop()
	if g := gaps[0]; len(gaps) != 1 || !g.Repaired || g.Why != "" || g.Lost == 0 || g.Missed == 0 || done.Missed != g.Missed || done.Lost != g.Lost {
		t.Errorf("gaps %+v, in all %+v", gaps, done)
	}
	if g := gaps[0]; g.Lost != g.Missed {
		t.Errorf("%d events were lost, %d found out", g.Lost, g.Missed)
	}
	begun, ended := 0, 0
	for port, events := range h.events {
		for i, e := range events {
			if e.Kind == NewEvents {
				begun++
			} else {
				ended++
			}
			if i > 0 && e.Kind == events[i-1].Kind {
				t.Errorf("port %d: reported twice: %+v", port, events)
			}
		}
	}
	if begun != 3002 || ended != 301 {
		t.Errorf("%d beginnings and %d ends were reported, want 3002 and 301", begun, ended)
	}
}

func TestWatchWithoutMemory(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	var mu sync.Mutex
	var gaps []Gap
	blocked, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop := watching(t, ns, WatchOptions{Kinds: AllEvents, Remember: 100, Buffer: 20000, Gap: func(g Gap) {
		mu.Lock()
		defer mu.Unlock()
		gaps = append(gaps, g)
	}}, func(Event) error {
		once.Do(func() { close(blocked); <-resume })
		return nil
	})
	fill(t, ns, 0, 3000, nil)
	<-blocked
	close(resume)
	eventually(t, "a gap", func() bool { mu.Lock(); defer mu.Unlock(); return len(gaps) > 0 })
	stop()
	if g := gaps[0]; g.Why == "" || g.Lost == 0 {
		t.Errorf("a table larger than what is remembered: %+v", g)
	}
}

func TestWatchStops(t *testing.T) {
	ns := testutil.Namespace(t)
	cause := errors.New("cause")
	for _, returned := range []error{ErrStop, cause} {
		ended := make(chan error, 1)
		ready := make(chan struct{})
		go func() {
			_, err := Watch(t.Context(), ns, WatchOptions{Kinds: AllEvents, Ready: func() { close(ready) }}, func(Event) error { return returned })
			ended <- err
		}()
		<-ready
		fill(t, ns, 0, 1, nil)
		if err := <-ended; returned == ErrStop && err != nil || returned == cause && !errors.Is(err, cause) {
			t.Errorf("fn returned %v, Watch %v", returned, err)
		}
		if _, err := Delete(t.Context(), ns, &conntrack.Filter{Mark: testMark, MarkMask: ^uint32(0)}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchWhereThereAreNoEvents(t *testing.T) {
	ns := testutil.Namespace(t)
	setEvents(t, ns, "0")
	if _, err := Watch(t.Context(), ns, WatchOptions{Kinds: AllEvents}, func(Event) error { return nil }); !errors.Is(err, ErrNoEvents) {
		t.Errorf("Watch = %v", err)
	}
}
