package behaviour

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// errorAbout composes an ICMP error from a router or host about a packet. It quotes the
// IP header and eight bytes (RFC 792).
func errorAbout(from netip.Addr, about *Arrival, h frame.ICMP) []byte {
	quote := about.Packet[:min(len(about.Packet), frame.IPv4Len+8)]
	ip := frame.IP{Source: from, Destination: about.Frame.Source, Protocol: unix.IPPROTO_ICMP}
	return ip.Append(nil, frame.AppendICMP(nil, from, about.Frame.Source, h, quote))
}

// kindsOfError are all types that quote a packet, with some codes (RFC 792, 1122,
// 1812).
func kindsOfError() []frame.ICMP {
	var all []frame.ICMP
	for code := range uint8(16) {
		all = append(all, frame.ICMP{Type: 3, Code: code, Rest: 1400})
	}
	return append(all, frame.ICMP{Type: 4}, frame.ICMP{Type: 11}, frame.ICMP{Type: 11, Code: 1},
		frame.ICMP{Type: 12, Rest: 20 << 24}, frame.ICMP{Type: 12, Code: 1})
}

func icmpKeepsMapping(p *Play) (Outcome, error) {
	got, err := p.Exchange(A, X, UDPPacket(insideA.AddrPort, outsideX.AddrPort, ""))
	if err != nil {
		return "", err
	}
	for _, from := range []end{outsideX, outsideY} {
		for _, kind := range kindsOfError() {
			if _, err := p.Send(from.host, errorAbout(from.Addr(), got, kind)); err != nil {
				return "", err
			}
			came, err := p.in(outsideX, got.Frame.Tuple().Src, insideA)
			if err != nil {
				return "", err
			}
			if !came {
				return Outcome(fmt.Sprintf("ended by type %d code %d from %v", kind.Type, kind.Code, from.Addr())), nil
			}
		}
	}
	return "kept", nil
}

// unreachable has a mapping of A answered by port unreachable from some host outside,
// and gives what A sees.
func (p *Play) unreachable(from end) (Arrivals, error) {
	got, err := p.Exchange(A, X, UDPPacket(insideA.AddrPort, outsideX.AddrPort, "what is quoted"))
	if err != nil {
		return nil, err
	}
	arrivals, err := p.Send(from.host, errorAbout(from.Addr(), got, frame.ICMP{Type: 3, Code: 3}))
	return arrivals.At(A), err
}

func icmpFromRouter(p *Play) (Outcome, error) {
	arrivals, err := p.unreachable(outsideY)
	if err != nil || len(arrivals) == 0 {
		return "filtered", err
	}
	return yes(arrivals[0].Frame.Source == outsideY.Addr(), "delivered", Outcome("delivered as from "+arrivals[0].Frame.Source.String())), nil
}

func icmpUnreachable(p *Play) (Outcome, error) {
	arrivals, err := p.unreachable(outsideX)
	if err != nil || len(arrivals) != 1 {
		return "not delivered", err
	}
	var inner frame.Frame
	if err := arrivals[0].Frame.Quoted(&inner); err != nil {
		return "", err
	}
	t := inner.Tuple()
	ok := arrivals[0].Frame.Destination == insideA.Addr() && t.Src == insideA.AddrPort && t.Dst == outsideX.AddrPort
	return yes(ok, "translated", Outcome("came as "+line(&arrivals[0].Frame))), nil
}

const narrow = 1280

// big is a datagram that fits the LAN and not the way out.
func big(dontFragment bool) []byte {
	ip := frame.IP{Source: insideA.Addr(), Destination: outsideX.Addr(), Protocol: unix.IPPROTO_UDP, DontFragment: dontFragment, Identification: 4787}
	t := frame.Tuple{Src: insideA.AddrPort, Dst: outsideX.AddrPort}
	return ip.Append(nil, frame.AppendUDP(nil, t, []byte(strings.Repeat("big", 450)), false))
}

func tooBig(p *Play) (Outcome, error) {
	if err := p.MTU(WAN, narrow); err != nil {
		return "", err
	}
	arrivals, err := p.Send(A, big(true))
	if err != nil || len(arrivals) != 1 || arrivals[0].At != A {
		return Outcome("arrived: " + arrivals.String()), err
	}
	f := &arrivals[0].Frame
	var inner frame.Frame
	if err := f.Quoted(&inner); err != nil {
		return "", err
	}
	ok := f.ICMP.Type == 3 && f.ICMP.Code == 4 && f.ICMP.Rest&0xffff == narrow &&
		f.Source == LANAddress.Addr() && inner.Tuple().Src == insideA.AddrPort
	return yes(ok, "answered, with the MTU", Outcome("answered by "+line(f))), nil
}

func fragmentsOut(p *Play) (Outcome, error) {
	if err := p.MTU(WAN, narrow); err != nil {
		return "", err
	}
	arrivals, err := p.Send(A, big(false))
	if err != nil {
		return "", err
	}
	length := 0
	for i := range arrivals {
		f := &arrivals[i].Frame
		if arrivals[i].At != X || f.Source != WANAddress.Addr() || !f.Fragment.Is() || len(arrivals[i].Packet) > narrow {
			return Outcome("arrived: " + arrivals.String()), nil
		}
		if f.Fragment.Offset != length {
			return "fragmented, not in order", nil
		}
		length += len(arrivals[i].Packet) - frame.IPv4Len
	}
	return yes(length == frame.UDPLen+1350, "fragmented, in order", Outcome(fmt.Sprintf("%d bytes arrived", length))), nil
}
