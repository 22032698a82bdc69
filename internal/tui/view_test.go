package tui

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

var update = flag.Bool("update", false, "write the frames anew")

// screenOf is a screen after these samples.
func screenOf(samples ...*Sample) Model {
	m := New(Theme{}, 2*time.Second)
	for _, s := range samples {
		m = m.Take(s)
	}
	return m
}

// press presses keys, one after the other.
func press(m Model, keys ...string) Model {
	for _, key := range keys {
		m, _ = m.Key(key)
	}
	return m
}

// grown is a history in which the table fills up.
func grown() []*Sample {
	var all []*Sample
	for i := range 60 {
		s := busy()
		s.Sysctls = map[string]string{"net.netfilter.nf_conntrack_count": fmt.Sprint(4368 * i), "net.netfilter.nf_conntrack_max": "262144"}
		s.Flows.TotalPerSecond = float64(12000 + 1000*(i%7))
		all = append(all, s)
	}
	return append(all, busy())
}

var netnsList = []Space{{4026531833, "", 120}, {4026532250, "gateway", 251904}, {4026532333, "pid 4711", -1},
	{4026532400, "held by pid 12", 0}, {4026532401, "cni-\x1b[31m-of-a-container-with-a-very-long-name-0d8d27f8-5b0d", 1}}

// frames are states of the screen; each is drawn in all sizes.
var frames = []struct {
	name  string
	model func() Model
}{
	{"starting", func() Model { return screenOf() }},
	{"busy", func() Model { return screenOf(grown()...) }},
	{"no-conntrack", func() Model { return screenOf(withoutConntrack()) }},
	{"no-privilege", func() Model { return screenOf(withoutPrivilege()) }},
	{"idle", func() Model { return screenOf(idle()) }},
	{"full", func() Model { return screenOf(full()) }},
	{"paused", func() Model { return press(screenOf(grown()...), "p") }},
	{"filtered-by-text", func() Model { return press(screenOf(busy()), "/", "4", "4", "3", "enter") }},
	{"filtered-by-address", func() Model {
		s := busy()
		s.Table = &snapshot.ConntrackTable{Sampled: 900, SNAT: 900, ByProtocol: map[string]int64{"udp": 900}, ByTCPState: map[string]int64{},
			TopSources: s.Table.TopSources[:1], TopServices: []snapshot.Talker{{Who: "udp 203.0.113.53:53", Entries: 900}}}
		s.Filter = ParseFilter("198.18.7.200")
		return press(screenOf(s), "/", "1", "9", "8", ".", "1", "8", ".", "7", ".", "2", "0", "0", "enter", "5")
	}},
	{"filtered-in-a-pause", func() Model {
		return press(screenOf(busy()), "p", "/", "1", "9", "8", ".", "1", "8", ".", "7", ".", "2", "0", "0", "enter")
	}},
	{"unfiltered-in-a-pause", func() Model {
		s := busy()
		s.Filter = ParseFilter("198.18.7.200")
		return press(screenOf(s), "p")
	}},
	{"filtered-to-nothing", func() Model { return press(screenOf(busy()), "/", "z", "z", "enter", "6") }},
	{"typing", func() Model { return press(screenOf(busy()), "/", "u", "d", "p") }},
	{"help", func() Model { return press(screenOf(busy()), "?") }},
	{"netns-list", func() Model { return press(press(screenOf(busy()), "n").Spaces(netnsList, nil), "down") }},
	{"netns-listing", func() Model { return press(screenOf(busy()), "n") }},
	{"saving", func() Model { return press(screenOf(busy()), "w") }},
	{"saved", func() Model { return press(screenOf(busy()), "w").Saved("natkit-gw1-20240517T120000Z.tar.gz", nil) }},
	{"save-failed", func() Model {
		return press(screenOf(busy()), "w").Saved("", errors.New("write natkit-gw1-20240517T120000Z.tar.gz: no space left on device\x1b[2J"))
	}},
	{"strange-names", func() Model { return press(screenOf(strange()), "6") }},
	{"zoomed", func() Model { return press(screenOf(busy()), "6", "enter", "s", "down", "down") }},
	{"ascii", func() Model {
		m := screenOf(append(grown(), strange())...)
		m.theme.ASCII = true
		return m
	}},
	{"colour", func() Model {
		m := press(screenOf(grown()...), "4")
		m.theme.Colour = true
		return m
	}},
}

var sizes = [][2]int{{80, 24}, {120, 40}, {40, 10}, {20, 5}}

// TestFrames compares each state in each size with a reviewed golden file.
func TestFrames(t *testing.T) {
	for _, f := range frames {
		t.Run(f.name, func(t *testing.T) {
			var b strings.Builder
			for _, size := range sizes {
				m := f.model().Resize(size[0], size[1])
				fmt.Fprintf(&b, "== %d×%d\n%s\n", size[0], size[1], m.View())
			}
			golden(t, f.name+".txt", b.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	// An escape sequence in a file of the tree would act on who looks at it.
	got = strings.ReplaceAll(got, "\x1b", "␛")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/tui -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); go test ./internal/tui -update accepts it:\n%s", path, diff)
	}
}

// TestFrameOfFile: --once has no keys in it and no line for them.
func TestFrameOfFile(t *testing.T) {
	golden(t, "once.txt", screenOf(busy()).Resize(100, 44).Frame())
}

// TestEveryFrameFits: whatever the size, the frame has as many lines, none is wider,
// and nothing in it acts on the terminal.
func TestEveryFrameFits(t *testing.T) {
	for _, f := range frames {
		if f.name == "colour" {
			continue
		}
		m := f.model()
		for width := 1; width <= 200; width += 1 + width/12 {
			for height := 1; height <= 60; height += 1 + height/8 {
				checkFrame(t, f.name, m.Resize(width, height).View(), width, height)
			}
		}
	}
}

func checkFrame(t *testing.T, name, frame string, width, height int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if len(lines) > height {
		t.Errorf("%s in %d×%d has %d lines", name, width, height, len(lines))
	}
	for _, l := range lines {
		if got := report.TextWidth(l); got > width {
			t.Errorf("%s in %d×%d: a line of %d columns: %q", name, width, height, got, l)
		}
		if strings.ContainsFunc(l, func(r rune) bool { return unicode.IsControl(r) || r == '\u202e' }) {
			t.Errorf("%s in %d×%d acts on the terminal: %q", name, width, height, l)
		}
	}
}

// TestASCII: nothing but ASCII is left.
func TestASCII(t *testing.T) {
	for _, f := range frames {
		m := f.model()
		m.theme.ASCII = true
		for _, size := range sizes {
			if frame := m.Resize(size[0], size[1]).View(); strings.ContainsFunc(frame, func(r rune) bool { return r > 0x7e }) {
				t.Errorf("%s: %q", f.name, frame)
			}
		}
	}
}

func TestSpark(t *testing.T) {
	for _, tt := range []struct {
		values  history
		columns int
		top     float64
		want    string
	}{
		{nil, 5, 0, ""},
		{history{0, 0}, 5, 0, "▁▁"},
		{history{0, 50, 100}, 5, 100, "▁▅█"},
		{history{1, 2, 3, 4}, 2, 0, "▇█"},
		{history{200}, 3, 100, "█"},
		{history{5}, 0, 0, ""},
	} {
		if got := tt.values.spark(tt.columns, tt.top); got != tt.want {
			t.Errorf("spark(%v, %d, %g) = %q, want %q", tt.values, tt.columns, tt.top, got, tt.want)
		}
	}
}

func TestBar(t *testing.T) {
	for share, want := range map[float64]string{0: "░░░░", 0.001: "█░░░", 0.5: "██░░", 0.99: "███░", 1: "████", 7: "████", -1: "░░░░"} {
		if got := bar(share, 4); got != want {
			t.Errorf("bar(%g) = %q, want %q", share, got, want)
		}
	}
}

func TestHistoryIsBoundedAndNotShared(t *testing.T) {
	var h history
	for i := range 3 * kept {
		h = h.add(float64(i))
	}
	if len(h) != kept || h[kept-1] != 3*kept-1 {
		t.Errorf("%d values, the last %g", len(h), h[len(h)-1])
	}
	a, b := h.add(1), h.add(2)
	if a[len(a)-1] != 1 || b[len(b)-1] != 2 {
		t.Error("two futures of one history share their memory")
	}
}
