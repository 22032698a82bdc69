package packets

import (
	"github.com/natkit/natkit/internal/frame"
	"golang.org/x/sys/unix"
)

// Build appends one of the frames that s describes: headers, token and zeros, length bytes in all
// without FCS, at least HeaderLen. flags are those of a TCP segment; t is of s's family. It is
// the reference for the generator's eBPF program.
func Build(b []byte, link frame.Link, s *Spec, t frame.Tuple, token Token, length int, flags frame.TCPFlags) []byte {
	etherType := uint16(frame.EtherTypeIPv4)
	if s.IPv6 {
		etherType = frame.EtherTypeIPv6
	}
	payload := make([]byte, TokenLen+max(0, length-s.HeaderLen()))
	token.Put(payload)
	var segment []byte
	if s.Protocol == unix.IPPROTO_TCP {
		segment = frame.AppendTCP(nil, t, tcpHeader(token.Flow, flags), payload)
	} else {
		segment = frame.AppendUDP(nil, t, payload, false)
	}
	ip := frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: s.Protocol, TTL: s.HopLimit, DSCP: s.DSCP, DontFragment: true}
	return ip.Append(link.Append(b, s.VLAN, etherType), segment)
}

// tcpHeader returns the header of a segment at the start of its flow's sequence space. The
// initial sequence number is the flow's number times 0x9e3779b1 (2^32 divided by the golden
// ratio), which spreads flows; only SYNs have it, others the next one.
func tcpHeader(flow uint32, flags frame.TCPFlags) frame.TCP {
	h := frame.TCP{SequenceNumber: flow * 0x9e3779b1, Flags: flags, Window: 0xffff}
	if flags&frame.SYN == 0 {
		h.SequenceNumber++
	}
	if flags&frame.ACK != 0 {
		h.AcknowledgmentNumber = 1
	}
	return h
}
