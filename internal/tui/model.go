// Package tui is the live screen of natkit top: a model that keys and samples change, its
// view for a given number of columns and lines, and the program that samples and draws.
package tui

import (
	"math"
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Theme is how the terminal may be written to.
type Theme struct {
	report.Style
	// ASCII keeps to 7 bits, for locales that are not UTF-8.
	ASCII bool
}

// mode is what the keys act on.
type mode int

const (
	screen mode = iota
	help
	spaces
	typing // a filter
)

// panelID is one of the panels, in the order of the keys 1 to 7.
type panelID int

const (
	states panelID = iota
	protocols
	counters
	drops
	ports
	sources
	services
	panels
)

// kept samples of history: more columns than a terminal has.
const kept = 512

// Model is all that the screen shows. Its methods change a copy.
type Model struct {
	theme         Theme
	width, height int
	interval      time.Duration

	sample  *Sample
	usage   history // entries
	births  history // new flows per second
	mode    mode
	paused  bool
	zoomed  bool
	busy    string // what goes on besides
	message string
	failed  bool // message is of a failure

	focus  panelID
	byName [panels]bool
	offset [panels]int

	filter Filter
	draft  string // of a filter

	// tape is where in a recording the sample is; zero of a live one.
	tape Place

	list       []Space
	listed     bool
	cursor     int
	helpOffset int
}

// New is a screen before the first sample.
func New(theme Theme, interval time.Duration) Model {
	return Model{theme: theme, interval: interval, width: 80, height: 24}
}

// Resize sets the number of columns and lines.
func (m Model) Resize(width, height int) Model {
	m.width, m.height = width, height
	return m
}

// Take shows a new sample. One of another namespace starts the history anew.
func (m Model) Take(s *Sample) Model {
	if m.sample != nil && m.sample.Netns.Inode != s.Netns.Inode {
		m.usage, m.births = history{}, history{}
	}
	m.sample = s
	if count, _, ok := s.Entries(); ok {
		m.usage = m.usage.add(float64(count))
	}
	if s.Flows != nil {
		m.births = m.births.add(s.Flows.TotalPerSecond)
	}
	return m
}

// Place is a sample of a recording: the Number'th, from 1, of Of. Speed is how many times as fast as it was recorded the next
// ones come.
type Place struct{ Number, Of, Speed int }

// Replay shows a sample of a recording. Where it is not the one after that shown before, the history begins anew.
func (m Model) Replay(s *Sample, at Place) Model {
	if at.Number != m.tape.Number+1 {
		m.usage, m.births = history{}, history{}
	}
	m = m.Take(s)
	m.tape = at
	return m
}

// Spaces answers ListSpaces.
func (m Model) Spaces(list []Space, err error) Model {
	m.busy = ""
	if m.mode != spaces {
		return m
	}
	if err != nil {
		m.mode = screen
		return m.fail(err)
	}
	m.list, m.listed, m.cursor = list, true, 0
	for i, s := range list {
		if m.sample != nil && s.Inode == m.sample.Netns.Inode {
			m.cursor = i
		}
	}
	return m
}

// Saved answers SaveSnapshot with the file's name.
func (m Model) Saved(name string, err error) Model {
	m.busy = ""
	if err != nil {
		return m.fail(err)
	}
	return m.say("saved " + name + "; read it with 'natkit doctor --from'")
}

func (m Model) say(text string) Model {
	m.message, m.failed = text, false
	return m
}

func (m Model) fail(err error) Model {
	m.message, m.failed = err.Error(), true
	return m
}

// history is the newest values, oldest first.
type history []float64

func (h history) add(v float64) history {
	if len(h) >= kept {
		h = h[len(h)-kept+1:]
	}
	// Not in place: older models keep theirs.
	return append(h[:len(h):len(h)], v)
}

// Sample is what the screen shows, with where it was taken and the Filter that it was
// taken with.
type Sample struct {
	*snapshot.Sample
	Host   string
	Filter Filter
}

// Space is a network namespace to look at.
type Space struct {
	Inode uint64
	Name  string
	// Entries of its table; negative where that could not be read.
	Entries int64
}

// whole scales n sampled entries to the table, rounded to the significant digit: their
// number varies by its square root from one sample to the next.
func (s *Sample) whole(n int64) int64 {
	scale := s.scale()
	if scale == 1 {
		return n
	}
	return int64(units.Significant(float64(n)*scale, math.Sqrt(float64(n))*scale) + 0.5)
}

// part returns the share of n in the sampled entries that pass the filter, rounded to the
// significant digit.
func (s *Sample) part(n int64) float64 {
	of := max(float64(s.Table.Sampled), 1)
	share := float64(n) / of
	if s.scale() == 1 {
		return share
	}
	return units.Significant(share, math.Sqrt(share*(1-min(share, 1))/of))
}

// scale turns a number of looked-at entries into one of the whole table.
func (s *Sample) scale() float64 {
	count, _, ok := s.Entries()
	if !ok || s.Table == nil || s.Table.Complete || s.EntriesRead == 0 || count < s.EntriesRead {
		return 1
	}
	return float64(count) / float64(s.EntriesRead)
}
