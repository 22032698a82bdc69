package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// entryCounter counts the entries on their way, shows how many there are so far, and
// ends it when the context does.
type entryCounter struct {
	ctx      context.Context
	n        int64
	progress *report.Progress
	fn       func(*conntrack.Entry) error
	// err is that of fn.
	err error
}

// progressEntries is how many entries pass between two looks at the clock.
const progressEntries = 1 << 14

func (c *entryCounter) take(e *conntrack.Entry) error {
	c.n++
	if c.n%progressEntries == 0 {
		c.progress.Update("%s entries read", units.Count(c.n))
		if err := c.ctx.Err(); err != nil {
			return err
		}
	}
	c.err = c.fn(e)
	return c.err
}

func (s *entries) eachOfText(env *Env, f *match.Filter, count *entryCounter) (entriesAbout, error) {
	about := entriesAbout{Source: s.from}
	if s.from == "-" {
		about.Source = "standard input"
	}
	r, err := s.openText(count.ctx, env)
	if err != nil {
		return about, err
	}
	defer r.Close()
	stats, err := text.Each(r, func(e *conntrack.Entry) error {
		if !f.Match(e) {
			return nil
		}
		return count.take(e)
	})
	about.Entries, about.Lines, about.Garbled, about.Unknown = count.n, stats.Lines, stats.Garbled, stats.Unknown
	count.progress.Clear()
	if cancelled := count.ctx.Err(); cancelled != nil {
		return about, cancelled
	}
	about.Complete = err == nil
	if !errors.Is(err, text.ErrNoList) {
		env.warnOfText(about.Source, stats)
	}
	switch {
	case errors.Is(err, dump.ErrStop):
		return about, nil
	case count.err != nil:
		return about, count.err
	case errors.Is(err, text.ErrEmpty):
		env.note("%s is empty: the table was, or there was nothing that could be written", about.Source)
		about.Complete = true
		return about, nil
	case errors.Is(err, io.ErrUnexpectedEOF) && stats.Entries > 0:
		env.note("%s ends too early, after line %s: it was not written to its end; what there is is used", about.Source, units.Count(stats.Lines))
		return about, nil
	case err != nil:
		return about, malformed(fmt.Errorf("%s: %w", about.Source, err))
	}
	return about, nil
}

// warnOfText says what of a text could not be used.
func (e *Env) warnOfText(source string, s text.Stats) {
	e.warnOfLines(s.Garbled, s.First, fmt.Sprintf("%s of %s in %s could not be read and are left out",
		units.Count(s.Garbled), units.Plural(s.Lines, "line", "lines"), source))
	e.warnOfLines(s.Unknown, s.FirstUnknown, fmt.Sprintf("%s in %s not known and passed over",
		units.Plural(s.Unknown, "word", "words"), source))
}

func (e *Env) warnOfLines(n int64, first []text.Garbled, what string) {
	if n == 0 {
		return
	}
	if n > int64(len(first)) {
		what += "; the first:"
	} else {
		what += ":"
	}
	e.note("%s", what)
	for _, g := range first {
		e.note("  line %s: %s: %s", units.Count(g.Line), g.Why, g.Text)
	}
}

// openText opens the text; reading it ends when ctx does.
func (s *entries) openText(ctx context.Context, env *Env) (io.ReadCloser, error) {
	if s.from == "-" {
		return io.NopCloser(newInterruptible(ctx, env.Stdin)), nil
	}
	file, err := openUntil(ctx, s.from)
	if err != nil {
		return nil, fmt.Errorf("read connections: %w", err)
	}
	// A pipe with a name may never have a writer's next line.
	stop := context.AfterFunc(ctx, func() { file.Close() })
	return struct {
		io.Reader
		io.Closer
	}{file, closer(func() error {
		stop()
		return file.Close()
	})}, nil
}

// openUntil opens a file for reading, or gives up when ctx ends: that of a pipe with
// a name waits for its writer. Its goroutine then ends with the process.
func openUntil(ctx context.Context, name string) (*os.File, error) {
	var file *os.File
	opened := make(chan error, 1)
	go func() {
		var err error
		file, err = os.Open(name)
		opened <- err
	}()
	select {
	case err := <-opened:
		return file, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type closer func() error

func (c closer) Close() error { return c() }
