package tui

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/natkit/natkit/internal/conntrack"
)

// page is how far a page key moves.
const page = 10

// typedMax bounds a filter: the longest IPv6 prefix has 43 characters.
const typedMax = 64

// Key does what a key asks for. Its name is as in bubbletea: "a", "ctrl+c", "pgdown".
func (m Model) Key(key string) (Model, Request) {
	if key == "ctrl+c" {
		return m, Request{Action: Quit}
	}
	if key == "ctrl+z" {
		return m, Request{Action: Suspend}
	}
	m.message, m.failed = "", false
	switch m.mode {
	case typing:
		return m.typeKey(key)
	case spaces:
		return m.spacesKey(key)
	case help:
		return m.helpKey(key)
	}
	return m.screenKey(key)
}

func (m Model) screenKey(key string) (Model, Request) {
	if next, ok := m.move(key); ok {
		return next, Request{}
	}
	switch key {
	case "q", "Q":
		return m, Request{Action: Quit}
	case "p", "space", " ":
		return m.togglePause()
	case "s":
		m.byName[m.focus] = !m.byName[m.focus]
		m.offset[m.focus] = 0
	case "enter", "z":
		m.zoomed = !m.zoomed
	case "esc":
		return m.back()
	case "/":
		m.mode, m.draft = typing, m.filter.String()
	case "n":
		m.mode, m.listed, m.list, m.busy = spaces, false, nil, "listing network namespaces"
		return m, Request{Action: ListSpaces}
	case "w", "S":
		return m.save()
	case "h", "?", "f1":
		m.mode, m.helpOffset = help, 0
	case "+", "=":
		return m.pace(nextInterval(m.interval, 1))
	case "-", "_":
		return m.pace(nextInterval(m.interval, -1))
	}
	return m, Request{}
}

// move changes the panel, or what it shows of its rows.
func (m Model) move(key string) (Model, bool) {
	if by, ok := scrolls[key]; ok {
		m.offset[m.focus] = within(m.offset[m.focus]+by, len(m.rows(m.focus).rows))
		return m, true
	}
	switch key {
	case "tab", "right":
		m.focus = (m.focus + 1) % panels
	case "shift+tab", "left":
		m.focus = (m.focus + panels - 1) % panels
	default:
		if len(key) != 1 || key[0] < '1' || key[0] >= '1'+byte(panels) {
			return m, false
		}
		m.focus = panelID(key[0] - '1')
	}
	return m, true
}

// scrolls are the keys that move in a list, and by how much.
var scrolls = map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page, "home": -1 << 20}

// within is the nearest of n places.
func within(at, n int) int { return min(max(at, 0), max(n-1, 0)) }

func (m Model) togglePause() (Model, Request) {
	m.paused = !m.paused
	if m.paused {
		return m, Request{}
	}
	return m, Request{Action: Resample}
}

// back undoes one step: the panel in full, then the filter.
func (m Model) back() (Model, Request) {
	switch {
	case m.zoomed:
		m.zoomed = false
	case m.filter != Filter{}:
		m.filter = Filter{}
		return m, Request{Action: Resample}
	}
	return m, Request{}
}

func (m Model) save() (Model, Request) {
	if m.busy != "" {
		return m.say("still " + m.busy), Request{}
	}
	m.busy = "saving a snapshot"
	return m, Request{Action: SaveSnapshot}
}

func (m Model) pace(d time.Duration) (Model, Request) {
	m.interval = d
	return m.say("a sample every " + interval(d)), Request{Action: SetInterval, Interval: d}
}

func (m Model) helpKey(key string) (Model, Request) {
	by, scrolled := scrolls[key]
	if !scrolled {
		m.mode = screen
	}
	m.helpOffset = within(m.helpOffset+by, len(helpLines))
	return m, Request{}
}

func (m Model) spacesKey(key string) (Model, Request) {
	m.cursor = within(m.cursor+scrolls[key], len(m.list))
	switch key {
	case "enter":
		return m.choose()
	case "q", "esc", "n":
		m.mode, m.busy = screen, ""
		return m, Request{Action: CloseSpaces}
	}
	return m, Request{}
}

// choose switches to the namespace under the cursor.
func (m Model) choose() (Model, Request) {
	if m.cursor >= len(m.list) {
		return m, Request{}
	}
	chosen := m.list[m.cursor]
	m.mode, m.list = screen, nil
	m.offset = [panels]int{}
	return m, Request{Action: SwitchSpace, Space: chosen}
}

// typeKey edits the filter.
func (m Model) typeKey(key string) (Model, Request) {
	switch key {
	case "enter":
		m.mode, m.filter = screen, ParseFilter(m.draft)
		m.offset = [panels]int{}
		return m, Request{Action: Resample}
	case "esc":
		m.mode = screen
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(m.draft)
		m.draft = m.draft[:len(m.draft)-size]
	case "ctrl+u":
		m.draft = ""
	case "space":
		m.draft += " "
	default:
		// The other names of keys are longer.
		if utf8.RuneCountInString(key) == 1 {
			return m.Paste(key), Request{}
		}
	}
	return m, Request{}
}

// Paste takes text; only a filter that is typed has a place for it.
func (m Model) Paste(text string) Model {
	if m.mode == typing && isText(text) && len(m.draft)+len(text) <= typedMax {
		m.draft += text
	}
	return m
}

// isText refuses control characters, line ends among them.
func isText(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r == 0x7f || r == utf8.RuneError })
}

// Filter chooses what is shown: by an address or prefix the entries, by any other
// text the rows that have it in them. The zero value chooses all.
type Filter struct {
	text   string
	prefix netip.Prefix
}

// ParseFilter never fails: what is no address is text.
func ParseFilter(text string) Filter {
	f := Filter{text: strings.ToLower(strings.TrimSpace(text))}
	if addr, err := netip.ParseAddr(f.text); err == nil {
		addr = addr.Unmap().WithZone("")
		f.prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if prefix, err := netip.ParsePrefix(f.text); err == nil {
		f.prefix = prefix.Masked()
	}
	return f
}

// String returns the filter as it was typed.
func (f Filter) String() string { return f.text }

// Entry reports whether one of the entry's addresses is chosen.
func (f Filter) Entry(e *conntrack.Entry) bool {
	return !f.prefix.IsValid() || f.has(e.Orig.Src) || f.has(e.Orig.Dst) || f.has(e.Reply.Src) || f.has(e.Reply.Dst)
}

func (f Filter) has(addr netip.Addr) bool { return f.prefix.Contains(addr.Unmap()) }

// chooses reports whether it is by their addresses that entries are chosen.
func (f Filter) chooses() bool { return f.prefix.IsValid() }

// row reports whether a row is shown that has these words in it: by text one that has
// it, by an address all but those that have others.
func (f Filter) row(words ...string) bool {
	if !f.chooses() {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(w), f.text) })
	}
	others := false
	for _, word := range words {
		addr := addressIn(word)
		if f.has(addr) {
			return true
		}
		others = others || addr.IsValid()
	}
	return !others
}

// addressIn reads an address with or without a port; the zero address is in no prefix.
func addressIn(word string) netip.Addr {
	if ap, err := netip.ParseAddrPort(word); err == nil {
		return ap.Addr()
	}
	addr, _ := netip.ParseAddr(word)
	return addr
}

// Action is what a key asks of the world outside of the model.
type Action int

// The actions.
const (
	Nothing Action = iota
	Quit
	Suspend      // to the shell that started it
	Resample     // look at once: a pause ended, or the filter is another
	SetInterval  // Request.Interval
	ListSpaces   // answer with Model.Spaces
	CloseSpaces  // the list is no longer shown
	SwitchSpace  // Request.Space
	SaveSnapshot // answer with Model.Saved
)

// Request is an action with what it needs.
type Request struct {
	Action   Action
	Interval time.Duration
	Space    Space
}

// Bounds of the interval between samples.
const (
	MinInterval = 500 * time.Millisecond
	MaxInterval = time.Minute
)

// intervals are those that keys choose from.
var intervals = []time.Duration{MinInterval, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, MaxInterval}

// nextInterval is the interval that is longer (1) or shorter (-1) than d; at the ends the same.
func nextInterval(d time.Duration, by int) time.Duration {
	i, found := slices.BinarySearch(intervals, d)
	if found || by < 0 {
		i += by
	}
	return intervals[within(i, len(intervals))]
}
