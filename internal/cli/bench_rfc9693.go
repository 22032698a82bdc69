//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/load/rfc9693/trial"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// benchRFC9693 is bench rfc9693.
type benchRFC9693 struct {
	benchVerb
	cfg    rfc9693.Config
	frames packets.Config
	size   string
	// to are the addresses that frames go to.
	to   packets.End
	ends benchEnds

	lab          bool
	nat, file    string
	table        target
	resetCommand string
	resetWait    time.Duration
}

const (
	rfcConnections = 50_000
	rfcRepeat      = 3
	rfcPrecision   = 0.01
	rfcMaxRate     = 2e6
	// rfcMaxConnections is for a gateway whose own limit is not known.
	rfcMaxConnections = 4 << 20
)

// rfcTolerance is that of the sender. Tests are more patient.
var rfcTolerance = rfc9693.DefaultTolerance

// rfcPorts are the destination ports where none are given.
var rfcPorts = nat.Ports{First: 1024, Last: 2047}

func newBenchRFC9693(env *Env) *cobra.Command {
	b := &benchRFC9693{
		benchVerb: benchVerb{env: env, schema: report.StatefulSchema}, table: target{prefix: "gateway-"},
		cfg: rfc9693.Config{Measure: rfc9693.Measurements, Connections: rfcConnections, MaxRate: rfcMaxRate, Precision: rfcPrecision, Repeat: rfcRepeat},
		nat: trial.Masquerade,
	}
	b.frames.Workers, b.frames.Spec = 1, packets.Spec{Protocol: unix.IPPROTO_UDP, HopLimit: defaultTTL}
	b.frames.Flows.SourcePorts = nat.Ports{First: 1024, Last: 65535}
	b.ends = benchEnds{benchSender: benchSender{env: env, from: &place{target: &b.target}}, to: &place{target: &target{prefix: "sink-"}}}
	cmd := &cobra.Command{
		Use:   "rfc9693 [ADDR[:PORTS]]",
		Short: "measure a stateful NAT gateway: connections made and removed per second, capacity of its table",
		Long: `Measure a NAT gateway by RFC 9693: the maximum connection establishment rate, the
connection tear-down rate and the capacity of the connection tracking table.

A trial empties the table, sends one UDP frame in each of N connections at a rate, and
passes if all arrive, and then a reply to each as well. Binary searches find the highest
rate and the greatest N. A trial whose sender was late is invalid: where that is what
bounds a search, the generator is the limit and no number is printed.

With --lab the initiator, the gateway and the responder are network namespaces made for
the run; the gateway has one kind of NAT, or a gateway file's. Otherwise frames leave by
the route to ADDR, as the initiator sees it, and arrive at --sink; the gateway's table is
emptied by --gateway-netns, --gateway-pid, --reset-command or --reset-wait. Nothing of
the host is changed: nf_conntrack_max bounds the capacity, and is printed.

Requires Linux 5.18, CAP_SYS_ADMIN and CAP_NET_ADMIN. docs/bench.md has the method.`,
		Example: `  sudo natkit bench rfc9693 --lab
  sudo natkit bench rfc9693 --lab --nat dnat --measure rate,teardown --repeat 10
  sudo natkit bench rfc9693 --lab --gateway gateway.yaml --json
  sudo natkit bench rfc9693 --netns client --sink-netns server --sink eth0 --gateway-netns router 198.19.0.2
  sudo natkit bench rfc9693 --dev eth1 --sink eth2 --reset-command 'ssh root@192.0.2.1 conntrack -F' 198.19.0.2:1024-65535`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, strings.Join(args, "")) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.BoolVar(&b.lab, "lab", false, "measure a gateway in network namespaces made for the run")
	f.Var(into(&b.nat, oneOf(trial.Masquerade, trial.DNAT)), "nat", "with --lab: the gateway's NAT: masquerade or dnat (default masquerade)")
	f.StringVar(&b.file, "gateway", "", "with --lab: the gateway's NAT is that of a gateway `FILE`, for eth0 (198.18.0.1/24, the initiator's 198.18.0.2) and eth1 (198.19.0.1/24, the responder's 198.19.0.2)")
	f.Var(into(&c.Measure, parseMeasurements), "measure", "`LIST` of rate, teardown, capacity (default all)")
	f.IntVar(&c.Connections, "connections", c.Connections, "number of connections of a trial for the rates, and the first number for the capacity")
	f.Float64Var(&c.MaxRate, "max-rate", c.MaxRate, "search up to this many connections per second")
	f.IntVar(&c.MaxConnections, "max-connections", 0, fmt.Sprintf("search the capacity up to this number of connections (default: twice nf_conntrack_max, or %d where it cannot be read; no more than the sources and ports make)", rfcMaxConnections))
	f.Var(&value{text: "1%", set: b.setPrecision}, "precision", "end a binary search when its bounds differ by this `SHARE`: 0.01 or 1%")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "number of repetitions of each measurement; RFC 9693 wants 10 or more")
	f.Var(addressList(&b.frames.Flows.Sources), "source", "send from this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS), in turn; may be repeated")
	f.Var(into(&b.frames.Flows.SourcePorts, nat.ParsePorts), "source-port", "choose source ports of `FIRST-LAST` in an order that --seed determines")
	f.Uint64Var(&b.frames.Flows.Seed, "seed", 0, "makes the order of the connections repeatable")
	f.IntVar(&b.frames.Workers, "workers", 1, "number of threads that send, each on a CPU of its own")
	addSize(cmd, &b.size)
	f.StringVar(&b.table.netns, "gateway-netns", "", "the gateway is the network namespace `NAME`: empty its table")
	f.IntVar(&b.table.pid, "gateway-pid", 0, "the gateway is the network namespace of process `PID`, for instance a container's: empty its table")
	f.StringVar(&b.resetCommand, "reset-command", "", "`COMMAND` for the shell that empties the gateway's table; its time is that of the tear-down")
	f.Var(period(&b.resetWait, time.Second, time.Hour), "reset-wait", "wait for this time until the gateway has forgotten all connections: seconds or 35s, 2m, …")
	addOwnNetwork(cmd, &b.frames.OwnNetwork)
	b.ends.addInterfaces(cmd)
	b.addJSON(cmd)
	b.checkedTogether(cmd)
	return cmd
}

// checkedTogether sets which flags require or exclude each other.
func (b *benchRFC9693) checkedTogether(cmd *cobra.Command) {
	cmd.MarkFlagsMutuallyExclusive(emptying...)
	for _, flag := range append(emptying, "netns", "pid", "dev", "next-mac", "sink", "sink-netns", "sink-pid") {
		cmd.MarkFlagsMutuallyExclusive("lab", flag)
	}
	cmd.MarkFlagsMutuallyExclusive("nat", "gateway")
	requires(cmd, "nat", "lab")
	requires(cmd, "gateway", "lab")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"nat": completeWords(trial.Masquerade, trial.DNAT), "gateway-netns": offer(netns.Names),
		"gateway": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	})
}

func parseMeasurements(text string) (list []rfc9693.Measurement, err error) {
	for word := range strings.SplitSeq(text, ",") {
		m, err := oneOf(rfc9693.Measurements...)(word)
		if err != nil {
			return nil, fmt.Errorf("%q %w", word, err)
		}
		list = append(list, m)
	}
	return list, nil
}

func (b *benchRFC9693) setPrecision(text string) (err error) {
	b.cfg.Precision, err = parseShare(text)
	return err
}

func (b *benchRFC9693) run(cmd *cobra.Command, to string) error {
	if err := b.complete(cmd, to); err != nil {
		return err
	}
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench rfc9693 %w", err)
	}
	doc := &report.Stateful{Tolerance: rfcTolerance, ValidationShare: rfc9693.Alpha}
	g, err := b.open(cmd, doc)
	if err != nil {
		return err
	}
	defer g.close()
	g.Tolerance = doc.Tolerance
	if err := b.settle(g.netns, doc); err != nil {
		return err
	}
	err = b.measure(cmd.Context(), g.Gateway, doc)
	if doc.Result == nil {
		return err
	}
	head := report.LoadHead{Command: b.command(cmd)}
	if r := doc.Result; !b.env.asJSON && (r.Rate != nil || r.TearDown != nil || r.Capacity != nil) { // what was measured before err stands
		return errors.Join(err, b.print(nil, head, doc, doc.Text))
	}
	return b.print(err, head, doc, doc.Text)
}

// emptying are the flags by which a gateway outside of the lab is emptied.
var emptying = []string{"gateway-netns", "gateway-pid", "reset-command", "reset-wait"}

// complete fills in what the flags leave open, and checks all before anything is opened.
func (b *benchRFC9693) complete(cmd *cobra.Command, to string) error {
	changed := cmd.Flags().Changed
	switch {
	case b.lab && to == "":
		to = trial.LabDestination(b.nat).String()
	case to == "":
		return usagef("an argument is missing: natkit bench rfc9693 requires ADDR[:PORTS], or --lab")
	case !b.lab && !b.ends.counts(cmd):
		return usagef("--sink is required: the interface at which the translated frames arrive (or --lab)")
	case !b.lab && !slices.ContainsFunc(emptying, changed):
		return usagef("--%s is required: each trial begins with an empty table", strings.Join(emptying, " or --"))
	case changed("reset-wait") && changed("measure") && slices.Contains(b.cfg.Measure, rfc9693.TearDown):
		return usagef("--measure teardown and --reset-wait are mutually exclusive: the rate is that of a deletion")
	}
	if err := b.aim(to); err != nil {
		return err
	}
	if b.lab && len(b.frames.Flows.Sources) == 0 {
		b.frames.Flows.Sources = []netip.Addr{trial.LabInitiator}
	}
	var err error
	if b.frames.Spec.Sizes, err = frameSizes(b.size, b.frames.Spec.MinSize()); err != nil {
		return usage(err)
	}
	if changed("reset-wait") && !changed("measure") {
		b.cfg.Measure = []rfc9693.Measurement{rfc9693.Rate, rfc9693.Capacity}
	}
	check := b.cfg
	check.MaxConnections = cmp.Or(check.MaxConnections, max(check.Connections, rfcMaxConnections))
	if err := check.Check(); err != nil {
		return usage(err)
	}
	return b.checkFrames(check.Connections)
}

// aim makes destinations of ADDR[:PORTS].
func (b *benchRFC9693) aim(to string) (err error) {
	b.to, err = packets.ParseEnd(to)
	if err != nil || b.to.Address != packets.Inside || !b.to.Prefix.IsSingleIP() || b.to.Port == packets.Same {
		return usagef("destination %q: must be ADDR or ADDR:FIRST-LAST, such as 198.19.0.2:1024-2047 or [2001:db8::2]:1024-2047", to)
	}
	if b.to.Port == packets.Any {
		b.to.Ports = rfcPorts
	}
	for port := int(b.to.Ports.First); port <= int(b.to.Ports.Last); port++ {
		b.frames.Flows.Destinations = append(b.frames.Flows.Destinations, netip.AddrPortFrom(b.to.Prefix.Addr(), uint16(port)))
	}
	b.frames.Spec.IPv6 = b.frames.Flows.IPv6()
	return nil
}

// checkFrames checks the test frames of that number of connections.
func (b *benchRFC9693) checkFrames(connections int) error {
	check := b.frames
	if len(check.Flows.Sources) == 0 { // one that stands for the kernel's choice
		check.Flows.Sources = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		if check.Spec.IPv6 {
			check.Flows.Sources[0] = netip.MustParseAddr("2001:db8::1")
		}
	}
	check.Flows.Count, check.Packets = connections, int64(connections)
	return usage(check.Check())
}

// rfcGateway is an opened gateway.
type rfcGateway struct {
	*trial.Gateway
	// netns is nil where the gateway's cannot be reached.
	netns *netns.Handle
	close func()
}

func (b *benchRFC9693) open(cmd *cobra.Command, doc *report.Stateful) (*rfcGateway, error) {
	if b.lab {
		return b.openLab(cmd, doc)
	}
	g := &rfcGateway{Gateway: &trial.Gateway{}}
	g.close = func() { b.ends.close(); _ = g.netns.Close() }
	if err := b.openEnds(cmd, g); err != nil {
		g.close()
		return nil, err
	}
	b.chooseTable(g, doc)
	return g, nil
}

// openEnds finds both interfaces, and the gateway's namespace where one is named.
func (b *benchRFC9693) openEnds(cmd *cobra.Command, g *rfcGateway) error {
	way, sink, err := b.ends.open(cmd)
	if err != nil {
		return err
	}
	if g.netns, err = b.table.open(cmd); err != nil {
		return err
	}
	if g.From, err = pktgen.ReadEgress(way, b.to.Prefix.Addr()); err != nil {
		return err
	}
	if len(b.frames.Flows.Sources) == 0 {
		if !g.From.Source.IsValid() {
			return fmt.Errorf("%v has no address of the destination's family: use --source", g.From.Port)
		}
		b.frames.Flows.Sources = []netip.Addr{g.From.Source}
	}
	g.Packets, g.To = b.frames, *sink
	return nil
}

// chooseTable sets how the table is emptied.
func (b *benchRFC9693) chooseTable(g *rfcGateway, doc *report.Stateful) {
	doc.Gateway = "what is between initiator and responder"
	switch {
	case b.resetCommand != "":
		g.Table, doc.TearDownBy = trial.Command(b.resetCommand), "the command "+b.resetCommand
	case b.resetWait > 0:
		g.Table, doc.TearDownBy = trial.Timeout(b.resetWait), fmt.Sprintf("its timeouts: %v without traffic, which is not verified", b.resetWait)
	default:
		g.Table, doc.TearDownBy = trial.Namespace{Netns: g.netns}, "ctnetlink (flush), until it has no entry"
		doc.Gateway = b.table.name()
	}
}

func (b *benchRFC9693) openLab(cmd *cobra.Command, doc *report.Stateful) (*rfcGateway, error) {
	o := trial.LabOptions{NAT: b.nat, Workers: b.frames.Workers, Dir: b.env.Getenv(runDirEnv)}
	doc.Gateway, doc.TearDownBy = "a lab with the kernel's NAT: "+b.nat, "ctnetlink (flush), until it has no entry"
	if b.file != "" {
		file, err := readGateway(cmd.Context(), b.env, b.file)
		if err != nil {
			return nil, err
		}
		o.Config, doc.Gateway = &file.Config, "a lab with the file "+b.file
	}
	l, err := trial.OpenLab(cmd.Context(), o)
	if err != nil {
		return nil, err
	}
	g, err := l.Gateway(b.frames)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	doc.Notes = append(doc.Notes, l.Note)
	return &rfcGateway{g, l.Netns(), func() { _ = l.Close() }}, nil
}

// settle reads the settings that the result depends on, and bounds the capacity by them.
func (b *benchRFC9693) settle(where *netns.Handle, doc *report.Stateful) (err error) {
	if doc.Kernel, err = netns.Sysctl(nil, "kernel.osrelease"); err != nil {
		return err
	}
	if where != nil {
		doc.Sysctls = trial.Settings(where)
	}
	return b.bound(doc.Sysctls)
}

// bound bounds the measurements by the gateway's sysctls, where they are known, and by the test frames.
func (b *benchRFC9693) bound(sysctls map[string]string) error {
	c, most := &b.cfg, rfcMaxConnections
	if n, err := strconv.Atoi(sysctls[snapshot.ConntrackMax]); err == nil && n > 0 {
		if c.Connections > n && b.file == "" { // a file may have rules without entries
			return fmt.Errorf("bench rfc9693: a trial has %d connections, and the gateway's table holds %d (nf_conntrack_max): use --connections %d or fewer, or raise the limit", c.Connections, n, n)
		}
		most = min(2*n, rfc9693.MaxConnections)
	}
	if seconds, err := strconv.Atoi(sysctls[trial.UDPTimeout]); err == nil {
		c.UDPTimeout = time.Duration(seconds) * time.Second
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = max(int(min(uint64(most), b.frames.Flows.Combinations())), c.Connections)
	}
	if !slices.Contains(c.Measure, rfc9693.Capacity) {
		return nil
	}
	return b.checkFrames(c.MaxConnections)
}

func (b *benchRFC9693) measure(ctx context.Context, g *trial.Gateway, doc *report.Stateful) error {
	flows := b.frames.Flows
	doc.Initiator, doc.Responder = g.From.String(), g.To.String()
	doc.Frames = report.StatefulUDP{
		FrameBytes: b.frames.Spec.Sizes, Sources: flows.Sources, SourcePorts: flows.SourcePorts, Destination: b.to.Prefix.Addr(),
		DestinationPorts: b.to.Ports, Seed: flows.Seed, Workers: b.frames.Workers,
	}
	if err := g.Probe(ctx, b.cfg.Connections); err != nil {
		return fmt.Errorf("bench rfc9693: %w", err)
	}
	progress := b.env.progress()
	defer progress.Clear()
	others := collect.WatchOthers()
	began := time.Now()
	var err error
	doc.Result, err = rfc9693.Measure(ctx, b.cfg, g, func(p rfc9693.Progress) {
		progress.Update("%.0f s: %s, repetition %d of %d: %s connections at %s/s", time.Since(began).Seconds(), p.Measurement, p.Repetition, b.cfg.Repeat,
			units.Count(p.Trial.Connections), units.Rate(p.Trial.PerSecond))
	})
	if doc.Result != nil {
		doc.Notes = append(doc.Notes, doc.Result.Remarks()...)
	}
	doc.OtherCPU = others()
	if note := load.OthersNote(doc.OtherCPU, ""); note != "" {
		doc.Notes = append(doc.Notes, note)
	}
	return err
}

// command measures the same again.
func (b *benchRFC9693) command(cmd *cobra.Command) string {
	c, flows := b.cfg, b.frames.Flows
	chosen := numbers(map[string]int64{
		"connections": int64(c.Connections), "max-connections": int64(c.MaxConnections), "repeat": int64(c.Repeat), "workers": int64(b.frames.Workers),
	})
	chosen["seed"], chosen["source-port"] = fmt.Sprint(flows.Seed), flows.SourcePorts.String()
	chosen["max-rate"], chosen["precision"] = fmt.Sprint(c.MaxRate), fmt.Sprint(c.Precision)
	if len(flows.Sources) == 1 {
		chosen["source"] = flows.Sources[0].String()
	}
	to := b.to.Prefix.Addr().String()
	if b.frames.Spec.IPv6 {
		to = "[" + to + "]"
	}
	return commandLine(cmd, chosen, to+":"+b.to.Ports.String())
}
