package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	manyPairs = 1_000_000

	pairsNetfilterName     = "netfilter"
	pairsNetfilterMoreName = "netfilter, one pair more"
	pairsEBPFName          = "ebpf"
	pairsEBPFMoreName      = "ebpf, one pair more"
)

// pairsSuite measures how long a static with a million pairs takes to be put in force.
func pairsSuite(natkit string) bench.Suite {
	p := &pairsRuns{natkit: natkit}
	subject := func(name string, run func(context.Context, *pairsGateway) (bench.Usage, error)) bench.Subject {
		return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return p.run(ctx, run) }}
	}
	return bench.Suite{
		Name: "pairs", Title: "natkit gateway: a static with " + units.Count(manyPairs) + " pairs",
		About: "natkit gateway apply of one static whose pairs are read from a file, in random order on one side, in an empty\n" +
			"network namespace. With engine: ebpf netfilter has them, too. One pair more is the second of two commands.",
		Method: "the whole of each command",
		Quantities: []bench.Quantity{takes, {Name: ownTime, Label: "CPU time of the command", Better: bench.Lower, Text: units.Seconds},
			peaks},
		Subjects: []bench.Subject{
			subject(pairsNetfilterName, func(ctx context.Context, g *pairsGateway) (bench.Usage, error) {
				return g.apply(ctx, "netfilter", manyPairs)
			}),
			subject(pairsNetfilterMoreName, func(ctx context.Context, g *pairsGateway) (bench.Usage, error) { return g.changed(ctx, "netfilter") }),
			subject(pairsEBPFName, func(ctx context.Context, g *pairsGateway) (bench.Usage, error) {
				return g.apply(ctx, "ebpf", manyPairs)
			}),
			subject(pairsEBPFMoreName, func(ctx context.Context, g *pairsGateway) (bench.Usage, error) { return g.changed(ctx, "ebpf") }),
		},
		Baseline: pairsNetfilterName,
		Claims: []bench.Claim{
			{Subject: pairsNetfilterName, Quantity: took, Bound: 3},
			{Subject: pairsEBPFName, Quantity: took, Bound: 3},
			{Subject: pairsEBPFName, Quantity: peakMemory, Bound: 1 << 30},
		},
		Rounds: 10, WarmUp: 1,
		Parameters: map[string]any{"pairs": manyPairs},
		Seed:       packetSeed,
		Programs:   [][]string{{natkit, "--version"}},
	}
}

type pairsRuns struct{ natkit string }

// pairsGateway is a network namespace, and the directory of its file, its pairs and its state.
type pairsGateway struct {
	natkit, dir string
	ns          *netns.Handle
}

// run measures in a network namespace that ends with it.
func (p *pairsRuns) run(ctx context.Context, do func(context.Context, *pairsGateway) (bench.Usage, error)) (s bench.Sample, err error) {
	dir, err := os.MkdirTemp("", "natkit-bench-pairs-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ns, err := netns.New("bench-pairs")
	if err != nil {
		return s, err
	}
	defer ns.Close()
	g := &pairsGateway{p.natkit, dir, ns}
	if err := errors.Join(g.ip(ctx, "link", "add", "wan0", "type", "veth", "peer", "name", "lan0"), g.ip(ctx, "link", "set", "wan0", "up"), g.ip(ctx, "link", "set", "lan0", "up")); err != nil {
		return s, err
	}
	used, err := do(ctx, g)
	if err != nil {
		return s, err
	}
	s.Values = bench.Values{took: used.Seconds, ownTime: used.OwnSeconds, peakMemory: float64(used.PeakBytes)}
	_, err = g.command(ctx, "undo", "--yes") // programs are pinned, and do not end with the namespace
	return s, err
}

func (g *pairsGateway) ip(ctx context.Context, args ...string) error {
	_, _, err := bench.Program{Netns: g.ns, Args: append([]string{"ip"}, args...)}.Run(ctx)
	return err
}

// command runs a verb of natkit gateway.
func (g *pairsGateway) command(ctx context.Context, args ...string) (bench.Usage, error) {
	_, used, err := bench.Program{Netns: g.ns, Args: append([]string{"env", "NATKIT_STATE_DIR=" + g.dir, g.natkit, "gateway"}, args...)}.Run(ctx)
	return used, err
}

// apply puts n pairs in force by an engine.
func (g *pairsGateway) apply(ctx context.Context, engine string, n int) (bench.Usage, error) {
	if err := writePairs(filepath.Join(g.dir, "pairs.txt"), n); err != nil {
		return bench.Usage{}, err
	}
	path := filepath.Join(g.dir, "gateway.yaml")
	text := fmt.Sprintf("gateway:\n  engine: %s\n  acknowledge-bypass: on\n  interfaces: {wan: wan0, lan: lan0}\n  sets: {floating: {file: pairs.txt}}\n  nat:\n    - static: {pairs: $floating}\n", engine)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return bench.Usage{}, err
	}
	return g.command(ctx, "apply", path, "--yes", "--json")
}

// changed is the second of two commands, with a pair more.
func (g *pairsGateway) changed(ctx context.Context, engine string) (bench.Usage, error) {
	if _, err := g.apply(ctx, engine, manyPairs); err != nil {
		return bench.Usage{}, err
	}
	return g.apply(ctx, engine, manyPairs+1)
}

// writePairs writes pairs of which the first manyPairs have addresses inside in random order, the same each time.
func writePairs(path string, n int) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	inside := rand.New(rand.NewPCG(packetSeed, 0)).Perm(manyPairs)
	for i := range n {
		to := i
		if i < manyPairs {
			to = inside[i]
		}
		fmt.Fprintf(w, "%s %s\n", pairAddress(100, i), pairAddress(10, to))
	}
	return w.Flush()
}

func pairAddress(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
}
