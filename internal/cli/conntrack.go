package cli

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// The schemas of the two documents.
const (
	conntrackSchema   = "natkit.conntrack/1"
	conntrackBySchema = "natkit.conntrack-by/1"
)

// How many rows are shown without --top.
const (
	usualTop    = 20
	overviewTop = 5
)

// tableVerb is what the verbs of the connection table have in common.
type tableVerb struct {
	env     *Env
	entries entries
	filter  filterFlags
}

// addFlags adds the flags that choose entries; a text to read instead of a table is
// chosen by --from.
func (v *tableVerb) addFlags(cmd *cobra.Command, from bool) {
	if from {
		v.entries.addFlags(cmd)
	} else {
		v.entries.target.addFlags(cmd)
	}
	v.filter.addFlags(cmd)
	if cmd.Args == nil {
		cmd.Args = v.filter.args
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// each hands every chosen entry to fn.
func (v *tableVerb) each(cmd *cobra.Command, fn func(*conntrack.Entry) error) (entriesAbout, error) {
	return v.entries.each(cmd, v.env, &v.filter.filter, fn)
}

// conntrackVerb is the verb conntrack without a sub-command: the table on one screen,
// or its entries grouped by keys.
type conntrackVerb struct {
	tableVerb
	keys   []aggregate.Key
	top    int
	min    int64
	memory int64
}

func newConntrack(env *Env) *cobra.Command {
	c := &conntrackVerb{tableVerb: tableVerb{env: env}, memory: usualMemory}
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "show the connection table: on one screen, grouped by any key, as a list",
		Long: `Without flags: what the connection table of a network namespace holds, on one
screen. With --by: its entries grouped by one or more of these keys, the largest
groups first:

  family, proto, state, status, nat (none, snat, dnat, both), zone, mark,
  src, dst, sport, dport                          of the first packet
  reply-src, reply-dst, reply-sport, reply-dport  of a reply
  snat-address                                    that the source became

Addresses can be cut to prefixes: src/24 (IPv4), dst/64 (IPv6), src/24/64 (both). The
filters are those of conntrack(8), and must all hold. With more groups than fit into
--memory, counts are too high by at most a number that is printed with each.

Requires CAP_NET_ADMIN, and CAP_SYS_ADMIN to enter a namespace; --from neither.`,
		Example: `  sudo natkit conntrack
  sudo natkit conntrack --netns gateway --by state,src
  sudo natkit conntrack --by snat-address,dst,dport -p tcp --min 1000
  sudo natkit conntrack --by src/24 --state SYN_SENT --top 0 --csv > sources.csv
  conntrack -L -o extended | natkit conntrack --from -`,
		Args:        takes,
		Annotations: runsItself,
		RunE:        func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	c.addFlags(cmd, true)
	f := cmd.Flags()
	f.Var(into(&c.keys, aggregate.ParseKeys), "by", "group the entries by these `KEYS`, separated by commas")
	f.Var(natural(&c.top), "top", fmt.Sprintf("show the `N` largest groups, 0 for all (default %d; of the screen %d)", usualTop, overviewTop))
	f.Var(natural(&c.min), "min", "show only groups of at least `N` entries")
	f.Var(memory(&c.memory), "memory", "count exactly within `SIZE` of memory: 64M, 1G, …")
	f.BoolVar(&c.env.asCSV, "csv", false, "with --by: print comma-separated values, their names in the first line")
	c.env.addJSON(cmd, conntrackSchema+", with --by "+conntrackBySchema)
	requires(cmd, "min", "by")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"by": completeList(aggregate.Names)})
	cmd.AddCommand(newConntrackList(env), newConntrackCount(env), newConntrackEvents(env), newConntrackDelete(env))
	return cmd
}

func (c *conntrackVerb) run(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case c.keys != nil:
	case c.env.asCSV:
		return usagef("--csv requires --by; 'natkit conntrack list --csv' lists the entries")
	}
	if !changed("top") {
		if c.top = overviewTop; c.keys != nil {
			c.top = usualTop
		}
	}
	defer limitMemory(c.memory)()
	if c.keys == nil {
		return c.overview(cmd)
	}
	return c.groups(cmd)
}

// counter counts entries.
type counter interface{ Add(*conntrack.Entry) }

// count hands all entries to a counter, a new one where the table has to be read again.
func count[C counter](c *conntrackVerb, cmd *cobra.Command, fresh func() C) (C, entriesAbout, error) {
	to := fresh()
	c.entries.restart = func() { to = fresh() }
	about, err := c.each(cmd, func(e *conntrack.Entry) error {
		to.Add(e)
		return nil
	})
	return to, about, err
}

// tableHead begins the documents of a connection table.
type tableHead struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	Read    entriesAbout `json:"read"`
	Filter  string       `json:"filter,omitempty"`
}

func (c *conntrackVerb) groups(cmd *cobra.Command) error {
	a, about, err := count(c, cmd, func() *aggregate.Aggregator { return aggregate.New(c.keys, forGroups(c.memory, rand.Uint64())) })
	if err != nil {
		return err
	}
	g := report.Groups{Aggregator: a, Source: about.Source, Filter: c.filter.String(), Top: c.top, Min: c.min, Memory: c.memory}
	out := bufio.NewWriterSize(c.env.Stdout, 64<<10)
	switch {
	case c.env.asCSV:
		err = g.CSV(out)
	case c.env.asJSON:
		err = g.JSON(out, tableHead{conntrackBySchema, c.env.Version, about, g.Filter})
	default:
		err = g.Text(out, c.env.style())
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

func (c *conntrackVerb) overview(cmd *cobra.Command) error {
	summary, about, err := count(c, cmd, func() *aggregate.Summary { return aggregate.NewSummary(forGroups(c.memory, rand.Uint64())) })
	if err != nil {
		return err
	}
	o := report.Overview{Source: about.Source, Filter: c.filter.String()}
	timeouts := aggregate.Timeouts{}
	var known *snapshot.Names
	if about.Live {
		ns, err := c.entries.open(cmd)
		if err != nil {
			return err
		}
		defer ns.Close()
		usage, err := dump.Count(ns)
		if err != nil {
			return err
		}
		o.Count, o.Max, timeouts = usage.Entries, usage.Max, readTimeouts(ns)
		if read := c.env.hostNames(0); read != nil {
			known = read(cmd.Context(), ns)
		}
	}
	o.Overview = summary.Overview(c.top, timeouts)
	return c.env.print(report.Named{Names: known, Document: struct {
		tableHead
		report.Overview
	}{tableHead{conntrackSchema, c.env.Version, about, o.Filter}, o}})
}

const (
	usualMemory = 64 << 20
	// ownMemory is what natkit takes besides groups: its program, Go's runtime, the
	// buffers of a dump.
	ownMemory = 15 << 20
	// programMemory is the part of it that Go's runtime does not count.
	programMemory = 10 << 20
)

// forGroups returns the memory left for groups, a part of it for each version of IP.
func forGroups(memory int64, seed uint64) aggregate.Memory {
	return aggregate.Memory{Budget: aggregate.NewBudget(memory - ownMemory), Seed: seed}
}

// limitMemory lets the garbage collector keep to the limit, until it is put back.
func limitMemory(memory int64) (putBack func()) {
	before := debug.SetMemoryLimit(memory - programMemory)
	return func() { debug.SetMemoryLimit(before) }
}

// conntrackCommand are the commands of conntrack(8) and natkit's words for them.
var conntrackCommand = map[string]string{
	"-L": "list", "--dump": "list", "-C": "count", "--count": "count", "-E": "events", "--event": "events",
	"-D": "delete", "--delete": "delete", "-F": "delete --all", "--flush": "delete --all",
}

// conntrackHint returns the verb for a command of conntrack(8); "" for others.
func conntrackHint(flag string) string {
	if flag == "-S" || flag == "--stats" {
		return ": 'natkit top' shows the counters of 'conntrack -S', 'natkit snapshot --json' has them for each CPU"
	}
	if words := conntrackCommand[flag]; words != "" {
		return ": 'natkit conntrack " + words + "' does what 'conntrack " + flag + "' does"
	}
	return ""
}

// conntrackHabits turns "conntrack -L …" into "conntrack list …". The name of the table
// behind it is left out.
func conntrackHabits(args []string) []string {
	if len(args) < 2 || args[0] != "conntrack" || !strings.HasPrefix(args[1], "-") {
		return args
	}
	for i, arg := range args {
		words, ok := conntrackCommand[arg]
		if !ok {
			continue
		}
		rest := args[i+1:]
		if len(rest) > 0 && rest[0] == "conntrack" {
			rest = rest[1:]
		}
		turned := append([]string{"conntrack"}, strings.Fields(words)...)
		return append(append(turned, args[1:i]...), rest...)
	}
	return args
}
