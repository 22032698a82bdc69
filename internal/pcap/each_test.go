package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
)

var (
	clientA = netip.MustParseAddrPort("198.18.0.1:40000")
	serverA = netip.MustParseAddrPort("198.18.1.1:80")
	start   = time.Unix(1_700_000_000, 123_456_000).UTC()
)

// udpFrame is one Ethernet frame of a UDP datagram.
func udpFrame(payload int) []byte {
	spec := packets.Spec{Protocol: 17, HopLimit: 64}
	return packets.Build(nil, frame.Link{}, &spec, frame.Tuple{Src: clientA, Dst: serverA}, packets.Token{}, 42+payload, 0)
}

// classicFile is a pcap file by gopacket.
func classicFile(t testing.TB, link layers.LinkType, frames ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(65535, link); err != nil {
		t.Fatal(err)
	}
	for i, frame := range frames {
		writeFrame(t, w.WritePacket, i, frame, 0)
	}
	return b.Bytes()
}

func writeFrame(t testing.TB, write func(gopacket.CaptureInfo, []byte) error, i int, frame []byte, iface int) {
	t.Helper()
	info := gopacket.CaptureInfo{Timestamp: start.Add(time.Duration(i) * time.Second), CaptureLength: len(frame), Length: len(frame), InterfaceIndex: iface}
	if err := write(info, frame); err != nil {
		t.Fatal(err)
	}
}

// ngFile is a pcapng file by gopacket.
func ngFile(t testing.TB, link layers.LinkType, frames ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, link)
	if err != nil {
		t.Fatal(err)
	}
	for i, frame := range frames {
		writeFrame(t, w.WritePacket, i, frame, 0)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type gist struct {
	number int64
	time   time.Time
	length int
	from   netip.AddrPort
	to     netip.AddrPort
}

func gists(t testing.TB, r io.Reader) ([]gist, Stats) {
	t.Helper()
	var got []gist
	stats, err := Each(r, func(p *Packet) error {
		tuple := p.Frame.Tuple()
		got = append(got, gist{p.Number, p.Time(), p.Length, tuple.Src, tuple.Dst})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, stats
}

// swapped turns the byte order of a pcap file round.
func swapped(b []byte) []byte {
	out := bytes.Clone(b)
	swap := func(at, n int) {
		for i := range n / 2 {
			out[at+i], out[at+n-1-i] = out[at+n-1-i], out[at+i]
		}
	}
	swap(0, 4)
	swap(4, 2)
	swap(6, 2)
	for at := 8; at < 24; at += 4 {
		swap(at, 4)
	}
	for at := 24; at < len(out); {
		length := int(binary.LittleEndian.Uint32(b[at+8:]))
		for i := range 4 {
			swap(at+4*i, 4)
		}
		at += 16 + length
	}
	return out
}

func TestEachFormats(t *testing.T) {
	frames := [][]byte{udpFrame(10), udpFrame(1000), udpFrame(0)}
	classic, ng := classicFile(t, layers.LinkTypeEthernet, frames...), ngFile(t, layers.LinkTypeEthernet, frames...)
	for _, tt := range []struct {
		name, format, compression string
		file                      []byte
	}{
		{"pcap", "pcap", "", classic},
		{"pcap of the other byte order", "pcap", "", swapped(classic)},
		{"pcapng", "pcapng", "", ng},
		{"pcap, gzip", "pcap", "gzip", zipped(t, classic)},
		{"pcapng, gzip", "pcapng", "gzip", zipped(t, ng)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, stats := gists(t, bytes.NewReader(tt.file))
			if stats.Format != tt.format || stats.Compression != tt.compression || stats.Packets != 3 || len(stats.Damage) != 0 {
				t.Errorf("stats %+v", stats)
			}
			for i, frame := range frames {
				want := gist{int64(i + 1), start.Add(time.Duration(i) * time.Second), len(frame), clientA, serverA}
				if i >= len(got) || got[i] != want {
					t.Fatalf("packets %+v, want [%d] %+v", got, i, want)
				}
			}
		})
	}
}

func TestEachRefuses(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"empty", "", "0 bytes are no capture"},
		{"text", "Hello, world, this is a file\n", "neither pcap nor pcapng"},
		{"short", "\xd4\xc3\xb2\xa1\x02\x00", "6 bytes are no capture"},
		{"version", "\xd4\xc3\xb2\xa1\x03\x00" + strings.Repeat("\x00", 18), "pcap version 3"},
		{"gzip of nothing", "\x1f\x8b\x00\x00", "gzip header"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Each(strings.NewReader(tt.file), func(*Packet) error { return nil })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
