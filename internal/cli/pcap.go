package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/filter"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/suggest"
)

// pcapVerb is the verb pcap.
type pcapVerb struct {
	env              *Env
	ladders, keep    int
	rows             int // of tables, with two files
	kinds            []string
	memory           memorySize
	timeWait, window time.Duration
	list, steps      bool
	clock, utc       bool
	asJSON           bool

	chosen []pcap.Kind
	filter *filter.Expr
	passed int64 // packets that the filter chose
}

// Usual values: of each kind, how many incidents are drawn and how many are kept.
const (
	usualLadders = 2
	usualKept    = 10_000
)

func newPcap(env *Env) *cobra.Command {
	v := &pcapVerb{env: env, memory: pcap.DefaultMemory, timeWait: 60 * time.Second, window: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "pcap [flags] FILE|- [FILTER…|OUTSIDE]",
		Short: "read a capture: ports that come back too early, and what goes wrong with them",
		Long: `Read a capture (pcap or pcapng, also gzipped; - is standard input) and tell what a
NAT does to TCP: which ports came back to the same destination and after how long;
SYNs that met the former connection's TIME_WAIT and were rejected, by their timestamp
(PAWS) or their sequence number, with the ACK of the former connection and the RST
that follow; the number of clocks, that is of machines, behind an address; SYNs that
nobody answered; RSTs outside of their receiver's window; segments sent again and
again; ICMP errors. Each kind has a short story, with the worst incidents packet by
packet. Frame numbers are those of Wireshark and 'tcpdump --number'.

With a second file it compares captures of both sides of a NAT: what never came out,
what was rewritten, how long it took, how far the clocks are apart.

It needs no privilege, and no more memory for a larger file: connections that were
silent for longest are forgotten when --memory is full, and it says so. Of a damaged
file it tells what it holds. Ctrl-C ends it with what was read until then.

The exit code is 3 where there are incidents that cost connections (syn-rejected-paws,
syn-rejected-seq, syn-on-open-connection, syn-unanswered, rst-out-of-window,
retransmission-backoff), or any that --kind asks for; of two files, where packets were
lost in the NAT.

` + filter.Usage,
		Example: `  natkit pcap server.pcap
  sudo tcpdump -i eth0 -U -w - tcp | natkit pcap -
  natkit pcap --kind syn-rejected-paws --list server.pcapng.gz
  natkit pcap server.pcap host 203.0.113.1 and port 443
  natkit pcap inside.pcap outside.pcap
  natkit pcap --json server.pcap`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completePcap,
		RunE:              func(cmd *cobra.Command, args []string) error { return v.run(cmd, args) },
	}
	v.addFlags(cmd)
	return cmd
}

func (v *pcapVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&v.ladders, "max", usualLadders, "draw at most `N` incidents of each kind (of two files: show N flows in each table), 0 for all that are kept")
	f.StringSliceVar(&v.kinds, "kind", nil, "only incidents of these `KINDS`, with commas between")
	f.BoolVar(&v.list, "list", false, "print a line for each incident instead of the stories")
	f.BoolVar(&v.steps, "all", false, "draw all packets of an incident that are kept, with all of their fields")
	f.BoolVar(&v.clock, "clock", false, "show the time of day in ladders, not the time since their first packet")
	f.BoolVar(&v.utc, "utc", false, "show times in UTC, not in this machine's time zone")
	f.IntVar(&v.keep, "keep", usualKept, "keep at most `N` incidents of each kind (of two files: flows) for --list, --json and --max 0; all are counted")
	f.Var(&v.memory, "memory", "keep connections and clocks in no more than `SIZE`: 64M, 1G, …")
	f.Var((*seconds)(&v.timeWait), "time-wait", "how long servers stay in TIME_WAIT, where a SYN without answer is to be judged by it: seconds or 2m, …")
	f.Var((*seconds)(&v.window), "window", "of two files: how long a packet may take from one to the other: seconds or 500ms, …")
	addJSON(cmd, &v.asJSON, pcap.Schema+", of two files "+pair.Schema)
	for _, text := range []string{"list", "all", "clock", "max"} {
		cmd.MarkFlagsMutuallyExclusive("json", text)
	}
	none := cobra.NoFileCompletions
	completeFlags(cmd, map[string]cobra.CompletionFunc{"kind": completeKinds, "max": none, "keep": none, "memory": none, "time-wait": none, "window": none})
}

// completeKinds offers the kinds of incidents, also behind a comma.
func completeKinds(_ *cobra.Command, _ []string, begun string) (words []string, _ cobra.ShellCompDirective) {
	before := begun[:strings.LastIndexByte(begun, ',')+1]
	for _, kind := range pcap.Kinds {
		words = append(words, before+string(kind))
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completePcap offers files, and behind the first one the words of a filter, too.
func completePcap(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return nil, cobra.ShellCompDirectiveDefault
	case len(args) == 1:
		return filter.Words(), cobra.ShellCompDirectiveDefault
	}
	return filter.Words(), cobra.ShellCompDirectiveNoFileComp
}

// Bounds of --keep and --time-wait.
const (
	maxKept     = 1_000_000
	maxTimeWait = 10 * time.Minute
)

func (v *pcapVerb) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case v.ladders < 0:
		return usagef("--max %d: must not be negative", v.ladders)
	case v.keep < 1 || v.keep > maxKept:
		return usagef("--keep %d: must be from 1 to %d", v.keep, maxKept)
	case v.timeWait < time.Second || v.timeWait > maxTimeWait:
		return usagef("--time-wait %s: must be from 1s to %s", v.timeWait, maxTimeWait)
	case v.window < time.Millisecond || v.window > time.Minute:
		return usagef("--window %s: must be from 1ms to 1m", v.window)
	}
	for _, name := range v.kinds {
		kind := pcap.Kind(strings.TrimSpace(name))
		if !slices.Contains(pcap.Kinds, kind) {
			return usagef("--kind %q%s; there are: %s", name, suggest.Hint(name, kindNames()), strings.Join(kindNames(), ", "))
		}
		v.chosen = append(v.chosen, kind)
	}
	if changed("kind") && len(v.chosen) == 0 {
		return usagef("--kind \"\": a kind is missing; there are: %s", strings.Join(kindNames(), ", "))
	}
	return nil
}

func kindNames() (names []string) {
	for _, kind := range pcap.Kinds {
		names = append(names, string(kind))
	}
	return names
}

func (v *pcapVerb) run(cmd *cobra.Command, args []string) error {
	if err := v.check(cmd); err != nil {
		return err
	}
	switch {
	case len(args) == 1 || beginsFilter(args[1]):
	case len(args) == 2:
		return v.compare(cmd, args[0], args[1])
	default:
		return usagef("unexpected %q: behind the file come words of a filter (host, tcp, …), or one file more: the capture of the other side of a NAT", args[1])
	}
	if cmd.Flags().Changed("window") {
		return usagef("--window is for captures of both sides of a NAT: name two files")
	}
	expr, err := filter.Parse(args[1:])
	if err != nil {
		return usageError{err}
	}
	v.filter = expr
	return v.one(cmd, args[0])
}

// beginsFilter tells a filter's first word from the name of a second file.
func beginsFilter(word string) bool {
	first, _, _ := strings.Cut(strings.TrimSpace(word), " ")
	return strings.HasPrefix(first, "(") || slices.Contains(filter.Words(), first)
}
