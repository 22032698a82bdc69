package pcap

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/unix"
)

// decode fills in p.Frame and what follows from it, and counts.
func (s *stream) decode(p *Packet) {
	if p.Reason == Decoded {
		p.Reason = s.decodeFrame(p)
	}
	if p.Reason != Decoded {
		s.seen.undecoded(p)
		return
	}
	s.seen.frame(&p.Frame)
	switch p.Frame.Transport {
	case unix.IPPROTO_TCP:
		p.TSVal, p.TSEcr, p.HasTimestamps = p.Frame.TCP.Timestamps()
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		p.HasQuoted = p.Frame.ICMPError() && p.Frame.Quoted(&p.Quoted) == nil
	}
}

func (s *stream) decodeFrame(p *Packet) Reason {
	etherType, reason := s.header.networkOf(s.s.Interfaces[p.Interface].LinkType, p.Data)
	if reason != Decoded {
		return reason
	}
	err := p.Frame.DecodeNetwork(etherType, s.header.b)
	if err == nil || p.Frame.Version != 0 && p.Frame.Fragment.Is() {
		return Decoded
	}
	var cut *frame.CutError
	if errors.As(err, &cut) {
		return CutHeader
	}
	return MalformedHeader
}

// icmpErrors counts error messages by sender and kind.
type icmpErrors map[icmpKey]*ICMPError

type icmpKey struct {
	from                netip.Addr
	version, kind, code uint8
}

// maxICMP bounds the kinds of messages that are counted.
const maxICMP = 4096

// quoted takes an ICMP error message, and ties it to the connection that it is about.
func (t *tracker) quoted(p *Packet) {
	f := &p.Frame
	id := icmpKey{f.Source, f.Version, f.ICMP.Type, f.ICMP.Code}
	e := t.icmp[id]
	if e == nil {
		if len(t.icmp) == maxICMP {
			return
		}
		e = &ICMPError{From: f.Source, Version: f.Version, Type: f.ICMP.Type, Code: f.ICMP.Code,
			Name: icmpName(f.Version, f.ICMP.Type, f.ICMP.Code), First: p.Number}
		t.icmp[id] = e
	}
	e.Count++
	e.MTU = max(e.MTU, mtuOf(f))
	if p.Quoted.Transport == unix.IPPROTO_TCP {
		t.aboutConnection(p, e)
	}
}

func mtuOf(f *frame.Frame) int {
	switch {
	case f.Version == 4 && f.ICMP.Type == 3 && f.ICMP.Code == 4: // RFC 1191
		return int(f.ICMP.Rest & 0xffff)
	case f.Version == 6 && f.ICMP.Type == 2: // RFC 4443, section 3.2
		return int(min(f.ICMP.Rest, 1<<31-1))
	}
	return 0
}

// aboutConnection makes an incident of a message about a connection that is known.
func (t *tracker) aboutConnection(p *Packet, e *ICMPError) {
	q := &p.Quoted
	k, dir := keyOf(q.Source, q.Destination, q.TCP.SourcePort, q.TCP.DestinationPort)
	c, ok := t.table.Peek(k)
	if !ok {
		return
	}
	if !c.icmp {
		c.icmp = true
		e.Flows++
	}
	if !t.kept.wants(ICMPErrorKind) {
		return
	}
	one := *e
	one.Count, one.Flows, one.First, one.MTU = 1, 1, p.Number, mtuOf(&p.Frame)
	i := c.incident(ICMPErrorKind, c.opener(dir), p.Number, p.At, c.remembered(), nil)
	i.ICMP = &one
	t.kept.add(i)
}

// list has the most frequent first.
func (e icmpErrors) list() []ICMPError {
	list := make([]ICMPError, 0, len(e))
	for _, one := range e {
		list = append(list, *one)
	}
	slices.SortFunc(list, func(a, b ICMPError) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.First, b.First))
	})
	return list
}

// icmpNames are the words of RFC 792, 1122, 1191, 1812 and 4443, by version, type and code.
var icmpNames = map[[3]uint8]string{
	{4, 3, 0}: "network unreachable", {4, 3, 1}: "host unreachable", {4, 3, 2}: "protocol unreachable",
	{4, 3, 3}: "port unreachable", {4, 3, 4}: "fragmentation needed", {4, 3, 5}: "source route failed",
	{4, 3, 6}: "destination network unknown", {4, 3, 7}: "destination host unknown",
	{4, 3, 9}: "network prohibited", {4, 3, 10}: "host prohibited", {4, 3, 13}: "communication prohibited",
	{4, 4, 0}: "source quench", {4, 5, 0}: "redirect for network", {4, 5, 1}: "redirect for host",
	{4, 11, 0}: "time to live exceeded", {4, 11, 1}: "fragment reassembly time exceeded", {4, 12, 0}: "parameter problem",
	{6, 1, 0}: "no route", {6, 1, 1}: "communication prohibited", {6, 1, 2}: "beyond scope of source address",
	{6, 1, 3}: "address unreachable", {6, 1, 4}: "port unreachable", {6, 1, 5}: "source address failed policy",
	{6, 1, 6}: "reject route", {6, 2, 0}: "packet too big", {6, 3, 0}: "hop limit exceeded",
	{6, 3, 1}: "fragment reassembly time exceeded", {6, 4, 0}: "erroneous header field",
	{6, 4, 1}: "unrecognized next header", {6, 4, 2}: "unrecognized option",
}

func icmpName(version, kind, code uint8) string {
	if name, ok := icmpNames[[3]uint8{version, kind, code}]; ok {
		return name
	}
	return fmt.Sprintf("type %d code %d", kind, code)
}
