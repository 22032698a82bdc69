package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// pcapVerb is the verb pcap.
type pcapVerb struct {
	env              *Env
	view             report.PcapView
	keep             int
	memory           int64
	timeWait, window time.Duration
	list, utc        bool
	tables           tableFlags
}

// Usual values of --max, with one file and with two, and of --keep.
const (
	usualLadders = 2
	usualRows    = 10
	usualKept    = 10_000
)

func newPcap(env *Env) *cobra.Command {
	v := &pcapVerb{env: env, memory: pcap.DefaultMemory, keep: usualKept, timeWait: 60 * time.Second, window: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "pcap [flags] FILE|- [FILTER…|OUTSIDE]",
		Short: "read a capture: ports that are reused too early, and the faults that follow",
		Long: `Read a capture (pcap or pcapng, also gzipped; - is standard input) and show what a
NAT does to TCP: ports that were reused too early; SYNs that met the former connection's
TIME_WAIT and were rejected; the number of machines behind an address; unanswered SYNs;
RSTs outside their receiver's window; segments that were sent three times or more; ICMP
errors. Of each kind the worst incidents are drawn packet by packet.

With a second file it compares captures of both sides of a NAT: packets that never came
out, rewritten fields, the added delay, the offset of the clocks.

Requires no privilege. When --memory is full the connections that were silent for longest
are dropped, and the output says so. Damaged files are read as far as possible.

The exit code is 3 if there are incidents that cost connections (` + strings.Join(kindNames(true), ",\n") + `), or any that
--kind selects; of two files, if packets were lost in the NAT.

` + frame.FilterUsage,
		Example: `  natkit pcap server.pcap
  sudo tcpdump -i eth0 -U -w - tcp | natkit pcap -
  natkit pcap --kind syn-rejected-paws --list server.pcapng.gz
  natkit pcap server.pcap host 203.0.113.1 and port 443
  natkit pcap inside.pcap outside.pcap
  natkit pcap --json server.pcap
  natkit pcap -o parquet --to tables --node gw-1 server.pcap   # tables/connections, tables/incidents`,
		ValidArgsFunction: completePcap,
		RunE:              func(cmd *cobra.Command, args []string) error { return v.run(cmd, args) },
	}
	v.addFlags(cmd)
	return cmd
}

// Bounds of --keep and --time-wait.
const (
	maxKept     = 1_000_000
	maxTimeWait = 10 * time.Minute
)

// ofOneFile are flags that a comparison of two captures does not have.
var ofOneFile = []string{"kind", "list", "all", "clock", "time-wait"}

func (v *pcapVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(natural(&v.view.Max), "max", fmt.Sprintf("draw at most `N` incidents of each kind (of two files: show N flows in each table), 0 for all that are kept (default %d; %d)", usualLadders, usualRows))
	f.Var(&value{set: v.addKinds}, "kind", "only incidents of these `KINDS`, separated by commas")
	f.BoolVar(&v.list, "list", false, "print a line for each incident instead of the stories")
	f.BoolVar(&v.view.Steps, "all", false, "draw all packets of an incident that are kept, with all of their fields")
	f.BoolVar(&v.view.Clock, "clock", false, "show the time of day in ladders, not the time since their first packet")
	f.BoolVar(&v.utc, "utc", false, "show times in UTC, not in this machine's time zone")
	f.Var(between(&v.keep, 1, maxKept), "keep", "keep at most `N` incidents of each kind (of two files: flows) for --list, --json and --max 0; all are counted")
	f.Var(memory(&v.memory), "memory", "keep connections and clocks in no more than `SIZE`: 64M, 1G, …")
	f.Var(period(&v.timeWait, time.Second, maxTimeWait), "time-wait", "how long servers stay in TIME_WAIT, to judge a SYN without answer: seconds or 2m, …")
	f.Var(period(&v.window, time.Millisecond, pair.MaxWindow), "window", "of two files: how long a packet may take from one to the other: seconds or 500ms, …")
	v.tables.addFlags(v.env, cmd)
	v.env.addJSON(cmd, pcap.Schema+", of two files "+pair.Schema)
	for _, text := range []string{"list", "all", "clock", "max"} {
		cmd.MarkFlagsMutuallyExclusive("json", text)
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{"kind": completeList(func() []string { return kindNames(false) })})
}

// completePcap offers files, and after the first one the words of a filter, too.
func completePcap(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return nil, cobra.ShellCompDirectiveDefault
	case len(args) == 1:
		return frame.FilterWords, cobra.ShellCompDirectiveDefault
	}
	return frame.FilterWords, cobra.ShellCompDirectiveNoFileComp
}

// addKinds reads the value of --kind.
func (v *pcapVerb) addKinds(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		kind := pcap.Kind(strings.TrimSpace(name))
		if !slices.Contains(pcap.Kinds, kind) {
			return fmt.Errorf("unknown kind%s; there are: %s", document.Hint(name, kindNames(false)), strings.Join(kindNames(false), ", "))
		}
		v.view.Kinds = append(v.view.Kinds, kind)
	}
	return nil
}

// kindNames are the kinds of incidents, or those that cost connections.
func kindNames(faults bool) (names []string) {
	for _, kind := range pcap.Kinds {
		if !faults || kind.About().Fault {
			names = append(names, string(kind))
		}
	}
	return names
}

func (v *pcapVerb) run(cmd *cobra.Command, args []string) (err error) {
	v.view.Zone = time.Local
	if v.utc {
		v.view.Zone = time.UTC
	}
	isPair := len(args) == 2 && !beginsFilter(args[1])
	asTable, err := v.tables.chosen(cmd)
	switch {
	case err != nil:
		return err
	case asTable && isPair:
		return usagef("--output parquet and a second capture are mutually exclusive: run it once for each, with --node")
	case asTable && v.tables.several() != nil:
		return v.tables.several()
	}
	if !cmd.Flags().Changed("max") {
		if v.view.Max = usualLadders; isPair {
			v.view.Max = usualRows
		}
	}
	switch {
	case isPair:
		return v.compare(cmd, args[0], args[1])
	case len(args) > 2 && !beginsFilter(args[1]):
		return usagef("unexpected %q: a file is followed by a filter (host, tcp, …), or by one other file: the capture of the other side of a NAT", args[1])
	case cmd.Flags().Changed("window"):
		return usagef("--window requires two files: captures of both sides of a NAT")
	}
	expr, err := parseFilter(args[1:])
	if err != nil {
		return err
	}
	return v.one(cmd.Context(), args[0], expr)
}

// beginsFilter distinguishes a filter's first word from the name of a second file.
func beginsFilter(word string) bool {
	first, _, _ := strings.Cut(strings.TrimSpace(word), " ")
	return strings.HasPrefix(first, "(") || slices.Contains(frame.FilterWords, first)
}

// captureInput is a capture that is being read. It shows progress, and ends, as if it had
// no more, when the context does.
type captureInput struct {
	*input
	ctx         context.Context
	progress    *report.Progress
	done        int64
	interrupted bool
}

func openCapture(ctx context.Context, env *Env, name string) (*captureInput, error) {
	in, err := env.open(ctx, name, "a capture into it, such as 'tcpdump -w - | natkit pcap -'")
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	return &captureInput{input: in, ctx: ctx, progress: env.progress()}, nil
}

func (in *captureInput) Read(p []byte) (int, error) {
	n, err := in.input.Read(p)
	in.done += int64(n)
	if in.size > 0 {
		in.progress.Update("%s: %s of %s read (%s)", in.name, units.Bytes(in.done), units.Bytes(in.size), units.Percent(float64(in.done)/float64(in.size)))
	} else {
		in.progress.Update("%s: %s read", in.name, units.Bytes(in.done))
	}
	if err != nil && in.ctx.Err() != nil && errors.Is(err, in.ctx.Err()) {
		in.interrupted = true
		return n, io.EOF
	}
	return n, err
}

// failed is why a capture could not be read.
func (in *captureInput) failed(err error) error { return fmt.Errorf("%s: %w", in.name, err) }

// withoutEnd leaves out the place where an interrupt ended the file.
func (in *captureInput) withoutEnd(list []pcap.Damage) []pcap.Damage {
	if n := len(list); in.interrupted && n > 0 && list[n-1].Ended {
		return list[:n-1]
	}
	return list
}

// one reads one capture and shows what is in it.
func (v *pcapVerb) one(ctx context.Context, name string, expr *frame.Filter) error {
	in, err := openCapture(ctx, v.env, name)
	if err != nil {
		return err
	}
	defer in.Close()
	opt := pcap.Options{Memory: v.memory, Incidents: v.keep, TimeWait: v.timeWait}
	if expr != nil {
		v.view.Filter = expr.String()
		opt.Only = func(p *pcap.Packet) bool {
			chosen := expr.Match(&p.Frame)
			if chosen {
				v.view.Chosen++
			}
			return chosen
		}
	}
	tables, err := v.table(ctx, &opt)
	if err != nil {
		return err
	}
	defer tables.abort()
	r, err := pcap.Read(in, opt)
	in.progress.Clear()
	switch {
	case r == nil && in.interrupted:
		return errors.New("interrupted before the capture had begun")
	case r == nil:
		return malformed(in.failed(err))
	}
	r.Damage = in.withoutEnd(r.Damage)
	if len(v.view.Kinds) > 0 {
		r.Incidents = slices.DeleteFunc(r.Incidents, func(in pcap.Incident) bool { return !slices.Contains(v.view.Kinds, in.Kind) })
		r.Kinds = slices.DeleteFunc(r.Kinds, func(k pcap.KindCount) bool { return !slices.Contains(v.view.Kinds, k.Kind) })
	}
	v.view.Source, v.view.Interrupted = in.name, in.interrupted
	if tables != nil {
		err = cmp.Or(err, interruptedError(in.interrupted))
		if err == nil {
			err = tables.write(r)
		}
		if err != nil {
			return in.failed(err)
		}
	} else if showErr := v.show(r); showErr != nil {
		return showErr
	}
	if err != nil {
		return in.failed(fmt.Errorf("%w; the output covers what was read until there", err))
	}
	if notUnderstood(&r.Stats) {
		return malformed(in.failed(errNotUnderstood))
	}
	if slices.ContainsFunc(r.Kinds, func(k pcap.KindCount) bool { return k.Count > 0 && (len(v.view.Kinds) > 0 || k.Kind.About().Fault) }) {
		return errFindings
	}
	return nil
}

// capturedTables is where the rows of a capture go.
type capturedTables struct {
	*store.Store
	flags       *tableFlags
	node        string
	connections *store.Sink[table.Connection]
	// err is the first error of a connection's row.
	err error
}

// table has the connections of a capture written as they end; nil unless tables are asked for.
func (v *pcapVerb) table(ctx context.Context, opt *pcap.Options) (*capturedTables, error) {
	if v.env.format != parquetFormat {
		return nil, nil
	}
	node, err := v.tables.named("", true)
	if err != nil {
		return nil, err
	}
	t := &capturedTables{flags: &v.tables, node: node}
	if t.Store, err = v.tables.open(ctx, node); err != nil {
		return nil, err
	}
	t.connections = store.Of[table.Connection](t.Store)
	opt.Each = func(c *pcap.Connection) {
		if t.err == nil {
			t.err = t.connections.Add(table.ConnectionRow(node, c))
		}
	}
	return t, nil
}

func (t *capturedTables) abort() {
	if t != nil {
		t.Abort()
	}
}

// write writes the incidents, and makes all visible.
func (t *capturedTables) write(r *pcap.Report) error {
	if t.err != nil {
		return t.err
	}
	incidents := store.Of[table.Incident](t.Store)
	for i := range r.Incidents {
		if err := incidents.Add(table.IncidentRow(t.node, &r.Incidents[i])); err != nil {
			return err
		}
	}
	return t.flags.commit(t.Store)
}

// interruptedError is the error of tables of half a capture, which would not be seen to be that.
func interruptedError(interrupted bool) error {
	if interrupted {
		return errors.New("interrupted; nothing was written")
	}
	return nil
}

var errNotUnderstood = errors.New("no packet in it could be decoded (see above)")

// notUnderstood reports whether there are packets, but none that natkit could read, or
// damage alone. Packets that are not IP, such as ARP, were read.
func notUnderstood(r *pcap.Stats) bool {
	var unread, other int64
	for _, u := range r.Undecoded {
		unread += u.Packets
		if u.Reason == pcap.NotIP {
			other += u.Packets
		}
	}
	return (r.Packets > 0 || len(r.Damage) > 0) && unread == r.Packets && other == 0
}

func (v *pcapVerb) show(r *pcap.Report) error {
	switch {
	case v.env.asJSON:
		return report.PcapJSON(v.env.Stdout, v.env.Version, v.view, r)
	case v.list:
		return report.PcapList(v.out(), v.env.style(), v.view, r)
	}
	return report.Pcap(v.out(), v.env.style(), v.view, r)
}

// out is stdout, kept to ASCII where the locale is.
func (v *pcapVerb) out() io.Writer {
	if isUTF8(v.env.Getenv) {
		return v.env.Stdout
	}
	return report.ASCII(v.env.Stdout)
}

// compare reads captures of both sides of a NAT.
func (v *pcapVerb) compare(cmd *cobra.Command, inside, outside string) error {
	if inside == "-" && outside == "-" {
		return usagef("both captures are standard input: name two files")
	}
	for _, name := range ofOneFile {
		if cmd.Flags().Changed(name) {
			return usagef("--%s and a second capture are mutually exclusive", name)
		}
	}
	in, err := openCapture(cmd.Context(), v.env, inside)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := openCapture(cmd.Context(), v.env, outside)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; nor is that the first word of a filter", err)
	}
	if err != nil {
		return err
	}
	defer out.Close()
	out.progress = &report.Progress{} // one line of progress
	r, err := pair.Match(in, out, pair.Options{Window: v.window, Memory: v.memory, Listed: v.keep})
	in.progress.Clear()
	if err != nil {
		return malformed(fmt.Errorf("compare %s with %s: %w", in.name, out.name, err))
	}
	if r.Swapped {
		in, out = out, in
	}
	v.view.Source, v.view.Outside, v.view.Interrupted = in.name, out.name, in.interrupted || out.interrupted
	r.Inside.File.Damage, r.Outside.File.Damage = in.withoutEnd(r.Inside.File.Damage), out.withoutEnd(r.Outside.File.Damage)
	if v.env.asJSON {
		err = report.PcapPairJSON(v.env.Stdout, v.env.Version, v.view, r)
	} else {
		err = report.PcapPair(v.out(), v.env.style(), v.view, r)
	}
	if err != nil {
		return err
	}
	if notUnderstood(&r.Inside.File) {
		return malformed(in.failed(errNotUnderstood))
	}
	if notUnderstood(&r.Outside.File) {
		return malformed(out.failed(errNotUnderstood))
	}
	if r.Out.Lost+r.In.Lost > 0 {
		return errFindings
	}
	return nil
}
