package pktgen

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/frame"
)

// TestSumsThatCarryOnceMore has sums that need the last step of folding, which few
// do. All sequence numbers whose halves add up to the same have the same checksum;
// among the 65,536 are those whose sum carries late, for these addresses make it long.
func TestSumsThatCarryOnceMore(t *testing.T) {
	cfg := config("[2001:db8:ffff:ffff:ffff:ffff:ffff:fffe]:65535")
	cfg.Flows.Sources = []netip.Addr{netip.MustParseAddr("2001:db8:ffff:ffff:ffff:ffff:ffff:fffd")}
	cfg.Spec.Sizes, cfg.Flows.Count = []int{cfg.Spec.MinSize()}, 1
	s := loadSink(t, cfg, false)
	w := loadWorker(t, s.tables, cfg, 0)
	want := bits.ReverseBytes16(^uint16(1)) // of a sum of 1 in the machine's order: of 0x1ffff before the last step
	at := frame.EthernetLen + frame.IPv6Len + 6
	first := compareAt(t, w, 0)
	needed := uint32(binary.BigEndian.Uint16(first[at:])) + 0xffff - uint32(want)
	opts := ebpf.RunOptions{Data: w.run.bareFrame(), DataOut: make([]byte, len(first))}
	for high := range uint32(1 << 16) {
		sequence := high<<16 | (needed+0xffff-high)%0xffff
		if err := w.objects.Generator.Set(pktgenGeneratorState{Limit: 1, Sequence: sequence}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.objects.Program.Run(&opts); err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint16(opts.DataOut[at:]); got != want {
			t.Fatalf("sequence %#x: checksum %#x, want %#x", sequence, got, want)
		}
		if _, err := s.objects.Sink.Run(&ebpf.RunOptions{Data: opts.DataOut}); err != nil {
			t.Fatal(err)
		}
	}
	if c := s.counters(); c.Received != 1<<16 {
		t.Errorf("the receiver says %+v", c)
	}
}
