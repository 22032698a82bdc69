package syn

import (
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// keepBytes of a packet are kept: all headers without long options of both IPv4 and TCP.
const keepBytes = 128

const (
	flagsOffset = 13 // of a TCP header
	ipv6Header  = 40
	fragment    = 0x1fff // the offset, in an IPv4 header's flags
)

// arriving keeps SYNs and RSTs without ACK of one in sample connections, a power of two, selected
// by a hash of client address and port. It is for a socket of one version of IP.
func arriving(version int, sample int) ([]bpf.RawInstruction, error) {
	return assemble(flagged(version, frame.SYN|frame.ACK|frame.RST, frame.SYN, frame.RST, chosen(version, sample, false)))
}

// leaving keeps SYN-ACKs and ACKs without payload, of the same connections. It is for a socket
// that sees all protocols, sent and received.
func leaving(sample int) ([]bpf.RawInstruction, error) {
	const mask = frame.SYN | frame.ACK | frame.RST | frame.FIN
	v4 := flagged(4, mask, frame.SYN|frame.ACK, frame.ACK, append(empty(4), chosen(4, sample, true)...))
	v6 := flagged(6, mask, frame.SYN|frame.ACK, frame.ACK, append(empty(6), chosen(6, sample, true)...))
	head := ends([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OUTGOING, SkipTrue: toDrop},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: toDrop},
		bpf.Jump{Skip: uint32(len(v4)) + 2},
	})
	// The two ends of head are passed over; its keeping one is never reached.
	return assemble(slices.Concat(head, v4, v6))
}

// flagged keeps TCP segments whose masked flags are one or other, and that pass rest.
func flagged(version int, mask, one, other frame.TCPFlags, rest []bpf.Instruction) []bpf.Instruction {
	return ends(slices.Concat(transport(version), []bpf.Instruction{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(mask)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(one), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(other), SkipTrue: toDrop},
	}, rest))
}

// toDrop stands for the way to the end that drops; ends puts the distance there.
const toDrop = 255

// transport loads the TCP flags into A and the offset of the TCP header into X. Packets begin
// with the IP header. IPv6 with extension headers is dropped.
func transport(version int) []bpf.Instruction {
	if version == 6 {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: 6, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: toDrop},
			bpf.LoadConstant{Dst: bpf.RegX, Val: ipv6Header},
			bpf.LoadIndirect{Off: flagsOffset, Size: 1},
		}
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: toDrop},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: fragment, SkipTrue: toDrop},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: flagsOffset, Size: 1},
	}
}

// empty drops segments with payload. X is the offset of the TCP header, and stays.
func empty(version int) []bpf.Instruction {
	length, more := uint32(2), uint32(0) // IPv4's counts its own header
	if version == 6 {
		length, more = 4, ipv6Header
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
		bpf.JumpIfX{Cond: bpf.JumpNotEqual, SkipTrue: toDrop},
		bpf.LoadScratch{Dst: bpf.RegX, N: 0},
	}
}

// multiplier spreads neighbouring ports: 2^32 divided by the golden ratio.
const multiplier = 0x9e3779b1

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
	return []bpf.Instruction{
		bpf.LoadIndirect{Off: port, Size: 2},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: address, Size: 4},
		bpf.ALUOpX{Op: bpf.ALUOpXor},
		bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: multiplier},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: uint32(32 - bits.Len(uint(sample-1)))},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: toDrop},
	}
}

// ends adds the two ends, one that keeps and one that drops.
func ends(p []bpf.Instruction) []bpf.Instruction {
	p = append(p, bpf.RetConstant{Val: keepBytes}, bpf.RetConstant{Val: 0})
	for i, in := range p {
		away := uint8(len(p) - 2 - i)
		switch j := in.(type) {
		case bpf.JumpIf:
			if j.SkipTrue == toDrop {
				j.SkipTrue = away
			}
			p[i] = j
		case bpf.JumpIfX:
			if j.SkipTrue == toDrop {
				j.SkipTrue = away
			}
			p[i] = j
		}
	}
	return p
}

func assemble(p []bpf.Instruction) ([]bpf.RawInstruction, error) {
	raw, err := bpf.Assemble(p)
	if err != nil {
		return nil, fmt.Errorf("make the filter for SYNs: %w", err)
	}
	return raw, nil
}

func etherType(version int) uint16 {
	if version == 6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}
