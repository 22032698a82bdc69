package pcap

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// blocks builds pcapng files that no library writes.
type blocks struct {
	order binary.AppendByteOrder
	b     []byte
}

func (w *blocks) block(kind uint32, body ...any) {
	var b []byte
	for _, part := range body {
		switch v := part.(type) {
		case uint16:
			b = w.order.AppendUint16(b, v)
		case uint32:
			b = w.order.AppendUint32(b, v)
		case uint64:
			b = w.order.AppendUint64(b, v)
		case []byte:
			b = append(b, v...)
		}
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	total := uint32(len(b) + 12)
	w.b = w.order.AppendUint32(w.b, kind)
	w.b = w.order.AppendUint32(w.b, total)
	w.b = append(w.b, b...)
	w.b = w.order.AppendUint32(w.b, total)
}

func (w *blocks) section() {
	w.block(blockSection, uint32(byteOrderMagic), uint16(1), uint16(0), uint64(math.MaxUint64))
}

func (w *blocks) iface(link uint16, snap uint32, options ...any) {
	w.block(blockInterface, append([]any{link, uint16(0), snap}, options...)...)
}

func (w *blocks) enhanced(iface uint32, at uint64, frame []byte) {
	w.block(blockEnhanced, iface, uint32(at>>32), uint32(at), uint32(len(frame)), uint32(len(frame)), frame)
}

// TestSections reads what one file can have: sections of both byte orders, interfaces
// with clocks of their own, all three kinds of packets, and blocks that are none.
func TestSections(t *testing.T) {
	frame := udpFrame(20)
	ip := frame[14:]
	w := &blocks{order: binary.LittleEndian}
	w.section()
	w.iface(linkEthernet, 0, uint16(optionName), uint16(4), []byte("eth0"), uint16(0), uint16(0))
	w.iface(linkRaw, 0, uint16(optionResolution), uint16(1), []byte{9, 0, 0, 0}, uint16(optionOffset), uint16(8), uint64(1000))
	w.iface(linkRaw, 0, uint16(optionResolution), uint16(1), []byte{0x80 | 20, 0, 0, 0})
	w.enhanced(0, 1_700_000_000_000_001, frame)
	w.block(0x0bad, []byte("custom"))
	w.enhanced(1, 1_700_000_000_000_000_001, ip)
	w.enhanced(2, 1_700_000_000<<20|1<<19, ip)
	w.block(blockSimple, uint32(len(frame)), frame)
	w.block(blockJournal, []byte("MESSAGE=hello\n"))
	w.enhanced(7, 0, frame)
	w.block(blockStatistics, uint32(0), uint64(0), uint16(optionDroppedByOS), uint16(8), uint64(5))
	w.order = binary.BigEndian
	w.section()
	w.iface(linkEthernet, 0)
	w.block(blockPacket, uint16(0), uint16(0), uint32(1_800_000_000_000_000>>32), uint32(1_800_000_000_000_000&math.MaxUint32), uint32(len(frame)), uint32(len(frame)), frame)
	var got []Packet
	stats, err := Each(bytes.NewReader(w.b), func(p *Packet) error { got = append(got, *p); return nil })
	if err != nil || len(stats.Damage) != 0 {
		t.Fatalf("%v, damage %+v", err, stats.Damage)
	}
	want := []struct {
		number, at int64
		iface      int
		reason     Reason
	}{
		{1, 1_700_000_000_000_001_000, 0, Decoded},
		{2, 1_700_001_000_000_000_001, 1, Decoded},
		{3, 1_700_000_000_500_000_000, 2, Decoded},
		{4, 1_700_001_000_000_000_001, 0, Decoded}, // the latest time before it
		{6, 1_700_001_000_000_000_001, -1, UnknownInterface},
		{7, 1_800_000_000_000_000_000, 3, Decoded},
	}
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i, w := range want {
		p := &got[i]
		if p.Number != w.number || p.At != w.at || p.Interface != w.iface || p.Reason != w.reason {
			t.Errorf("packet %d: number %d at %d, interface %d, %v; want %+v", i, p.Number, p.At, p.Interface, p.Reason, w)
		}
	}
	if i := stats.Interfaces[0]; i.Name != "eth0" || i.Dropped != 5 || i.Packets != 2 {
		t.Errorf("interface %+v", i)
	}
}

func TestTimes(t *testing.T) {
	for _, tt := range []struct {
		resolution byte
		offset     int64
		at         uint64
		want       int64
	}{
		{6, 0, 1, 1000}, {9, 0, 1, 1}, {3, 0, 1, 1e6}, {0, 0, 1, 1e9}, {12, 0, 1_000, 1}, {19, 0, 1e10, 1},
		{6, -1, 2_000_000, 1e9}, {6, 5, 1, 5_000_001_000}, {0x80 | 10, 0, 512, 5e8}, {0x80 | 63, 0, 1 << 62, 5e8},
		{20, 0, 1, 0}, {0xff, 0, 1, 0}, {0, math.MaxInt64, math.MaxUint64, 9223372035e9}, {0, math.MinInt64, 0, -9223372035e9},
	} {
		r := resolution{perSecond: unitsPerSecond(tt.resolution), offset: tt.offset}
		if got := r.nanoseconds(tt.at); got != tt.want {
			t.Errorf("resolution %d, offset %d: %d is %d ns, want %d", tt.resolution, tt.offset, tt.at, got, tt.want)
		}
	}
}

// TestDamage breaks files and counts what is still read.
func TestDamage(t *testing.T) {
	var frames [][]byte
	for i := range 50 {
		frames = append(frames, udpFrame(100+i))
	}
	classic, ng := classicFile(t, layers.LinkTypeEthernet, frames...), ngFile(t, layers.LinkTypeEthernet, frames...)
	at := func(file []byte, n int) int { return bytes.Index(file, frames[n]) }
	fill := func(file []byte, from, to int) []byte {
		file = bytes.Clone(file)
		for i := from; i < to; i++ {
			file[i] = 0xff
		}
		return file
	}
	for _, tt := range []struct {
		name string
		file []byte
		want int64 // packets
		what string
	}{
		{"pcap, cut in a packet", classic[:at(classic, 20)+50], 20, "ends within a record: 66 of"},
		{"pcap, cut in a header", classic[:at(classic, 20)-5], 20, "ends within a record header: 11 of 16"},
		{"pcap, a header overwritten", fill(classic, at(classic, 20)-16, at(classic, 20)), 49, "captured bytes"},
		{"pcap, much overwritten", fill(classic, at(classic, 20)-7, at(classic, 30)-7), 39, "captured bytes"},
		{"pcap, rubbish behind it", append(bytes.Clone(classic), bytes.Repeat([]byte{0xee}, 1000)...), 50, "captured bytes"},
		{"pcapng, cut in a packet", ng[:at(ng, 20)+50], 20, "ends within a block"},
		{"pcapng, a header overwritten", fill(ng, at(ng, 20)-28, at(ng, 20)), 49, "of a block"},
		{"pcapng, much overwritten", fill(ng, at(ng, 20)-7, at(ng, 30)-7), 39, "a block of type 0x6 has length"},
		{"pcapng, lengths that differ", fill(ng, at(ng, 21)-31, at(ng, 21)-30), 49, "before and"},
		{"pcapng, rubbish behind it", append(bytes.Clone(ng), bytes.Repeat([]byte{0xee}, 1000)...), 50, "of a block"},
		{"gzip, cut", zipped(t, classic)[:300], -1, "gzip: unexpected EOF"},
		{"gzip, overwritten", fill(zipped(t, classic), 280, 300), -1, "gzip: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, stats := gists(t, bytes.NewReader(tt.file))
			if n := int64(len(got)); tt.want >= 0 && n != tt.want || tt.want < 0 && (n == 0 || n == 50) {
				t.Errorf("%d packets, want %d", n, tt.want)
			}
			if n := len(stats.Damage); n == 0 || !strings.Contains(stats.Damage[n-1].What, tt.what) {
				t.Errorf("damage %+v, want one with %q", stats.Damage, tt.what)
			}
			for _, g := range got {
				if tt.name == "gzip, overwritten" {
					break // what comes out of it is only known to be wrong at its end
				}
				if g.from != clientA || g.to != serverA {
					t.Errorf("packet %+v was made up", g)
				}
			}
		})
	}
}

// TestLongRecords reads over what is longer than is looked at.
func TestLongRecords(t *testing.T) {
	long := append(udpFrame(100), make([]byte, 2*MaxFrame)...)
	for name, file := range map[string][]byte{
		"pcap":   withSnapLen(classicFile(t, layers.LinkTypeEthernet, long, udpFrame(1)), 1<<20),
		"pcapng": ngFile(t, layers.LinkTypeEthernet, long, udpFrame(1)),
	} {
		t.Run(name, func(t *testing.T) {
			got, stats := gists(t, bytes.NewReader(file))
			if len(got) != 2 || len(stats.Damage) != 0 || got[0].length != len(long) || got[1].to != serverA || stats.Bytes != int64(len(long)+54) {
				t.Errorf("%+v, stats %+v", got, stats)
			}
		})
	}
}

func withSnapLen(file []byte, n uint32) []byte {
	binary.LittleEndian.PutUint32(file[16:], n)
	return file
}

// TestModified reads Kuznetsov's variant, whose records have 8 bytes more.
func TestModified(t *testing.T) {
	frame := udpFrame(5)
	le := binary.LittleEndian
	b := le.AppendUint32(nil, magicModified)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	for i := range uint32(3) {
		for _, v := range []uint32{1_700_000_000 + i, 7, uint32(len(frame)), uint32(len(frame)), 0, 0} {
			b = le.AppendUint32(b, v)
		}
		b = append(b, frame...)
	}
	got, stats := gists(t, bytes.NewReader(b))
	if len(got) != 3 || len(stats.Damage) != 0 || !got[2].time.Equal(time.Unix(1_700_000_002, 7000)) {
		t.Errorf("%+v, stats %+v", got, stats)
	}
}
