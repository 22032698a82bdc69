//go:build linux

package source

import (
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkPresentMillion is what it costs to read the connections that are there when a log begins, a million of which some
// are translated, without any output. It raises the host's limit meanwhile.
func BenchmarkPresentMillion(b *testing.B) {
	testutil.NeedRoot(b)
	testutil.LockHost(b)
	const n = 1_000_000
	testutil.RaiseConntrackMax(b, n+n/10)
	ns, err := netns.New("million")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	var mix *lab.Mix
	for _, m := range lab.Mixes() {
		if m.Name == "gateway" {
			mix = m
		}
	}
	if _, err := build.InsertFill(b.Context(), ns, mix.Filler(1, lab.FillMark), 0, n, nil); err != nil {
		b.Fatal(err)
	}
	for _, way := range []Way{Trace, Table} {
		b.Run(string(way), func(b *testing.B) {
			starts := 0
			before := testutil.CPUTime(b)
			for b.Loop() {
				s, _, err := Open(Options{Netns: ns, Way: way})
				if err != nil {
					b.Fatal(err)
				}
				put := func(all []natlog.Record) { starts += len(all) }
				switch s := s.(type) {
				case *trace:
					s.put, s.began = put, s.since
					s.present.begin()
					err = s.readPresent(b.Context(), &Listing{Put: put}, s.began)
				case *table:
					err = s.present(b.Context(), &Listing{Put: put})
				}
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
			b.ReportMetric((testutil.CPUTime(b)-before).Seconds()/float64(b.N), "cpu-s/million")
			b.ReportMetric(float64(starts)/float64(b.N), "starts")
		})
	}
}
