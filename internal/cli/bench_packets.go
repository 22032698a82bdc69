package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// benchPacketsSchema names the JSON form of bench packets' result.
const benchPacketsSchema = "natkit.bench-packets/1"

// benchPackets is what the command line of bench packets says.
type benchPackets struct {
	env       *Env
	cfg       packets.Config
	time      seconds
	source    sourceFlags
	tcp, size string
	expect    struct{ source, destination string }
	ways      ways
	maxLoss   string
	json      bool
}

func newBenchPackets(env *Env) *cobra.Command {
	b := &benchPackets{env: env, source: sourceFlags{ports: defaultSourcePorts}}
	cmd := &cobra.Command{
		Use:   "packets [flags] ADDR:PORT",
		Short: "send numbered packets from eBPF, and count at the other end what became of each",
		Long: `Send UDP or TCP packets that an eBPF program makes, to ADDR:PORT as the sender
sees it, for instance the public address of a DNAT. With --sink an XDP program counts
what arrives at that interface. It takes away the packets of this run and nothing
else; by the number that each carries it tells lost, reordered and duplicated ones.
Other traffic of that interface goes on, but may be much slower during the run.

Where a NAT lies between, --expect-source and --expect-destination say how the packets
must look when they arrive: 'same' as sent, an ADDRESS, a PREFIX, or 'netmap:PREFIX' (the
prefix's bits, and behind them those that were sent); with ':PORT', ':FIRST-LAST' or
':same' if the port matters, and IPv6 in brackets then. Then, and with --verify, their
checksums are checked, too.

The sender is the namespace that natkit runs in, or that of --netns, --pid, or --node
(of a lab that is up); the receiver's is that of --sink-netns, --sink-pid or
--sink-node. --sink may be left out where the receiver's has one interface only.

The packets bypass the sender's own stack: its netfilter rules and sockets do not see
them. TCP segments belong to no connection: connection tracking takes a SYN, or in
its default setting (nf_conntrack_tcp_loose) an ACK, as the first one of a new entry.
A NAT's connection table gets an entry for each flow.

Needs Linux 5.18, CAP_SYS_ADMIN and CAP_NET_ADMIN. docs/bench.md tells how it
works and what the counts mean.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit bench packets --node client --sink-node gateway --sink eth0 198.18.0.1:9
  sudo natkit bench packets --node client --sink-node server --tcp syn -n 100000 --rate 100000 \
      --expect-source same --expect-destination 198.19.0.2:80 198.18.0.1:8080
  sudo natkit bench packets --netns a --sink-netns b --sink eth0 --size imix -t 5 198.18.0.2:9
  sudo natkit bench packets --dev eth1 --flows 100000 --source 198.18.1.0/24 --rate 1e6 --json 198.19.0.2:9`,
		Args: exactlyOneAddrPort,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	b.addFlags(cmd)
	return cmd
}

func (b *benchPackets) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int64VarP(&b.cfg.Packets, "packets", "n", 0, "packets in all (0: until --time is over)")
	addTime(cmd, &b.time)
	f.Lookup("time").Usage += " (10s where --packets is not given either)"
	f.Float64Var(&b.cfg.Rate, "rate", 0, "send so many packets per second on a schedule (0: as fast as it goes)")
	f.IntVar(&b.cfg.Flows.Count, "flows", 0, "send in turn so many flows, each with a source address and port of its own (default 1000, or as many as there are)")
	b.source.addFlags(cmd, "choose source ports of `FIRST-LAST` in an order that --seed determines")
	f.Uint64Var(&b.cfg.Flows.Seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	f.StringVar(&b.tcp, "tcp", "", "send TCP segments with these `FLAGS`, in turn: syn, or syn,ack:10,fin+ack (UDP otherwise)")
	addSize(cmd, &b.size)
	f.Uint16Var(&b.cfg.Spec.VLAN, "vlan", 0, "put a VLAN tag with this `ID` in front (0: none)")
	f.Uint8Var(&b.cfg.Spec.DSCP, "dscp", 0, "differentiated services code point, 0 to 63")
	f.Uint8Var(&b.cfg.Spec.HopLimit, "ttl", defaultTTL, "time to live, IPv6's hop limit")
	f.IntVar(&b.cfg.Workers, "workers", 1, "send from so many CPUs (0: all)")
	f.StringVar(&b.expect.source, "expect-source", "", "`END` that packets must come from: same, ADDRESS, PREFIX or netmap:PREFIX, with :PORTS or :same")
	f.StringVar(&b.expect.destination, "expect-destination", "", "`END` that packets must be for when they arrive, said in the same way")
	f.BoolVar(&b.cfg.Verify, "verify", false, "check the checksums of what arrives")
	f.StringVar(&b.maxLoss, "max-loss", "", "exit with 3 where more than this `SHARE` was lost, misdelivered, corrupted or duplicated: 0, 0.001 or 0.1%")
	f.BoolVar(&b.cfg.Bare, "bare", false, "send one unchanging frame and only count what arrives: what the link can do at most, to compare with")
	f.BoolVar(&b.cfg.Statistics, "bpf-stats", false, "measure the programs' own time per packet; measuring costs more than they do, so look at the rate of another run")
	b.ways.addFlags(cmd, b.env)
	addOwnNetwork(cmd, &b.cfg.OwnNetwork)
	addJSON(cmd, &b.json, benchPacketsSchema)
}

func (b *benchPackets) run(cmd *cobra.Command, to string) error {
	cfg, err := b.config(to)
	if err != nil {
		return err
	}
	maxLoss, err := b.checkReceiver(cmd)
	if err != nil {
		return err
	}
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench packets %w", err)
	}
	places, err := b.ways.open(cmd)
	if err != nil {
		return err
	}
	defer places.close()
	from, err := pktgen.ReadEgress(places.way, cfg.Flows.Destinations[0].Addr())
	if err != nil {
		return err
	}
	if cfg, err = complete(cfg, from); err != nil {
		return err
	}
	doc := packetsDocument{Schema: benchPacketsSchema, Version: b.env.Version, Command: b.command(cmd, cfg, to)}
	doc.Result, err = b.send(cmd.Context(), cfg, from, places.sink)
	if doc.Result == nil {
		return err
	}
	doc.judge(maxLoss)
	return errors.Join(err, b.print(doc))
}

// complete adds what only the way out tells.
func complete(cfg packets.Config, from pktgen.Egress) (packets.Config, error) {
	if len(cfg.Flows.Sources) == 0 {
		if !from.Source.IsValid() {
			return cfg, fmt.Errorf("%v has no address of the destination's family: give --source", from.Port)
		}
		cfg.Flows.Sources = append(cfg.Flows.Sources, from.Source)
	}
	if err := cfg.Check(); err != nil { // the kernel's choice of a source may be public
		return cfg, usageError{err}
	}
	return cfg, from.CheckMTU(cfg.Spec)
}

func (b *benchPackets) send(ctx context.Context, cfg packets.Config, from pktgen.Egress, sink *pktgen.Port) (*packets.Result, error) {
	progress := b.env.progress()
	defer progress.Clear()
	others := collect.WatchOthers()
	result, err := pktgen.Run(ctx, cfg, from, sink, func(p packets.Progress) {
		progress.Show(packetsProgress(p, sink != nil))
	})
	if result == nil {
		return nil, err
	}
	result.OtherCPU = others()
	if note := load.OthersNote(result.OtherCPU, ""); note != "" {
		result.Notes = append(result.Notes, note)
	}
	if ctx.Err() != nil {
		result.Notes = append(result.Notes, "interrupted: the counts are those until then")
	}
	return result, err
}

func packetsProgress(p packets.Progress, counted bool) string {
	text := fmt.Sprintf("%.1f s  %s sent", p.Elapsed.Seconds(), units.Count(p.Sent))
	if p.Packets > 0 {
		text = strings.Replace(text, " sent", fmt.Sprintf(" of %s sent", units.Count(p.Packets)), 1)
	}
	if counted {
		text += fmt.Sprintf("  %s received", units.Count(p.Received))
	}
	return text
}

// print writes the result, and says by its error what came of the run.
func (b *benchPackets) print(doc packetsDocument) error {
	failed := nothingArrived(doc.Result)
	switch {
	case b.json:
		failed = errors.Join(failed, doc.writeJSON(b.env.Stdout))
	case failed == nil:
		failed = doc.writeText(b.env.Stdout, b.env.style())
	}
	if failed == nil && doc.exceeded() {
		return errFindings
	}
	return failed
}

// nothingArrived is why a run of which nothing came as it should has failed.
func nothingArrived(r *packets.Result) error {
	to := r.Config.Flows.Destinations[0]
	switch {
	case r.Sent == 0:
		return fmt.Errorf("bench packets %v: the run ended before anything was sent", to)
	case r.To == "" || r.Received > 0:
		return nil
	}
	var kinds []string
	for _, k := range badArrivals(r) {
		kinds = append(kinds, fmt.Sprintf("%s %s", k.name, units.Count(k.count)))
	}
	if len(kinds) == 0 {
		kinds = []string{"none came at all"}
	}
	return fmt.Errorf("bench packets %v: none of %s packets arrived at %s as it should: %s", to, units.Count(r.Sent), r.To, strings.Join(kinds, ", "))
}

const (
	defaultSourcePorts = "1024-65535"
	defaultFlows       = 1000
	defaultTTL         = 64
	defaultPacketsTime = 10 * time.Second
)

// config is the run that the command line describes, but for the source address
// where the kernel is to choose it. All is checked before anything is opened.
func (b *benchPackets) config(to string) (packets.Config, error) {
	cfg := b.cfg
	cfg.Duration = b.limit()
	dst, err := netip.ParseAddrPort(to)
	if err != nil {
		return cfg, usagef("destination %q: must be ADDR:PORT, such as 198.18.0.1:8080 or [2001:db8::1]:80", to)
	}
	cfg.Flows.Destinations = []netip.AddrPort{dst}
	cfg.Spec.IPv6 = cfg.Flows.IPv6()
	for _, fill := range []func(*packets.Config) error{b.fillFlows, b.fillSpec, b.fillExpectation} {
		if err := fill(&cfg); err != nil {
			return cfg, err
		}
	}
	if err := checkWithSource(cfg); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// limit bounds every run in time.
func (b *benchPackets) limit() time.Duration {
	switch {
	case b.time != 0:
		return time.Duration(b.time)
	case b.cfg.Packets != 0:
		return packets.MaxDuration
	}
	return defaultPacketsTime
}

// checkWithSource checks as if there were a source address, where none is given.
func checkWithSource(cfg packets.Config) error {
	if len(cfg.Flows.Sources) == 0 {
		stand := netip.AddrFrom4([4]byte{192, 0, 2, 1})
		if cfg.Spec.IPv6 {
			stand = netip.MustParseAddr("2001:db8::1")
		}
		cfg.Flows.Sources = []netip.Addr{stand}
	}
	return cfg.Check()
}

func (b *benchPackets) fillFlows(cfg *packets.Config) (err error) {
	if cfg.Flows.Sources, cfg.Flows.SourcePorts, err = b.source.parse(); err != nil {
		return err
	}
	if cfg.Flows.Count == 0 {
		cfg.Flows.Count = min(defaultFlows, max(len(cfg.Flows.Sources), 1)*cfg.Flows.SourcePorts.Len())
	}
	if cfg.Workers == 0 {
		cfg.Workers = allWorkers(cfg)
	}
	return nil
}

// allWorkers is one for each CPU, as far as each has a flow and a packet to send.
func allWorkers(cfg *packets.Config) int {
	n := min(runtime.NumCPU(), max(cfg.Flows.Count, 1))
	if cfg.Packets > 0 {
		n = int(min(int64(n), cfg.Packets))
	}
	return n
}

func (b *benchPackets) fillSpec(cfg *packets.Config) (err error) {
	cfg.Spec.Protocol = unix.IPPROTO_UDP
	if b.tcp != "" {
		cfg.Spec.Protocol = unix.IPPROTO_TCP
		if cfg.Spec.TCPFlags, err = packets.ParseFlagCycle(b.tcp); err != nil {
			return usageError{err}
		}
	}
	cfg.Spec.Sizes, err = frameSizes(b.size, cfg.Spec.MinSize())
	return err
}

// frameSizes reads sizes. One that was named must be possible; those of the default
// and of IMIX, which have UDP over IPv4 in mind, are made as great as they have to be.
func frameSizes(text string, least int) ([]int, error) {
	if text == "" {
		return []int{least}, nil
	}
	sizes, err := packets.ParseSizes(text)
	if err != nil {
		return nil, usageError{err}
	}
	if strings.EqualFold(text, "imix") {
		for i := range sizes {
			sizes[i] = max(sizes[i], least)
		}
	}
	return sizes, nil
}

func (b *benchPackets) fillExpectation(cfg *packets.Config) error {
	for _, end := range []struct {
		flag, text string
		to         *packets.End
	}{
		{"--expect-source", b.expect.source, &cfg.Expect.Source},
		{"--expect-destination", b.expect.destination, &cfg.Expect.Destination},
	} {
		if end.text == "" {
			continue
		}
		parsed, err := packets.ParseEnd(end.text)
		if err != nil {
			return usagef("%s: %w", end.flag, err)
		}
		*end.to = parsed
	}
	cfg.Verify = cfg.Verify || cfg.Expect.Given()
	return nil
}

// checkReceiver finds what only makes sense where something is counted. It returns
// the loss that is allowed; a negative one where any is.
func (b *benchPackets) checkReceiver(cmd *cobra.Command) (maxLoss float64, err error) {
	if maxLoss, err = b.parseMaxLoss(); err != nil {
		return 0, err
	}
	if err := b.ways.check(cmd); err != nil || b.ways.counts(cmd) {
		return maxLoss, err
	}
	for _, flag := range []string{"expect-source", "expect-destination", "verify", "max-loss"} {
		if cmd.Flags().Changed(flag) {
			return 0, usagef("--%s: nobody looks at what arrives: give --sink", flag)
		}
	}
	if !cmd.Flags().Changed("rate") && !cmd.Flags().Changed("packets") {
		return 0, usagef("without --sink nobody sees what the packets do to their receiver: say how many to send (--packets) or how fast (--rate; 0 is as fast as one can)")
	}
	return maxLoss, nil
}

// parseMaxLoss reads the share that may be lost; -1 where none is given.
func (b *benchPackets) parseMaxLoss() (float64, error) {
	if b.maxLoss == "" {
		return -1, nil
	}
	return parseShare("max-loss", b.maxLoss)
}

// ways are the flags that say where packets leave and where they are counted.
type ways struct {
	env  *Env
	lab  string
	node string
	target
	dev, nextMAC string

	sinkNode string
	sinkAt   target
	sink     string
}

func (w *ways) addFlags(cmd *cobra.Command, env *Env) {
	w.env, w.sinkAt.prefix = env, "sink-"
	f := cmd.Flags()
	w.target.addFlags(cmd)
	f.StringVar(&w.node, "node", "", "send from this `NODE` of a lab that is up")
	f.StringVar(&w.dev, "dev", "", "send by this interface (`IF`; default: the one of the route)")
	f.StringVar(&w.nextMAC, "next-mac", "", "frames go to this Ethernet address (`MAC`; default: the neighbour's)")
	f.StringVar(&w.sink, "sink", "", "count what arrives at this interface (`IF`), and take it away there")
	f.StringVar(&w.sinkAt.netns, "sink-netns", "", "the sink lies in the network namespace `NAME`")
	f.IntVar(&w.sinkAt.pid, "sink-pid", 0, "the sink lies in the network namespace of process `PID`, for instance a container's")
	f.StringVar(&w.sinkNode, "sink-node", "", "the sink lies in this `NODE` of a lab that is up")
	f.StringVar(&w.lab, "lab", "", "`NAME` of the lab, where several are up")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "node")
	cmd.MarkFlagsMutuallyExclusive("sink-netns", "sink-pid", "sink-node")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"dev": w.completeInterfaces(w.from), "sink": w.completeInterfaces(w.to),
		"node": w.completeNodes, "sink-node": w.completeNodes,
		"sink-netns": completeNetns,
	})
}

func (w *ways) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("lab") && w.node == "" && w.sinkNode == "" {
		return usagef("--lab goes with --node or --sink-node")
	}
	return w.checkNextMAC()
}

// checkNextMAC refuses group addresses: a bridge copies frames for one to all its
// ports, and every host there takes them.
func (w *ways) checkNextMAC() error {
	if w.nextMAC == "" {
		return nil
	}
	mac, err := net.ParseMAC(w.nextMAC)
	switch {
	case err != nil || len(mac) != 6:
		return usagef("--next-mac %q: must be an Ethernet address such as 02:00:00:00:00:01", w.nextMAC)
	case mac[0]&1 != 0:
		return usagef("--next-mac %q: a broadcast or multicast address, whose frames reach everybody on the link: give that of one host", w.nextMAC)
	case bytes.Equal(mac, make([]byte, len(mac))):
		return usagef("--next-mac %q: no host has that address", w.nextMAC)
	}
	return nil
}

// counts reports whether there is to be a sink.
func (w *ways) counts(cmd *cobra.Command) bool {
	f := cmd.Flags()
	return f.Changed("sink") || f.Changed("sink-netns") || f.Changed("sink-pid") || f.Changed("sink-node")
}

// places are the opened ends of a run.
type places struct {
	way  pktgen.Route
	sink *pktgen.Port // nil for none
	lab  *attachedLab // keeps nodes open; may be nil
	own  []*netns.Handle
}

func (p *places) close() {
	netns.CloseAll(p.own)
	if p.lab != nil {
		p.lab.Close()
	}
}

func (w *ways) open(cmd *cobra.Command) (p *places, err error) {
	p = &places{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if w.nextMAC != "" {
		if p.way.NextMAC, err = net.ParseMAC(w.nextMAC); err != nil {
			return p, err
		}
	}
	p.way.Interface = w.dev
	if p.way.Netns, err = w.from(cmd, p); err != nil || !w.counts(cmd) {
		return p, err
	}
	p.sink = &pktgen.Port{Interface: w.sink}
	if p.sink.Netns, err = w.to(cmd, p); err != nil || w.sink != "" {
		return p, err
	}
	p.sink.Interface, err = onlyInterface(p.sink.Netns)
	return p, err
}

// from opens the sender's namespace.
func (w *ways) from(cmd *cobra.Command, p *places) (*netns.Handle, error) {
	return w.place(cmd, p, &w.target, w.node)
}

// to opens the receiver's namespace.
func (w *ways) to(cmd *cobra.Command, p *places) (*netns.Handle, error) {
	return w.place(cmd, p, &w.sinkAt, w.sinkNode)
}

func (w *ways) place(cmd *cobra.Command, p *places, at *target, node string) (*netns.Handle, error) {
	if node != "" {
		return w.labNode(p, node)
	}
	ns, err := at.open(cmd)
	if ns != nil {
		p.own = append(p.own, ns)
	}
	return ns, err
}

func (w *ways) labNode(p *places, name string) (_ *netns.Handle, err error) {
	if p.lab == nil {
		if p.lab, err = attachLab(w.env, w.lab); err != nil {
			return nil, err
		}
	}
	node, err := p.lab.node(name)
	if err != nil {
		return nil, err
	}
	return node.Netns, nil
}

// interfaces are the names of those in a namespace that are not loopback; nil is the
// one that natkit runs in.
func interfaces(ns *netns.Handle) (names []string, err error) {
	list := func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if i.Flags&net.FlagLoopback == 0 {
				names = append(names, i.Name)
			}
		}
		return err
	}
	err = ns.Do(list)
	return names, err
}

func onlyInterface(ns *netns.Handle) (string, error) {
	names, err := interfaces(ns)
	switch {
	case err != nil:
		return "", fmt.Errorf("list the interfaces where packets are to arrive: %w", err)
	case len(names) == 0:
		return "", errors.New("there is no interface where packets are to arrive")
	case len(names) > 1:
		return "", usagef("packets may arrive at one of %s: choose it by --sink", strings.Join(names, ", "))
	}
	return names[0], nil
}

// completeInterfaces offers the interfaces of a namespace, for the shell.
func (w *ways) completeInterfaces(open func(*cobra.Command, *places) (*netns.Handle, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		p := &places{}
		defer p.close()
		ns, err := open(cmd, p)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, _ := interfaces(ns)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNodes offers the nodes of a lab that is up.
func (w *ways) completeNodes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	state, err := chooseLab(w.env.Getenv(runDirEnv), w.lab)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, n := range state.Nodes {
		names = append(names, n.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
