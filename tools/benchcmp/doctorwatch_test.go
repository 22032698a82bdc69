package main

import (
	"testing"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/testutil"
	sampler "github.com/natkit/natkit/internal/watch"
)

// setUpBusy is a busy gateway until the end of a benchmark.
func setUpBusy(b *testing.B) *busyGateway {
	testutil.NeedRoot(b)
	testutil.NeedProgram(b, "nft")
	testutil.LockHost(b)
	g := &busyGateway{networks: manyNetworks}
	down, err := g.setUp(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := down(b.Context()); err != nil {
			b.Error(err)
		}
	})
	return g
}

// BenchmarkReport is one report of a watch on a busy gateway: CPU time beside the reading of its table, and that of
// the rules.
func BenchmarkReport(b *testing.B) {
	g := setUpBusy(b)
	ns, err := g.ns.Dup()
	if err != nil {
		b.Fatal(err)
	}
	s := sampler.NewFull(ns, sampler.Continuous())
	defer s.Close()
	s.Sample(b.Context(), sampler.Filter{}, time.Second)
	var table, rules time.Duration
	tableAt, began := time.Time{}, sampler.CPUTime()
	for b.Loop() {
		sample := s.Sample(b.Context(), sampler.Filter{}, time.Second)
		if sample.TableAt != tableAt {
			tableAt, table = sample.TableAt, table+sample.Cost.Table
		}
		cpu := sampler.CPUTime()
		diagnose.Run(sample.Recording(), diagnose.Rules())
		rules += sampler.CPUTime() - cpu
	}
	b.ReportMetric((sampler.CPUTime()-began-table).Seconds()*1e3/float64(b.N), "cpu-ms/report")
	b.ReportMetric(rules.Seconds()*1e3/float64(b.N), "cpu-ms/rules")
}
