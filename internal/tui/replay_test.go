package tui

import (
	"errors"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/natkit/natkit/internal/snapshot"
)

// counted is a recording of so many samples, of which one cannot be read.
type counted struct {
	n, damaged int
}

var errDamaged = errors.New("damaged")

func (c counted) Len() int { return c.n }
func (c counted) Sample(i int) (*snapshot.Sample, error) {
	if i == c.damaged {
		return nil, errDamaged
	}
	return &snapshot.Sample{Snapshot: &snapshot.Snapshot{UptimeSeconds: float64(5 * i)}, Before: &snapshot.Snapshot{UptimeSeconds: float64(5*i - 5)}}, nil
}

// TestReplay: keys go through a recording, and time does, unless it is paused.
func TestReplay(t *testing.T) {
	p := &player{opt: ReplayOptions{Tape: counted{40, -1}}, model: New(Theme{}, 0).Resize(100, 30), speed: 1}
	if err := p.show(10); err != nil {
		t.Fatal(err)
	}
	press := func(name string) tea.Cmd {
		_, cmd := p.key(name)
		return cmd
	}
	for _, tt := range []struct {
		key    string
		at     int
		paused bool
		speed  int
	}{
		{"right", 11, true, 1}, {"left", 10, true, 1}, {"]", 22, true, 1}, {"]", 34, true, 1}, {"]", 39, true, 1}, {"right", 39, true, 1},
		{"[", 27, true, 1}, {"home", 0, true, 1}, {"left", 0, true, 1}, {"space", 0, false, 1}, {"+", 0, false, 2}, {"+", 0, false, 4}, {"-", 0, false, 2},
		{"-", 0, false, 1}, {"-", 0, false, 1}, {"tab", 0, false, 1}, {"n", 0, false, 1}, {"end", 39, true, 1}, {"?", 39, true, 1}, {"left", 39, true, 1},
	} {
		press(tt.key)
		if p.at != tt.at || p.model.paused != tt.paused || p.speed != tt.speed || p.model.tape != (Place{tt.at + 1, 40, tt.speed}) {
			t.Fatalf("after %s: at %d, paused %v, %d times, %+v", tt.key, p.at, p.model.paused, p.speed, p.model.tape)
		}
	}
	press("home")
	if press("space") == nil {
		t.Fatal("it does not go on")
	}
	if p.Update(tick{p.round - 1}); p.at != 0 {
		t.Error("it follows a tick of an older chain")
	}
	if _, cmd := p.Update(tick{p.round}); p.at != 1 || cmd == nil {
		t.Error("it does not play")
	}
	press("end")
	press("space")
	if p.Update(tick{p.round}); p.at != 39 || !p.model.paused {
		t.Error("it does not pause at the end")
	}
	if cmd := press("q"); cmd == nil {
		t.Error("it does not end")
	}
}

// TestReplayFails: a sample that cannot be read ends it with the reason.
func TestReplayFails(t *testing.T) {
	p := &player{opt: ReplayOptions{Tape: counted{3, 1}}, model: New(Theme{}, 0), speed: 1}
	if err := p.show(0); err != nil {
		t.Fatal(err)
	}
	if _, cmd := p.key("right"); cmd == nil || !errors.Is(p.err, errDamaged) {
		t.Errorf("ended with %v", p.err)
	}
}

// TestReplayCosts: what a recording does not have is not shown as a number.
func TestReplayCosts(t *testing.T) {
	model := New(Theme{}, 0).Resize(100, 30)
	s := &snapshot.Sample{Snapshot: &snapshot.Snapshot{Table: &snapshot.ConntrackTable{Sampled: 7, Complete: true}}, EntriesRead: 7}
	recorded := model.Replay(&Sample{Sample: s}, Place{1, 2, 1}).View()
	for _, untrue := range []string{"top itself", "less than 1 ms"} {
		if strings.Contains(recorded, untrue) {
			t.Errorf("%q in %s", untrue, recorded)
		}
	}
	for _, want := range []string{"not recorded", "all 7 entries"} {
		if !strings.Contains(recorded, want) {
			t.Errorf("no %q in %s", want, recorded)
		}
	}
}
