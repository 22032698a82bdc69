package tui

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/testutil"
)

// TestKeys has for each key what it asks for, and what it leaves.
func TestKeys(t *testing.T) {
	second := 2 * time.Second
	for _, tt := range []struct {
		name string
		keys []string
		want Request
		ok   func(Model) bool
	}{
		{"quit", []string{"q"}, Request{Action: Quit}, nil},
		{"quit anywhere", []string{"/", "ctrl+c"}, Request{Action: Quit}, nil},
		{"quit from help", []string{"?", "ctrl+c"}, Request{Action: Quit}, nil},
		{"suspend", []string{"ctrl+z"}, Request{Action: Suspend}, nil},
		{"q is text in a filter", []string{"/", "q"}, Request{}, func(m Model) bool { return m.draft == "q" }},
		{"pause", []string{"p"}, Request{}, func(m Model) bool { return m.paused }},
		{"go on", []string{"p", "space"}, Request{Action: Resample}, func(m Model) bool { return !m.paused }},
		{"longer", []string{"+"}, Request{Action: SetInterval, Interval: 5 * time.Second}, func(m Model) bool { return m.interval == 5*time.Second }},
		{"shorter", []string{"-"}, Request{Action: SetInterval, Interval: time.Second}, func(m Model) bool { return m.interval == time.Second }},
		{"no shorter", []string{"-", "-", "-", "-"}, Request{Action: SetInterval, Interval: MinInterval}, nil},
		{"no longer", []string{"+", "+", "+", "+", "+", "+"}, Request{Action: SetInterval, Interval: MaxInterval}, nil},
		{"panel", []string{"6"}, Request{}, func(m Model) bool { return m.focus == sources }},
		{"no such panel", []string{"8"}, Request{}, func(m Model) bool { return m.focus == states }},
		{"next panel", []string{"tab", "right"}, Request{}, func(m Model) bool { return m.focus == counters }},
		{"panel before the first", []string{"shift+tab"}, Request{}, func(m Model) bool { return m.focus == services }},
		{"sort", []string{"3", "s"}, Request{}, func(m Model) bool { return m.byName[counters] && m.rows(counters).rows[0].name == "chaintoolong" }},
		{"sort back", []string{"3", "s", "s"}, Request{}, func(m Model) bool { return m.rows(counters).rows[0].name == "drop" }},
		{"scroll", []string{"6", "down", "down", "up"}, Request{}, func(m Model) bool { return m.offset[sources] == 1 }},
		{"scroll to the end", []string{"6", "pgdown", "pgdown"}, Request{}, func(m Model) bool { return m.offset[sources] == 9 }},
		{"scroll to the beginning", []string{"6", "pgdown", "home", "up"}, Request{}, func(m Model) bool { return m.offset[sources] == 0 }},
		{"zoom", []string{"z"}, Request{}, func(m Model) bool { return m.zoomed }},
		{"unzoom", []string{"enter", "esc"}, Request{}, func(m Model) bool { return !m.zoomed }},
		{"filter", []string{"/", "t", "c", "p", "enter"}, Request{Action: Resample}, func(m Model) bool { return m.filter.String() == "tcp" }},
		{"edit", []string{"/", "a", "ü", "backspace", "space", "f5", "b", "enter"}, Request{Action: Resample}, func(m Model) bool { return m.filter.String() == "a b" }},
		{"backspace on nothing", []string{"/", "backspace"}, Request{}, func(m Model) bool { return m.draft == "" }},
		{"type anew", []string{"/", "a", "ctrl+u", "b", "enter"}, Request{Action: Resample}, func(m Model) bool { return m.filter.String() == "b" }},
		{"no new filter", []string{"/", "a", "enter", "/", "b", "esc"}, Request{}, func(m Model) bool { return m.filter.String() == "a" }},
		{"no filter", []string{"/", "a", "enter", "esc"}, Request{Action: Resample}, func(m Model) bool { return m.filter == Filter{} }},
		{"save", []string{"w"}, Request{Action: SaveSnapshot}, nil},
		{"save with S", []string{"S"}, Request{Action: SaveSnapshot}, nil},
		{"save once", []string{"w", "w"}, Request{}, func(m Model) bool { return m.message != "" }},
		{"list", []string{"n"}, Request{Action: ListSpaces}, func(m Model) bool { return m.mode == spaces }},
		{"close the list", []string{"n", "esc"}, Request{Action: CloseSpaces}, func(m Model) bool { return m.mode != spaces && m.busy == "" }},
		{"choose before there is a list", []string{"n", "enter"}, Request{}, func(m Model) bool { return m.mode == spaces }},
		{"help", []string{"h"}, Request{}, func(m Model) bool { return m.mode == help }},
		{"help goes", []string{"?", "x"}, Request{}, func(m Model) bool { return m.mode == screen }},
		{"help stays while scrolled", []string{"?", "down", "pgdown", "up"}, Request{}, func(m Model) bool { return m.mode == help && m.helpOffset == 10 }},
		{"unknown", []string{"ctrl+alt+f7"}, Request{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, got := screenOf(busy()), Request{}
			m.interval = second
			for _, key := range tt.keys {
				m, got = m.Key(key)
			}
			if got != tt.want {
				t.Errorf("asks for %+v, want %+v", got, tt.want)
			}
			if tt.ok != nil && !tt.ok(m) {
				t.Errorf("left mode %d, panel %d, paused %t, filter %q, draft %q, offset %v", m.mode, m.focus, m.paused, m.filter, m.draft, m.offset)
			}
		})
	}
}

func TestChooseNamespace(t *testing.T) {
	m := press(screenOf(busy()), "n").Spaces(netnsList, nil)
	if m.cursor != 1 {
		t.Errorf("the cursor is at %d, not at the namespace that is shown", m.cursor)
	}
	m = press(m, "down", "down", "up", "pgup", "down", "down")
	m, got := m.Key("enter")
	if want := (Request{Action: SwitchSpace, Space: netnsList[2]}); got != want {
		t.Errorf("asks for %+v, want %+v", got, want)
	}
	if m.mode == spaces {
		t.Error("still shows the list")
	}
}

func TestListThatFails(t *testing.T) {
	m := press(screenOf(busy()), "n").Spaces(nil, errors.New("no /proc"))
	if m.mode == spaces || !m.failed || m.message != "no /proc" {
		t.Errorf("mode %d, message %q", m.mode, m.message)
	}
	// A list that arrives after the user went back is not shown.
	m = press(screenOf(busy()), "n", "esc").Spaces(netnsList, nil)
	if m.mode == spaces || len(m.list) > 0 {
		t.Error("shows a list that is no longer waited for")
	}
}

func TestSwitchingForgetsHistory(t *testing.T) {
	other := busy()
	other.Netns.Inode++
	m := screenOf(busy(), busy(), other)
	if len(m.usage) != 1 || len(m.births) != 1 {
		t.Errorf("%d and %d values of history, of which one is of this namespace", len(m.usage), len(m.births))
	}
}

func TestPaste(t *testing.T) {
	if m := screenOf(busy()).Paste("198.18.0.0/15"); m.draft != "" {
		t.Errorf("%q was typed without a filter", m.draft)
	}
	m := press(screenOf(busy()), "/")
	for text, want := range map[string]string{"198.18.0.0/15": "198.18.0.0/15", "a\nb": "", "\x1b[2J": "", string(make([]byte, 100)): ""} {
		if got := m.Paste(text).draft; got != want {
			t.Errorf("pasted %q, got %q", text, got)
		}
	}
	for range 2 * typedMax {
		m = press(m, "x")
	}
	if len(m.draft) != typedMax {
		t.Errorf("a filter of %d characters", len(m.draft))
	}
}

func TestFilter(t *testing.T) {
	entry := &conntrack.Entry{
		Orig:  conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.7"), Dst: netip.MustParseAddr("203.0.113.1")},
		Reply: conntrack.Tuple{Src: netip.MustParseAddr("203.0.113.1"), Dst: netip.MustParseAddr("198.19.0.1")},
	}
	for text, want := range map[string]bool{"": true, "tcp": true, "198.18.0.7": true, "198.18.0.8": false, "198.18.0.0/24": true,
		"198.19.0.1/15": true, "2001:db8::/32": false, "::ffff:198.18.0.7": true, "203.0.113.1": true, "10.0.0.0/99": true} {
		if got := ParseFilter(text).Entry(entry); got != want {
			t.Errorf("%q chooses the entry: %t", text, got)
		}
	}
	for _, tt := range []struct {
		filter string
		words  []string
		want   bool
	}{
		{"", []string{"x"}, true},
		{"TCP", []string{"tcp 203.0.113.1:443"}, true},
		{"udp", []string{"tcp 203.0.113.1:443", "x"}, false},
		{"203.0.113.0/24", []string{"198.18.0.1", "203.0.113.1:443"}, true},
		{"2001:db8::/32", []string{"[2001:db8::1]:443"}, true},
		{"203.0.113.0/24", []string{"198.18.0.1"}, false},
		{"203.0.113.0/24", []string{"insert_failed"}, true},
	} {
		if got := ParseFilter(tt.filter).row(tt.words...); got != tt.want {
			t.Errorf("filter %q and %q: %t", tt.filter, tt.words, got)
		}
	}
}

// FuzzKeys: no sequence of keys panics or breaks the frame.
func FuzzKeys(f *testing.F) {
	names := []string{"q", "p", "s", "/", "n", "w", "?", "+", "-", "tab", "shift+tab", "up", "down", "pgup", "pgdown", "home",
		"enter", "esc", "backspace", "z", "1", "4", "7", "x", "网"}
	f.Add([]byte{3, 23, 24, 18, 16, 4, 16, 6, 14, 12})
	f.Add([]byte{19, 12, 12, 7, 8, 1, 5, 5})
	f.Fuzz(func(t *testing.T, keys []byte) {
		defer testutil.Bounded(t, len(keys))()
		m := screenOf(strange())
		for i, k := range keys {
			m, _ = m.Key(names[int(k)%len(names)])
			if i%3 == 2 {
				m = m.Spaces(netnsList, nil).Take(busy())
			}
			m = m.Resize(20+int(k)%80, 4+int(k)%30)
			checkFrame(t, "fuzzed", m.View(), 20+int(k)%80, 4+int(k)%30)
		}
	})
}
