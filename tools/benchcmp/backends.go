package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// chosenHosts are those that a rule chooses from. All are the one server: what is measured is the choice.
	chosenHosts = 8

	oneHostName     = "one host"
	turnsName       = "8 hosts by round-robin"
	hashName        = "8 hosts by hash"
	checkedName     = "8 hosts by round-robin, with health"
	checkedHashName = "8 hosts by hash, with health"
)

// backendsSuite measures what the choice among hosts costs connections that begin.
func backendsSuite(natkit string) bench.Suite {
	g := &gatewayRuns{packetRuns: packetRuns{natkit: natkit}}
	s := bench.Suite{
		Name: "backends", Title: "natkit gateway: the choice among several hosts",
		About: "A port forward on the lab's gateway to one host, and to one of eight that it chooses; health\n" +
			"is that of rules whose hosts are checked, without the checks. For new flows, the gateway's\n" +
			"entries expire at once (nf_conntrack_udp_timeout 0), so that every packet ends a flow and\n" +
			"begins one. Generator, gateway and receiver share one CPU.",
		Method:     fmt.Sprintf("packets of %d bytes in %s UDP flows for %.1f s; the receiver accounts for every packet", packetBytes, units.Count(gatewayFlows), newFlowTime.Seconds()),
		Quantities: []bench.Quantity{{Name: newFlowRate, Label: "new flows/s", Better: bench.Higher, Text: units.Rate}},
		Baseline:   oneHostName,
		Rounds:     60, WarmUp: 1,
		Parameters: map[string]any{"hosts": chosenHosts, "flows": gatewayFlows, "new_flows_seconds": newFlowTime.Seconds(), "frame_bytes": packetBytes, "workers": 1},
		Seed:       packetSeed,
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      g.setUp,
	}
	for _, one := range []struct {
		name, more string
		hosts      int
	}{{oneHostName, "", 1}, {turnsName, "", chosenHosts}, {hashName, ", balance: hash", chosenHosts},
		{checkedName, ", health: {tcp: on, port: 9}", chosenHosts}, {checkedHashName, ", balance: hash, health: {tcp: on, port: 9}", chosenHosts}} {
		s.Subjects = append(s.Subjects, bench.Subject{Name: one.name, Run: func(ctx context.Context) (bench.Sample, error) { return g.chosen(ctx, forwardTo(one.hosts, one.more)) }})
		if one.hosts > 1 {
			s.Claims = append(s.Claims, bench.Claim{Subject: one.name, Quantity: newFlowRate, Than: oneHostName, Bound: 0.95})
		}
	}
	return s
}

// forwardTo is a file that forwards the port in use to a number of hosts.
func forwardTo(hosts int, more string) string {
	list := strings.TrimSuffix(strings.Repeat(serverAddress.Addr().String()+", ", hosts), ", ")
	return fmt.Sprintf("gateway:\n  nat:\n    - dnat: {on: %v, port: udp/%d, to: [%s]%s}\n", gatewayPublic.Addr(), forwardInUse, list, more)
}

// chosen puts a file in force and begins flows.
func (g *gatewayRuns) chosen(ctx context.Context, file string) (s bench.Sample, err error) {
	dir, err := os.MkdirTemp("", "natkit-bench-backends-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := g.clear(ctx); err != nil {
		return s, err
	}
	if _, err := g.apply(ctx, dir, file); err != nil {
		return s, err
	}
	begun, err := g.newFlows(ctx)
	if err != nil {
		return s, err
	}
	s.Values, s.Failures = bench.Values{newFlowRate: begun.ReceivedPerSecond}, wrong(begun)+max(0, begun.Lost)
	return s, g.clear(ctx)
}
