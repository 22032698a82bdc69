package cli

import (
	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
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
	// Source says in words where the entries come from, Live that it is a table now.
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
func (s *entries) each(cmd *cobra.Command, env *Env, f *match.Filter, fn func(*conntrack.Entry) error) (entriesAbout, error) {
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

func (s *entries) eachLive(env *Env, ns *netns.Handle, f *match.Filter, count *entryCounter) (entriesAbout, error) {
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

func (s *entries) dump(ns *netns.Handle, f *match.Filter, count *entryCounter) (dump.Result, error) {
	if s.restart == nil {
		return dump.Each(count.ctx, ns, f, count.take)
	}
	return dump.EachWhole(count.ctx, ns, f, func() {
		count.n = 0
		s.restart()
	}, count.take)
}
