package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// noSmaller is the share of the generator's own rate above which nothing can be said
// of what lies between it and the receiver.
const noSmaller = 0.95

// rulesDNAT and rulesStateless do the same to a packet, with and without a
// connection table.
const (
	rulesDNAT = `table ip benchmark {
  chain prerouting {
    type nat hook prerouting priority dstnat
    ip daddr 198.18.0.1 udp dport 9 dnat to 198.19.0.2:9
  }
}`
	rulesStateless = `table ip benchmark {
  chain prerouting {
    type filter hook prerouting priority raw
    ip daddr 198.18.0.1 udp dport 9 notrack ip daddr set 198.19.0.2
  }
}`
)

// planesSuite measures what forwards packets on the lab's gateway, each from the
// kernel's own NAT up to a program that only redirects.
func planesSuite(natkit string) bench.Suite {
	const dnat = "kernel DNAT"
	p := &planes{packetRuns: packetRuns{natkit: natkit}}
	return bench.Suite{
		Name: "planes", Title: "Data planes: kernel DNAT, stateless nftables, XDP redirect",
		About: "What the lab's gateway makes of small packets, everything on one CPU: the generator,\n" +
			"two veth pairs, the gateway, and the receiver, which accounts for every packet and\n" +
			"checks its addresses and checksums. The time of the gateway itself is what a packet\n" +
			"takes more than from the generator into a receiver at the first hop.",
		Method: fmt.Sprintf("%s packets of %d bytes in %s UDP flows, sent as fast as they go, each flow known to the gateway before",
			units.Count(packetsPerRun), packetBytes, units.Count(packetFlows)),
		Quantities: []bench.Quantity{packetsPerSecond(), nanoseconds(planeCost, "time of the gateway per packet", false),
			{Name: lostShare, Label: "lost", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(100*v, 3) + " %" }}},
		Subjects: []bench.Subject{
			{Name: "no gateway", Run: p.runDirect},
			{Name: "XDP redirect", Run: p.runRedirect},
			{Name: "kernel forwarding", Run: func(ctx context.Context) (bench.Sample, error) { return p.runKernel(ctx, "", false) }},
			{Name: "nftables, stateless", Run: func(ctx context.Context) (bench.Sample, error) { return p.runKernel(ctx, rulesStateless, true) }},
			{Name: "natkit, XDP", Run: func(ctx context.Context) (bench.Sample, error) { return p.runEngine(ctx, plane.XDP, 10_000) }},
			{Name: "natkit, tc", Run: func(ctx context.Context) (bench.Sample, error) { return p.runEngine(ctx, plane.TC, 10_000) }},
			{Name: dnat, Run: func(ctx context.Context) (bench.Sample, error) { return p.runKernel(ctx, rulesDNAT, true) }},
		},
		Baseline: dnat,
		Rounds:   15, WarmUp: 1,
		Parameters: p.parameters(), Seed: packetSeed,
		Programs: [][]string{{natkit, "--version"}, {"nft", "--version"}},
		Setup:    p.setUp,
	}
}

type planes struct {
	packetRuns
	alone float64 // packets/s of the generator without a gateway, the last time
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
	in, err := pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, clientAddress)
	if err != nil {
		return bench.Sample{}, err
	}
	out, err := pktgen.ReadEgress(pktgen.Route{Netns: p.gateway}, serverAddress.Addr())
	if err != nil {
		return bench.Sample{}, err
	}
	f, err := pktgen.Forward(in.Interface, out)
	if err != nil {
		return bench.Sample{}, err
	}
	cfg := p.config(serverAddress)
	cfg.Expect = unchanged
	s, err := p.through(ctx, cfg)
	s.GeneratorLimit = "" // it is there to show the limit of the path, generator included
	return s, errors.Join(err, f.Close())
}

// runKernel lets the kernel forward, by rules that translate or without any.
func (p *planes) runKernel(ctx context.Context, rules string, translates bool) (bench.Sample, error) {
	if err := p.rules(ctx, rules); err != nil {
		return bench.Sample{}, err
	}
	cfg := p.config(serverAddress)
	cfg.Expect = unchanged
	if translates {
		var err error
		cfg = p.config(gatewayPublic)
		if cfg.Expect.Destination, err = packets.ParseEnd(serverAddress.String()); err != nil {
			return bench.Sample{}, err
		}
	}
	return p.through(ctx, cfg)
}

// rules replaces those of the gateway.
func (p *planes) rules(ctx context.Context, rules string) error {
	_, _, err := bench.Program{Netns: p.gateway, Args: []string{"nft", "flush ruleset\n" + rules}}.Run(ctx)
	return err
}

// through makes all flows known to the gateway, then measures.
func (p *planes) through(ctx context.Context, cfg packets.Config) (bench.Sample, error) {
	cfg.Verify = true
	cfg.Expect.Source = unchanged.Source
	warm := cfg
	warm.Packets = 2 * packetFlows
	if _, err := p.send(ctx, warm, p.server, gatewayInside); err != nil {
		return bench.Sample{}, err
	}
	r, err := p.send(ctx, cfg, p.server, gatewayInside)
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
