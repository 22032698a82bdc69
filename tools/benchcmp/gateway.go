package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// gatewayForwards are port forwards of consecutive ports; the one in the middle is
	// used, by which a chain is passed half on the average.
	gatewayForwards = 10_000
	firstForward    = 10_000
	forwardInUse    = firstForward + gatewayForwards/2
	// gatewayFlows are few enough for their entries to stay in the CPU's own caches. Packets
	// of 60,000 flows wait for memory, for a time that depends on its other users: the ratio
	// of two runs of the very same thing then has a standard deviation of 22 %, with these
	// of 2 %.
	gatewayFlows   = 1_000
	gatewayPackets = 400_000
	newFlowTime    = 200 * time.Millisecond
	newFlowRate    = "new_flows_per_second"
	ownTime        = "own_cpu_seconds"
	// gatewaySet is how many elements a set has, of which none stays.
	gatewaySet = 1_000_000

	gatewayOneName   = "natkit, 1 forward"
	gatewayManyName  = "natkit, 10,000 forwards"
	gatewayEditName  = "natkit, one of 10,000 changed"
	gatewayMixedName = "natkit, 10,000 rules of mixed kinds"
	gatewayKindsName = "natkit, one rule of each of these kinds"
	gatewaySetName   = "natkit, a set of 1,000,000 replaced"
	iptablesManyName = "iptables, 10,000 forwards"
)

// gatewaySuite measures port forwards by their number: how long it takes to put them in
// force, and what they cost connections that begin and packets of those that are known.
func gatewaySuite(natkit string) bench.Suite {
	g := &gatewayRuns{packetRuns: packetRuns{natkit: natkit}}
	subject := func(name string, n int, put func(context.Context, string, int) (bench.Usage, error)) bench.Subject {
		return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return g.run(ctx, n, put) }}
	}
	return bench.Suite{
		Name: "gateway", Title: "natkit gateway: port forwards by their number",
		About: "Port forwards on the lab's gateway: natkit gateway apply writes a map, iptables-restore a\n" +
			"chain. The time is that of the whole command; of a changed file, that of the second command,\n" +
			"with the 10,000 of the first in force; of a set, that of the command that puts 1,000,000 other\n" +
			"addresses into it by one transaction. All packets use the same forward, the one in the middle;\n" +
			"one rule of each kind has the same kinds as the 10,000: what these cost by their number is the\n" +
			"difference. Only a flow's first packet meets NAT rules: for new flows, the gateway's entries\n" +
			"expire at once (nf_conntrack_udp_timeout 0), so that every packet ends a flow and begins one.\n" +
			"Generator, gateway and receiver share one CPU.",
		Method: fmt.Sprintf("packets of %d bytes in %s UDP flows, where for %.1f s every packet begins a flow anew, then %s packets of known flows; the receiver accounts for every packet",
			packetBytes, units.Count(gatewayFlows), newFlowTime.Seconds(), units.Count(gatewayPackets)),
		Quantities: []bench.Quantity{takes, {Name: ownTime, Label: "CPU time of the command", Better: bench.Lower, Text: units.Seconds},
			{Name: newFlowRate, Label: "new flows/s", Better: bench.Higher, Text: units.Rate}, packetsPerSecond()},
		Subjects: []bench.Subject{
			subject(gatewayOneName, 1, g.natkitApply),
			subject(gatewayManyName, gatewayForwards, g.natkitApply),
			subject(gatewayEditName, gatewayForwards, g.natkitEdit),
			subject(gatewayKindsName, len(oneOfEach), g.natkitKinds),
			subject(gatewayMixedName, gatewayForwards, g.natkitMixed),
			{Name: gatewaySetName, Run: g.replaceSet},
			subject("iptables, 1 forward", 1, g.iptablesRestore),
			subject(iptablesManyName, gatewayForwards, g.iptablesRestore),
		},
		Baseline: gatewayOneName,
		Claims: []bench.Claim{
			{Subject: gatewayManyName, Quantity: took, Bound: 1},
			{Subject: gatewayEditName, Quantity: took, Bound: 1},
			{Subject: gatewayManyName, Quantity: newFlowRate, Than: gatewayOneName, Bound: 0.95},
			{Subject: gatewayManyName, Quantity: packetRate, Than: gatewayOneName, Bound: 0.95},
			{Subject: gatewayMixedName, Quantity: took, Bound: 1},
			{Subject: gatewayMixedName, Quantity: newFlowRate, Than: gatewayOneName, Bound: 0.95},
			{Subject: gatewayMixedName, Quantity: packetRate, Than: gatewayOneName, Bound: 0.95},
			{Subject: gatewayMixedName, Quantity: newFlowRate, Than: gatewayKindsName, Bound: 0.95},
			{Subject: gatewayMixedName, Quantity: packetRate, Than: gatewayKindsName, Bound: 0.95},
			{Subject: gatewaySetName, Quantity: took, Bound: 3},
		},
		Rounds: 60, WarmUp: 1,
		Parameters: map[string]any{"forwards": gatewayForwards, "set_elements": gatewaySet, "flows": gatewayFlows, "packets": gatewayPackets, "new_flows_seconds": newFlowTime.Seconds(), "frame_bytes": packetBytes, "workers": 1},
		Seed:       packetSeed,
		Programs:   [][]string{{natkit, "--version"}, {"iptables-restore", "--version"}},
		Setup:      g.setUp,
	}
}

type gatewayRuns struct{ packetRuns }

// run puts forwards in force and sends through the one in the middle.
func (g *gatewayRuns) run(ctx context.Context, n int, put func(context.Context, string, int) (bench.Usage, error)) (s bench.Sample, err error) {
	dir, err := os.MkdirTemp("", "natkit-bench-gateway-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := g.clear(ctx); err != nil {
		return s, err
	}
	used, err := put(ctx, dir, n)
	if err != nil {
		return s, err
	}
	begun, err := g.newFlows(ctx)
	if err != nil {
		return s, err
	}
	known, err := g.knownFlows(ctx)
	if err != nil {
		return s, err
	}
	s.Values = bench.Values{took: used.Seconds, ownTime: used.OwnSeconds, newFlowRate: begun.ReceivedPerSecond, packetRate: known.ReceivedPerSecond}
	for _, r := range []*packets.Result{begun, known} {
		s.Failures += wrong(r) + max(0, r.Lost)
	}
	return s, g.clear(ctx)
}

// newFlows sends packets each of which finds the entry of its flow expired.
func (g *gatewayRuns) newFlows(ctx context.Context) (*packets.Result, error) {
	if err := g.expireAfter("0"); err != nil {
		return nil, err
	}
	return g.through(ctx, 0, newFlowTime)
}

// knownFlows makes all flows known to the gateway, then sends in them.
func (g *gatewayRuns) knownFlows(ctx context.Context) (*packets.Result, error) {
	if err := g.expireAfter("30"); err != nil {
		return nil, err
	}
	if _, err := g.through(ctx, gatewayFlows, 0); err != nil {
		return nil, err
	}
	return g.through(ctx, gatewayPackets, 0)
}

// expireAfter sets the seconds after which the gateway drops a flow's entry.
func (g *gatewayRuns) expireAfter(seconds string) error {
	return g.gateway.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte(seconds), 0)
	})
}

// clear makes the gateway forget rules and flows.
func (g *gatewayRuns) clear(ctx context.Context) error {
	_, _, err := bench.Program{Netns: g.gateway, Args: []string{"nft", "flush ruleset"}}.Run(ctx)
	if err != nil {
		return err
	}
	_, _, err = bench.Program{Netns: g.gateway, Args: []string{"conntrack", "-F"}}.Run(ctx)
	return err
}

// through sends packets in turn in all flows: count of them, or until limit.
func (g *gatewayRuns) through(ctx context.Context, count int64, limit time.Duration) (*packets.Result, error) {
	cfg := g.config(netip.AddrPortFrom(gatewayPublic.Addr(), forwardInUse))
	cfg.Flows.Count, cfg.Packets, cfg.Duration = gatewayFlows, count, limit
	cfg.Verify, cfg.Expect = true, unchanged
	var err error
	if cfg.Expect.Destination, err = packets.ParseEnd(serverAddress.Addr().String() + ":same"); err != nil {
		return nil, err
	}
	return g.send(ctx, cfg, g.server, gatewayInside)
}

// forwardPorts are n ports around the one in use.
func forwardPorts(n int) (first, last int) {
	first = forwardInUse - n/2
	return first, first + n - 1
}

func (g *gatewayRuns) natkitApply(ctx context.Context, dir string, n int) (bench.Usage, error) {
	return g.applyForwards(ctx, dir, n, 0)
}

// natkitEdit changes the last of the forwards that are in force.
func (g *gatewayRuns) natkitEdit(ctx context.Context, dir string, n int) (bench.Usage, error) {
	if _, err := g.applyForwards(ctx, dir, n, 0); err != nil {
		return bench.Usage{}, err
	}
	return g.applyForwards(ctx, dir, n, 1)
}

// applyForwards puts n forwards in force; the last of them leads to another port by shift.
func (g *gatewayRuns) applyForwards(ctx context.Context, dir string, n, shift int) (bench.Usage, error) {
	var file strings.Builder
	file.WriteString("gateway:\n  nat:\n")
	for first, last := forwardPorts(n); first <= last; first++ {
		to := first
		if first == last {
			to += shift
		}
		fmt.Fprintf(&file, "    - dnat: {on: %v, port: udp/%d, to: \"%v:%d\"}\n", gatewayPublic.Addr(), first, serverAddress.Addr(), to)
	}
	return g.apply(ctx, dir, file.String())
}

// natkitMixed applies n rules: the forward in use, and rules of every kind and condition that no packet meets.
func (g *gatewayRuns) natkitMixed(ctx context.Context, dir string, n int) (bench.Usage, error) {
	return g.apply(ctx, dir, mixedRules(countTo(n)))
}

// natkitKinds applies the forward in use and one rule of each kind of natkitMixed.
func (g *gatewayRuns) natkitKinds(ctx context.Context, dir string, _ int) (bench.Usage, error) {
	return g.apply(ctx, dir, mixedRules(slices.Values(oneOfEach)))
}

// countTo are the numbers of n rules without the forward in use.
func countTo(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 1; i < n && yield(i); i++ {
		}
	}
}

// oneOfEach are numbers of mixedRules of which each has a kind of its own: 3 chooses among hosts by hash, 13 in turn.
var oneOfEach = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13}

// mixedRules are the forward in use, and rules of a kind by their number.
func mixedRules(numbers iter.Seq[int]) string {
	var file strings.Builder
	fmt.Fprintf(&file, "gateway:\n  nat:\n    - dnat: {on: %v, port: udp/%d, to: %v}\n", gatewayPublic.Addr(), forwardInUse, serverAddress.Addr())
	public, inside := gatewayPublic.Addr(), func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255) }
	kinds := []func(i int) string{
		func(i int) string {
			return fmt.Sprintf("dnat: {on: %v, port: tcp/%d, to: \"%s:80\"}", public, i, inside(i))
		},
		func(i int) string {
			return fmt.Sprintf("dnat: {on: %v, port: [tcp/%d, udp/%[2]d], from: 100.64.0.0/24, to: %s}", public, i, inside(i))
		},
		func(i int) string {
			return fmt.Sprintf("dnat: {on: 203.0.113.1, port: tcp/%d-%d, to: \"%s:%d-%d\"}", 4*i, 4*i+3, inside(i), 20_000, 20_003)
		},
		func(i int) string {
			to := fmt.Sprintf("[\"%s:80\", \"%[1]s:81\"]", inside(i))
			if i%100 == 3 { // each has a map of 256 places
				to += ", balance: hash"
			}
			return fmt.Sprintf("dnat: {on: 203.0.113.2, port: tcp/%d, to: %s}", i, to)
		},
		func(i int) string { return fmt.Sprintf("snat: {from: %s, to: 203.0.113.3, random: fully}", inside(i)) },
		func(i int) string {
			return fmt.Sprintf("snat: {from: %s, only-to: 100.65.0.0/24, port: [tcp/443, udp/443], to: 203.0.113.4}", inside(i))
		},
		func(i int) string { return fmt.Sprintf("snat: {from: %s, mark: 0x10, to: 203.0.113.5}", inside(i)) },
		func(i int) string { return fmt.Sprintf("snat: {from: %s, dscp: ef, to: 203.0.113.6}", inside(i)) },
		func(i int) string { return fmt.Sprintf("snat: {user: %d, to: 203.0.113.7}", 10_000+i) },
		func(i int) string {
			return fmt.Sprintf("static: {inside: %s, outside: 100.%d.%d.%d}", inside(1<<18+i), 66+i>>16, i>>8&255, i&255)
		},
	}
	for i := range numbers {
		fmt.Fprintf(&file, "    - %s\n", kinds[i%len(kinds)](i))
	}
	return file.String()
}

// replaceSet replaces all elements of a set that is in force.
func (g *gatewayRuns) replaceSet(ctx context.Context) (s bench.Sample, err error) {
	dir, err := os.MkdirTemp("", "natkit-bench-gateway-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := g.clear(ctx); err != nil {
		return s, err
	}
	var used bench.Usage
	for first := range 2 {
		if err := os.WriteFile(filepath.Join(dir, "elements"), setElements(first, gatewaySet), 0o600); err != nil {
			return s, err
		}
		if used, err = g.apply(ctx, dir, setFile); err != nil {
			return s, err
		}
	}
	s.Values = bench.Values{took: used.Seconds, ownTime: used.OwnSeconds}
	return s, g.clear(ctx)
}

// setFile has a rule by a set, whose elements are beside it.
const setFile = "gateway:\n  sets: {many: {file: elements}}\n  nat:\n    - snat: {from: $many, to: 203.0.113.3}\n"

// setElements are n addresses, each other one: of another first (0 or 1) all are others.
func setElements(first, n int) []byte {
	var file bytes.Buffer
	for i := range n {
		at := first + 2*i
		fmt.Fprintf(&file, "10.%d.%d.%d\n", at>>16, at>>8&255, at&255)
	}
	return file.Bytes()
}

// apply puts a file in force.
func (g *gatewayRuns) apply(ctx context.Context, dir, file string) (bench.Usage, error) {
	path := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		return bench.Usage{}, err
	}
	_, used, err := bench.Program{Netns: g.gateway,
		Args: []string{"env", "NATKIT_STATE_DIR=" + dir, g.natkit, "gateway", "apply", path, "--yes", "--json"}}.Run(ctx)
	return used, err
}

func (g *gatewayRuns) iptablesRestore(ctx context.Context, dir string, n int) (bench.Usage, error) {
	var file strings.Builder
	file.WriteString("*nat\n")
	for first, last := forwardPorts(n); first <= last; first++ {
		fmt.Fprintf(&file, "-A PREROUTING -d %v/32 -p udp -m udp --dport %d -j DNAT --to-destination %v:%d\n", gatewayPublic.Addr(), first, serverAddress.Addr(), first)
	}
	file.WriteString("COMMIT\n")
	path := filepath.Join(dir, "iptables")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		return bench.Usage{}, err
	}
	_, used, err := bench.Program{Netns: g.gateway, Args: []string{"iptables-restore", path}}.Run(ctx)
	return used, err
}
