package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// entries is where a verb's connection table entries come from, chosen by flags:
// the table of a network namespace, or a text.
type entries struct {
	target
	from string
	// restart, where it is set, forgets the entries that were handed out: a table
	// that is resized meanwhile is then read again.
	restart func()
}

// entriesAbout is what there is to say of a run over entries, besides them.
type entriesAbout struct {
	// Source names where the entries come from; Live: a table now.
	Source string `json:"source"`
	Live   bool   `json:"live"`
	// Entries were handed out: those that the filter chose.
	Entries int64 `json:"entries"`
	// Complete says that these are all of them. Interrupted is a table that was
	// resized during the dump, so that entries can be missing, or be there twice;
	// Attempts is how often it was read, where that is more than once.
	Complete    bool `json:"complete"`
	Interrupted bool `json:"interrupted,omitempty"`
	Attempts    int  `json:"attempts,omitempty"`
	// Lines were read of a text, of which Garbled could not be used; Unknown words
	// in the others were passed over.
	Lines   int64 `json:"lines,omitempty"`
	Garbled int64 `json:"garbled_lines,omitempty"`
	Unknown int64 `json:"unknown_words,omitempty"`
}

// addFlags adds --netns, --pid and --from.
func (s *entries) addFlags(cmd *cobra.Command) {
	s.target.addFlags(cmd)
	cmd.Flags().StringVar(&s.from, "from", "", "read 'conntrack -L' text, /proc/net/nf_conntrack, lines of JSON or CSV in `FILE` (- is stdin), also gzipped, instead of a table")
	cmd.MarkFlagsMutuallyExclusive("from", "netns", "pid")
}

// fromText reports whether the entries come from a text.
func (s *entries) fromText(cmd *cobra.Command) bool { return cmd.Flags().Changed("from") }

// check finds flags that contradict each other, before anything is done.
func (s *entries) check(cmd *cobra.Command) error {
	if s.fromText(cmd) && s.from == "" {
		return usagef("--from \"\": the name of a file is missing (- is stdin)")
	}
	return nil
}

// each hands every entry that the filter (nil: all) chooses to fn, which must not
// keep it; dump.ErrStop of fn ends it early without an error. What is wrong with the
// input, but does not keep the rest from being used, is said on stderr.
func (s *entries) each(cmd *cobra.Command, env *Env, f *conntrack.Filter, fn func(*conntrack.Entry) error) (entriesAbout, error) {
	if err := s.check(cmd); err != nil {
		return entriesAbout{}, err
	}
	if f.Empty() {
		f = nil
	}
	count := &entryCounter{ctx: cmd.Context(), progress: env.progress(), fn: fn}
	defer count.progress.Clear()
	if s.fromText(cmd) {
		return s.eachOfText(env, f, count)
	}
	ns, err := s.open(cmd)
	if err != nil {
		return entriesAbout{}, err
	}
	defer ns.Close()
	return s.eachLive(env, ns, f, count)
}

func (s *entries) eachLive(env *Env, ns *netns.Handle, f *conntrack.Filter, count *entryCounter) (entriesAbout, error) {
	r, err := s.dump(ns, f, count)
	about := entriesAbout{Source: s.name(), Live: true, Entries: count.n, Complete: r.Complete, Interrupted: r.Interrupted}
	if r.Attempts > 1 {
		about.Attempts = r.Attempts
	}
	count.progress.Clear()
	switch {
	case err != nil:
	case r.Interrupted:
		env.note("%s", r.Interruption())
	case r.Attempts > 1:
		env.note("the table was resized while it was read: it was read again")
	}
	return about, err
}

func (s *entries) dump(ns *netns.Handle, f *conntrack.Filter, count *entryCounter) (dump.Result, error) {
	if s.restart == nil {
		return dump.Each(count.ctx, ns, f, count.take)
	}
	return dump.EachWhole(count.ctx, ns, f, func() {
		count.n = 0
		s.restart()
	}, count.take)
}

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

// progressEntries is the number of entries between two updates of the progress.
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

func (s *entries) eachOfText(env *Env, f *conntrack.Filter, count *entryCounter) (entriesAbout, error) {
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

// openText opens the text; reading it ends when ctx does, also where a pipe has no writer.
func (s *entries) openText(ctx context.Context, env *Env) (io.ReadCloser, error) {
	if s.from == "-" {
		return io.NopCloser(newInterruptible(ctx, env.Stdin)), nil
	}
	file, err := openUntil(ctx, s.from)
	if err != nil {
		return nil, fmt.Errorf("read connections: %w", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{newInterruptible(ctx, file), file}, nil
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
