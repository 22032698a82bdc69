package natrules

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// match is a condition of x_tables.
func (s *step) match(name string, revision uint32, data []byte) {
	switch {
	case name == "comment":
		text, _, _ := bytes.Cut(data, []byte{0})
		s.comment = string(text)
	case name == "addrtype" && isLocalDestination(revision, data):
		s.rule.LocalDestination, s.cause = true, name
	case name == "multiport" && revision == 1 && len(data) >= 48:
		s.multiport(data)
	case name == "tcp" && revision == 0 && len(data) >= 12:
		if data[9] == tcpSYN|tcpRST && data[10] == tcpSYN && data[11] == 0 { // flags looked at, and set
			s.further.SYN = true
		} else if data[9] != 0 {
			s.rule.Partial, s.cause = true, "tcp flags"
		}
		s.ports(data, data[8] == 0 && data[11] == 0) // option, inverted
	case name == "udp" && revision == 0 && len(data) >= 9:
		s.ports(data, data[8] == 0)
	default:
		s.rule.Partial, s.cause = true, name
		s.rule.Marked = s.rule.Marked || name == "mark" || name == "connmark"
	}
}

// isLocalDestination reads struct xt_addrtype_info and xt_addrtype_info_v1: masks of
// types for the source and the destination, then flags of 32 bits that invert and limit
// them (two, or one).
func isLocalDestination(revision uint32, data []byte) bool {
	const local = 1 << unix.RTN_LOCAL
	size := map[uint32]int{0: 12, 1: 8}[revision]
	return size != 0 && len(data) >= size &&
		binary.NativeEndian.Uint16(data) == 0 && binary.NativeEndian.Uint16(data[2:]) == local &&
		len(bytes.Trim(data[4:size], "\x00")) == 0
}

// multiport reads struct xt_multiport_v1: what is compared (0: sources, 1: destinations), how
// many ports, 15 of them, which begin a range, inverted.
func (s *step) multiport(data []byte) {
	const rangesAt, invertedAt = 32, 47
	count := int(data[1])
	ports := map[byte]*[][2]uint16{0: &s.further.SourcePorts, 1: &s.further.Ports}[data[0]]
	if ports == nil || data[invertedAt] != 0 || count > 15 || len(*ports) > 0 {
		s.rule.Partial, s.cause = true, "multiport"
		return
	}
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2+2*i:]) }
	for i := 0; i < count; i++ {
		p := [2]uint16{port(i), port(i)}
		if data[rangesAt+i] != 0 && i+1 < count {
			i++
			p[1] = port(i)
		}
		*ports = append(*ports, p)
	}
}

// ports is what struct xt_tcp and struct xt_udp begin with: source and destination
// ports, from and to, in the machine's byte order. plain says that the match has
// no other condition.
func (s *step) ports(data []byte, plain bool) {
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2*i:]) }
	anySource := port(0) == 0 && port(1) == 0xffff
	anyDest := port(2) == 0 && port(3) == 0xffff
	if !anySource {
		s.further.SourcePorts = append(s.further.SourcePorts, [2]uint16{port(0), port(1)})
	}
	switch {
	case !plain:
		s.rule.Partial = true
	case anyDest:
	case port(2) == port(3):
		s.setPort(port(2))
	default:
		s.further.Ports = append(s.further.Ports, [2]uint16{port(2), port(3)})
	}
}

// setPort notes a destination port; 0, which no connection has, is no value for it.
func (s *step) setPort(port uint16) {
	if port == 0 || s.rule.DestinationPort != 0 && s.rule.DestinationPort != port {
		s.rule.Partial = true
		return
	}
	s.rule.DestinationPort = port
}
