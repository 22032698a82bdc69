package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// A busy gateway has watchedEntries connections, and for each of some or many networks inside an interface, a rule of DNAT
// and two of a filter.
const (
	watchedEntries = 200_000
	someNetworks   = 20
	manyNetworks   = 200
	// watchedFor is how long it is watched in a run.
	watchedFor = 2 * time.Minute
)

// Quantities of a watch: parts of one CPU.
const (
	reportShare = "cpu_share_beside_the_table"
	tableShare  = "cpu_share_of_the_table"
)

// exitTimeout is that of timeout(1) where the time was over.
const exitTimeout = 124

// doctorWatchSuite measures what natkit doctor --watch costs.
func doctorWatchSuite(natkit string) bench.Suite {
	var gateways []*busyGateway
	var subjects []bench.Subject
	var claims []bench.Claim
	for _, networks := range []int{someNetworks, manyNetworks} {
		g, name := &busyGateway{networks: networks}, "watched: "+sizeOf(networks)
		gateways = append(gateways, g)
		subjects = append(subjects, bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return g.watch(ctx, natkit) }})
		claims = append(claims, bench.Claim{Subject: name, Quantity: reportShare, Bound: 0.01}, bench.Claim{Subject: name, Quantity: peakMemory, Bound: 64 << 20})
	}
	share := func(name, label string) bench.Quantity {
		return bench.Quantity{Name: name, Label: label, Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v*100, 2) + " %" }}
	}
	return bench.Suite{
		Name: "doctor-watch", Title: "natkit doctor --watch on a busy gateway",
		About: "A watch at its usual interval in a namespace with many connections, and some or many rules and interfaces,\n" +
			"nothing of which changes. The CPU time is that of the process, in the kernel too; what reading the\n" +
			"connection table takes of it is given by natkit, and bounded by a budget of its own.",
		Method:     fmt.Sprintf("natkit doctor --watch for %s, a report every 10 s or later; %s connections", watchedFor, units.Count(watchedEntries)),
		Quantities: []bench.Quantity{share(reportShare, "of one CPU, beside the table"), share(tableShare, "for the table"), peaks},
		Subjects:   subjects,
		Claims:     claims,
		Rounds:     3,
		Parameters: map[string]any{"entries": watchedEntries, "networks": []int{someNetworks, manyNetworks}, "seconds": watchedFor.Seconds()},
		Programs:   [][]string{{natkit, "--version"}, {"nft", "--version"}},
		Setup:      func(ctx context.Context) (func(context.Context) error, error) { return setUpAll(ctx, gateways) },
	}
}

// rulesSuite measures all rules over one recording.
func rulesSuite(natkit string) bench.Suite {
	const own = "all rules"
	g := &busyGateway{networks: manyNetworks}
	return bench.Suite{
		Name: "rules", Title: "All rules over one recording of a busy gateway",
		About:      "The rules of natkit doctor, over a recording of a gateway with many connections, rules and interfaces.",
		Method:     fmt.Sprintf("the mean of %d times; %s connections, %s", rulesTimes, units.Count(watchedEntries), sizeOf(manyNetworks)),
		Quantities: []bench.Quantity{takes},
		Subjects:   []bench.Subject{{Name: own, Run: g.judge}},
		Claims:     []bench.Claim{{Subject: own, Quantity: took, Bound: 0.005}},
		Rounds:     10, WarmUp: 1,
		Parameters: map[string]any{"entries": watchedEntries, "networks": manyNetworks, "times": rulesTimes},
		Programs:   [][]string{{natkit, "--version"}, {"nft", "--version"}},
		Setup: func(ctx context.Context) (func(context.Context) error, error) {
			down, err := g.setUp(ctx)
			if err != nil {
				return nil, err
			}
			if g.rec, err = collect.Record(ctx, collect.RecordOptions{Options: collect.Options{Netns: g.ns}, For: time.Second}); err != nil {
				return nil, errors.Join(err, down(ctx))
			}
			return down, nil
		},
	}
}

// sizeOf is what a gateway of so many networks has.
func sizeOf(networks int) string {
	return fmt.Sprintf("%d interfaces, %d rules", 2*(networks+1), 3*networks+2)
}

// busyGateway is a namespace with many connections, and with networks.
type busyGateway struct {
	*table
	networks int
	rec      *snapshot.Recording
}

func (g *busyGateway) setUp(ctx context.Context) (_ func(context.Context) error, err error) {
	if g.table, err = newTableFor(ctx, watchedEntries); err != nil {
		return nil, err
	}
	down := func(context.Context) error { return g.close() }
	if err := errors.Join(busyNetwork(g.ns, g.networks), g.add(ctx, 0, watchedEntries)); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return down, nil
}

// setUpAll sets several up, or none.
func setUpAll(ctx context.Context, all []*busyGateway) (func(context.Context) error, error) {
	var downs []func(context.Context) error
	down := func(ctx context.Context) (err error) {
		for i := len(downs) - 1; i >= 0; i-- {
			err = errors.Join(err, downs[i](ctx))
		}
		return err
	}
	for _, g := range all {
		one, err := g.setUp(ctx)
		if err != nil {
			return nil, errors.Join(err, down(ctx))
		}
		downs = append(downs, one)
	}
	return down, nil
}

// busyNetwork makes the interfaces and rules of networks.
func busyNetwork(ns *netns.Handle, networks int) error {
	var links, dnat, filter strings.Builder
	link := func(name, address string) {
		fmt.Fprintf(&links, "link add %s type veth peer name %s-peer\naddress add %s dev %s\nlink set %s up\nlink set %s-peer up\n", name, name, address, name, name, name)
	}
	link("wan0", "203.0.113.1/24")
	links.WriteString("route add default via 203.0.113.254\n")
	for i := range networks {
		link(fmt.Sprintf("lan%d", i), fmt.Sprintf("10.%d.0.1/16", i))
		fmt.Fprintf(&dnat, "iifname wan0 tcp dport %d dnat to 10.%d.0.2:80\n", 2000+i, i)
		fmt.Fprintf(&filter, "iifname wan0 oifname lan%d ip daddr 10.%d.0.2 tcp dport 80 accept\niifname lan%d oifname wan0 accept\n", i, i, i)
	}
	rules := fmt.Sprintf(`table ip nat {
	chain pre { type nat hook prerouting priority -100; %s }
	chain post { type nat hook postrouting priority 100; oifname wan0 masquerade; }
}
table inet filter {
	chain passing { type filter hook forward priority 0; policy drop; ct state established,related accept; %s }
}
`, dnat.String(), filter.String())
	return ns.Do(func() error {
		for _, c := range []struct {
			input string
			args  []string
		}{{links.String(), []string{"ip", "-batch", "-"}}, {"", []string{"sysctl", "-qw", "net.ipv4.ip_forward=1"}}, {rules, []string{"nft", "-f", "-"}}} {
			cmd := exec.Command(c.args[0], c.args[1:]...)
			cmd.Stdin = strings.NewReader(c.input)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("make a busy gateway: %s: %w: %.300s", strings.Join(c.args, " "), err, out)
			}
		}
		return nil
	})
}

// watch runs a watch, whose last line has what it took.
func (g *busyGateway) watch(ctx context.Context, natkit string) (bench.Sample, error) {
	p := bench.Program{Netns: g.ns, Args: []string{"timeout", "-s", "INT", fmt.Sprint(watchedFor.Seconds()), natkit, "doctor", "--watch", "--json"}, Accept: []int{exitTimeout}}
	out, u, err := p.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	var end diagnose.WatchEnd
	if err := json.Unmarshal(lines[len(lines)-1], &end); err != nil || end.Kind != diagnose.Ended || end.Reports == 0 {
		return bench.Sample{}, fmt.Errorf("a watch does not end with what it took: %.200s: %w", lines[len(lines)-1], errors.Join(err))
	}
	return bench.Sample{
		Values:   bench.Values{reportShare: (u.OwnSeconds - end.TableCPUSeconds) / end.Seconds, tableShare: end.TableCPUSeconds / end.Seconds, peakMemory: float64(u.PeakBytes)},
		Failures: int64(len(end.Incomplete)),
	}, nil
}

// rulesTimes is how often the rules are applied in a run.
const rulesTimes = 200

func (g *busyGateway) judge(context.Context) (bench.Sample, error) {
	began, failures := time.Now(), 0
	for range rulesTimes {
		r := diagnose.Run(g.rec, diagnose.Rules())
		failures += len(r.Incomplete)
	}
	return bench.Sample{Values: bench.Values{took: time.Since(began).Seconds() / rulesTimes}, Failures: int64(failures)}, nil
}
