// Package report renders what natkit found, as text for a terminal, as JSON and
// as one HTML page. It only writes to the io.Writer that it is given.
package report

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Document is what a verb reports: a struct with the fields of its JSON form, and its text.
type Document interface {
	Text(w io.Writer, style Style) error
}

// CSVDocument is a document that has rows.
type CSVDocument interface {
	Document
	CSV(w io.Writer) error
}

// printer writes lines, and keeps the first error so that callers check only once.
type printer struct {
	w     io.Writer
	style Style
	err   error
	// wrote is false before the first line.
	wrote bool
}

// line writes already laid out text. What is wider than the reader's screen is broken.
func (p *printer) line(text string) {
	p.wrote = true
	if p.err == nil {
		text = strings.TrimRight(text, " ")
		if p.style.Columns > 0 {
			text = strings.Join(hang(text, p.style.Columns), "\n")
		}
		_, p.err = io.WriteString(p.w, text+"\n")
	}
}

func (p *printer) blank() { p.line("") }

// gap writes an empty line between what was written and what follows.
func (p *printer) gap() {
	if p.wrote {
		p.blank()
	}
}

// heading writes a section's title with an empty line before it.
func (p *printer) heading(text string) {
	p.gap()
	p.line(p.style.Paint(Bold, clean(text)))
}

// table writes t unless an earlier write failed.
func (p *printer) table(t *Table) {
	if p.wrote = true; p.err == nil {
		p.err = t.Write(p.w, p.style)
	}
}

// labelled writes "indent label text", the text wrapped into a column of its own
// that starts labelWidth after the indent. Empty text writes nothing.
func (p *printer) labelled(indent int, label string, labelWidth int, text string) {
	text = clean(text)
	if text == "" {
		return
	}
	margin := strings.Repeat(" ", indent)
	for i, part := range wrap(text, p.style.columns()-indent-labelWidth) {
		if i > 0 {
			label = ""
		}
		p.line(margin + p.style.Paint(Dim, padRight(label, labelWidth)) + part)
	}
}

// mark writes a label in its tone and text behind it, wrapped beside the label.
func (p *printer) mark(indent int, label Cell, text string, tone Tone) {
	margin := strings.Repeat(" ", indent)
	start := margin + p.style.Paint(label.Tone, label.Text)
	for _, part := range wrap(clean(text), p.style.columns()-indent-textWidth(label.Text)) {
		p.line(start + p.style.Paint(tone, part))
		start = margin + padRight("", textWidth(label.Text))
	}
}

// printf writes one line; the arguments' control characters are made visible.
func (p *printer) printf(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clean(s)
		}
	}
	p.line(fmt.Sprintf(format, args...))
}

// clean makes control characters visible. Kernel log lines, host names and
// server banners come from others, and an escape sequence in one of them would
// otherwise act on the terminal of root.
func clean(s string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case r < 0x20:
			return '\u2400' + r // the control pictures ␀ to ␟
		case r == 0x7f:
			return '\u2421'
		case r >= 0x80 && r < 0xa0, isBidiControl(r):
			return utf8.RuneError
		}
		return r
	}, s)
}

// isBidiControl reports whether a character reorders what surrounds it on a screen.
func isBidiControl(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

const (
	// progressEvery bounds how often the line is rewritten.
	progressEvery = 100 * time.Millisecond
	// progressLogEvery is for lines that stay.
	progressLogEvery = time.Second
	// progressWidth keeps the line from wrapping: a wrapped line cannot be
	// rewritten in place.
	progressWidth = 79
)

// Progress is one line on a terminal that is rewritten in place. It may be used
// by several goroutines.
type Progress struct {
	w   io.Writer
	now func() time.Time
	log bool

	mu    sync.Mutex
	drawn time.Time
	shown bool
}

// NewProgress makes a progress line on w; where w is not a terminal it writes
// nothing at all.
func NewProgress(w io.Writer, isTerminal bool, now func() time.Time) *Progress {
	if !isTerminal {
		w = nil
	}
	return &Progress{w: w, now: now}
}

// NewProgressLog writes a line now and then to w, which is no terminal.
func NewProgressLog(w io.Writer, now func() time.Time) *Progress {
	return &Progress{w: w, now: now, log: true}
}

// Update shows a new text, unless the last one is younger than 100 ms.
func (p *Progress) Update(format string, args ...any) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, text := p.now(), clean(fmt.Sprintf(format, args...))
	if p.log {
		if now.Sub(p.drawn) >= progressLogEvery {
			p.drawn = now
			fmt.Fprintf(p.w, "natkit: %s\n", text)
		}
		return
	}
	if p.shown && now.Sub(p.drawn) < progressEvery {
		return
	}
	p.drawn, p.shown = now, true
	// A terminal that does not take the line is no reason to stop the work.
	fmt.Fprintf(p.w, "\r%s\x1b[K", truncate(text, progressWidth))
}

// Show is Update with a text as it is; an empty one removes the line.
func (p *Progress) Show(what string) {
	if what == "" {
		p.Clear()
		return
	}
	p.Update("%s", what)
}

// Clear removes the line, so that what follows starts at the margin. The next
// Update is shown at once.
func (p *Progress) Clear() {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		io.WriteString(p.w, "\r\x1b[K")
	}
	p.shown = false
}
