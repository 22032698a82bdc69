package syn

import (
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/tap"
)

// mostPorts bounds the listening ports that a filter knows: where there are more, it keeps all ports.
const mostPorts = 32

// arriving keeps SYNs and RSTs without ACK that come in for some ports, of one in sample connections, a power of
// two, selected by a hash of client address and port. What a gateway forwards is mostly for others.
func arriving(ports []uint16, sample int) ([]bpf.RawInstruction, error) {
	const mask = frame.SYN | frame.ACK | frame.RST
	version := func(v int) []bpf.Instruction {
		return flagged(v, mask, frame.SYN, frame.RST, append(toward(ports), chosen(v, sample, false)...))
	}
	return going(bpf.JumpEqual, version(4), version(6))
}

// toward drops segments that are not for one of some ports. X is the offset of the TCP header, and stays.
func toward(ports []uint16) (all []bpf.Instruction) {
	if len(ports) > mostPorts {
		return nil
	}
	all = append(all, bpf.LoadIndirect{Off: 2, Size: 2})
	for i, port := range ports {
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: uint8(len(ports) - i)})
	}
	return append(all, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 0, SkipTrue: tap.Drop})
}

// leaving keeps SYN-ACKs and ACKs without payload that are sent, of the same connections.
func leaving(sample int) ([]bpf.RawInstruction, error) {
	const mask = frame.SYN | frame.ACK | frame.RST | frame.FIN
	return going(bpf.JumpNotEqual, flagged(4, mask, frame.SYN|frame.ACK, frame.ACK, append(empty(4), chosen(4, sample, true)...)),
		flagged(6, mask, frame.SYN|frame.ACK, frame.ACK, append(empty(6), chosen(6, sample, true)...)))
}

// going keeps what a filter for its version of IP keeps, and drops packets whose comparison with those that are
// sent is true.
func going(drop bpf.JumpTest, v4, v6 []bpf.Instruction) ([]bpf.RawInstruction, error) {
	head := tap.Ends([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: drop, Val: unix.PACKET_OUTGOING, SkipTrue: tap.Drop},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: tap.Drop},
		bpf.Jump{Skip: uint32(len(v4)) + 2},
	})
	// The two ends of head are passed over; its keeping one is never reached.
	return tap.Assemble(slices.Concat(head, v4, v6))
}

// flagged keeps TCP segments whose masked flags are one or other, and that pass rest.
func flagged(version int, mask, one, other frame.TCPFlags, rest []bpf.Instruction) []bpf.Instruction {
	return tap.Ends(slices.Concat(tap.TCP(version), []bpf.Instruction{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(mask)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(one), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(other), SkipTrue: tap.Drop},
	}, rest))
}

// empty drops segments with payload. X is the offset of the TCP header, and stays.
func empty(version int) []bpf.Instruction {
	length, more := uint32(2), uint32(0) // IPv4's counts its own header
	if version == 6 {
		length, more = 4, tap.IPv6Header
	}
	const dataOffset = 12 // its upper four bits are a number of words
	return []bpf.Instruction{
		bpf.StoreScratch{Src: bpf.RegX, N: 0},
		bpf.LoadIndirect{Off: dataOffset, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: length, Size: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: more},
		bpf.JumpIfX{Cond: bpf.JumpNotEqual, SkipTrue: tap.Drop},
		bpf.LoadScratch{Dst: bpf.RegX, N: 0},
	}
}

// chosen drops all but one in sample connections; X is the offset of the TCP header.
func chosen(version, sample int, toClient bool) []bpf.Instruction {
	if sample <= 1 {
		return nil
	}
	port, address := uint32(0), uint32(12) // of the source
	if version == 6 {
		address = 8 + 12 // the last four bytes
	}
	if toClient {
		port += 2
		address += 4
		if version == 6 {
			address += 12
		}
	}
	return append([]bpf.Instruction{
		bpf.LoadIndirect{Off: port, Size: 2},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: address, Size: 4},
		bpf.ALUOpX{Op: bpf.ALUOpXor},
	}, tap.Chosen(sample)...)
}
