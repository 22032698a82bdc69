package tap

import (
	"fmt"
	"math/bits"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/capture"
)

// KeepBytes of a packet are kept: all headers without long options of both IPv4 and TCP.
const KeepBytes = 128

const (
	flagsOffset = 13 // of a TCP header
	// IPv6Header is its length.
	IPv6Header = 40
	fragment   = 0x1fff // the offset, in an IPv4 header's flags
)

// Drop stands for the way to the end that drops; Ends puts the distance there.
const Drop = 255

// TCP loads the TCP flags into A and the offset of the TCP header into X. Packets begin
// with the IP header. IPv6 with extension headers is dropped.
func TCP(version int) []bpf.Instruction {
	if version == 6 {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: 6, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: Drop},
			bpf.LoadConstant{Dst: bpf.RegX, Val: IPv6Header},
			bpf.LoadIndirect{Off: flagsOffset, Size: 1},
		}
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: Drop},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: fragment, SkipTrue: Drop},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: flagsOffset, Size: 1},
	}
}

// multiplier spreads neighbouring numbers: 2^32 divided by the golden ratio.
const multiplier = 0x9e3779b1

// variable are samples that can change while a program is at work: where a program is loaded again for each, that
// costs more than the packets.
var variable = Samples{-1, -2}

// Chosen drops all but one in sample (a power of two) of what A identifies. It changes X.
func Chosen(sample int) []bpf.Instruction {
	if sample < 0 {
		return []bpf.Instruction{
			bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: multiplier},
			bpf.TAX{},
			bpf.LoadExtension{Num: capture.ExtMask + bpf.Extension(-1-sample)},
			bpf.ALUOpX{Op: bpf.ALUOpAnd},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: Drop},
		}
	}
	if sample <= 1 {
		return nil
	}
	return []bpf.Instruction{
		bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: multiplier},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: uint32(32 - bits.Len(uint(sample-1)))},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: Drop},
	}
}

// mask has the bits of a number of Chosen that are 0 in one of sample.
func mask(sample int) uint32 { return ^uint32(0) << (32 - bits.Len(uint(sample-1))) }

// Ends adds the two ends, one that keeps and one that drops.
func Ends(p []bpf.Instruction) []bpf.Instruction {
	p = append(p, bpf.RetConstant{Val: KeepBytes}, bpf.RetConstant{Val: 0})
	for i, in := range p {
		away := uint8(len(p) - 2 - i)
		switch j := in.(type) {
		case bpf.JumpIf:
			if j.SkipTrue == Drop {
				j.SkipTrue = away
			}
			p[i] = j
		case bpf.JumpIfX:
			if j.SkipTrue == Drop {
				j.SkipTrue = away
			}
			p[i] = j
		}
	}
	return p
}

// Assemble makes a filter of its instructions.
func Assemble(p []bpf.Instruction) ([]bpf.RawInstruction, error) {
	raw, err := bpf.Assemble(p)
	if err != nil {
		return nil, fmt.Errorf("make a filter of packets: %w", err)
	}
	return raw, nil
}

// EtherType is that of a version of IP.
func EtherType(version int) uint16 {
	if version == 6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}
