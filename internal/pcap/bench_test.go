package pcap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// shortConnections is a capture of many: each of ten packets, over a range of ports
// that is used again and again.
func shortConnections(b testing.TB, connections int) []byte {
	template := scripted(b, parseScript(b, clientA, serverA, `
		0.0 > S   100  0    0   5000 0
		0.1 < SA  900  101  0   7000 5000
		0.2 > A   101  901  0   5000 7000
		0.3 > A   101  901  90  5000 7000
		0.4 < A   901  191  0   7000 5000
		0.5 < A   901  191  240 7000 5000
		0.6 < FA  1141 191  0   7000 5000
		0.7 > A   191  1142 0   5000 7000
		0.8 > FA  191  1142 0   5000 7000
		0.9 < A   1142 192  0   7000 5000`))
	file := bytes.Clone(template[:24])
	for i := range connections {
		file = append(file, vary(template[24:], uint32(i))...)
	}
	return file
}

// vary moves the packets of a connection to another port and time.
func vary(packets []byte, i uint32) []byte {
	packets = bytes.Clone(packets)
	le, be := binary.LittleEndian, binary.BigEndian
	micros := time.Duration(i) * 500 * time.Microsecond
	for rest := packets; len(rest) > 0; {
		at := time.Unix(int64(le.Uint32(rest)), int64(le.Uint32(rest[4:]))).Add(micros)
		le.PutUint32(rest, uint32(at.Unix()))
		le.PutUint32(rest[4:], uint32(at.Nanosecond()))
		n := int(le.Uint32(rest[8:]))
		tcp := rest[16+34 : 16+n]
		from := tcp[:2]
		if netip.AddrFrom4([4]byte(rest[16+26:])) == serverA.Addr() {
			from = tcp[2:4]
		}
		be.PutUint16(from, uint16(2048+i%60000))
		for _, field := range [][]byte{tcp[4:], tcp[8:], tcp[24:], tcp[28:]} {
			if v := be.Uint32(field); v != 0 {
				be.PutUint32(field, v+i/60000*100_000)
			}
		}
		rest = rest[16+n:]
	}
	return packets
}

func BenchmarkRead(b *testing.B) {
	const connections = 20_000
	file := shortConnections(b, connections)
	for name, read := range map[string]func() error{
		"each": func() error {
			_, err := Each(bytes.NewReader(file), func(*Packet) error { return nil })
			return err
		},
		"report": func() error {
			_, err := Read(bytes.NewReader(file), Options{})
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(connections*10), "ns/packet")
		})
	}
}

// BenchmarkSearch is the time for what is broken all over.
func BenchmarkSearch(b *testing.B) {
	rubbish := make([]byte, 16<<20)
	classic := append(shortConnections(b, 1), bytes.Repeat([]byte{0xff}, 100)...)
	w := &blocks{order: binary.LittleEndian}
	w.section()
	for name, file := range map[string][]byte{"pcap": append(classic, rubbish...), "pcapng": append(w.b, rubbish...)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				stats, err := Each(bytes.NewReader(file), func(*Packet) error { return nil })
				if err != nil || len(stats.Damage) != 1 {
					b.Fatalf("%v, damage %+v", err, stats.Damage)
				}
			}
		})
	}
}

// TestAllocations holds that packets of connections that are known cost none: a connection of ten
// packets costs two.
func TestAllocations(t *testing.T) {
	few, many := shortConnections(t, 2000), shortConnections(t, 4000)
	count := func(file []byte) float64 {
		return testing.AllocsPerRun(3, func() {
			if _, err := Read(bytes.NewReader(file), Options{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	perPacket := (count(many) - count(few)) / (2000 * 10)
	if perPacket > 0.21 {
		t.Errorf("%.3f allocations a packet", perPacket)
	}
}
