package tui

import (
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/watch"
)

// newApp has a first sample under way.
func newApp(t *testing.T) *app {
	t.Helper()
	a := &app{ctx: t.Context(), sampler: newSampler(Options{}, watch.Continuous()), model: New(Theme{}, time.Second)}
	if a.Init() == nil || !a.sampling {
		t.Fatal("takes no first sample")
	}
	return a
}

func (a *app) get(msg tea.Msg) tea.Cmd {
	_, cmd := a.Update(msg)
	return cmd
}

func key(name rune) tea.Msg { return tea.KeyPressMsg{Text: string(name), Code: name} }

func aSample() sampled {
	return sampled{&Sample{Sample: &snapshot.Sample{Snapshot: &snapshot.Snapshot{}}}, time.Now()}
}

// TestOneChainOfSamples: whatever keys ask for, there is one sample at a time, and one
// that is planned.
func TestOneChainOfSamples(t *testing.T) {
	a := newApp(t)
	if a.get(tick{a.round - 1}) != nil {
		t.Error("follows a tick of an older chain")
	}
	if a.get(key('+')) != nil {
		t.Error("plans a second sample beside the one under way")
	}
	if a.get(aSample()) == nil || a.sampling {
		t.Error("plans no sample after the first one")
	}
	old := a.round
	if a.get(key('-')) == nil || a.get(tick{old}) != nil {
		t.Error("another interval leaves the tick of the one before")
	}
	if a.get(tick{a.round}) == nil || !a.sampling {
		t.Error("takes no sample when its time has come")
	}
	// A filter is to be seen at once: after the sample under way comes another.
	for _, k := range "/x" {
		a.get(key(k))
	}
	if a.get(tea.KeyPressMsg{Code: tea.KeyEnter}) != nil || !a.again {
		t.Error("does not remember to sample again")
	}
	if a.get(aSample()) == nil || !a.sampling || a.again {
		t.Error("takes no sample for the filter")
	}
}

func TestPausedTakesNone(t *testing.T) {
	a := newApp(t)
	a.get(aSample())
	a.get(key('p'))
	if a.get(tick{a.round}) != nil || a.sampling {
		t.Error("samples while it pauses")
	}
	if a.get(key('p')) == nil || !a.sampling {
		t.Error("does not go on")
	}
}

// TestLateList: a list of namespaces keeps them alive, so one that is no longer waited
// for is closed.
func TestLateList(t *testing.T) {
	a := newApp(t)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	a.get(key('n'))
	a.get(tea.KeyPressMsg{Code: tea.KeyEscape})
	a.get(listed{list: &listing{handles: []*netns.Handle{here}, spaces: []Space{{Inode: here.Inode()}}}})
	if a.list.handles != nil || here.Close() == nil {
		t.Error("the namespaces are still held")
	}
	// And one that is shown is not.
	if here, err = netns.Current(); err != nil {
		t.Fatal(err)
	}
	a.get(key('n'))
	a.get(listed{list: &listing{handles: []*netns.Handle{here}, spaces: []Space{{Inode: here.Inode()}}}})
	if len(a.list.handles) != 1 {
		t.Error("the list that is shown is closed")
	}
	if cmd := a.get(tea.KeyPressMsg{Code: tea.KeyEnter}); cmd == nil {
		t.Fatal("does not switch")
	} else if got := cmd(); got != (switched{}) {
		t.Fatalf("switching returns %+v", got)
	}
	if ns, err := a.sampler.Netns(); err != nil || ns == nil || ns.Inode() != here.Inode() {
		t.Errorf("samples %v, %v", ns, err)
	} else {
		ns.Close()
	}
	if err := a.sampler.Close(); err != nil {
		t.Error(err)
	}
}
