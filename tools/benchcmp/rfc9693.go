package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/load/rfc9693/trial"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// Quantities of RFC 9693.
const (
	establishmentRate = "establishment_rate_per_second"
	tearDownRate      = "teardown_rate_per_second"
	tableCapacity     = "capacity_connections"
)

// rfcPrecision is that of the searches: a table is not measured to a hundred of its entries in a minute.
const rfcPrecision = "0.02"

// rfc9693Suite measures the kernel's NAT by RFC 9693. Each round is a repetition of all measurements.
func rfc9693Suite(natkit string) bench.Suite {
	subject := func(name, nat string) bench.Subject {
		return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) { return measureNAT(ctx, natkit, nat) }}
	}
	text := func(v float64) string { return units.Fixed(v, 0) }
	return bench.Suite{
		Name: "rfc9693", Title: "The kernel's NAT by RFC 9693",
		About: "`natkit bench rfc9693 --lab`: one UDP frame in each of 50,000 connections between one\n" +
			"source address and one destination address, with pseudorandom ports, and then a reply in\n" +
			"each. The sender has one CPU, the gateway and the responder the others. The capacity is\n" +
			"bounded by nf_conntrack_max, 262,144 here.",
		Method: "the maximum rate at which 50,000 connections are made, by binary search to 2 %; the time to delete all of them by one message of ctnetlink, less that for the empty table; the greatest number of connections that are all held, to 2 %",
		Quantities: []bench.Quantity{
			{Name: establishmentRate, Label: "connections made/s", Better: bench.Higher, Text: text},
			{Name: tearDownRate, Label: "connections removed/s", Better: bench.Higher, Text: text},
			{Name: tableCapacity, Label: "table capacity, connections", Better: bench.Higher, Text: text},
		},
		Subjects: []bench.Subject{subject("kernel masquerade", trial.Masquerade), subject(kernelDNAT, trial.DNAT)},
		Baseline: "kernel masquerade",
		Rounds:   10,
		Parameters: map[string]any{
			"connections": 50_000, "precision": rfcPrecision, "validation_rate_share": rfc9693.Alpha, "frame_bytes": packetBytes, "workers": 1,
		},
		Programs: [][]string{{natkit, "--version"}},
	}
}

// measureNAT takes one repetition.
func measureNAT(ctx context.Context, natkit, nat string) (s bench.Sample, err error) {
	out, _, err := bench.Program{Args: []string{natkit, "bench", "rfc9693", "--lab", "--nat", nat, "--repeat", "1", "--precision", rfcPrecision, "--json"}}.Run(ctx)
	if err != nil {
		return s, err
	}
	var r report.Stateful
	if err := json.Unmarshal(out, &r); err != nil {
		return s, fmt.Errorf("read what bench rfc9693 printed: %w", err)
	}
	return rfcSample(r.Result)
}

// rfcSample has the values of a repetition; where one is not the gateway's, it says why.
func rfcSample(r *rfc9693.Result) (s bench.Sample, err error) {
	if r == nil || r.Rate == nil || r.TearDown == nil || r.Capacity == nil {
		return s, fmt.Errorf("bench rfc9693 ended before it had measured everything")
	}
	s.Values = bench.Values{establishmentRate: r.Rate.Median, tearDownRate: r.TearDown.Median, tableCapacity: r.Capacity.Median}
	if limits := []rfc9693.Limit{r.Rate.Limit, r.Capacity.Limit}; slices.ContainsFunc(limits, func(l rfc9693.Limit) bool { return l != rfc9693.ByGateway }) {
		s.GeneratorLimit = fmt.Sprintf("the searches for the rate and the capacity were ended by %v", limits)
	}
	return s, nil
}
