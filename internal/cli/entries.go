package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// entries is where a verb's connection table entries come from, chosen by flags:
// the table of a network namespace, or a text.
type entries struct {
	target
	from string
}

// entriesAbout is what there is to say of a run over entries, besides them.
type entriesAbout struct {
	// Source says in words where the entries come from, Live that it is a table now.
	Source string `json:"source"`
	Live   bool   `json:"live"`
	// Entries were handed out: those that the filter chose.
	Entries int64 `json:"entries"`
	// Complete says that these are all of them. Interrupted is a table that changed
	// during the dump so that entries can be missing, or be there twice.
	Complete    bool `json:"complete"`
	Interrupted bool `json:"interrupted,omitempty"`
	// Lines were read of a text, of which Garbled could not be used.
	Lines   int64 `json:"lines,omitempty"`
	Garbled int64 `json:"garbled_lines,omitempty"`
}

// addFlags adds --netns, --pid and --from.
func (s *entries) addFlags(cmd *cobra.Command) {
	s.target.addFlags(cmd)
	cmd.Flags().StringVar(&s.from, "from", "", "read 'conntrack -L' text, /proc/net/nf_conntrack or lines of JSON in `FILE` (- is stdin), also gzipped, instead of a table")
}

// fromText tells whether the entries come from a text.
func (s *entries) fromText(cmd *cobra.Command) bool { return cmd.Flags().Changed("from") }

// check finds flags that contradict each other, before anything is done.
func (s *entries) check(cmd *cobra.Command) error {
	for _, name := range []string{"netns", "pid"} {
		if s.fromText(cmd) && cmd.Flags().Changed(name) {
			return usagef("--from reads a text, --%s names a table: give one of them", name)
		}
	}
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
	count := &entryCounter{progress: env.progress(), fn: fn}
	defer count.progress.Clear()
	if s.fromText(cmd) {
		return entriesAbout{}, errors.New("--from is not read yet")
	}
	ns, err := s.open(cmd)
	if err != nil {
		return entriesAbout{}, err
	}
	defer ns.Close()
	return eachLive(cmd, env, ns, f, count)
}

// entryCounter counts the entries on their way, and shows how many there are so far.
type entryCounter struct {
	n        int64
	progress *report.Progress
	fn       func(*conntrack.Entry) error
}

// progressEntries is how many entries pass between two looks at the clock.
const progressEntries = 1 << 14

func (c *entryCounter) take(e *conntrack.Entry) error {
	c.n++
	if c.n%progressEntries == 0 {
		c.progress.Update("%s entries read", units.Count(c.n))
	}
	return c.fn(e)
}

func eachLive(cmd *cobra.Command, env *Env, ns *netns.Handle, f *match.Filter, count *entryCounter) (entriesAbout, error) {
	about := entriesAbout{Source: "this network namespace", Live: true}
	if ns != nil {
		about.Source = "network namespace " + ns.Name()
	}
	r, err := dump.Each(cmd.Context(), ns, f, count.take)
	about.Entries, about.Complete, about.Interrupted = count.n, r.Complete, r.Interrupted
	if err != nil {
		return about, err
	}
	if r.Interrupted {
		count.progress.Clear()
		fmt.Fprintln(env.Stderr, "natkit: the table changed during the dump: some entries may be missing, or counted twice")
	}
	return about, nil
}
