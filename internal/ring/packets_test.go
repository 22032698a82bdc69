package ring

import (
	"bytes"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
)

// ip4 is an IPv4 packet without options.
func ip4(protocol byte, rest ...byte) []byte {
	header := make([]byte, 20)
	header[0], header[3], header[9] = 0x45, byte(20+len(rest)), protocol
	return append(header, rest...)
}

func ip6(protocol byte, rest ...byte) []byte {
	header := make([]byte, 40)
	header[0], header[5], header[6] = 0x60, byte(len(rest)), protocol
	return append(header, rest...)
}

func tcp(words byte, payload int) []byte {
	header := make([]byte, int(words)*4+payload)
	header[12] = words << 4
	return header
}

// TestHeaderBytes: nothing behind the headers is kept.
func TestHeaderBytes(t *testing.T) {
	inner := ip4(protoTCP, tcp(5, 30)...)
	for _, tt := range []struct {
		name string
		data []byte
		want int
	}{
		{"SYN with data", ip4(protoTCP, tcp(10, 33)...), 60},
		{"cut in its options", ip4(protoTCP, tcp(10, 0)[:22]...), 42},
		{"cut before its length", ip4(protoTCP, 0, 80), 20},
		{"IPv6", ip6(protoTCP, tcp(5, 9)...), 60},
		{"echo", ip4(protoICMP, slices.Concat([]byte{8}, make([]byte, 63))...), 28},
		{"error", ip4(protoICMP, slices.Concat([]byte{3, 4, 0, 0, 0, 0, 0, 0}, inner)...), 20 + 8 + 20 + 8},
		{"echo over IPv6", ip6(protoICMP6, slices.Concat([]byte{128}, make([]byte, 63))...), 48},
		{"error over IPv6", ip6(protoICMP6, slices.Concat([]byte{2, 0, 0, 0, 0, 0, 0, 0}, ip6(protoTCP, tcp(5, 30)...))...), 40 + 8 + 40 + 8},
		{"another protocol", ip4(17, make([]byte, 20)...), 20},
		{"too short", []byte{0x45, 0}, 2},
		{"nothing", nil, 0},
	} {
		if got := HeaderBytes(tt.data); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

func FuzzHeaderBytes(f *testing.F) {
	f.Add(ip4(protoICMP, 3, 4, 0, 0, 0, 0, 0, 0, 0x4f))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n := HeaderBytes(data); n < 0 || n > len(data) {
			t.Fatalf("%d of %d bytes", n, len(data))
		}
	})
}

// TestPcapng: another program reads what was kept, with time, interface and length.
func TestPcapng(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 1)
	list := []Packet{
		{At: start, Interface: "eth0", Length: 60, Data: ip4(protoTCP, tcp(5, 0)...)},
		{At: start.Add(time.Millisecond), Interface: "eth1", Sent: true, Length: 1500, Data: ip4(protoTCP, tcp(5, 0)...)},
		{At: start.Add(time.Hour), Interface: "eth1", Length: 40, Data: ip4(protoTCP, tcp(5, 0)...)},
	}
	if err := w.Packets(at(1), &Packets{List: list}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WritePcapng(&b, open(t, store.fs()), start, start.Add(time.Minute), "1.2"); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range list[:2] {
		data, info, err := r.ReadPacketData()
		if err != nil || !bytes.Equal(data, want.Data) || info.Length != int(want.Length) || !info.Timestamp.Equal(want.At) {
			t.Errorf("packet %d: %+v: %v", i, info, err)
		}
		if about, err := r.Interface(info.InterfaceIndex); err != nil || about.Name != want.Interface {
			t.Errorf("packet %d is of %q: %v", i, about.Name, err)
		}
	}
	if _, _, err := r.ReadPacketData(); err == nil {
		t.Error("a packet of another time")
	}
	b.Reset()
	if err := WritePcapng(&b, open(t, fstest.MapFS{segmentName(1): {Data: store.files[segmentName(1)].Bytes()}}), start.Add(-time.Hour), start.Add(-time.Minute), ""); err != nil || b.Len() == 0 {
		t.Errorf("a file without packets: %d bytes, %v", b.Len(), err)
	}
}
