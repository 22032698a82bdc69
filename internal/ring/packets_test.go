package ring

import (
	"bytes"
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
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

// fragment makes another fragment than the first of it.
func fragment(packet []byte) []byte {
	packet[7] = 1
	return packet
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
		{"UDP", ip4(protoUDP, make([]byte, 20)...), 28},
		{"UDP, cut", ip4(protoUDP, make([]byte, 5)...), 25},
		{"SCTP over IPv6", ip6(protoSCTP, make([]byte, 30)...), 52},
		{"a later fragment", fragment(ip4(protoTCP, tcp(5, 30)...)), 20},
		{"another protocol", ip4(50, make([]byte, 20)...), 20},
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

// droppedPackets are a SYN of IPv4 dropped by a rule, one of IPv6 whose interface is gone, and the first once more.
func droppedPackets() *Dropped {
	syn := ip4(protoTCP, tcp(5, 0)...)
	copy(syn[12:], []byte{198, 18, 0, 2, 203, 0, 113, 5, 0xc0, 0x01, 0, 80})
	rule := snapshot.DropSite{Function: "nf_hook_slow", Offset: 0x8f, Reason: "NETFILTER_DROP", Protocol: "tcp", Netns: 7}
	one := DroppedPacket{Packet: Packet{At: start, Interface: "eth0", Length: 60, Data: syn}, Site: rule}
	other := DroppedPacket{Packet: Packet{At: start.Add(time.Millisecond), Length: 60, Data: ip6(protoTCP, tcp(5, 0)...)},
		Site: snapshot.DropSite{Function: "tcp_v6_rcv", Offset: 1, Module: "ipv6", Protocol: "tcp", Netns: 7}}
	again := one
	again.At = start.Add(2 * time.Millisecond)
	return &Dropped{Lost: 3, List: []DroppedPacket{one, other, again}}
}

// TestDropped: headers of dropped packets come back with their place, as flows of the drops until a snapshot, and in what is
// exported with place and reason in words.
func TestDropped(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 2)
	want := droppedPackets()
	if err := errors.Join(w.Drops(at(1), &snapshot.Drops{Packets: 9}), w.Dropped(at(1), want)); err != nil {
		t.Fatal(err)
	}
	r := open(t, store.fs())
	for f := range r.All() {
		if f.Kind == KindDropped {
			if got, err := r.Dropped(f); err != nil || cmp.Diff(want, got) != "" {
				t.Errorf("%v: %s", err, cmp.Diff(want, got))
			}
		}
	}
	drops, err := r.DropsUntil(r.Snapshots()[1])
	if err != nil || drops.Packets != 9 {
		t.Fatalf("%+v: %v", drops, err)
	}
	if diff := cmp.Diff([]snapshot.DropFlow{
		{Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Protocol: "tcp", Source: "198.18.0.2:49153", Destination: "203.0.113.5:80", Interface: "eth0", Netns: 7, Packets: 2},
		{Function: "tcp_v6_rcv", Protocol: "tcp", Source: "::", Destination: "::", Netns: 7, Packets: 1},
	}, drops.Flows); diff != "" {
		t.Error(diff)
	}
	if drops, err := r.DropsUntil(r.Snapshots()[0]); err != nil || drops != nil {
		t.Errorf("of a snapshot without drops: %+v, %v", drops, err)
	}
	if c := r.Contents(); c.Dropped != 9 || c.DroppedHeaders != 3 || c.DroppedLost != 3 {
		t.Errorf("%+v", c)
	}
	var b bytes.Buffer
	if err := WritePcapng(&b, r, start, start.Add(time.Millisecond), ""); err != nil {
		t.Fatal(err)
	}
	ng, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, about := range [][2]string{{"eth0 (dropped)", "dropped at nf_hook_slow+0x8f, reason NETFILTER_DROP"}, {"none (dropped)", "dropped at tcp_v6_rcv+0x1 [ipv6]"}} {
		data, info, options, err := ng.ReadPacketDataWithOptions()
		if err != nil || !bytes.Equal(data[cookedHeader:], want.List[i].Data) || !slices.Equal(options.Comments, about[1:]) {
			t.Errorf("packet %d: %+v, %q: %v", i, info, options.Comments, err)
		}
		if on, err := ng.Interface(info.InterfaceIndex); err != nil || on.Name != about[0] {
			t.Errorf("packet %d is of %q: %v", i, on.Name, err)
		}
	}
	if _, _, err := ng.ReadPacketData(); err == nil {
		t.Error("a packet of another time")
	}
}

//go:embed testdata/former.natring
var former []byte

// TestFormer: a recording of natkit before it kept headers of dropped packets is read as ever.
func TestFormer(t *testing.T) {
	r := open(t, fstest.MapFS{segmentName(1): {Data: former}})
	wantMembers(t, r)
	c := r.Contents()
	if c.Snapshots != 3 || c.Packets != (PacketContents{Kept: 1, NotKept: 5, Lost: 1, Sampled: 2, SampledICMP: 1}) || c.Dropped != 7 || c.DroppedHeaders != 0 ||
		len(c.Events) != 1 || len(c.Damaged) > 0 {
		t.Errorf("%+v", c)
	}
	drops, err := r.DropsUntil(r.Snapshots()[2])
	if err != nil || drops.Packets != 7 || len(drops.Flows) > 0 {
		t.Errorf("%+v: %v", drops, err)
	}
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
		if err != nil || !bytes.Equal(data[cookedHeader:], want.Data) || info.Length != cookedHeader+int(want.Length) || !info.Timestamp.Equal(want.At) {
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

// TestPcapngOrder: packets are written in the order of their times, whatever part of the ring they are in: what came and what was dropped in the same
// seconds, what was taken later than the next part's first, parts of a clock that was set back, and in another segment.
func TestPcapngOrder(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 1)
	syn := ip4(protoTCP, tcp(5, 0)...)
	of := func(on string, seconds ...float64) (list []Packet) {
		for _, s := range seconds {
			list = append(list, Packet{At: start.Add(time.Duration(s * float64(time.Second))), Interface: on, Length: 40, Data: syn})
		}
		return list
	}
	dropped := func(seconds ...float64) *Dropped {
		d := &Dropped{}
		for _, p := range of("eth0", seconds...) {
			d.List = append(d.List, DroppedPacket{Packet: p, Site: snapshot.DropSite{Function: "nf_hook_slow"}})
		}
		return d
	}
	err := errors.Join(
		w.Dropped(at(1), dropped(0.5, 4.9)), w.Packets(at(1), &Packets{List: of("eth0", 0.4, 7.1, 2)}),
		w.Dropped(at(2), dropped(5.1, 9.9)), w.Packets(at(2), &Packets{List: of("eth1", 9.8, 5)}),
		w.Packets(at(3), &Packets{List: of("eth2", 3, 1)}))
	if err != nil {
		t.Fatal(err)
	}
	w = write(t, store, LeastBytes, "two", 4, 5)
	if err := w.Packets(at(5), &Packets{List: of("eth0", 6, 12)}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WritePcapng(&b, open(t, store.fs()), start, start.Add(time.Minute), ""); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for {
		_, info, err := r.ReadPacketData()
		if err != nil {
			break
		}
		got = append(got, info.Timestamp.Sub(start).Seconds())
	}
	if diff := cmp.Diff([]float64{0.4, 0.5, 1, 2, 3, 4.9, 5, 5.1, 6, 7.1, 9.8, 9.9, 12}, got); diff != "" {
		t.Error(diff)
	}
}

// TestPcapngTcpdump: tcpdump prints all that is exported, of several interfaces, IPv4 and IPv6, with its direction.
func TestPcapngTcpdump(t *testing.T) {
	tcpdump := testutil.NeedProgram(t, "tcpdump")
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 1)
	list := []Packet{
		{At: start, Interface: "eth0", Length: 40, Data: ip4(protoTCP, tcp(5, 0)...)},
		{At: start.Add(3 * time.Millisecond), Interface: "eth1", Sent: true, Length: 60, Data: ip6(protoTCP, tcp(5, 0)...)},
		{At: start.Add(4 * time.Millisecond), Interface: "eth0", Sent: true, Length: 28, Data: ip4(protoICMP, 8, 0, 0, 0, 0, 0, 0, 0)},
	}
	if err := errors.Join(w.Dropped(at(1), droppedPackets()), w.Packets(at(1), &Packets{List: list})); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	var b bytes.Buffer
	if err := WritePcapng(&b, open(t, store.fs()), start, start.Add(time.Minute), ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command := exec.Command(tcpdump, "-e", "-n", "-t", "-r", file)
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		got = append(got, words[0]+" "+words[slices.Index(words, "ethertype")+1])
	}
	// In the order of times: two came and were dropped, or only that, and what left is last.
	if diff := cmp.Diff([]string{"In IPv4", "In IPv4", "In IPv6", "In IPv4", "Out IPv6", "Out IPv4"}, got); diff != "" {
		t.Errorf("%s\n%s", diff, out)
	}
}
