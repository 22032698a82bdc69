package build

import (
	"fmt"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkMillion is the time that a million entries of each mix take, and their
// removal; the memory that it takes is bounded by the entries' own. It raises the
// host's limit meanwhile.
func BenchmarkMillion(b *testing.B) {
	testutil.NeedRoot(b)
	testutil.LockHost(b)
	const n = 1_000_000
	available, err := collect.AvailableMemory()
	if err != nil || lab.CheckFill(n, available) != nil {
		testutil.Missing(b, fmt.Sprintf("needs memory for %d entries, %d MiB are available (%v)", n, available>>20, err))
	}
	testutil.RaiseConntrackMax(b, n+n/10)
	for _, mix := range lab.Mixes() {
		b.Run(mix.Name, func(b *testing.B) {
			ns, err := netns.New("million")
			if err != nil {
				b.Fatal(err)
			}
			defer ns.Close()
			var removal, cpu time.Duration
			for b.Loop() {
				before := testutil.CPUTime(b)
				if _, err := InsertFill(b.Context(), ns, mix.Filler(1, lab.FillMark), 0, n, nil); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				cpu += testutil.CPUTime(b) - before
				start := time.Now()
				if _, err := dump.Delete(b.Context(), ns, &conntrack.Filter{Mark: lab.FillMark, MarkMask: ^uint32(0)}); err != nil {
					b.Fatal(err)
				}
				removal += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
			b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/million")
			b.ReportMetric(removal.Seconds()/float64(b.N), "s-to-remove")
		})
	}
}
