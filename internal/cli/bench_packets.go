//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// benchPackets is bench packets.
type benchPackets struct {
	benchVerb
	cfg     packets.Config
	size    string
	maxLoss float64
	ends    benchEnds
}

const (
	defaultFlows       = 1000
	defaultTTL         = 64
	defaultPacketsTime = 10 * time.Second
)

func newBenchPackets(env *Env) *cobra.Command {
	b := &benchPackets{benchVerb: benchVerb{env: env, schema: report.PacketsLoadSchema}, cfg: packets.Config{Workers: 1}}
	b.cfg.Flows.SourcePorts = nat.Ports{First: 1024, Last: 65535}
	b.cfg.Spec.Protocol = unix.IPPROTO_UDP
	b.ends = benchEnds{benchSender: benchSender{env: env, from: &place{target: &b.target}}, to: &place{target: &target{prefix: "sink-"}}}
	cmd := &cobra.Command{
		Use:   "packets [flags] ADDR:PORT",
		Short: "send numbered packets from eBPF, and count at the other end what became of each",
		Long: `Send UDP or TCP packets that an eBPF program makes, to ADDR:PORT as the sender
sees it, for instance the public address of a DNAT. With --sink an XDP program counts
what arrives at that interface: lost, reordered and duplicated packets. It consumes the
packets of this run and nothing else.

For a NAT in between, --expect-source and --expect-destination give what the packets
must have when they arrive: 'same' as sent, an ADDRESS, a PREFIX, or 'netmap:PREFIX'
(the prefix's bits, followed by those that were sent); with ':PORT', ':FIRST-LAST' or
':same' if the port matters, and IPv6 in brackets then.

The packets bypass the sender's own netfilter rules and sockets. Requires Linux 5.18,
CAP_SYS_ADMIN and CAP_NET_ADMIN. docs/bench.md describes the counts.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit bench packets --node client --sink-node gateway --sink eth0 198.18.0.1:9
  sudo natkit bench packets --node client --sink-node server --tcp syn -n 100000 --rate 100000 \
      --expect-source same --expect-destination 198.19.0.2:80 198.18.0.1:8080
  sudo natkit bench packets --netns a --sink-netns b --sink eth0 --size imix -t 5 198.18.0.2:9
  sudo natkit bench packets --dev eth1 --flows 100000 --source 198.18.1.0/24 --rate 1e6 --json 198.19.0.2:9`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.Int64VarP(&c.Packets, "packets", "n", 0, "number of packets to send (0: until --time expires)")
	f.IntVar(&c.Flows.Count, "flows", 0, "number of flows to cycle through, each with its own source address and port (default 1000, or as many as there are)")
	f.Var(&value{set: b.setFlags}, "tcp", "send TCP segments with these `FLAGS`, in turn: syn, or syn,ack:10,fin+ack (UDP otherwise)")
	addSize(cmd, &b.size)
	f.Uint16Var(&c.Spec.VLAN, "vlan", 0, "add a VLAN tag with this `ID` (0: none)")
	f.Uint8Var(&c.Spec.DSCP, "dscp", 0, "differentiated services code point, 0 to 63")
	f.Uint8Var(&c.Spec.HopLimit, "ttl", defaultTTL, "time to live, IPv6's hop limit")
	f.Var(into(&c.Expect.Source, packets.ParseEnd), "expect-source", "`END` that packets must come from: same, ADDRESS, PREFIX or netmap:PREFIX, with :PORTS or :same")
	f.Var(into(&c.Expect.Destination, packets.ParseEnd), "expect-destination", "`END` that packets must be for when they arrive, in the same form")
	f.BoolVar(&c.Verify, "verify", false, "verify the checksums of what arrives")
	f.Var(into(&b.maxLoss, parseShare), "max-loss", "exit with 3 if more than this `SHARE` was lost, misdelivered, corrupted or duplicated: 0, 0.001 or 0.1%")
	f.BoolVar(&c.Bare, "bare", false, "send one unchanging frame and only count what arrives: the upper limit of the link, to compare with")
	f.BoolVar(&c.Statistics, "bpf-stats", false, "measure the programs' own time per packet; measuring costs more than they do, so take the rate from another run")
	b.addFlags(cmd, loadFlags{&c.Duration, &c.Rate, &c.Flows.Sources, &c.Flows.SourcePorts, &c.Flows.Seed, &c.Workers}, "packets", "")
	f.Lookup("time").Usage += " (10s without --packets)"
	f.Lookup("rate").Usage = strings.Replace(f.Lookup("rate").Usage, "as replies come", "as possible", 1)
	addOwnNetwork(cmd, &c.OwnNetwork)
	b.ends.addFlags(cmd)
	return cmd
}

// setFlags reads --tcp.
func (b *benchPackets) setFlags(text string) (err error) {
	b.cfg.Spec.Protocol = unix.IPPROTO_TCP
	b.cfg.Spec.TCPFlags, err = packets.ParseFlagCycle(text)
	return err
}

func (b *benchPackets) run(cmd *cobra.Command, to string) error {
	if err := b.complete(to); err != nil {
		return err
	}
	if err := b.checkReceiver(cmd); err != nil {
		return err
	}
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench packets %w", err)
	}
	way, sink, err := b.ends.open(cmd)
	defer b.ends.close()
	if err != nil {
		return err
	}
	from, err := pktgen.ReadEgress(way, b.cfg.Flows.Destinations[0].Addr())
	if err != nil {
		return err
	}
	if err := b.checkSource(from); err != nil {
		return err
	}
	result, err := b.send(cmd.Context(), from, sink)
	if result == nil {
		return err
	}
	judged := report.JudgePackets(result, nil)
	if cmd.Flags().Changed("max-loss") {
		judged = report.JudgePackets(result, &b.maxLoss)
	}
	err = errors.Join(err, b.print(nothingArrived(judged), report.LoadHead{Command: b.command(cmd, to)}, judged, judged.Text))
	if err == nil && judged.MaxLossExceeded {
		return errFindings
	}
	return err
}

// complete fills in what the flags leave open, but for the source address, which the
// kernel may choose, and checks all before anything is opened.
func (b *benchPackets) complete(to string) error {
	c := &b.cfg
	dst, err := parseAddrPort("destination ", to)
	if err != nil {
		return err
	}
	c.Flows.Destinations = []netip.AddrPort{dst}
	c.Spec.IPv6 = c.Flows.IPv6()
	if c.Duration == 0 {
		if c.Duration = defaultPacketsTime; c.Packets != 0 {
			c.Duration = packets.MaxDuration
		}
	}
	if c.Flows.Count == 0 {
		c.Flows.Count = min(defaultFlows, max(len(c.Flows.Sources), 1)*c.Flows.SourcePorts.Len())
	}
	if c.Workers == 0 { // each needs a flow and a packet to send
		c.Workers = min(runtime.NumCPU(), max(c.Flows.Count, 1))
		if c.Packets > 0 {
			c.Workers = int(min(int64(c.Workers), c.Packets))
		}
	}
	c.Verify = c.Verify || c.Expect.Given()
	if c.Spec.Sizes, err = frameSizes(b.size, c.Spec.MinSize()); err != nil {
		return usage(err)
	}
	check := *c
	if len(check.Flows.Sources) == 0 { // one that stands for it
		check.Flows.Sources = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		if c.Spec.IPv6 {
			check.Flows.Sources[0] = netip.MustParseAddr("2001:db8::1")
		}
	}
	if err := check.Check(); err != nil {
		return usage(err)
	}
	return nil
}

// frameSizes reads sizes. One that was named must be possible; those of the default
// and of IMIX, which have UDP over IPv4 in mind, are raised to the least possible.
func frameSizes(text string, least int) ([]int, error) {
	if text == "" {
		return []int{least}, nil
	}
	sizes, err := packets.ParseSizes(text)
	if strings.EqualFold(text, "imix") {
		for i := range sizes {
			sizes[i] = max(sizes[i], least)
		}
	}
	return sizes, err
}

// checkReceiver refuses a run of unknown length of which nothing is counted.
func (b *benchPackets) checkReceiver(cmd *cobra.Command) error {
	if changed := cmd.Flags().Changed; !b.ends.counts(cmd) && !changed("rate") && !changed("packets") {
		return usagef("without --sink, --packets or --rate is required: nothing shows what the packets do to their receiver (--rate 0 is as fast as possible)")
	}
	return nil
}

// checkSource adds the kernel's choice of a source, and checks what depends on the way out.
func (b *benchPackets) checkSource(from pktgen.Egress) error {
	if err := chooseSource(&b.cfg.Flows, from); err != nil {
		return err
	}
	if err := b.cfg.Check(); err != nil { // the kernel's choice may be public
		return usage(err)
	}
	return from.CheckMTU(b.cfg.Spec)
}

// chooseSource makes the kernel's choice the source of flows that have none.
func chooseSource(flows *packets.Flows, from pktgen.Egress) error {
	if len(flows.Sources) > 0 {
		return nil
	}
	if !from.Source.IsValid() {
		return fmt.Errorf("%v has no address of the destination's family: use --source", from.Port)
	}
	flows.Sources = []netip.Addr{from.Source}
	return nil
}

func (b *benchPackets) send(ctx context.Context, from pktgen.Egress, sink *pktgen.Port) (*packets.Result, error) {
	progress := b.env.progress()
	defer progress.Clear()
	others := collect.WatchOthers()
	result, err := pktgen.Run(ctx, b.cfg, from, sink, func(p packets.Progress) {
		progress.Update("%.1f s: %s sent, %s received", p.Elapsed.Seconds(), units.Count(p.Sent), units.Count(p.Received))
	})
	if result == nil {
		return nil, err
	}
	result.OtherCPU = others()
	result.Notes = append(result.Notes, circumstances(ctx, result.OtherCPU)...)
	return result, err
}

// circumstances are notes about what a run's counts have to be read with: what other programs had of the
// CPUs, and an interruption.
func circumstances(ctx context.Context, otherCPU float64) (notes []string) {
	if note := load.OthersNote(otherCPU, ""); note != "" {
		notes = append(notes, note)
	}
	if ctx.Err() != nil {
		notes = append(notes, "interrupted: the counts are those until then")
	}
	return notes
}

// nothingArrived is why a run of which nothing came as it should has failed.
func nothingArrived(r report.PacketsResult) error {
	to := r.Config.Flows.Destinations[0]
	switch {
	case r.Sent == 0:
		return fmt.Errorf("bench packets %v: the run ended before anything was sent", to)
	case r.To == "" || r.Received > 0:
		return nil
	}
	return fmt.Errorf("bench packets %v: none of %s packets arrived at %s as expected: %s", to, units.Count(r.Sent), r.To, r.Missing())
}

// command sends the same packets again.
func (b *benchPackets) command(cmd *cobra.Command, to string) string {
	c := b.cfg
	chosen := numbers(map[string]int64{"flows": int64(c.Flows.Count), "workers": int64(c.Workers)})
	chosen["seed"], chosen["source"], chosen["source-port"] = fmt.Sprint(c.Flows.Seed), c.Flows.Sources[0].String(), c.Flows.SourcePorts.String()
	if chosen["size"] = b.size; b.size == "" {
		chosen["size"] = fmt.Sprint(c.Spec.Sizes[0])
	}
	if c.Duration < packets.MaxDuration {
		chosen["time"] = c.Duration.String()
	}
	return commandLine(cmd, chosen, to)
}

// benchSender is where frames leave.
type benchSender struct {
	env     *Env
	lab     string
	from    *place
	dev     string
	nextMAC net.HardwareAddr
}

// addFlags adds the flags of the sender, which may be a node of a lab.
func (e *benchSender) addFlags(cmd *cobra.Command) {
	e.addInterface(cmd)
	cmd.Flags().StringVar(&e.from.node, "node", "", "send from this `NODE` of a lab that is up")
	addLab(cmd, &e.lab)
	requires(cmd, "lab", "node")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "node")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"node": offer(e.nodeNames)})
}

// addInterface adds the flags of the interface.
func (e *benchSender) addInterface(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&e.dev, "dev", "", "send by this interface (`IF`; default: the one of the route)")
	f.Var(into(&e.nextMAC, parseHostMAC), "next-mac", "frames go to this Ethernet address (`MAC`; default: the neighbour's)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"dev": e.completeInterfaces(e.from)})
}

// open finds the way out. The caller closes from in any case.
func (e *benchSender) open(cmd *cobra.Command) (pktgen.Route, error) {
	e.from.lab = e.lab
	err := e.from.open(cmd, e.env)
	return pktgen.Route{NextMAC: e.nextMAC, Interface: e.dev, Netns: e.from.ns}, err
}

// benchEnds are where packets leave and where they are counted.
type benchEnds struct {
	benchSender
	to   *place
	sink string
}

// addFlags adds the flags of both ends, which may be nodes of a lab.
func (e *benchEnds) addFlags(cmd *cobra.Command) {
	e.benchSender.addFlags(cmd)
	e.addSink(cmd)
	cmd.Flags().StringVar(&e.to.node, "sink-node", "", "the sink is in this `NODE` of a lab that is up")
	for _, flag := range []string{"expect-source", "expect-destination", "verify", "max-loss"} {
		requires(cmd, flag, sinkFlags...)
	}
	requires(cmd, "lab", "node", "sink-node")
	cmd.MarkFlagsMutuallyExclusive("sink-netns", "sink-pid", "sink-node")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"sink-node": offer(e.nodeNames)})
}

// addInterfaces adds the flags of the interfaces.
func (e *benchEnds) addInterfaces(cmd *cobra.Command) {
	e.addInterface(cmd)
	e.addSink(cmd)
}

func (e *benchEnds) addSink(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&e.sink, "sink", "", "count what arrives at this interface (`IF`), and consume it there")
	f.StringVar(&e.to.netns, "sink-netns", "", "the sink is in the network namespace `NAME`")
	f.IntVar(&e.to.pid, "sink-pid", 0, "the sink is in the network namespace of process `PID`, for instance a container's")
	cmd.MarkFlagsMutuallyExclusive("sink-netns", "sink-pid")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"sink": e.completeInterfaces(e.to), "sink-netns": offer(netns.Names)})
}

// parseHostMAC refuses group addresses: a bridge copies frames for one to all its ports,
// and every host there takes them.
func parseHostMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6:
		return nil, errors.New("must be an Ethernet address such as 02:00:00:00:00:01")
	case mac[0]&1 != 0:
		return nil, errors.New("a broadcast or multicast address, whose frames reach every host on the link: use that of one host")
	case bytes.Equal(mac, make([]byte, len(mac))):
		return nil, errors.New("no host has that address")
	}
	return mac, nil
}

// sinkFlags each request a sink.
var sinkFlags = []string{"sink", "sink-netns", "sink-pid", "sink-node"}

// counts reports whether there is a sink.
func (e *benchEnds) counts(cmd *cobra.Command) bool {
	return slices.ContainsFunc(sinkFlags, cmd.Flags().Changed)
}

// open opens both ends; sink is nil where nothing is counted. close is to be called in any
// case.
func (e *benchEnds) open(cmd *cobra.Command) (way pktgen.Route, sink *pktgen.Port, err error) {
	e.to.lab = e.lab
	if way, err = e.benchSender.open(cmd); err != nil || !e.counts(cmd) {
		return way, nil, err
	}
	err = e.to.open(cmd, e.env)
	if sink = (&pktgen.Port{Interface: e.sink, Netns: e.to.ns}); err == nil && e.sink == "" {
		sink.Interface, err = onlyInterface(sink.Netns)
	}
	return way, sink, err
}

func (e *benchEnds) close() {
	e.from.close()
	e.to.close()
}

// interfaces are the names of those in a namespace that are not loopback; nil is the
// one that natkit runs in.
func interfaces(ns *netns.Handle) (names []string, err error) {
	err = ns.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if i.Flags&net.FlagLoopback == 0 {
				names = append(names, i.Name)
			}
		}
		return err
	})
	return names, err
}

func onlyInterface(ns *netns.Handle) (string, error) {
	names, err := interfaces(ns)
	switch {
	case err != nil:
		return "", fmt.Errorf("list the receiver's interfaces: %w", err)
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", errors.New("the receiver has no interface")
	}
	return "", usagef("the receiver has several interfaces, %s: choose one by --sink", strings.Join(names, ", "))
}

// completeInterfaces offers the interfaces of a namespace, for the shell.
func (e *benchSender) completeInterfaces(at *place) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		at.lab = e.lab
		if err := at.open(cmd, e.env); err == nil {
			names, _ = interfaces(at.ns)
			at.close()
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// nodeNames are the nodes of a lab that is up.
func (e *benchSender) nodeNames() (names []string) {
	if state, err := chooseLab(e.env.Getenv(runDirEnv), e.lab); err == nil {
		for _, n := range state.Nodes {
			names = append(names, n.Name)
		}
	}
	return names
}
