package drops

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkDrops gives the time per drop by the kernel's statistics, which read the
// clock twice themselves: some 20 ns of it are theirs. Beside it stand the rate of
// drops while it was measured, and the time that Start took.
func BenchmarkDrops(b *testing.B) {
	filtered, err := frame.ParseFilter([]string{"udp and dst port 9"})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range []struct {
		name string
		opt  Options
	}{
		{"sites", Options{}},
		{"sites untyped", Options{untyped: true}},
		{"flows sampled", Options{FlowSample: 64}},
		{"every flow", Options{FlowSample: 1}},
		{"stacks sampled", Options{FlowSample: 64, StackSample: 1024}},
		{"every stack", Options{StackSample: 1}},
		{"filter", Options{Filter: filtered}},
		{"every event", Options{Events: func(Event) {}}},
	} {
		b.Run(s.name, func(b *testing.B) { measure(b, s.opt) })
	}
}

// BenchmarkNothing is what the statistics say of a program that does nothing: their own
// part in the other figures.
func BenchmarkNothing(b *testing.B) {
	n := newNetwork(b)
	testutil.Nft(b, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; }; }")
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "kfree_skb",
		License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for b.Loop() {
		flood(b, n, 4_000_000)
	}
	used, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(used.Runtime.Nanoseconds())/float64(used.RunCount), "ns/drop")
	b.ReportMetric(0, "ns/op")
}

func measure(b *testing.B, opt Options) {
	n := newNetwork(b)
	testutil.Nft(b, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; }; }")
	opt.Netns = n.gateway
	opened := time.Now()
	tr := start(b, opt)
	took := time.Since(opened)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for b.Loop() {
		flood(b, n, 4_000_000)
	}
	used, err := tr.program.Stats()
	if err != nil {
		b.Fatal(err)
	}
	d := read(b, tr)
	b.ReportMetric(float64(used.Runtime.Nanoseconds())/float64(used.RunCount), "ns/drop")
	b.ReportMetric(float64(d.Packets)/d.Seconds, "drops/s")
	b.ReportMetric(float64(took.Milliseconds()), "ms/start")
	b.ReportMetric(0, "ns/op")
	if d.Lost > d.Packets/100 {
		b.Errorf("%d of %d drops were lost", d.Lost, d.Packets)
	}
}

// flood sends packets of a thousand flows into the gateway, as fast as it goes.
func flood(b *testing.B, n *network, count int64) {
	b.Helper()
	to := netip.MustParseAddrPort(serverIP + ":9")
	cfg := packets.Config{
		Spec:    packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{64}, HopLimit: 64},
		Packets: count, Duration: time.Minute, Workers: 1,
		Flows: packets.Flows{Count: 1000, Sources: []netip.Addr{netip.MustParseAddr(clientIP)},
			SourcePorts: nat.Ports{First: 1024, Last: 65535}, Destinations: []netip.AddrPort{to}, Seed: 1},
	}
	cfg.Spec.Sizes[0] = cfg.Spec.MinSize()
	egress, err := pktgen.ReadEgress(pktgen.Route{Netns: n.client}, to.Addr())
	if err != nil {
		b.Fatal(err)
	}
	result, err := pktgen.Run(b.Context(), cfg, egress, nil, nil)
	if err != nil {
		b.Fatal(fmt.Errorf("%+v: %w", result, err))
	}
}
