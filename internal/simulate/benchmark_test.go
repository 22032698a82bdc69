package simulate

import (
	"testing"
	"time"
)

// BenchmarkConnections gives the time of one connection, in all: a day at 1,000 per
// second, 86.4 million, is to take a minute, 694 ns for each.
func BenchmarkConnections(b *testing.B) {
	mixed := sourceCase(Servers{Name: "old", Count: 4, Kernel: KernelWheel}, Servers{Name: "new", Count: 4, Kernel: KernelWheelRearm})
	linux := sourceCase(Servers{Name: "old", Count: 4, Kernel: KernelTimer}, Servers{Name: "new", Count: 4, Kernel: KernelWheelRearm})
	linux.NAT.Strategy, linux.Balancer = StrategyKernel, nil
	random := sourceCase(Servers{Name: "modern", Count: 4})
	random.NAT.Strategy = StrategyRandom
	for name, c := range map[string]Config{"case": mixed, "linux": linux, "random": random} {
		b.Run(name, func(b *testing.B) {
			c.Arrivals, c.Duration.Duration = &Arrivals{Rate: 1000}, 20*time.Minute
			var connections int64
			b.ReportAllocs()
			for b.Loop() {
				connections += run(b, c).Totals.Connections
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(connections), "ns/connection")
		})
	}
}
