package pcap

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
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
		p.TSVal, p.TSEcr, p.HasTimestamps = timestamps(&p.Frame.TCP)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		p.HasQuoted = p.Frame.ICMPError() && p.Frame.Quoted(&p.Quoted) == nil
	}
}

func (s *stream) decodeFrame(p *Packet) Reason {
	link := s.s.Interfaces[p.Interface].LinkType
	find := ethernet // most often; saves the look-up
	if link != linkEthernet {
		if find = links[link].network; find == nil {
			return UnknownLinkType
		}
	}
	etherType, b, reason := find(p.Data)
	if reason != Decoded {
		return reason
	}
	err := p.Frame.DecodeNetwork(etherType, b)
	if err == nil || p.Frame.Version != 0 && p.Frame.Fragment.Is() {
		return Decoded
	}
	var cut *packet.CutError
	if errors.As(err, &cut) {
		return CutHeader
	}
	return MalformedHeader
}

// timestamps looks first where nearly all segments have them: behind two NOPs
// (RFC 7323, appendix A).
func timestamps(t *packet.TCP) (value, echo uint32, ok bool) {
	if o := t.Options; len(o) >= 12 && binary.BigEndian.Uint32(o) == 0x0101080a {
		return binary.BigEndian.Uint32(o[4:]), binary.BigEndian.Uint32(o[8:]), true
	}
	if len(t.Options) == 0 {
		return 0, 0, false
	}
	return t.Timestamps()
}
