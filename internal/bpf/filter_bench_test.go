package bpf

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkMatch measures the kernel's time for parsing a packet and matching it against
// a filter, by its run-time statistics, over frames of all kinds.
func BenchmarkMatch(b *testing.B) {
	testutil.NeedRoot(b)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for name, words := range map[string]string{
		"none": "", "port": "tcp port 443", "subnet": "src net 198.18.0.0/15 and not icmp", "host6": "host 2001:db8::1", "127hosts": largest()["hosts"],
	} {
		b.Run(name, func(b *testing.B) {
			k := newKernel(b, wholeFrames(rand.New(rand.NewPCG(7, 8))))
			k.install(b, mustParse(b, words))
			for i := 0; b.Loop(); i++ {
				if _, err := k.program.Run(&ebpf.RunOptions{Context: uint64(i % len(k.frames))}); err != nil {
					b.Fatal(err)
				}
			}
			s, err := k.program.Stats()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "ns/packet")
		})
	}
}
