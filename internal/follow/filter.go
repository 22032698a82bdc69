package follow

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/tap"
)

// kept is what a filter keeps: the handshakes of one in sample connections of TCP, one in segments of
// what follows them, and, if datagrams is set, other protocols.
type kept struct {
	sample, segments int
	datagrams        bool
	// ports are those of bridges, of which frames for other hosts are kept as well.
	ports []int
	// own are addresses of this host: frames for them that have another hardware address are kept as well.
	own []netip.Addr
}

// mostOwn bounds the addresses of this host whose frames are followed where they are for another hardware address.
const mostOwn = 32

// mostPorts bounds the ports of bridges whose frames are followed.
const mostPorts = 64

// filter keeps packets in both directions that are from or for this host alone, or pass its bridges.
func (k kept) filter() ([]bpf.RawInstruction, error) {
	v4, v6 := k.version(4), k.version(6)
	ports, own := k.ports[:min(len(k.ports), mostPorts)], k.astray()
	rest := len(ports) + len(own)
	kinds := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: uint8(rest + 4)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_HOST, SkipTrue: uint8(rest + 3)},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: tap.Drop},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
	}
	for i, port := range ports {
		kinds = append(kinds, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: uint8(rest - i)})
	}
	kinds = append(kinds, own...)
	kinds = append(kinds, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 0, SkipTrue: tap.Drop})
	head := tap.Ends(append(kinds, []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: tap.Drop},
		bpf.Jump{Skip: uint32(len(v4)) + 2},
	}...))
	// The two ends of head are passed over; its keeping one is never reached.
	return tap.Assemble(slices.Concat(head, v4, v6))
}

// astray has those kept that are for an address of this host, of IPv4; the last instruction drops what follows.
func (k kept) astray() (all []bpf.Instruction) {
	var own []netip.Addr
	for _, a := range k.own {
		if a.Is4() && len(own) < mostOwn {
			own = append(own, a)
		}
	}
	if len(own) == 0 {
		return nil
	}
	const destination = 16
	all = append(all, bpf.LoadExtension{Num: bpf.ExtProto}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: uint8(len(own) + 1)},
		bpf.LoadAbsolute{Off: destination, Size: 4})
	for i, a := range own {
		four := a.As4()
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(four[:]), SkipTrue: uint8(len(own) - i)})
	}
	return all
}

// version decides on packets of one version of IP, which begin with its header.
func (k kept) version(v int) []bpf.Instruction {
	protocolAt := uint32(9)
	if v == 6 {
		protocolAt = 6
	}
	others := uint32(0)
	if k.datagrams {
		others = tap.KeepBytes
	}
	rest := tap.Ends(slices.Concat(following(v), tap.Chosen(k.segments)))
	return slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1},
		bpf.RetConstant{Val: others},
	}, tap.Ends(slices.Concat(tap.TCP(v), handshake(k.sample), tap.Chosen(k.sample))), rest)
}

// handshake keeps SYNs, SYN-ACKs, and RSTs that acknowledge something, by their flags in A, and
// loads the initial sequence number that they are about. X is the offset of the TCP header. Others
// are for the instructions after its ends.
func handshake(sample int) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.StoreScratch{Src: bpf.RegA, N: 0},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(frame.SYN | frame.ACK | frame.RST)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.SYN), SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.SYN | frame.ACK), SkipTrue: 5},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.RST | frame.ACK), SkipTrue: 4},
		bpf.LoadScratch{Dst: bpf.RegA, N: 0},
		bpf.Jump{Skip: uint32(4 + chosenLength(sample) + 2)},
		bpf.LoadIndirect{Off: 4, Size: 4}, // the sequence number
		bpf.Jump{Skip: 2},
		bpf.LoadIndirect{Off: 8, Size: 4}, // the acknowledgment number
		bpf.ALUOpConstant{Op: bpf.ALUOpSub, Val: 1},
	}
}

// chosenLength is that of tap.Chosen, which comes between.
func chosenLength(sample int) int { return len(tap.Chosen(sample)) }

// mostSegment is the length of the largest packet with data that is kept. Several segments in one (GRO) count
// with all of their memory in the socket's buffer, and are sent again one by one.
const mostSegment = 4096

// following keeps segments with payload and RSTs and FINs, by their flags in A and scratch 0, and
// loads their sequence number, which retransmissions have as well.
func following(version int) []bpf.Instruction {
	length, more := uint32(2), uint32(0) // IPv4's counts its own header
	if version == 6 {
		length, more = 4, tap.IPv6Header
	}
	const dataOffset = 12 // its upper four bits are a number of words
	return []bpf.Instruction{
		bpf.StoreScratch{Src: bpf.RegX, N: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(frame.RST | frame.FIN), SkipTrue: 9},
		bpf.LoadIndirect{Off: dataOffset, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: length, Size: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: more},
		bpf.JumpIfX{Cond: bpf.JumpLessOrEqual, SkipTrue: tap.Drop}, // no payload, or no length (BIG TCP)
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: mostSegment, SkipTrue: tap.Drop},
		bpf.LoadScratch{Dst: bpf.RegX, N: 1},
		bpf.LoadIndirect{Off: 4, Size: 4},
	}
}
