package follow

import (
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/tap"
)

// firstPackets keeps, of packets in both directions that are not for other hosts, the TCP
// segments of handshakes of one in sample connections, and, if datagrams is set, UDP and ICMP.
func firstPackets(sample int, datagrams bool) ([]bpf.RawInstruction, error) {
	v4, v6 := version(4, sample, datagrams), version(6, sample, datagrams)
	head := tap.Ends([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: tap.Drop},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: tap.Drop},
		bpf.Jump{Skip: uint32(len(v4)) + 2},
	})
	// The two ends of head are passed over; its keeping one is never reached.
	return tap.Assemble(slices.Concat(head, v4, v6))
}

// version decides on packets of one version of IP, which begin with its header.
func version(v, sample int, datagrams bool) []bpf.Instruction {
	protocolAt, icmp := uint32(9), uint32(unix.IPPROTO_ICMP)
	if v == 6 {
		protocolAt, icmp = 6, unix.IPPROTO_ICMPV6
	}
	others := uint32(0)
	if datagrams {
		others = tap.KeepBytes
	}
	return slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmp, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: others},
	}, tap.Ends(slices.Concat(tap.TCP(v), handshake, tap.Chosen(sample))))
}

// handshake keeps SYNs, SYN-ACKs, and RSTs that acknowledge something, by their flags in A, and
// loads the initial sequence number that they are about. X is the offset of the TCP header.
var handshake = []bpf.Instruction{
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(frame.SYN | frame.ACK | frame.RST)},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.SYN), SkipTrue: 3},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.SYN | frame.ACK), SkipTrue: 4},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(frame.RST | frame.ACK), SkipTrue: tap.Drop},
	bpf.Jump{Skip: 2},
	bpf.LoadIndirect{Off: 4, Size: 4}, // the sequence number
	bpf.Jump{Skip: 2},
	bpf.LoadIndirect{Off: 8, Size: 4}, // the acknowledgment number
	bpf.ALUOpConstant{Op: bpf.ALUOpSub, Val: 1},
}
