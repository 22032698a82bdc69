package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// noSmaller is the share of the generator's own rate above which nothing can be said
// of what lies between it and the receiver.
const noSmaller = 0.95

// The names of subjects that claims are about.
const (
	kernelDNAT   = "kernel DNAT"
	nftStateless = "nftables, stateless"
	engineXDP    = "natkit, XDP"
	engineTC     = "natkit, tc"
)

// What the kernel's planes have, with nft.
const (
	rawHook, statelessRule = "type filter hook prerouting priority raw", "notrack ip daddr set ip daddr map @mappings"
	natHook, natRule       = "type nat hook prerouting priority dstnat", "dnat to ip daddr map @mappings"
)

// manyMappings is how many addresses outside stand for one inside each.
const manyMappings = 10_000

// planesSuite measures what forwards packets on the lab's gateway, each from the
// kernel's own NAT up to a program that only redirects.
func planesSuite(natkit string) bench.Suite {
	p := &planes{packetRuns: packetRuns{natkit: natkit}}
	to := traffic{mappings: manyMappings, flows: packetFlows}
	return p.withPeers(p.suite(bench.Suite{
		Name: "planes", Title: "Data planes: kernel DNAT, stateless nftables, the eBPF engine, XDP redirect",
		About: "What the lab's gateway makes of small packets, everything on one CPU: the generator,\n" +
			"two veth pairs, the gateway, and the receiver, which accounts for every packet and\n" +
			"checks its addresses and checksums. 10,000 addresses outside stand for one inside each.\n" +
			"The time of the gateway itself is what a packet takes more than from the generator into\n" +
			"a receiver at the first hop.",
		Subjects: []bench.Subject{
			{Name: "no gateway", Run: p.runDirect},
			{Name: "XDP redirect", Run: p.runRedirect},
			{Name: "kernel forwarding", Run: func(ctx context.Context) (bench.Sample, error) { return p.runKernel(ctx, "", to.inside()) }},
			p.nftables(nftStateless, rawHook, statelessRule, to),
			p.engine(engineXDP, plane.XDP, to),
			p.engine(engineTC, plane.TC, to),
			p.nftables(kernelDNAT, natHook, natRule, to),
		},
		Baseline: kernelDNAT,
		Claims: []bench.Claim{
			{Subject: engineXDP, Quantity: planeCost, Than: kernelDNAT, Bound: 0.15},
			{Subject: engineXDP, Quantity: packetRate, Than: kernelDNAT, Bound: 4},
			{Subject: engineTC, Quantity: planeCost, Than: nftStateless, Bound: 0.6},
		},
	}), to)
}

// mappingsSuite measures the eBPF engine by the number of its mappings and by what packets are.
func mappingsSuite(natkit string) bench.Suite {
	const base, small, large = "10,000", "netmap, /18", "netmap, /12"
	const many = ", 1,000,000 flows"
	p := &planes{packetRuns: packetRuns{natkit: natkit}}
	xdp := func(name string, t traffic) bench.Subject { return p.engine(name, plane.XDP, t) }
	return p.suite(bench.Suite{
		Name: "mappings", Title: "The eBPF engine by its mappings and packets",
		About: "The engine at XDP, as above, with 1, 10,000 and 1,000,000 addresses outside that stand\n" +
			"for one inside each, and with a prefix that stands for another one, small and large with as\n" +
			"many flows. Flows go to the mappings in a random order, each packet to the next flow; with\n" +
			"1,000,000 flows what is known of a flow is forgotten before its next packet comes.",
		Subjects: []bench.Subject{
			{Name: "no gateway", Run: p.runDirect},
			xdp("1", traffic{mappings: 1, flows: packetFlows}),
			xdp(base, traffic{mappings: manyMappings, flows: packetFlows}),
			xdp("1,000,000", traffic{mappings: 1_000_000, flows: packetFlows}),
			xdp("1,000,000, as many flows", traffic{mappings: 1_000_000, flows: 1_000_000}),
			xdp(small, traffic{netmap: 18, flows: packetFlows}),
			xdp(large, traffic{netmap: 12, flows: packetFlows}),
			xdp(small+many, traffic{netmap: 18, flows: 1_000_000}),
			xdp(large+many, traffic{netmap: 12, flows: 1_000_000}),
			xdp("10,000, TCP", traffic{mappings: manyMappings, flows: packetFlows, tcp: true}),
			xdp("10,000, outwards", traffic{mappings: manyMappings, flows: packetFlows, outwards: true}),
			xdp("10,000, IPv6", traffic{mappings: manyMappings, flows: packetFlows, ipv6: true}),
		},
		Baseline: base,
		Claims: []bench.Claim{
			{Subject: large, Quantity: packetRate, Than: small, Bound: 0.95},
			{Subject: large + many, Quantity: packetRate, Than: small + many, Bound: 0.95},
		},
	})
}

// suite adds what both have in common.
func (p *planes) suite(s bench.Suite) bench.Suite {
	s.Method = fmt.Sprintf("%s packets of %d bytes in %s UDP flows where nothing else is said, sent as fast as they go, each flow known to the gateway before",
		units.Count(packetsPerRun), packetBytes, units.Count(packetFlows))
	s.Quantities = []bench.Quantity{packetsPerSecond(), nanoseconds(planeCost, "time of the gateway per packet", false),
		{Name: lostShare, Label: "lost", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(100*v, 3) + " %" }}}
	s.Rounds, s.WarmUp = 15, 1
	s.Parameters, s.Seed = p.parameters(), packetSeed
	s.Programs = [][]string{{p.natkit, "--version"}, {"nft", "--version"}}
	s.Setup = p.build
	return s
}

type planes struct {
	packetRuns
	alone float64 // packets/s of the generator without a gateway, the last time
}

// traffic are packets through addresses outside that stand for one inside each: by mappings of single ones, or, with
// netmap, by one mapping of a prefix of that length.
type traffic struct {
	mappings, flows     int
	netmap              int
	tcp, ipv6, outwards bool
}

// The addresses of mappings.
var (
	mappedOutside = [2]netip.Prefix{netip.MustParsePrefix("100.64.0.0/12"), netip.MustParsePrefix("2001:db8:64::/108")}
	mappedInside  = [2]netip.Prefix{netip.MustParsePrefix("10.64.0.0/12"), netip.MustParsePrefix("fd00:64::/108")}
)

func (t traffic) family() int {
	if t.ipv6 {
		return 1
	}
	return 0
}

// prefixes are those of the addresses outside and inside.
func (t traffic) prefixes() (outside, inside netip.Prefix) {
	outside, inside = mappedOutside[t.family()], mappedInside[t.family()]
	if t.netmap > 0 {
		outside, inside = netip.PrefixFrom(outside.Addr(), t.netmap), netip.PrefixFrom(inside.Addr(), t.netmap)
	}
	return outside, inside
}

// addresses are those of a prefix that have mappings.
func (t traffic) addresses(p netip.Prefix) (all []netip.Addr) {
	for a := p.Addr().Next(); (len(all) < t.mappings || t.netmap > 0) && p.Contains(a); a = a.Next() {
		all = append(all, a)
	}
	return all
}

func (t traffic) protocol() uint8 {
	if t.tcp {
		return unix.IPPROTO_TCP
	}
	return unix.IPPROTO_UDP
}

// inside is the traffic that needs no translation.
func (t traffic) inside() packets.Config {
	c := t.config()
	c.Flows.Destinations = ends(t.addresses(mappedInside[t.family()]))
	c.Expect = unchanged
	return c
}

func ends(addresses []netip.Addr) (all []netip.AddrPort) {
	for _, a := range addresses {
		all = append(all, netip.AddrPortFrom(a, gatewayPublic.Port()))
	}
	return all
}

// config is the traffic, and what is to become of it.
func (t traffic) config() packets.Config {
	c := packets.Config{
		Spec:    packets.Spec{Protocol: t.protocol(), Sizes: []int{packetBytes}, HopLimit: 64, IPv6: t.ipv6},
		Packets: packetsPerRun, Workers: 1, Expect: unchanged,
	}
	if t.tcp {
		c.Spec.TCPFlags = []frame.TCPFlags{frame.ACK}
	}
	if size := c.Spec.MinSize(); size > packetBytes {
		c.Spec.Sizes = []int{size}
	}
	outside, inside := t.prefixes()
	near, far := clientOf[t.family()], t.addresses(outside)
	c.Flows = packets.Flows{Count: t.flows, Seed: packetSeed, Sources: []netip.Addr{near}, SourcePorts: nat.Ports{First: 1024, Last: 65535}, Destinations: ends(far)}
	switch {
	case t.netmap > 0:
		c.Flows.SourcePorts.Last = 1024 + 64 - 1 // as many whatever the length, and enough
	case c.Flows.SourcePorts.Len()*len(far) >= 1<<32/2:
		c.Flows.SourcePorts = nat.Ports{First: 1024, Last: 1024}
	}
	if t.outwards {
		c.Flows.Sources, c.Flows.Destinations = t.addresses(inside), []netip.AddrPort{netip.AddrPortFrom(near, gatewayPublic.Port())}
		c.Expect.Source = packets.End{Address: packets.Netmap, Prefix: outside, Port: packets.Same}
		return c
	}
	c.Expect.Destination = packets.End{Address: packets.Netmap, Prefix: inside, Port: packets.Same}
	return c
}

// tables are the mappings as the engine has them.
func (t traffic) tables() plane.Tables {
	out, in := t.prefixes()
	if t.netmap > 0 {
		return plane.Tables{Rules: 1, Destinations: []plane.Mapping{{Match: out, To: in, Roles: plane.AnyRole, Rule: 1}},
			Sources: []plane.Mapping{{Match: in, To: out, Roles: plane.AnyRole, Rule: 1}}}
	}
	tables, inside := plane.Tables{Rules: 1}, t.addresses(in)
	for i, a := range t.addresses(out) {
		one, other := nat.Host(a), nat.Host(inside[i])
		tables.Destinations = append(tables.Destinations, plane.Mapping{Match: one, To: other, Roles: plane.AnyRole, Rule: 1})
		tables.Sources = append(tables.Sources, plane.Mapping{Match: other, To: one, Roles: plane.AnyRole, Rule: 1})
	}
	return tables
}

// nft are the mappings as a table of nftables, with a rule that uses them.
func (t traffic) nft(hook, does string) string {
	return nftTable("benchmark", "daddr", mappedOutside[0], t.addresses(mappedOutside[0]), t.addresses(mappedInside[0]), hook, does)
}

// nftTable maps the addresses of packets' one end, which are all of a prefix, to others.
func nftTable(name, end string, of netip.Prefix, from, to []netip.Addr, hook, does string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table ip %s {\n  map mappings { type ipv4_addr : ipv4_addr\n    elements = {", name)
	for i, a := range from {
		fmt.Fprintf(&b, "%s : %s,\n", a, to[i])
	}
	fmt.Fprintf(&b, "} }\n  chain translated {\n    %s\n    ip %s %s %s\n  }\n}\n", hook, end, of, does)
	return b.String()
}

// Addresses of IPv6 on the lab's nodes, and the clients'.
const (
	clientIPv6, gatewayClientIPv6 = "2001:db8:18::2", "2001:db8:18::1"
	serverIPv6, gatewayServerIPv6 = "2001:db8:19::2", "2001:db8:19::1"
)

var clientOf = [2]netip.Addr{clientAddress, netip.MustParseAddr(clientIPv6)}

// build makes the lab, with IPv6 and routes to the mappings' addresses.
func (p *planes) build(ctx context.Context) (func(context.Context) error, error) {
	down, err := p.setUp(ctx)
	if err != nil {
		return nil, err
	}
	client, err := pktgen.ReadEgress(pktgen.Route{Netns: p.client}, gatewayPublic.Addr())
	gatewayOut, errOut := pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, clientAddress)
	gatewayIn, errIn := pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, serverAddress.Addr())
	server, errServer := pktgen.ReadEgress(pktgen.Route{Netns: p.server}, gatewayInside)
	if err := errors.Join(err, errOut, errIn, errServer); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	add := func(ns *netns.Handle, args string) {
		if err == nil {
			_, _, err = bench.Program{Netns: ns, Args: strings.Fields("ip " + args)}.Run(ctx)
		}
	}
	sysctl := func(ns *netns.Handle, setting string) {
		if err == nil {
			_, _, err = bench.Program{Netns: ns, Args: []string{"sysctl", "-qw", setting}}.Run(ctx)
		}
	}
	address := func(ns *netns.Handle, a, dev string) {
		sysctl(ns, "net.ipv6.conf."+dev+".disable_ipv6=0") // as the lab has no other use for it
		add(ns, "-6 addr add "+a+"/64 dev "+dev+" nodad")
	}
	address(p.client, clientIPv6, client.Interface)
	address(p.gateway, gatewayClientIPv6, gatewayOut.Interface)
	address(p.gateway, gatewayServerIPv6, gatewayIn.Interface)
	address(p.server, serverIPv6, server.Interface)
	add(p.client, "route add "+mappedOutside[0].String()+" via "+gatewayPublic.Addr().String())
	add(p.client, "route add "+mappedInside[0].String()+" via "+gatewayPublic.Addr().String())
	add(p.client, "-6 route add "+mappedOutside[1].String()+" via "+gatewayClientIPv6)
	add(p.gateway, "route add "+mappedInside[0].String()+" via "+serverAddress.Addr().String())
	add(p.gateway, "-6 route add "+mappedInside[1].String()+" via "+serverIPv6)
	add(p.server, "-6 route add 2001:db8:18::/64 via "+gatewayServerIPv6)
	if sysctl(p.gateway, "net.ipv6.conf.all.forwarding=1"); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return down, nil
}

func (p *planes) runDirect(ctx context.Context) (bench.Sample, error) {
	s, err := p.direct(ctx, func(c *packets.Config) { c.Verify, c.Expect = true, unchanged })
	p.alone = s.Values[packetRate]
	return s, err
}

// runRedirect lets a program forward all frames of the gateway.
func (p *planes) runRedirect(ctx context.Context) (bench.Sample, error) {
	if err := p.rules(ctx, ""); err != nil {
		return bench.Sample{}, err
	}
	in, out, err := p.ports()
	if err != nil {
		return bench.Sample{}, err
	}
	f, err := pktgen.Forward(in.Interface, out)
	if err != nil {
		return bench.Sample{}, err
	}
	cfg := p.config(serverAddress)
	cfg.Expect = unchanged
	s, err := p.through(ctx, cfg, false)
	s.GeneratorLimit = "" // it is there to show the limit of the path, generator included
	return s, errors.Join(err, f.Close())
}

// ports are the gateway's interfaces toward the client and toward the server.
func (p *planes) ports() (client, server pktgen.Egress, err error) {
	client, err = pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, clientAddress)
	if err == nil {
		server, err = pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, serverAddress.Addr())
	}
	return client, server, err
}

// nftables is a subject that translates by rules.
func (p *planes) nftables(name, hook, does string, t traffic) bench.Subject {
	rules := t.nft(hook, does)
	return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return p.runKernel(ctx, rules, t.config()) }}
}

// runKernel lets the kernel forward, by rules that translate or without any.
func (p *planes) runKernel(ctx context.Context, rules string, cfg packets.Config) (bench.Sample, error) {
	if err := p.rules(ctx, rules); err != nil {
		return bench.Sample{}, err
	}
	return p.through(ctx, cfg, false)
}

// engine is a subject that translates by programs.
func (p *planes) engine(name string, mode plane.Mode, t traffic) bench.Subject {
	return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return p.runEngine(ctx, mode, t) }}
}

// rules replaces those of the gateway.
func (p *planes) rules(ctx context.Context, rules string) error {
	_, _, err := bench.Program{Netns: p.gateway, Stdin: "flush ruleset\n" + rules, Args: []string{"nft", "-f", "-"}}.Run(ctx)
	return err
}

// through makes all flows known to the gateway, then measures.
func (p *planes) through(ctx context.Context, cfg packets.Config, outwards bool) (bench.Sample, error) {
	cfg.Verify = true
	send := func(cfg packets.Config) (*packets.Result, error) {
		if outwards {
			return p.sendFrom(ctx, cfg, p.server, p.client, gatewayPublic.Addr())
		}
		return p.send(ctx, cfg, p.server, gatewayInside)
	}
	warm := cfg
	warm.Packets = 2 * int64(cfg.Flows.Count)
	if _, err := send(warm); err != nil {
		return bench.Sample{}, err
	}
	r, err := send(cfg)
	if err != nil {
		return bench.Sample{}, err
	}
	return p.sample(r), nil
}

func (p *planes) sample(r *packets.Result) bench.Sample {
	s := bench.Sample{Failures: wrong(r), Values: bench.Values{
		packetRate: r.ReceivedPerSecond,
		planeCost:  1e9/r.ReceivedPerSecond - 1e9/p.alone,
		lostShare:  float64(max(0, r.Lost)) / float64(r.Sent),
	}}
	if r.ReceivedPerSecond > noSmaller*p.alone {
		s.GeneratorLimit = fmt.Sprintf("%s packets/s are as many as the generator and the receiver do alone (%s)",
			units.Rate(r.ReceivedPerSecond), units.Rate(p.alone))
	}
	return s
}
