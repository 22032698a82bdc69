package syn

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/tap"
)

// run has a filter judge a packet of a type (PACKET_HOST, …).
func run(t *testing.T, raw []bpf.RawInstruction, kind uint32, version int, b []byte) bool {
	t.Helper()
	program, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("the filter cannot be read back")
	}
	for i, in := range program { // the virtual machine knows no packet types
		if e, ok := in.(bpf.LoadExtension); ok && e.Num == bpf.ExtType {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: kind}
		} else if ok && e.Num == bpf.ExtProto {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: uint32(tap.EtherType(version))}
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

// bare is an IP packet with a TCP segment between two ports, the last address byte of
// the source given. Its TCP header has 12 bytes of options.
func bare(version int, protocol uint8, source, from, to int, flags frame.TCPFlags, options int) []byte {
	at := 40
	b := make([]byte, 200)
	if version == 4 {
		at = 20 + options
		b[0], b[9] = 4<<4|byte(at/4), protocol
		b[15], b[19] = byte(source), 1
	} else {
		b[0], b[6] = 6<<4, protocol
		b[23], b[39] = byte(source), 1
	}
	binary.BigEndian.PutUint16(b[at:], uint16(from))
	binary.BigEndian.PutUint16(b[at+2:], uint16(to))
	b[at+12], b[at+13] = 8<<4, byte(flags)
	return withPayload(version, b, at+32)
}

// withPayload has the length fields say where the packet ends.
func withPayload(version int, b []byte, end int) []byte {
	if version == 4 {
		binary.BigEndian.PutUint16(b[2:], uint16(end))
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(end-40))
	}
	return b
}

func TestFilters(t *testing.T) {
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	for _, version := range []int{4, 6} {
		in, err := arriving([]uint16{22, 80, 443}, 1)
		if err != nil {
			t.Fatal(err)
		}
		out, err := leaving(1)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name          string
			packet        []byte
			wantIn, wantO bool
		}{
			{"SYN", bare(version, tcp, 2, 1024, 80, frame.SYN, 0), true, false},
			{"SYN with ECN", bare(version, tcp, 2, 1024, 80, frame.SYN|frame.ECE|frame.CWR, 0), true, false},
			{"SYN behind IP options", bare(version, tcp, 2, 1024, 80, frame.SYN, 8), true, false},
			{"RST", bare(version, tcp, 2, 1024, 80, frame.RST, 0), true, false},
			{"RST with ACK", bare(version, tcp, 2, 1024, 80, frame.RST|frame.ACK, 0), false, false},
			{"SYN-ACK", bare(version, tcp, 2, 80, 1024, frame.SYN|frame.ACK, 0), false, true},
			{"ACK", bare(version, tcp, 2, 80, 1024, frame.ACK, 0), false, true},
			{"data", withPayload(version, bare(version, tcp, 2, 80, 1024, frame.ACK|frame.PSH, 0), 100), false, false},
			{"FIN", bare(version, tcp, 2, 80, 1024, frame.FIN|frame.ACK, 0), false, false},
			{"UDP", bare(version, udp, 2, 1024, 80, frame.SYN, 0), false, false},
		} {
			if got := run(t, in, unix.PACKET_HOST, version, c.packet); got != c.wantIn {
				t.Errorf("IPv%d, %s arrives: passed on %v", version, c.name, got)
			}
			if got := run(t, out, unix.PACKET_OUTGOING, version, c.packet); got != c.wantO {
				t.Errorf("IPv%d, %s leaves: passed on %v", version, c.name, got)
			}
			if run(t, in, unix.PACKET_OUTGOING, version, c.packet) || run(t, out, unix.PACKET_HOST, version, c.packet) {
				t.Errorf("IPv%d, %s: one that leaves passes as arriving, or the other way round", version, c.name)
			}
		}
	}
	fragment := bare(4, tcp, 2, 1024, 80, frame.SYN, 0)
	fragment[7] = 1
	in, _ := arriving([]uint16{80}, 1)
	if run(t, in, unix.PACKET_HOST, 4, fragment) {
		t.Error("a fragment without the header was passed on")
	}
}

// TestPorts: what comes in for ports on which nothing listens is left alone, while these are few.
func TestPorts(t *testing.T) {
	many := make([]uint16, mostPorts+1)
	for i := range many {
		many[i] = uint16(i + 1)
	}
	for _, c := range []struct {
		ports []uint16
		to    map[int]bool
	}{
		{[]uint16{80}, map[int]bool{80: true, 81: false}},
		{[]uint16{22, 80, 443}, map[int]bool{22: true, 80: true, 443: true, 81: false}},
		{many[:mostPorts], map[int]bool{1: true, mostPorts: true, mostPorts + 1: false}},
		{many, map[int]bool{1: true, 40000: true}},
	} {
		for _, version := range []int{4, 6} {
			in, err := arriving(c.ports, 1)
			if err != nil {
				t.Fatal(err)
			}
			for port, want := range c.to {
				if got := run(t, in, unix.PACKET_HOST, version, bare(version, unix.IPPROTO_TCP, 1, 1024, port, frame.SYN, 0)); got != want {
					t.Errorf("IPv%d, listeners on %d ports, a SYN to port %d: passed on %v", version, len(c.ports), port, got)
				}
			}
		}
	}
}

// TestSample: a connection's segments are chosen together in both directions, and of
// neighbouring ports as many as were asked for.
func TestSample(t *testing.T) {
	const sample, ports = 8, 1 << 14
	for _, version := range []int{4, 6} {
		in, err := arriving([]uint16{80}, sample)
		if err != nil {
			t.Fatal(err)
		}
		out, err := leaving(sample)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for port := range ports {
			arrives := run(t, in, unix.PACKET_HOST, version, bare(version, unix.IPPROTO_TCP, 1, 1024+port, 80, frame.SYN, 0))
			if leaves := run(t, out, unix.PACKET_OUTGOING, version, bare(version, unix.IPPROTO_TCP, 1, 80, 1024+port, frame.SYN|frame.ACK, 0)); leaves != arrives {
				t.Fatalf("IPv%d, port %d: passed on as it arrives: %v, as it leaves: %v", version, 1024+port, arrives, leaves)
			}
			if arrives {
				n++
			}
		}
		if n < ports/sample*9/10 || n > ports/sample*11/10 {
			t.Errorf("IPv%d: %d of %d ports, want one in %d", version, n, ports, sample)
		}
	}
}
