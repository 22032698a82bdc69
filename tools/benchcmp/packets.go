package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// packetsPerRun take between a third of a second and three seconds.
	packetsPerRun = 3_000_000
	packetFlows   = 10_000
	packetBytes   = 64
)

// Quantities of a run of packets.
const (
	packetRate       = "packets_per_second"
	generatorProgram = "generator_program_nanoseconds"
	sinkProgram      = "sink_program_nanoseconds"
	planeCost        = "plane_nanoseconds_per_packet"
	lostShare        = "lost_share"
)

func packetsPerSecond() bench.Quantity {
	return bench.Quantity{Name: packetRate, Label: "packets/s", Better: bench.Higher, Text: units.Rate}
}

func nanoseconds(name, label string, counted bool) bench.Quantity {
	return bench.Quantity{Name: name, Label: label, Better: bench.Lower, Counted: counted,
		Text: func(v float64) string { return units.Fixed(v, 0) + " ns" }}
}

// packetsSuite compares the generator and its receiver with a program that sends one
// unchanging frame and another that only counts.
func packetsSuite(natkit string) bench.Suite {
	const bare, own, verified = "bare redirect", "natkit", "natkit, verifying"
	g := &packetRuns{natkit: natkit}
	subject := func(name string, change func(*packets.Config)) bench.Subject {
		return bench.Subject{Name: name,
			Run:   func(ctx context.Context) (bench.Sample, error) { return g.direct(ctx, change) },
			Count: func(ctx context.Context) (bench.Values, error) { return g.programTimes(ctx, change) },
		}
	}
	return bench.Suite{
		Name: "packets", Title: "natkit bench packets against a bare redirect",
		About: "The generator writes every packet's headers, checksums and token, and the receiver\n" +
			"accounts for each; verifying, it checks addresses, ports and checksums as well. Bare,\n" +
			"one unchanging frame is redirected and counted. All over one veth pair and on one CPU.",
		Method: fmt.Sprintf("%s packets of %d bytes in %s UDP flows; the programs' own time is taken in a run of its own (BPF_ENABLE_STATS, about 20 ns of it the measurement)",
			units.Count(packetsPerRun), packetBytes, units.Count(packetFlows)),
		Quantities: []bench.Quantity{packetsPerSecond(),
			nanoseconds(generatorProgram, "generator program", true), nanoseconds(sinkProgram, "receiver program", true)},
		Subjects: []bench.Subject{
			subject(own, func(*packets.Config) {}),
			subject(verified, func(c *packets.Config) { c.Verify, c.Expect = true, unchanged }),
			subject(bare, func(c *packets.Config) { c.Bare = true }),
		},
		Baseline: bare,
		Claims: []bench.Claim{
			{Subject: own, Quantity: packetRate, Bound: 5e6},
			{Subject: own, Quantity: packetRate, Than: bare, Bound: 0.75},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: g.parameters(), Seed: packetSeed,
		Programs: [][]string{{natkit, "--version"}},
		Setup:    g.setUp,
	}
}

const packetSeed = 1

// packetRuns sends packets through the lab: client, gateway and server.
type packetRuns struct {
	natkit                  string
	lab                     *build.Lab
	client, gateway, server *netns.Handle
}

func (g *packetRuns) parameters() map[string]any {
	return map[string]any{"packets": packetsPerRun, "flows": packetFlows, "frame_bytes": packetBytes, "workers": 1}
}

// setUp builds the lab without NAT and finds its nodes.
func (g *packetRuns) setUp(ctx context.Context) (func(context.Context) error, error) {
	down, err := labUp(ctx, g.natkit, "baseline")
	if err != nil {
		return nil, err
	}
	if err := g.attach(); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(g.lab.Close(), down(ctx)) }, nil
}

func (g *packetRuns) attach() error {
	dir := os.Getenv("NATKIT_RUN_DIR") // where the natkit that made the lab looked, too
	state, err := build.ReadState(dir, labName)
	if err != nil {
		return err
	}
	if g.lab, err = build.Attach(dir, state); err != nil {
		return err
	}
	for name, ns := range map[string]**netns.Handle{"client": &g.client, "gateway": &g.gateway, "server": &g.server} {
		node := g.lab.Node(name)
		if node == nil {
			return errors.Join(fmt.Errorf("lab %s has no node %s", labName, name), g.lab.Close())
		}
		*ns = node.Netns
	}
	return nil
}

// Addresses of the lab's nodes.
var (
	clientAddress = netip.MustParseAddr("198.18.0.2")
	gatewayInside = netip.MustParseAddr("198.19.0.1")
	gatewayPublic = netip.MustParseAddrPort("198.18.0.1:9")
	serverAddress = netip.MustParseAddrPort("198.19.0.2:9")
)

// unchanged is what is expected without NAT.
var unchanged = packets.Expectation{
	Source:      packets.End{Address: packets.Same, Port: packets.Same},
	Destination: packets.End{Address: packets.Same, Port: packets.Same},
}

func (g *packetRuns) config(to netip.AddrPort) packets.Config {
	return packets.Config{
		Spec: packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{packetBytes}, HopLimit: 64},
		Flows: packets.Flows{
			Count: packetFlows, Seed: packetSeed, Sources: []netip.Addr{clientAddress},
			SourcePorts: nat.Ports{First: 1024, Last: 65535}, Destinations: []netip.AddrPort{to},
		},
		Packets: packetsPerRun, Workers: 1,
	}
}

// send sends from the client and counts at the interface by which node reaches back.
func (g *packetRuns) send(ctx context.Context, cfg packets.Config, node *netns.Handle, back netip.Addr) (*packets.Result, error) {
	return g.sendFrom(ctx, cfg, g.client, node, back)
}

// sendFrom is send from another node.
func (g *packetRuns) sendFrom(ctx context.Context, cfg packets.Config, sender, node *netns.Handle, back netip.Addr) (*packets.Result, error) {
	from, err := pktgen.ReadEgress(pktgen.Route{Netns: sender}, cfg.Flows.Destinations[0].Addr())
	if err != nil {
		return nil, err
	}
	to, err := pktgen.ReadEgress(pktgen.Route{Netns: node}, back)
	if err != nil {
		return nil, err
	}
	return pktgen.Run(ctx, cfg, from, &to.Port, nil)
}

// direct sends to the gateway's own interface.
func (g *packetRuns) direct(ctx context.Context, change func(*packets.Config)) (bench.Sample, error) {
	cfg := g.config(gatewayPublic)
	change(&cfg)
	r, err := g.send(ctx, cfg, g.gateway, clientAddress)
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Values: bench.Values{packetRate: r.ReceivedPerSecond}, Failures: wrong(r) + max(0, r.Lost)}, nil
}

// wrong counts the packets that came and should not have come like that.
func wrong(r *packets.Result) int64 {
	return r.Misdelivered + r.Corrupted.Total() + r.Duplicated + r.Reordered + r.Late
}

func (g *packetRuns) programTimes(ctx context.Context, change func(*packets.Config)) (bench.Values, error) {
	cfg := g.config(gatewayPublic)
	cfg.Statistics = true
	change(&cfg)
	r, err := g.send(ctx, cfg, g.gateway, clientAddress)
	if err != nil {
		return nil, err
	}
	return bench.Values{generatorProgram: r.GeneratorNanoseconds, sinkProgram: r.SinkNanoseconds}, nil
}
