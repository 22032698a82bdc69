package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
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

// entrySchema names the form of an entry's JSON document.
const entrySchema = "natkit.conntrack-entry/1"

// entryForm is how an entry is written, chosen by flags.
type entryForm struct {
	output      []string
	usual       string
	json, csv   bool
	timestamped bool
	options     text.Options
}

// The words of --output.
// text and wide are what it would be without the flag.
var entryOutputs = []string{"extended", "plain", "id", "timestamp", "ktimestamp", "labels", "json", "csv", "text", "wide"}

func (f *entryForm) addFlags(cmd *cobra.Command, usual string) {
	f.usual = usual
	cmd.Flags().StringSliceVarP(&f.output, "output", "o", []string{usual},
		"`FORMS`, separated by commas: extended (with the network protocol), plain, id, ktimestamp (when it began and ended), timestamp (of an event), labels; or json, csv or text alone")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON document (a line, for each entry; schema "+entrySchema+")")
	cmd.Flags().BoolVar(&f.csv, "csv", false, "print comma-separated values, their names in the first line")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"output": cobra.FixedCompletions(entryOutputs, cobra.ShellCompDirectiveNoFileComp)})
}

// check reads the flags.
func (f *entryForm) check(cmd *cobra.Command) error {
	for _, word := range f.output {
		if !slices.Contains(entryOutputs, word) {
			return usagef("--output %q: the words are %s", word, strings.Join(entryOutputs, ", "))
		}
	}
	if len(f.output) == 1 && (f.output[0] == "text" || f.output[0] == "wide") {
		f.output[0] = f.usual
	}
	has := func(word string) bool { return slices.Contains(f.output, word) }
	given := cmd.Flags().Changed("output")
	whole := has("json") || has("csv")
	switch {
	case whole && len(f.output) > 1:
		return usagef("--output %s: json and csv have everything in them: give one of them alone", strings.Join(f.output, ","))
	case given && (f.json && !has("json") || f.csv && !has("csv")):
		return usagef("--output, --json and --csv are mutually exclusive")
	}
	f.json, f.csv = f.json || has("json"), f.csv || has("csv")
	f.timestamped = has("timestamp")
	f.options = text.Options{Extended: has("extended"), ID: has("id"), Timestamps: has("ktimestamp"), Location: time.Local}
	if numeric, _ := cmd.Flags().GetBool("numeric"); numeric {
		f.options.Labels = new(text.Labels)
	} else if has("labels") {
		names, err := connlabels()
		if err != nil {
			return err
		}
		f.options.Labels = names
	}
	return nil
}

// now is the time that an entry's age is counted to.
func (f *entryForm) now(t time.Time) { f.options.Now = t.Unix() }

// begin writes what comes before the first entry.
func (f *entryForm) begin(w *lineWriter) {
	if f.csv {
		w.buf = append(text.AppendCSVHeader(w.buf), '\n')
	}
}

// append adds e without the end of the line.
func (f *entryForm) append(b []byte, e *conntrack.Entry) []byte {
	switch {
	case f.json:
		return text.AppendJSON(b, e)
	case f.csv:
		return text.AppendCSV(b, e)
	default:
		return text.Append(b, e, f.options)
	}
}

// connlabelNames is where iptables keeps the names of labels.
const connlabelNames = "/etc/xtables/connlabel.conf"

// connlabels are the names of labels; none without a file of them.
func connlabels() (*text.Labels, error) {
	file, err := os.Open(connlabelNames)
	if os.IsNotExist(err) {
		return new(text.Labels), nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return text.ReadLabels(file)
}

// conntrackCommand are the commands of conntrack(8) and natkit's words for them.
var conntrackCommand = map[string]string{
	"-L": "list", "--dump": "list", "-C": "count", "--count": "count", "-E": "events", "--event": "events",
	"-D": "delete", "--delete": "delete", "-F": "delete --all", "--flush": "delete --all",
}

// conntrackHint says which verb does what a command of conntrack(8) does; "" for others.
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
