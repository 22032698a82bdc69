package natrules

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// segments runs the expressions of rules that bound TCP's segments: what the route
// takes, in the byte order of the header, is written into an option of the header.
func (m *machine) segments(e kernelExpr) {
	switch a := e.data; {
	case e.name == "rt" && a.u32(unix.NFTA_RT_KEY) == unix.NFT_RT_TCPMSS:
		m.load(a.u32(unix.NFTA_RT_DREG), content{from: routeMSS}, 2)
	case e.name == "byteorder" && m.held(a.u32(unix.NFTA_BYTEORDER_SREG)).from == routeMSS:
		m.load(a.u32(unix.NFTA_BYTEORDER_DREG), content{from: routeMSS}, 2)
	case e.name == "exthdr" && writesMSS(a):
		m.step.bounds(m.held(a.u32(unix.NFTA_EXTHDR_SREG)))
	default:
		m.unknown(e.name)
	}
}

// writesMSS: the maximum segment size, which follows kind and length of the option
// (RFC 9293, section 3.2). The kernel lowers it only (nft_exthdr_tcp_set_eval).
func writesMSS(a attrs) bool {
	const maxSegment = 2 // TCPOPT_MAXSEG
	return a.has(unix.NFTA_EXTHDR_SREG) && a.u32(unix.NFTA_EXTHDR_OP) == unix.NFT_EXTHDR_OP_TCPOPT &&
		bytes.Equal(a.get(unix.NFTA_EXTHDR_TYPE), []byte{maxSegment}) &&
		a.u32(unix.NFTA_EXTHDR_OFFSET) == 2 && a.u32(unix.NFTA_EXTHDR_LEN) == 2
}

// bounds notes what segments are bounded to.
func (s *step) bounds(c content) {
	switch {
	case c.from == routeMSS:
		s.other, s.clampMSS = "tcp option maxseg size set rt mtu", true
	case c.from == constant && len(c.data) >= 2:
		s.mss = beUint16(c.data)
		s.other = fmt.Sprintf("tcp option maxseg size set %d", s.mss)
	default:
		s.rule.Partial, s.cause = true, "exthdr"
	}
}

// isFlags: TCP's flags, of which a mask keeps some.
func (c content) isFlags() bool {
	return c.from == payload && c.base == payloadTransport && c.offset == 13 && c.length == 1 && len(c.mask) == 1
}

// TCP's flags as the header has them.
const tcpSYN, tcpRST = 0x02, 0x04

// syn notes that a rule is for the SYNs of both hosts: tcp flags & (syn|rst) == syn, or,
// as people write it, tcp flags syn. A SYN with a RST nobody sends.
func (s *step) syn(c content, op uint32, data []byte) bool {
	if len(data) != 1 {
		return false
	}
	is, not := op == 0, op == 1 // NFT_CMP_EQ, NFT_CMP_NEQ
	switch mask := c.mask[0]; {
	case is && mask == tcpSYN|tcpRST && data[0] == tcpSYN, is && mask == tcpSYN && data[0] == tcpSYN, not && mask == tcpSYN && data[0] == 0:
		s.further.SYN = true
		return true
	}
	return false
}

// besides are the targets of x_tables that do something else than NAT and that a
// gateway has words for. struct xt_ct_target_info and its later forms begin with flags
// of 16 bits (xt_CT.h), struct xt_tcpmss_info with the number, of which the largest is
// that of the route (XT_TCPMSS_CLAMP_PMTU).
func (s *step) besides(name string, data []byte) {
	const notrack, clamp = 1, 0xffff // XT_CT_NOTRACK
	number := uint16(0)
	if len(data) >= 2 {
		number = binary.NativeEndian.Uint16(data)
	}
	switch name {
	case "NOTRACK":
		s.notrack = true
	case "CT":
		s.notrack = number&notrack != 0
	case "TCPMSS":
		if s.clampMSS = number == clamp; !s.clampMSS {
			s.mss = number
		}
	}
}
