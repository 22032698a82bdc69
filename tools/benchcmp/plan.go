package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/plan"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	planOff       = "off_percent"
	planPredicted = "predicted"
	planMeasured  = "measured"

	// planHold is the timeout of entries here, in seconds: predictions are of rate × timeout, and a run need not
	// take minutes.
	planHold = 5
	// planRate are new connections per second, planEntries those of the table that is weighed.
	planRate    = 600
	planEntries = manyEntries
)

// planPorts is a range that is used up soon.
var planPorts = nat.Ports{First: 20000, Last: 20999}

// planSuite holds the predictions of natkit plan against kernels that carry the load.
func planSuite(natkit string) bench.Suite {
	const entries, memory, wrap = "entries of the table", "memory of entries", "connections/s at which ports come again"
	p := planned{natkit}
	number := func(v float64) string { return units.Fixed(v, 0) }
	s := bench.Suite{
		Name: "plan", Title: "natkit plan: what it predicts, and what happens",
		About: "The entries of a load of TCP through the lab's DNAT, the memory of a table that is filled, and the rate at which\n" +
			"a NAT gives ports that are all in use, beside what `natkit plan` computes before.",
		Method: fmt.Sprintf("%d connections/s whose entries stay for %d s; %s entries by ctnetlink; UDP at three times the rate at which %d ports come again",
			planRate, planHold, units.Count(planEntries), planPorts.Len()),
		Quantities: []bench.Quantity{
			{Name: planOff, Label: "difference", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 2) + " %" }},
			{Name: planPredicted, Label: "predicted", Better: bench.Lower, Text: number},
			{Name: planMeasured, Label: "measured", Better: bench.Lower, Text: number},
		},
		Rounds:     3,
		Parameters: map[string]any{"timeout_s": planHold, "rate": planRate, "entries": planEntries, "ports": planPorts.Len()},
		Programs:   [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"nft", "--version"}},
	}
	for _, one := range []struct {
		name string
		run  func(context.Context) (predicted, measured float64, limit string, err error)
	}{{entries, unlimited(p.entries)}, {memory, unlimited(p.memory)}, {wrap, p.wrap}} {
		s.Subjects = append(s.Subjects, bench.Subject{Name: one.name, Run: func(ctx context.Context) (bench.Sample, error) {
			predicted, measured, limit, err := one.run(ctx)
			if err == nil && measured == 0 {
				err = fmt.Errorf("%s: nothing was measured", one.name)
			}
			return bench.Sample{GeneratorLimit: limit, Values: bench.Values{planOff: 100 * math.Abs(predicted-measured) / max(measured, 1), planPredicted: predicted, planMeasured: measured}}, err
		}})
		s.Claims = append(s.Claims, bench.Claim{Subject: one.name, Quantity: planOff, Bound: 5})
	}
	return s
}

// unlimited is a run whose load is no limit.
func unlimited(run func(context.Context) (predicted, measured float64, err error)) func(context.Context) (float64, float64, string, error) {
	return func(ctx context.Context) (float64, float64, string, error) {
		predicted, measured, err := run(ctx)
		return predicted, measured, "", err
	}
}

// planned asks natkit plan.
type planned struct{ natkit string }

// plan runs natkit plan with these arguments, by way of others before it.
func (p planned) plan(ctx context.Context, program bench.Program, args ...string) (*plan.Plan, error) {
	program.Args = append(append(program.Args, p.natkit, "plan", "-o", "json"), args...)
	out, _, err := program.Run(ctx)
	if err != nil {
		return nil, err
	}
	var made plan.Plan
	if err := json.Unmarshal(out, &made); err != nil {
		return nil, fmt.Errorf("read natkit's document: %w", err)
	}
	return &made, nil
}

// entries loads the lab's gateway at a steady rate, for longer than entries stay.
func (p planned) entries(ctx context.Context) (predicted, measured float64, err error) {
	down, err := labUp(ctx, p.natkit, "nat")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, down(context.WithoutCancel(ctx))) }()
	gateway := bench.Program{Args: []string{p.natkit, "lab", "exec", "--lab", labName, "gateway", "--"}}
	client := []string{p.natkit, "lab", "exec", "--lab", labName, "client", "--"}
	for _, command := range [][]string{
		append(gateway.Args, "sh", "-c", fmt.Sprintf("echo %d > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", planHold)),
		append(client, "ip", "route", "add", "local", connectSources, "dev", "lo"),
	} {
		if _, _, err := (bench.Program{Args: command}).Run(ctx); err != nil {
			return 0, 0, err
		}
	}
	made, err := p.plan(ctx, gateway, "--rate", strconv.Itoa(planRate), "--duration", "1ms", "--rtt", "0")
	if err != nil {
		return 0, 0, err
	}
	loaded := make(chan error, 1)
	go func() {
		_, _, err := (bench.Program{Args: append(client, p.natkit, "bench", "connect", "--json", "--rate", strconv.Itoa(planRate), "-t", strconv.Itoa(3*planHold), "-c", "100",
			"--close", "client", "--source", connectSources, connectServer)}).Run(ctx)
		loaded <- err
	}()
	select {
	case err := <-loaded:
		return 0, 0, errors.Join(errors.New("the load ended before its time"), err)
	case <-time.After(2 * planHold * time.Second):
	}
	var counted struct {
		Entries float64 `json:"entries"`
	}
	out, _, err := bench.Program{Args: append(gateway.Args, p.natkit, "conntrack", "count", "-p", "tcp", "--dport", "8080", "-o", "json")}.Run(ctx)
	if err == nil {
		err = json.Unmarshal(out, &counted)
	}
	return float64(made.Table.Entries), counted.Entries, errors.Join(err, <-loaded)
}

// memory weighs a table: what the slabs of entries and extensions grow by.
func (p planned) memory(ctx context.Context) (predicted, measured float64, err error) {
	t, err := newTableFor(ctx, planEntries)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	made, err := p.plan(ctx, bench.Program{Netns: t.ns}, "--connections", strconv.Itoa(planEntries))
	if err != nil {
		return 0, 0, err
	}
	before, err := slabs(t)
	if err != nil {
		return 0, 0, err
	}
	if err := t.add(ctx, 0, planEntries); err != nil {
		return 0, 0, err
	}
	after, err := slabs(t)
	return float64(made.Table.Bytes - made.Table.Buckets*made.Table.BucketBytes), after - before, err
}

// slabs is the memory of the slabs of entries and extensions.
func slabs(t *table) (float64, error) {
	s, err := collect.ReadSysctls(collect.Options{Netns: t.ns}, nil, "conntrack_size")
	if err != nil {
		return 0, err
	}
	if s.ConntrackSize == nil || s.ConntrackSize.SlabBytes == 0 {
		return 0, fmt.Errorf("the slab of entries is not known: %s", s.PartError("conntrack_size"))
	}
	return float64(s.ConntrackSize.SlabBytes + s.ConntrackSize.ExtensionSlabBytes), nil
}

// wrap offers more new connections than there are ports, and counts those that got one: as many as come free.
func (p planned) wrap(ctx context.Context) (predicted, measured float64, limit string, err error) {
	g, err := newSNATGate()
	if err != nil {
		return 0, 0, "", err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if err := g.rule(ctx, fmt.Sprintf(":%d-%d", planPorts.First, planPorts.Last)); err != nil {
		return 0, 0, "", err
	}
	timeout := "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	if err := g.gateway.Do(func() error { return os.WriteFile(timeout, []byte(strconv.Itoa(planHold)), 0) }); err != nil {
		return 0, 0, "", err
	}
	made, err := p.plan(ctx, bench.Program{Netns: g.gateway}, "--proto", "udp", "--rate", "1", "--duration", "1ms",
		"--ports", fmt.Sprintf("%d-%d", planPorts.First, planPorts.Last), "--hold", strconv.Itoa(planHold))
	if err != nil {
		return 0, 0, "", err
	}
	predicted = made.Ports.Wraps[len(made.Ports.Wraps)-1].PerSecond
	measured, offered, err := given(ctx, g, 3*predicted)
	if offered < 2*predicted {
		limit = fmt.Sprintf("only %.0f connections/s were offered, which is not twice the rate of %.0f", offered, predicted)
	}
	return predicted, measured, limit, err
}

// given is how many connections per second get a port, once all are in use, of those that were offered.
func given(ctx context.Context, g *snatGate, rate float64) (given, offered float64, err error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var (
		began, since   = time.Now(), time.Time{}
		sent           int64 // in all
		before, failed int64 // when the ports were all in use
		next           = uint16(1024)
	)
	for {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-ticker.C:
		}
		now, err := g.refused()
		if err != nil {
			return 0, 0, err
		}
		switch took := time.Since(since); {
		case since.IsZero() && time.Since(began) > 2*planHold*time.Second:
			before, failed, since = sent, now, time.Now()
		case !since.IsZero() && took > 3*planHold*time.Second:
			n := sent - before
			return float64(n-(now-failed)) / took.Seconds(), float64(n) / took.Seconds(), nil
		}
		from := make([]uint16, int64(rate*time.Since(began).Seconds())-sent)
		for i := range from { // when a number comes again its entry is gone
			from[i] = next
			if next++; next < 1024 {
				next = 1024
			}
		}
		if len(from) == 0 {
			continue
		}
		if _, err := g.call(ctx, from, datagram); err != nil {
			return 0, 0, err
		}
		sent += int64(len(from))
	}
}
