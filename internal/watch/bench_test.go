package watch

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkTake is one sample of a table of 200,000 entries, all that may be read of it.
func BenchmarkTake(b *testing.B) {
	testutil.NeedRoot(b)
	testutil.LockHost(b)
	ns, err := netns.New("bench")
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	if _, err := dump.Insert(b.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 18, byte(i >> 12), byte(i >> 4)}), Proto: unix.IPPROTO_TCP,
			Dst: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), SrcPort: uint16(1024 + i>>3), DstPort: 443}
		reply := orig.Mirror()
		reply.Dst = netip.MustParseAddr("198.19.0.1")
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: reply, Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 3600}
		i++
		return i <= 200_000
	}); err != nil {
		b.Fatal(err)
	}
	s := New(ns, Unlimited())
	defer s.Close()
	s.Sample(b.Context(), Filter{}, time.Second)
	own, entries := CPUTime(), int64(0)
	for b.Loop() {
		entries += s.Sample(b.Context(), Filter{}, time.Second).EntriesRead
	}
	b.ReportMetric(float64(CPUTime()-own)/float64(entries), "cpu-ns/entry")
}
