package pcap

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// alternating are captures of good blocks alone, and of good and broken ones in turn.
type alternating struct{ good, bad []byte }

func newAlternating(t testing.TB, blocksOfEach int) alternating {
	t.Helper()
	good := ngFile(t, layers.LinkTypeEthernet)
	bad := bytes.Clone(good)
	w := &blocks{order: binary.LittleEndian}
	w.enhanced(0, 1, udpFrame(3))
	broken := bytes.Clone(w.b)
	broken[len(broken)-4] ^= 4
	for range blocksOfEach {
		good = append(append(good, w.b...), w.b...)
		bad = append(append(bad, w.b...), broken...)
	}
	return alternating{good, bad}
}

func BenchmarkBroken(b *testing.B) {
	files := newAlternating(b, 50_000)
	for name, file := range map[string][]byte{"good": files.good, "alternating": files.bad} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				if _, err := Each(bytes.NewReader(file), func(*Packet) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestBrokenReadsEachBlock: as many packets come out of both, and the broken blocks are
// all counted.
func TestBrokenReadsEachBlock(t *testing.T) {
	const each = 3000
	files := newAlternating(t, each)
	count := func(file []byte) (packets int, s Stats) {
		s, err := Each(bytes.NewReader(file), func(*Packet) error { packets++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return packets, s
	}
	if n, s := count(files.good); n != 2*each || len(s.Damage) != 0 {
		t.Errorf("%d packets, %+v", n, s.Damage)
	}
	if n, s := count(files.bad); n != each || len(s.Damage)+int(s.DamageMore) != each {
		t.Errorf("%d packets, %d broken places", n, len(s.Damage)+int(s.DamageMore))
	}
}
