package report

import (
	"fmt"
	"io"
	"sync"
	"time"
)

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
