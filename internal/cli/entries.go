package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
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
	// texts are those of the directory or the archive that from names; nil of a single list.
	texts *loose.Host
}

// host reads the texts of a directory or an archive; nil where from is a single list, or standard input.
func (s *entries) host(ctx context.Context, env *Env) (*loose.Host, error) {
	if s.texts != nil || s.from == "-" {
		return s.texts, nil
	}
	walk, err := severalTexts(ctx, s.from)
	if walk == nil || err != nil {
		return nil, err
	}
	if s.texts, err = loose.Read(walk, "", loose.Options{Budget: snapshot.NewBudget(snapshot.DefaultBudget)}); err != nil {
		return nil, malformed(fmt.Errorf("read %s: %w", s.from, err))
	}
	for _, note := range slices.Concat(s.texts.Lost, s.texts.Notes) {
		env.note("%s", note)
	}
	return s.texts, nil
}

// list opens the list of connections, and names it.
func (s *entries) list(ctx context.Context, env *Env, about *entriesAbout, fn func(*conntrack.Entry) error) (text.Stats, error) {
	host, err := s.host(ctx, env)
	if err != nil {
		return text.Stats{}, err
	}
	if host != nil {
		list := host.Last().Table
		if list == nil {
			return text.Stats{}, malformed(fmt.Errorf("read connections: %s has no list of them: 'conntrack -L -o extended,id' prints one", s.from))
		}
		about.Source = s.from + ": " + list.File
		return host.EachEntry(list, fn)
	}
	in, err := env.open(ctx, s.from, "a list of connections into it, such as 'conntrack -L | natkit conntrack --from -'")
	if err != nil {
		return text.Stats{}, fmt.Errorf("read connections: %w", err)
	}
	defer in.Close()
	about.Source = in.name
	return text.Each(in, fn)
}

// entriesAbout describes a run over entries.
type entriesAbout struct {
	// Source names where the entries come from; Live: a table now.
	Source string `json:"source"`
	Live   bool   `json:"live"`
	// Entries were handed out: those that the filter chose.
	Entries int64 `json:"entries"`
	// Complete is set if these are all entries. Interrupted is a table that was
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
	cmd.Flags().StringVar(&s.from, "from", "", "read 'conntrack -L' text, /proc/net/nf_conntrack, lines of JSON or CSV in `FILE` (- is stdin), also gzipped, instead of a table; or a directory or archive of texts (sosreport) with one")
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

// progressEntries is the number of entries between two updates of the progress.
const progressEntries = 1 << 14

// each hands every entry that the filter (nil: all) chooses to fn, which must not
// keep it; dump.ErrStop of fn ends it early without an error. What is wrong with the
// input, but does not keep the rest from being used, is reported on stderr.
func (s *entries) each(cmd *cobra.Command, env *Env, f *conntrack.Filter, fn func(*conntrack.Entry) error) (about entriesAbout, err error) {
	if err := s.check(cmd); err != nil {
		return about, err
	}
	if f.Empty() {
		f = nil
	}
	ctx, progress := cmd.Context(), env.progress()
	defer progress.Clear()
	var failed error
	take := func(e *conntrack.Entry) error {
		if about.Entries++; about.Entries%progressEntries == 0 {
			progress.Update("%s entries read", units.Count(about.Entries))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		failed = fn(e)
		return failed
	}
	if !s.fromText(cmd) {
		r, err := s.dump(cmd, f, &about, take)
		progress.Clear()
		switch {
		case err != nil:
		case r.Interrupted:
			env.note("%s", r.Interruption())
		case r.Attempts > 1:
			env.note("the table was resized while it was read: it was read again")
		}
		return about, err
	}
	stats, err := s.list(ctx, env, &about, func(e *conntrack.Entry) error {
		if !f.Match(e) {
			return nil
		}
		return take(e)
	})
	progress.Clear()
	if about.Source == "" { // there is no list
		return about, err
	}
	about.Lines, about.Garbled, about.Unknown = stats.Lines, stats.Garbled, stats.Unknown
	switch {
	case ctx.Err() != nil:
		return about, ctx.Err()
	case failed != nil && !errors.Is(failed, dump.ErrStop):
		return about, failed
	}
	return about, env.judgeText(&about, stats, err)
}

// What a table's verbs do without Linux.
const (
	readsTable  = "read a connection table"
	listInstead = "copy what 'conntrack -L' prints there, and use --from FILE"
)

func (s *entries) dump(cmd *cobra.Command, f *conntrack.Filter, about *entriesAbout, take func(*conntrack.Entry) error) (r dump.Result, err error) {
	if err := needsLinux(readsTable, listInstead); err != nil {
		return r, err
	}
	ns, err := s.open(cmd)
	if err != nil {
		return r, err
	}
	defer ns.Close()
	about.Source, about.Live = s.name(), true
	if s.restart == nil {
		r, err = dump.Each(cmd.Context(), ns, f, take)
	} else {
		r, err = dump.EachWhole(cmd.Context(), ns, f, func() { about.Entries = 0; s.restart() }, take)
	}
	about.Complete, about.Interrupted = r.Complete, r.Interrupted
	if r.Attempts > 1 {
		about.Attempts = r.Attempts
	}
	return r, err
}

// judgeText warns of the unusable parts of a text, and returns an error if no part is usable.
func (e *Env) judgeText(about *entriesAbout, stats text.Stats, err error) error {
	if !errors.Is(err, text.ErrNoList) {
		e.warnOfText(about.Source, stats)
	}
	switch about.Complete = err == nil; {
	case errors.Is(err, dump.ErrStop):
		return nil
	case errors.Is(err, text.ErrEmpty):
		e.note("%s is empty: the table was, or there was nothing that could be written", about.Source)
		about.Complete = true
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF) && stats.Entries > 0:
		e.note("%s ends too early, after line %s: it was not written to its end; what there is is used", about.Source, units.Count(stats.Lines))
		return nil
	case err != nil:
		return malformed(fmt.Errorf("%s: %w", about.Source, err))
	}
	return nil
}

// warnOfText warns of the unusable parts of a text.
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

// filterFlags choose entries of a connection table, by the flags of conntrack(8).
type filterFlags struct {
	filter conntrack.Filter
	given  []string
	// any are the flags of NAT that were given without a value.
	any []anyNAT
}

// anyNAT is a flag that asks for any translation.
type anyNAT struct {
	name string
	to   *conntrack.NAT
}

// addFlags adds the filter flags, with the short names and aliases of conntrack(8).
func (f *filterFlags) addFlags(cmd *cobra.Command) {
	all := &f.filter
	for _, flag := range []struct {
		name, short, alias, usage string
		set                       func(string) error
	}{
		{"orig-src", "s", "src", "from `ADDRESS[/PREFIX]`, before any translation", to(&all.Orig.Src, conntrack.ParsePrefix)},
		{"orig-dst", "d", "dst", "to `ADDRESS[/PREFIX]`, before any translation", to(&all.Orig.Dst, conntrack.ParsePrefix)},
		{"reply-src", "r", "", "whose replies come from `ADDRESS[/PREFIX]`", to(&all.Reply.Src, conntrack.ParsePrefix)},
		{"reply-dst", "q", "", "whose replies go to `ADDRESS[/PREFIX]`", to(&all.Reply.Dst, conntrack.ParsePrefix)},
		{"orig-port-src", "", "sport", "from `PORT` (or GRE key)", toNumber(&all.Orig.SrcPort, 16)},
		{"orig-port-dst", "", "dport", "to `PORT` (or GRE key)", toNumber(&all.Orig.DstPort, 16)},
		{"reply-port-src", "", "", "whose replies come from `PORT`", toNumber(&all.Reply.SrcPort, 16)},
		{"reply-port-dst", "", "", "whose replies go to `PORT`", toNumber(&all.Reply.DstPort, 16)},
		{"icmp-type", "", "", "of this ICMP `TYPE` number", toNumber(&all.ICMPType, 8)},
		{"icmp-code", "", "", "of this ICMP `CODE` number", toNumber(&all.ICMPCode, 8)},
		{"icmp-id", "", "", "of this ICMP `ID`", toNumber(&all.ICMPID, 16)},
		{"proto", "p", "protonum", "of protocol `NAME` or number: tcp, udp, …", to(&all.Proto, func(text string) (conntrack.Opt[uint8], error) {
			p, err := nat.ParseProtocol(text)
			return conntrack.Is(p), err
		})},
		{"family", "f", "", "of address `FAMILY`: ipv4 or ipv6", to(&all.Family, conntrack.ParseFamily)},
		{"state", "", "", "in one of these `STATES` of TCP, SCTP or DCCP, separated by commas", to(&all.States, conntrack.ParseStates)},
		{"status", "u", "", "with all of these `BITS`, separated by commas: ASSURED, UNREPLIED, OFFLOAD, …", func(text string) (err error) {
			all.Status, all.Unset, err = conntrack.ParseStatus(text)
			return err
		}},
		{"mark", "m", "", "of `MARK[/MASK]`", func(text string) (err error) {
			all.Mark, all.MarkMask, err = conntrack.ParseMark(text)
			return err
		}},
		{"label", "l", "", "with all of these `LABELS`, numbers or names, separated by commas", to(&all.Labels, parseLabels)},
		{"zone", "w", "", "of conntrack zone `N` in both directions", toNumber(&all.Zone, 16)},
		{"orig-zone", "", "", "of conntrack zone `N` in the original direction", toNumber(&all.Orig.Zone, 16)},
		{"reply-zone", "", "", "of conntrack zone `N` in the reply direction", toNumber(&all.Reply.Zone, 16)},
		{"id", "i", "", "of this `ID`, as --output id shows it", toNumber(&all.ID, 32)},
		{"src-nat", "n", "", "whose source was translated (=`TO`: to this address, prefix, ADDRESS:PORT or :PORT)", f.nat("src-nat", &all.SrcNAT)},
		{"dst-nat", "g", "", "whose destination was translated (=`TO`)", f.nat("dst-nat", &all.DstNAT)},
		{"any-nat", "j", "", "whose source or destination was translated (=`TO`)", f.nat("any-nat", &all.AnyNAT)},
	} {
		value := &value{set: func(text string) error {
			f.given = append(f.given, strings.TrimSuffix("--"+flag.name+" "+text, " "+anyTranslation))
			return flag.set(text)
		}}
		if flag.alias != "" {
			flag.usage += "; also --" + flag.alias
			cmd.Flags().Var(value, flag.alias, flag.usage)
			cmd.Flags().Lookup(flag.alias).Hidden = true
		}
		cmd.Flags().VarP(value, flag.name, flag.short, flag.usage)
		if strings.HasSuffix(flag.name, "-nat") {
			cmd.Flags().Lookup(flag.name).NoOptDefVal = anyTranslation
		}
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"proto": completeWords(nat.Protocols...), "family": completeWords(conntrack.Families...),
		"state": completeWords(conntrack.StateNames...), "status": completeWords(conntrack.StatusNames()...),
	})
}

// to and toNumber read the value of a flag into a filter.
func to[T any](to *T, parse func(string) (T, error)) func(string) error { return into(to, parse).Set }

func toNumber[T uint8 | uint16 | uint32](to *conntrack.Opt[T], bits int) func(string) error {
	return func(text string) error {
		n, err := conntrack.ParseNumber(text, bits)
		*to = conntrack.Is(T(n))
		return err
	}
}

func parseLabels(text string) (conntrack.Labels, error) {
	names, err := connlabels()
	if err != nil {
		return conntrack.Labels{}, err
	}
	return conntrack.ParseLabels(text, (*[128]string)(names))
}

// anyTranslation is the value of a flag of NAT that is given without one.
const anyTranslation = "any"

func (f *filterFlags) nat(name string, to *conntrack.NAT) func(string) error {
	return func(text string) (err error) {
		if text == anyTranslation {
			f.any = append(f.any, anyNAT{name, to})
			to.On = true
			return nil
		}
		*to, err = conntrack.ParseNAT(text)
		return err
	}
}

// args takes the address behind a flag of NAT as conntrack(8) does, without a sign
// of equality; other words are too many.
func (f *filterFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || len(f.any) != 1 {
		return takes(cmd, args)
	}
	to, err := conntrack.ParseNAT(args[0])
	if err != nil {
		return fmt.Errorf("--%s: %w", f.any[0].name, err)
	}
	*f.any[0].to = to
	f.given = append(f.given, args[0])
	return nil
}

// noteNAT prints a note on what a bare -n selects: elsewhere it is --numeric.
func (f *filterFlags) noteNAT(env *Env) {
	for _, any := range f.any {
		if any.name == "src-nat" {
			env.note("only connections with a translated source: -n is --src-nat here, as in conntrack(8); --numeric leaves out names")
		}
	}
}

// String are the flags that were given, for people.
func (f *filterFlags) String() string { return strings.Join(f.given, " ") }
