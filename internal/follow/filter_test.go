package follow

import (
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/tap"
)

// keeps has a filter judge a packet of a kind (PACKET_HOST, …).
func keeps(t *testing.T, raw []bpf.RawInstruction, kind uint32, version int, b []byte) bool {
	t.Helper()
	program, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("the filter cannot be read back")
	}
	for i, in := range program { // the virtual machine has no packet types
		if e, ok := in.(bpf.LoadExtension); ok && e.Num == bpf.ExtType {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: kind}
		} else if ok && e.Num == bpf.ExtProto {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: uint32(tap.EtherType(version))}
		} else if ok && e.Num == bpf.ExtInterfaceIndex {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: 7}
		}
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(b)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

var tuples = map[int]frame.Tuple{
	4: {Src: netip.MustParseAddrPort("198.51.100.7:40000"), Dst: netip.MustParseAddrPort("203.0.113.1:80")},
	6: {Src: netip.MustParseAddrPort("[2001:db8::7]:40000"), Dst: netip.MustParseAddrPort("[2001:db8:1::1]:80")},
}

func ipPacket(version int, protocol uint8, payload []byte) []byte {
	t := tuples[version]
	return frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: protocol, TTL: 64}.Append(nil, payload)
}

func tcpPacket(version int, flags frame.TCPFlags, seq, ack uint32) []byte {
	return ipPacket(version, unix.IPPROTO_TCP, frame.AppendTCP(nil, tuples[version], frame.TCP{Flags: flags, SequenceNumber: seq, AcknowledgmentNumber: ack}, []byte("x")))
}

func acknowledgment(version int) []byte {
	return ipPacket(version, unix.IPPROTO_TCP, frame.AppendTCP(nil, tuples[version], frame.TCP{Flags: frame.ACK, SequenceNumber: 8, AcknowledgmentNumber: 10}, nil))
}

func TestFilter(t *testing.T) {
	icmp := map[int]uint8{4: unix.IPPROTO_ICMP, 6: unix.IPPROTO_ICMPV6}
	for _, version := range []int{4, 6} {
		all, err := kept{sample: 1, segments: 1, datagrams: true}.filter()
		if err != nil {
			t.Fatal(err)
		}
		handshakes, err := kept{sample: 1, segments: 1, ports: []int{7}}.filter()
		if err != nil {
			t.Fatal(err)
		}
		ts := tuples[version]
		for _, c := range []struct {
			name               string
			packet             []byte
			kind               uint32
			all, onlyHandshake bool
		}{
			{"SYN", tcpPacket(version, frame.SYN, 7, 0), unix.PACKET_HOST, true, true},
			{"SYN with ECN", tcpPacket(version, frame.SYN|frame.ECE|frame.CWR, 7, 0), unix.PACKET_HOST, true, true},
			{"SYN that leaves", tcpPacket(version, frame.SYN, 7, 0), unix.PACKET_OUTGOING, true, true},
			{"SYN of others, by a bridge's port in the second filter alone", tcpPacket(version, frame.SYN, 7, 0), unix.PACKET_OTHERHOST, false, true},
			{"SYN-ACK", tcpPacket(version, frame.SYN|frame.ACK, 9, 8), unix.PACKET_HOST, true, true},
			{"RST that answers", tcpPacket(version, frame.RST|frame.ACK, 0, 8), unix.PACKET_HOST, true, true},
			{"RST", tcpPacket(version, frame.RST, 8, 0), unix.PACKET_HOST, true, true},
			{"ACK", acknowledgment(version), unix.PACKET_HOST, false, false},
			{"data", tcpPacket(version, frame.ACK|frame.PSH, 8, 10), unix.PACKET_HOST, true, true},
			{"FIN", tcpPacket(version, frame.ACK|frame.FIN, 8, 10), unix.PACKET_HOST, true, true},
			{"many segments in one", ipPacket(version, unix.IPPROTO_TCP, frame.AppendTCP(nil, ts, frame.TCP{Flags: frame.ACK}, make([]byte, 8000))), unix.PACKET_HOST, false, false},
			{"a broadcast", ipPacket(version, unix.IPPROTO_UDP, frame.AppendUDP(nil, ts, []byte("x"), false)), unix.PACKET_BROADCAST, false, false},
			{"UDP", ipPacket(version, unix.IPPROTO_UDP, frame.AppendUDP(nil, ts, []byte("x"), false)), unix.PACKET_HOST, true, false},
			{"an echo", ipPacket(version, icmp[version], frame.AppendICMP(nil, ts.Src.Addr(), ts.Dst.Addr(), frame.ICMP{Type: 8}, nil)), unix.PACKET_HOST, true, false},
			{"another protocol", ipPacket(version, unix.IPPROTO_GRE, []byte("xxxxxxxx")), unix.PACKET_HOST, true, false},
		} {
			if got := keeps(t, all, c.kind, version, c.packet); got != c.all {
				t.Errorf("IPv%d, %s: kept %v", version, c.name, got)
			}
			if got := keeps(t, handshakes, c.kind, version, c.packet); got != c.onlyHandshake {
				t.Errorf("IPv%d, %s, without datagrams: kept %v", version, c.name, got)
			}
		}
	}
}

// TestSampledTogether: a handshake's packets are kept together, and of the handshakes as many
// as were asked for.
func TestSampledTogether(t *testing.T) {
	const sample, handshakes = 8, 1 << 13
	for _, version := range []int{4, 6} {
		filter, err := kept{sample: sample, segments: 1, datagrams: true}.filter()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range uint32(handshakes) {
			isn := i * 64001 // initial sequence numbers of one client grow with time
			question := keeps(t, filter, unix.PACKET_HOST, version, tcpPacket(version, frame.SYN, isn, 0))
			answer := keeps(t, filter, unix.PACKET_HOST, version, tcpPacket(version, frame.SYN|frame.ACK, 99, isn+1))
			refusal := keeps(t, filter, unix.PACKET_OUTGOING, version, tcpPacket(version, frame.RST|frame.ACK, 0, isn+1))
			if question != answer || question != refusal {
				t.Fatalf("IPv%d, %d: SYN %v, SYN-ACK %v, RST %v", version, isn, question, answer, refusal)
			}
			if question {
				n++
			}
		}
		if n < handshakes/sample*9/10 || n > handshakes/sample*11/10 {
			t.Errorf("IPv%d: %d of %d, want one in %d", version, n, handshakes, sample)
		}
	}
}

// TestAstrayKept: of frames for another hardware address those for this host's own addresses are kept, by whatever
// interface they come in.
func TestAstrayKept(t *testing.T) {
	own := tuples[4].Dst.Addr()
	for name, c := range map[string]struct {
		own  []netip.Addr
		want bool
	}{
		"its own address": {[]netip.Addr{netip.MustParseAddr("192.0.2.77"), own}, true},
		"another one":     {[]netip.Addr{netip.MustParseAddr("192.0.2.77")}, false},
		"none":            {nil, false},
	} {
		filter, err := kept{sample: 1, segments: 1, datagrams: true, ports: []int{70, 71}, own: c.own}.filter()
		if err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[uint32]bool{unix.PACKET_OTHERHOST: c.want, unix.PACKET_HOST: true, unix.PACKET_OUTGOING: true, unix.PACKET_BROADCAST: false} {
			if got := keeps(t, filter, kind, 4, tcpPacket(4, frame.SYN|frame.ACK, 9, 8)); got != want {
				t.Errorf("%s, type %d: kept %v", name, kind, got)
			}
		}
		if keeps(t, filter, unix.PACKET_OTHERHOST, 6, tcpPacket(6, frame.SYN|frame.ACK, 9, 8)) {
			t.Errorf("%s: IPv6 is kept", name)
		}
	}
}
