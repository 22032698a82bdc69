package cli

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/report"
)

// The schemas of the two documents.
const (
	conntrackSchema   = "natkit.conntrack/1"
	conntrackBySchema = "natkit.conntrack-by/1"
)

// How much is shown where nobody says it.
const (
	usualTop    = 20
	overviewTop = 5
)

// conntrackVerb is the verb conntrack without a sub-command: the table on one screen,
// or its entries grouped by keys.
type conntrackVerb struct {
	env           *Env
	entries       entries
	filter        filterFlags
	by            string
	keys          []aggregate.Key
	top           int
	min           int64
	memory        memorySize
	asJSON, asCSV bool
}

func newConntrack(env *Env) *cobra.Command {
	c := &conntrackVerb{env: env, memory: usualMemory}
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "see what is in the connection table: on one screen, grouped by any key, as a list",
		Long: `Without flags: what the connection table of a network namespace holds, on one
screen. With --by: its entries grouped by one or more of these keys, the largest
groups first:

  family, proto, state, status, nat (none, snat, dnat, both), zone, mark,
  src, dst, sport, dport                          as the first packet had them
  reply-src, reply-dst, reply-sport, reply-dport  as an answer has them
  snat-address                                    that the source became

Addresses can be cut to prefixes: src/24 (IPv4; addresses of IPv6 stay whole),
dst/64 (IPv6), src/24/64 (both). The filters are those of conntrack(8), and must
all hold.

--from reads a list that was written before, in any of the formats of conntrack -L,
of /proc/net/nf_conntrack, or of 'natkit conntrack list'; that needs no privilege.

Groups are counted exactly while they find room in --memory, which bounds what
natkit takes in all: 64M have room for about a million. With more groups, counts
are too high by at most a number that is told with each (space-saving sketch).

Reading the table needs CAP_NET_ADMIN, and CAP_SYS_ADMIN to enter a namespace.`,
		Example: `  sudo natkit conntrack
  sudo natkit conntrack --netns gateway --by state,src
  sudo natkit conntrack --by snat-address,dst,dport -p tcp --min 1000
  sudo natkit conntrack --by src/24 --state SYN_SENT --top 0 --csv > sources.csv
  conntrack -L -o extended | natkit conntrack --from -`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		Annotations:       runsItself,
		RunE:              func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	c.addFlags(cmd)
	cmd.AddCommand(conntrackCommands(env)...)
	return cmd
}

func (c *conntrackVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.entries.addFlags(cmd)
	addFilterFlags(cmd, &c.filter)
	f.StringVar(&c.by, "by", "", "group the entries by these `KEYS`, separated by commas")
	f.IntVar(&c.top, "top", 0, fmt.Sprintf("show the `N` largest groups, 0 for all (default %d; of the screen %d)", usualTop, overviewTop))
	f.Int64Var(&c.min, "min", 0, "show only groups of at least `N` entries")
	f.Var(&c.memory, "memory", "count exactly while natkit needs no more than `SIZE` in all: 64M, 1G, …")
	f.BoolVar(&c.asCSV, "csv", false, "with --by: print comma-separated values, their names in the first line")
	addJSON(cmd, &c.asJSON, conntrackSchema+", with --by "+conntrackBySchema)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"by": completeKeys, "top": cobra.NoFileCompletions,
		"min": cobra.NoFileCompletions, "memory": cobra.NoFileCompletions})
}

// completeKeys offers the keys that are not there yet, for the shell.
func completeKeys(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var words []string
	for _, name := range aggregate.Names() {
		if !strings.Contains(","+before, ","+name+",") {
			words = append(words, before+name)
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (c *conntrackVerb) check(cmd *cobra.Command) (err error) {
	grouped := cmd.Flags().Changed("by")
	switch {
	case c.top < 0:
		return usagef("--top %d: must not be negative", c.top)
	case c.min < 0:
		return usagef("--min %d: must not be negative", c.min)
	case !grouped && c.asCSV:
		return usagef("--csv writes groups: say --by which keys, or 'natkit conntrack list --csv' for the entries")
	case !grouped && cmd.Flags().Changed("min"):
		return usagef("--min chooses groups: say --by which keys")
	}
	if grouped {
		if c.keys, err = aggregate.ParseKeys(c.by); err != nil {
			return usagef("--by: %w", err)
		}
	}
	if !cmd.Flags().Changed("top") {
		c.top = overviewTop
		if grouped {
			c.top = usualTop
		}
	}
	return c.entries.check(cmd)
}

func (c *conntrackVerb) run(cmd *cobra.Command) error {
	if err := c.check(cmd); err != nil {
		return err
	}
	defer c.memory.limit()()
	if c.keys == nil {
		return c.overview(cmd)
	}
	return c.groups(cmd)
}

// counter counts entries.
type counter interface{ Add(*conntrack.Entry) }

// count hands all entries to a counter, a new one where the table has to be read again.
func (c *conntrackVerb) count(cmd *cobra.Command, fresh func() counter) (counter, entriesAbout, error) {
	to := fresh()
	c.entries.restart = func() { to = fresh() }
	about, err := c.entries.each(cmd, c.env, &c.filter.filter, func(e *conntrack.Entry) error {
		to.Add(e)
		return nil
	})
	return to, about, err
}

// groupsDocument is the JSON form of groups; they themselves follow it.
type groupsDocument struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	Read    entriesAbout `json:"read"`
	Filter  string       `json:"filter,omitempty"`
	Keys    []string     `json:"keys"`
	// Different is the number of groups; at least this where the counts are not exact.
	Different int   `json:"different"`
	Exact     bool  `json:"exact"`
	Bound     int64 `json:"too_high_at_most"`
}

func (c *conntrackVerb) groups(cmd *cobra.Command) error {
	counted, about, err := c.count(cmd, func() counter {
		return aggregate.New(c.keys, c.memory.forGroups(rand.Uint64()))
	})
	if err != nil {
		return err
	}
	a := counted.(*aggregate.Aggregator)
	g := report.Groups{Aggregator: a, Source: about.Source, Filter: c.filter.String(), Top: c.top, Min: c.min, Memory: int64(c.memory)}
	out := newBuffered(c.env.Stdout)
	switch {
	case c.asCSV:
		err = g.CSV(out)
	case c.asJSON:
		doc := groupsDocument{Schema: conntrackBySchema, Version: c.env.Version, Read: about, Filter: g.Filter,
			Different: a.Len(), Exact: a.Exact(), Bound: a.Bound()}
		for _, k := range c.keys {
			doc.Keys = append(doc.Keys, k.Name())
		}
		err = g.JSON(out, doc)
	default:
		err = g.Text(out, c.env.style())
	}
	if err != nil {
		return err
	}
	return out.Flush()
}
