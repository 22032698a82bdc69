package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	packetConnectRate   = "connections_per_second"
	packetCompleteShare = "complete_share"

	// directConnections and natConnections take between half a second and a few.
	directConnections = 2_000_000
	natConnections    = 300_000
	packetWindow      = 256
)

// connectPacketSuite compares connections that eBPF makes and answers with those of ab and nginx.
func connectPacketSuite(natkit string) bench.Suite {
	const direct, throughNAT, abDirect, abNAT = "natkit, direct", "natkit, DNAT", "ab, direct", "ab, DNAT"
	c := &packetConnections{packetRuns{natkit: natkit}}
	return bench.Suite{
		Name: "connect-packet", Title: "natkit bench connect --engine packet against ab",
		About: "Whole short connections: handshake, request, reply, close by the server. natkit's are made\n" +
			"and answered by XDP programs, ab's by sockets, nginx at the other end. Direct: natkit's\n" +
			"over one veth pair, ab's over loopback beside nginx. DNAT: both through the lab's\n" +
			"gateway, where connection tracking has to make an entry for each.",
		Method: fmt.Sprintf("natkit: %s connections direct, %s through DNAT, %d at a time; ab: %d with %d at a time",
			units.Count(directConnections), units.Count(natConnections), packetWindow, requests, concurrency),
		Quantities: []bench.Quantity{
			{Name: packetConnectRate, Label: "connections/s", Better: bench.Higher, Text: units.Rate},
			{Name: packetCompleteShare, Label: "complete", Better: bench.Higher, Text: units.Percent},
		},
		Subjects: []bench.Subject{
			{Name: direct, Run: c.direct}, {Name: abDirect, Run: c.ab("server", "http://198.19.0.2/")},
			{Name: throughNAT, Run: c.throughNAT}, {Name: abNAT, Run: c.ab("client", labURL)},
		},
		Baseline: abDirect,
		Claims: []bench.Claim{
			{Subject: direct, Quantity: packetConnectRate, Than: abDirect, Bound: 60},
			{Subject: direct, Quantity: packetCompleteShare, Bound: 0.999},
			{Subject: throughNAT, Quantity: packetConnectRate, Than: abNAT, Bound: 3},
			{Subject: throughNAT, Quantity: packetCompleteShare, Bound: 0.998},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{
			"direct_connections": directConnections, "nat_connections": natConnections, "window": packetWindow,
			"ab_requests": requests, "ab_concurrency": concurrency,
		},
		Seed:     packetSeed,
		Programs: [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"ab", "-V"}, {"nft", "--version"}},
		Setup:    c.setUp,
	}
}

// packetConnections makes connections through the lab: client, gateway and server.
type packetConnections struct{ packetRuns }

// setUp builds the lab with its DNAT and finds its nodes.
func (c *packetConnections) setUp(ctx context.Context) (func(context.Context) error, error) {
	down, err := labUp(ctx, c.natkit, "nat")
	if err != nil {
		return nil, err
	}
	if err := c.attach(); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(c.lab.Close(), down(ctx)) }, nil
}

// direct is answered by the gateway's interface.
func (c *packetConnections) direct(ctx context.Context) (bench.Sample, error) {
	return c.connect(ctx, netip.AddrPortFrom(gatewayPublic.Addr(), 80), c.gateway, clientAddress, directConnections)
}

// throughNAT is answered by the server's interface, before nginx.
func (c *packetConnections) throughNAT(ctx context.Context) (bench.Sample, error) {
	return c.connect(ctx, netip.AddrPortFrom(gatewayPublic.Addr(), 8080), c.server, gatewayInside, natConnections)
}

// connect has the interface by which node reaches back answer for the time of a run.
func (c *packetConnections) connect(ctx context.Context, to netip.AddrPort, node *netns.Handle, back netip.Addr, n int64) (s bench.Sample, err error) {
	way, err := pktgen.ReadEgress(pktgen.Route{Netns: node}, back)
	if err != nil {
		return s, err
	}
	server, err := pktgen.Respond(way.Port, []nat.Ports{{First: 80, Last: 80}})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	from, err := pktgen.ReadEgress(pktgen.Route{Netns: c.client}, to.Addr())
	if err != nil {
		return s, err
	}
	ports := nat.Ports{First: 1024, Last: 65535}
	r, err := pktgen.Connect(ctx, packets.ConnectConfig{
		Flows: packets.Flows{
			Count: ports.Len(), Sources: []netip.Addr{clientAddress}, SourcePorts: ports, Destinations: []netip.AddrPort{to}, Seed: packetSeed,
		},
		Connections: n, Window: packetWindow, Timeout: time.Second, Close: load.CloseServer,
	}, from, nil)
	if err != nil {
		return s, err
	}
	return bench.Sample{
		Values:   bench.Values{packetConnectRate: r.CompletePerSecond, packetCompleteShare: 1 - r.BadShare()},
		Failures: r.Misdelivered + r.BadChecksum + r.Duplicated + r.Unexpected + r.NoRoom, GeneratorLimit: r.GeneratorLimit,
	}, nil
}

// ab runs ab on a node.
func (c *packetConnections) ab(node, url string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		args := []string{c.natkit, "lab", "exec", "--lab", labName, node, "--", "ab", "-q", "-r", "-n", fmt.Sprint(requests), "-c", fmt.Sprint(concurrency), url}
		stdout, _, err := bench.Program{Args: args}.Run(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		o, err := parseAB(stdout)
		if err != nil {
			return bench.Sample{}, err
		}
		return bench.Sample{Values: bench.Values{
			packetConnectRate: o.PerSecond, packetCompleteShare: float64(o.Completed) / requests,
		}, Failures: o.Failed}, nil
	}
}
