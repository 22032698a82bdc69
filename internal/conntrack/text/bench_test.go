package text

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/unix"
)

// table is like that of a busy gateway: n entries of SNATed TCP.
func table(n int, form func([]byte, *conntrack.Entry) []byte) []byte {
	rng := rand.New(rand.NewPCG(7, 8))
	var b []byte
	for range n {
		t := conntrack.Tuple{
			Src: netip.AddrFrom4([4]byte{198, 18, byte(rng.Uint32()), byte(rng.Uint32())}),
			Dst: netip.AddrFrom4([4]byte{203, 0, 113, byte(rng.Uint32())}), Proto: unix.IPPROTO_TCP,
			SrcPort: uint16(1024 + rng.UintN(60000)), DstPort: 443,
		}
		e := conntrack.Entry{
			Family: unix.AF_INET, Orig: t, Reply: t.Mirror(), Timeout: rng.Uint32N(432000), Use: 1,
			TCPState: conntrack.TCPState(1 + rng.UintN(8)), Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed,
		}
		e.Reply.Dst = netip.AddrFrom4([4]byte{198, 19, 0, 1})
		b = append(form(b, &e), '\n')
	}
	return b
}

func plain(b []byte, e *conntrack.Entry) []byte { return Append(b, e, Options{}) }

func extended(b []byte, e *conntrack.Entry) []byte {
	e.Fields |= conntrack.HasCounters
	e.Sent = conntrack.Counters{Packets: 17, Bytes: 123456}
	return Append(b, e, Options{Extended: true, ID: true})
}

func BenchmarkEach(b *testing.B) {
	for _, c := range []struct {
		name string
		form func([]byte, *conntrack.Entry) []byte
	}{{"plain", plain}, {"extended", extended}, {"json", AppendJSON}, {"csv", AppendCSV}} {
		b.Run(c.name, func(b *testing.B) {
			const n = 100_000
			text := table(n, c.form)
			if c.name == "csv" {
				text = append(append(AppendCSVHeader(nil), '\n'), text...)
			}
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				stats, err := Each(bytes.NewReader(text), func(*conntrack.Entry) error { return nil })
				if err != nil || stats.Entries != n {
					b.Fatalf("%+v, %v", stats, err)
				}
			}
			b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name string
		form func([]byte, *conntrack.Entry) []byte
	}{{"plain", plain}, {"json", AppendJSON}, {"csv", AppendCSV}} {
		b.Run(c.name, func(b *testing.B) {
			e := cases[0].entry
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = c.form(buf[:0], &e)
			}
		})
	}
}

func TestNothingIsAllocatedForAnEntry(t *testing.T) {
	for name, form := range map[string]func([]byte, *conntrack.Entry) []byte{"plain": plain, "json": AppendJSON, "csv": AppendCSV} {
		text := AppendCSVHeader(nil)[:0]
		if name == "csv" {
			text = append(AppendCSVHeader(nil), '\n')
		}
		for range 1000 {
			for i := range cases {
				text = append(form(text, &cases[i].entry), '\n')
			}
		}
		all := testing.AllocsPerRun(3, func() {
			if _, err := Each(bytes.NewReader(text), func(*conntrack.Entry) error { return nil }); err != nil {
				t.Fatal(err)
			}
		})
		if all > 50 {
			t.Errorf("reading %s: %v allocations for %d entries", name, all, 1000*len(cases))
		}
		buf := make([]byte, 0, 4096)
		if n := testing.AllocsPerRun(10, func() {
			for i := range cases {
				buf = form(buf[:0], &cases[i].entry)
			}
		}); n != 0 {
			t.Errorf("writing %s: %v allocations", name, n)
		}
	}
	wide, buf := widest(), make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(10, func() {
		for i := range cases {
			buf = Append(buf[:0], &cases[i].entry, wide)
		}
	}); n != 0 {
		t.Errorf("writing with everything: %v allocations", n)
	}
	line := append(Append(nil, &cases[0].entry, wide), '\n')
	text := bytes.Repeat(line, 1000)
	if n := testing.AllocsPerRun(3, func() {
		_, _ = Each(bytes.NewReader(text), func(*conntrack.Entry) error { return nil })
	}); n > 50 {
		t.Errorf("reading with everything: %v allocations for 1000 entries", n)
	}
}
