package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/suggest"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
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
	filter *frame.Filter
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

` + frame.FilterUsage,
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
		return frame.FilterWords, cobra.ShellCompDirectiveDefault
	}
	return frame.FilterWords, cobra.ShellCompDirectiveNoFileComp
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
	expr, err := frame.ParseFilter(args[1:])
	if err != nil {
		return usageError{err}
	}
	v.filter = expr
	return v.one(cmd, args[0])
}

// beginsFilter tells a filter's first word from the name of a second file.
func beginsFilter(word string) bool {
	first, _, _ := strings.Cut(strings.TrimSpace(word), " ")
	return strings.HasPrefix(first, "(") || slices.Contains(frame.FilterWords, first)
}

// captureInput is a capture that is being read: a file, or what comes down a pipe.
// It shows how far it is, and ends, as if it had no more, when the context does.
type captureInput struct {
	name string
	// size is that of a plain file, 0 where nobody knows how much comes.
	size, read  int64
	interrupted bool
	// quiet shows nothing.
	quiet bool

	ctx      context.Context
	from     io.Reader
	file     *os.File // nil for standard input
	progress *report.Progress
}

// openCapture opens a file, or standard input where name is "-".
func openCapture(ctx context.Context, env *Env, name string) (*captureInput, error) {
	in := &captureInput{name: name, ctx: ctx, progress: env.progress()}
	if name == "-" {
		if env.StdinTerminal {
			return nil, usagef("standard input is a terminal: pipe a capture into it, such as 'tcpdump -w - | natkit pcap -'")
		}
		in.name, in.from = "standard input", newInterruptible(ctx, env.Stdin)
		return in, nil
	}
	file, err := openUntil(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w%s", err, hintOf(err))
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a directory: name a file in it", name)
	case info.Mode().IsRegular():
		in.size = info.Size()
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	in.file, in.from = file, newInterruptible(ctx, file)
	return in, nil
}

// hintOf says what to do about a file that cannot be opened.
func hintOf(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": natkit needs no more than to read it ('chmod a+r' by its owner)"
	}
	return ""
}

func (in *captureInput) Read(p []byte) (int, error) {
	n, err := in.from.Read(p)
	in.read += int64(n)
	in.show()
	if err != nil && in.ctx.Err() != nil && errors.Is(err, in.ctx.Err()) {
		in.interrupted = true
		return n, io.EOF
	}
	return n, err
}

func (in *captureInput) show() {
	if in.quiet {
		return
	}
	if in.size > 0 {
		in.progress.Update("%s: %s of %s read (%s)", in.name, units.Bytes(in.read), units.Bytes(in.size), units.Percent(float64(in.read)/float64(in.size)))
		return
	}
	in.progress.Update("%s: %s read", in.name, units.Bytes(in.read))
}

// Close ends the reading and removes the line that showed it.
func (in *captureInput) Close() error {
	in.progress.Clear()
	if in.file == nil {
		return nil
	}
	return in.file.Close()
}

// chosenBy reports whether a filter lets a packet pass; what is in a tunnel is not looked
// at. It counts those that pass.
func (v *pcapVerb) chosenBy(n *int64) func(*pcap.Packet) bool {
	if v.filter == nil {
		return nil
	}
	return func(p *pcap.Packet) bool {
		if !v.filter.Match(&p.Frame) {
			return false
		}
		*n++
		return true
	}
}

// pcapDocument is the JSON form.
type pcapDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Source  string `json:"source"`
	// Filter chose so many packets, where there was one.
	Filter string `json:"filter,omitempty"`
	Chosen int64  `json:"packets_chosen,omitempty"`
	// Interrupted says that the capture was not read to its end.
	Interrupted bool `json:"interrupted,omitempty"`
	*pcap.Report
}

// one reads one capture and tells what it holds.
func (v *pcapVerb) one(cmd *cobra.Command, name string) error {
	in, err := openCapture(cmd.Context(), v.env, name)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pcap.Read(in, pcap.Options{Memory: int64(v.memory), Incidents: v.keep, TimeWait: v.timeWait, Only: v.chosenBy(&v.passed)})
	in.progress.Clear()
	switch {
	case r == nil && in.interrupted:
		return errors.New("interrupted before the capture had begun")
	case r == nil:
		return malformed(in.failed(err))
	}
	if in.interrupted {
		r.Damage = withoutEnd(r.Damage)
	}
	v.choose(r)
	if showErr := v.show(in, r); showErr != nil {
		return showErr
	}
	if err != nil {
		return in.failed(fmt.Errorf("%w; what was read until there is told", err))
	}
	if notUnderstood(r) {
		return malformed(in.failed(errors.New("nothing in it was understood (see above), so nothing can be said of it")))
	}
	if v.faulty(r) {
		return errFindings
	}
	return nil
}

// notUnderstood reports whether there are packets, but none that natkit could read. Those
// that are not IP, such as ARP, were read.
func notUnderstood(r *pcap.Report) bool {
	var unread, other int64
	for _, u := range r.Undecoded {
		unread += u.Packets
		if u.Reason == pcap.NotIP {
			other += u.Packets
		}
	}
	return r.Packets > 0 && unread == r.Packets && other == 0
}

// withoutEnd leaves out the place where an interruption ended the file.
func withoutEnd(list []pcap.Damage) []pcap.Damage {
	if n := len(list); n > 0 && list[n-1].Ended {
		return list[:n-1]
	}
	return list
}

// choose leaves out the incidents of kinds that were not asked for.
func (v *pcapVerb) choose(r *pcap.Report) {
	if len(v.chosen) == 0 {
		return
	}
	r.Incidents = slices.DeleteFunc(r.Incidents, func(in pcap.Incident) bool { return !slices.Contains(v.chosen, in.Kind) })
	r.Kinds = slices.DeleteFunc(r.Kinds, func(k pcap.KindCount) bool { return !slices.Contains(v.chosen, k.Kind) })
}

func (v *pcapVerb) show(in *captureInput, r *pcap.Report) error {
	if v.asJSON {
		return report.JSON(v.env.Stdout, pcapDocument{Schema: pcap.Schema, Version: v.env.Version, Source: in.name,
			Filter: v.filter.String(), Chosen: v.passed, Interrupted: in.interrupted, Report: r})
	}
	view := report.PcapView{Source: in.name, Ladders: v.ladders, Kinds: v.chosen, Steps: v.steps, Clock: v.clock, Zone: v.zone(), Interrupted: in.interrupted}
	if v.filter != nil {
		view.Filter, view.Chosen = v.filter.String(), v.passed
	}
	write := report.Pcap
	if v.list {
		write = report.PcapList
	}
	return write(v.out(), v.env.style(), view, r)
}

func (v *pcapVerb) zone() *time.Location {
	if v.utc {
		return time.UTC
	}
	return time.Local
}

// out is stdout, kept to ASCII where the locale is.
func (v *pcapVerb) out() io.Writer {
	if isUTF8(v.env.Getenv) {
		return v.env.Stdout
	}
	return report.ASCII(v.env.Stdout)
}

// faultKinds cost connections. The others can be part of what is meant to happen: a port
// where nobody listens, a path with a smaller MTU.
var faultKinds = []pcap.Kind{pcap.SYNRejectedPAWS, pcap.SYNRejectedSeq, pcap.SYNOnOpen, pcap.SYNUnanswered, pcap.RSTOutOfWindow, pcap.RetransmissionBackoff}

func (v *pcapVerb) faulty(r *pcap.Report) bool {
	return slices.ContainsFunc(r.Kinds, func(k pcap.KindCount) bool {
		return k.Count > 0 && (len(v.chosen) > 0 || slices.Contains(faultKinds, k.Kind))
	})
}

// failed is why a capture could not be read.
func (in *captureInput) failed(err error) error { return fmt.Errorf("%s: %w", in.name, err) }

// pairDocument is the JSON form.
type pairDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// InsideFile and OutsideFile are the names given, as it turned out which is which.
	InsideFile  string `json:"inside_file"`
	OutsideFile string `json:"outside_file"`
	Interrupted bool   `json:"interrupted,omitempty"`
	*pair.Report
}

// usualRows of each table of flows are shown.
const usualRows = 10

// compare reads captures of both sides of a NAT.
func (v *pcapVerb) compare(cmd *cobra.Command, inside, outside string) error {
	if err := v.checkPair(cmd, inside, outside); err != nil {
		return err
	}
	if v.rows = usualRows; cmd.Flags().Changed("max") {
		v.rows = v.ladders
	}
	in, err := openCapture(cmd.Context(), v.env, inside)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := openCapture(cmd.Context(), v.env, outside)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; and a filter does not begin like that", err)
	}
	if err != nil {
		return err
	}
	defer out.Close()
	out.quiet = true // one line of progress
	r, err := pair.Match(in, out, pair.Options{Window: v.window, Memory: int64(v.memory), Listed: v.keep})
	in.progress.Clear()
	if err != nil {
		return malformed(fmt.Errorf("compare %s with %s: %w", in.name, out.name, err))
	}
	if r.Swapped {
		in, out = out, in
	}
	if err := v.showPair(r, in, out); err != nil {
		return err
	}
	if r.Out.Lost+r.In.Lost > 0 {
		return errFindings
	}
	return nil
}

// checkPair refuses what only one capture has.
func (v *pcapVerb) checkPair(cmd *cobra.Command, inside, outside string) error {
	if inside == "-" && outside == "-" {
		return usagef("both captures are standard input: name two files")
	}
	for _, name := range []string{"kind", "list", "all", "clock", "time-wait"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s is for one capture: of two only packets are compared", name)
		}
	}
	return nil
}

func (v *pcapVerb) showPair(r *pair.Report, in, out *captureInput) error {
	interrupted := in.interrupted || out.interrupted
	if interrupted {
		r.Inside.File.Damage, r.Outside.File.Damage = withoutEnd(r.Inside.File.Damage), withoutEnd(r.Outside.File.Damage)
	}
	if v.asJSON {
		return report.JSON(v.env.Stdout, pairDocument{Schema: pair.Schema, Version: v.env.Version, InsideFile: in.name, OutsideFile: out.name, Interrupted: interrupted, Report: r})
	}
	view := report.PairView{Inside: in.name, Outside: out.name, Rows: v.rows, Zone: v.zone(), Interrupted: interrupted}
	return report.PcapPair(v.out(), v.env.style(), view, r)
}
