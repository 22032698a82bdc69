package drops

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkDrop is the program's own time for a packet that is dropped: of a connection
// that found no port, and before NAT.
func BenchmarkUnconfirmed(b *testing.B) {
	for name, to := range map[string]string{"counted": "198.18.0.1:9", "other": "198.18.0.1:10"} {
		b.Run(name, func(b *testing.B) {
			ns := portlessNamespace(b)
			tracer := runUnconfirmed(b, ns, room)
			send(b, ns, "198.18.0.2", to, 10)
			stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				b.Fatal(err)
			}
			defer stats.Close()
			before := programStats(b, tracer)
			send(b, ns, "198.18.0.2", to, b.N)
			after := programStats(b, tracer)
			b.ReportMetric(float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount), "ns/drop")
		})
	}
}

func programStats(b *testing.B, tracer *Unconfirmed) *ebpf.ProgramStats {
	b.Helper()
	stats, err := tracer.objects.Unconfirmed.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return stats
}
