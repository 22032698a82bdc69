package plane

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestMappings: what is read of the maps in force is what the programs have, the most specific mapping first.
func TestMappings(t *testing.T) {
	w := newWorld(t)
	all := tables(publicAddress, insideAddress)
	all.Destinations = append(all.Destinations,
		Mapping{Match: nat.Host(publicAddress), Protocol: unix.IPPROTO_TCP, Port: 80, To: nat.Host(insideAddress2), ToPort: 8080, Roles: 1, Rule: 1},
		Mapping{Match: netip.MustParsePrefix("203.0.113.16/28"), To: netip.MustParsePrefix("10.0.0.16/28"), Roles: AnyRole, Rule: 1},
		Mapping{Match: nat.Anywhere(32), To: nat.Anywhere(32), Roles: AnyRole, Rule: 1, Hosts: &Hosts{Len: 2, Each: func(yield func(from, to netip.Addr) bool) {
			for _, host := range []byte{40, 41} {
				if !yield(netip.AddrFrom4([4]byte{203, 0, 113, host}), netip.AddrFrom4([4]byte{10, 0, 1, host})) {
					return
				}
			}
		}}})
	if m, err := w.pins.Mappings(); m != nil || err != nil {
		t.Fatalf("before: %v, %v", m, err)
	}
	w.attach(all, "one", TC)
	m, err := w.pins.Mappings()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	wan, lan := w.index("wan0"), w.index("lan0")
	for _, test := range []struct {
		in       int
		protocol uint8
		to, want string // want is empty where no mapping is for it
	}{
		{wan, unix.IPPROTO_TCP, "203.0.113.1:80", "198.18.1.3:8080"},
		{0, unix.IPPROTO_TCP, "203.0.113.1:80", "198.18.1.3:8080"},
		{lan, unix.IPPROTO_TCP, "203.0.113.1:80", "198.18.1.2:80"},
		{wan, unix.IPPROTO_UDP, "203.0.113.1:80", "198.18.1.2:80"},
		{wan, unix.IPPROTO_UDP, "203.0.113.19:53", "10.0.0.19:53"},
		{wan, unix.IPPROTO_UDP, "203.0.113.2:53", ""},
		{wan, unix.IPPROTO_TCP, "203.0.113.41:80", "10.0.1.41:80"},
		{12345, unix.IPPROTO_UDP, "203.0.113.1:53", ""},
	} {
		to, found := m.Destination(test.in, test.protocol, netip.MustParseAddrPort(test.to))
		if found != (test.want != "") || found && to.String() != test.want {
			t.Errorf("%+v: %s, %v", test, to, found)
		}
	}
	whole, port := netip.AddrPortFrom(publicAddress, 0), netip.AddrPortFrom(publicAddress, 80)
	want := []nat.Mapped{{On: whole, To: netip.AddrPortFrom(insideAddress, 0)}, {Protocol: unix.IPPROTO_TCP, On: port, To: netip.AddrPortFrom(insideAddress2, 8080)}}
	for _, host := range []string{"40", "41"} {
		want = append(want, nat.Mapped{On: netip.MustParseAddrPort("203.0.113." + host + ":0"), To: netip.MustParseAddrPort("10.0.1." + host + ":0")})
	}
	if all, err := m.Destinations(3); err != nil || !slices.Equal(all, want) {
		t.Errorf("all: %+v, %v, want %+v", all, err, want)
	}
	if from, found := m.Source(wan, unix.IPPROTO_TCP, netip.AddrPortFrom(insideAddress, 9)); from != netip.AddrPortFrom(publicAddress, 9) || !found {
		t.Errorf("source: %s, %v", from, found)
	}
	if _, found := m.Source(lan, unix.IPPROTO_TCP, netip.AddrPortFrom(insideAddress, 9)); found {
		t.Error("a source is translated on its way inside")
	}
}

// TestDropsAreCounted: what the program at the way out drops is counted by reason, and read by network namespace.
func TestDropsAreCounted(t *testing.T) {
	w := newWorld(t)
	var err error
	if w.pins, err = PinsIn(w.gateway); err != nil {
		t.Fatal(err)
	}
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", TC)
	w.attachTo(programs, ports)
	drops := func() []Drops {
		t.Helper()
		all, err := ReadDrops(w.gateway)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := drops(); len(all) > 0 {
		t.Errorf("before: %+v", all)
	}
	tuple := frame.Tuple{Src: netip.AddrPortFrom(otherPublic, 53), Dst: netip.AddrPortFrom(clientAddress, 4000)}
	packet := frame.IP{Source: otherPublic, Destination: clientAddress, Protocol: unix.IPPROTO_UDP}.Append(
		frame.Link{}.Append(nil, 0, frame.EtherTypeIPv4), frame.AppendUDP(nil, tuple, []byte("natkit"), false))
	context := make([]byte, skbSize)
	binary.NativeEndian.PutUint32(context[8:], programs.marks.Mask)
	binary.NativeEndian.PutUint32(context[40:], uint32(w.index("wan0")))
	testutil.Inside(t, w.gateway, func() error {
		code, err := programs.Egress.Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+frameRoom), Context: context})
		if err == nil && code != 2 { // TC_ACT_SHOT
			t.Errorf("returns %d", code)
		}
		return err
	})
	id, err := netns.IDOf(w.gateway)
	if err != nil {
		t.Fatal(err)
	}
	want := []Drops{{id.Inode, Reason(planeReasonDROPPED_UNMAPPED), Count{1, uint64(len(packet) - 14)}}}
	if all := drops(); !slices.Equal(all, want) {
		t.Errorf("%+v, want %+v", all, want)
	}
	everywhere, err := ReadDrops(nil)
	if err != nil || !slices.Contains(everywhere, want[0]) {
		t.Errorf("of all namespaces: %+v, %v", everywhere, err)
	}
	// Of one that is gone, whose inode it has, pins are left.
	left, counts := PinsOf(NameOf(netns.ID{Inode: id.Inode, Cookie: id.Cookie + 1})), make([]planeCount, ebpf.MustPossibleCPU())
	counts[0] = planeCount{Packets: 100, Bytes: 5000}
	others, _ := w.load(tables(publicAddress, insideAddress), "two", TC)
	elsewhere := testutil.Namespace(t, "elsewhere")
	testutil.Inside(t, elsewhere, func() error {
		_, err := left.Attach(others, nil)
		return errors.Join(err, others.Reasons.Put(uint32(planeReasonDROPPED_UNMAPPED), counts))
	})
	defer func() { testutil.Inside(t, elsewhere, left.Remove) }()
	both := []Drops{{id.Inode, want[0].Reason, Count{101, want[0].Bytes + 5000}}}
	everywhere, err = ReadDrops(nil)
	everywhere = slices.DeleteFunc(everywhere, func(d Drops) bool { return d.Netns != id.Inode })
	if err != nil || !slices.Equal(everywhere, both) {
		t.Errorf("with what is left of another: %+v, %v, want %+v", everywhere, err, both)
	}
	if all := drops(); !slices.Equal(all, want) {
		t.Errorf("%+v, want %+v", all, want)
	}
	if !want[0].Reason.Dropped() || Reason(planeReasonPASSED_UNMAPPABLE).Dropped() {
		t.Error("which reasons are drops")
	}
}
