package behaviour

import (
	"fmt"
	"net/netip"
	"strings"
)

// filtering probes a mapping from the ends that were not addressed.
func filtering(p *Play, f ipFamily) (Outcome, error) {
	mapped, err := p.both(f.a, f.x)
	if err != nil {
		return "", err
	}
	otherPort, err := p.in(f.x.port(5001), mapped, f.a)
	if err != nil {
		return "", err
	}
	otherAddress, err := p.in(f.y, mapped, f.a)
	switch {
	case otherPort && otherAddress:
		return EndpointIndependent, err
	case otherPort:
		return AddressDependent, err
	case otherAddress:
		return "", fmt.Errorf("%v reaches the mapping of %v, but another port of %v does not", f.y, f.x, f.x.Addr())
	}
	return AddressAndPortDependent, err
}

func hairpinDynamic(p *Play) (Outcome, error) {
	mapped, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	arrivals, err := p.Send(B, UDPPacket(insideB.AddrPort, mapped, ""))
	return yes(len(arrivals.At(A)) > 0, "delivered", "not delivered"), err
}

// forwarded is what forwardHairpin sends to A's port 80.
var forwarded = netip.MustParseAddrPort("203.0.113.7:8000")

// hairpin sends from B to the address that is forwarded to A.
func (p *Play) hairpin() (*Arrival, error) {
	got, err := p.Exchange(B, A, UDPPacket(insideB.AddrPort, forwarded, ""))
	if err != nil {
		return nil, err
	}
	if d := got.Frame.Tuple().Dst; d != ap("192.168.0.2:80") {
		return nil, fmt.Errorf("arrived for %v", d)
	}
	return got, nil
}

func hairpinForwarded(p *Play) (Outcome, error) {
	_, err := p.hairpin()
	if Lost(err) {
		return "not delivered", nil
	}
	return "delivered", err
}

func hairpinSource(p *Play) (Outcome, error) {
	got, err := p.hairpin()
	if err != nil {
		return "", err
	}
	source := got.Frame.Tuple().Src
	if !WANAddress.Contains(source.Addr()) {
		return Outcome("source " + source.Addr().String()), nil
	}
	back, err := p.Exchange(A, B, got.Back("answer"))
	if err != nil {
		return "", err
	}
	t := back.Frame.Tuple()
	return yes(t.Src == forwarded && t.Dst == insideB.AddrPort, "external", Outcome("answered as "+t.Src.String())), nil
}

// applications are protocols for which NATs are known to have application level
// gateways, by port, with what one of them would change or learn from: addresses and
// ports in the payload.
var applications = map[uint16]string{
	5060: "INVITE sip:b@example.net SIP/2.0\r\nVia: SIP/2.0/UDP 192.168.0.2:5060\r\nContact: <sip:a@192.168.0.2:4000>\r\nContent-Type: application/sdp\r\nContent-Length: 71\r\n\r\nv=0\r\no=a 1 1 IN IP4 192.168.0.2\r\nc=IN IP4 192.168.0.2\r\nm=audio 4002 RTP/AVP 0\r\n",
	69:   "\x00\x01file\x00octet\x00",
	161:  "\x30\x1c\x02\x01\x00\x04\x06public\xa4\x0f\x40\x04\xc0\xa8\x00\x02",
	137:  "\x00\x01\x00\x00\x00\x01\xc0\xa8\x00\x02",
}

func noALG(p *Play) (Outcome, error) {
	for port, payload := range applications {
		got, err := p.Exchange(A, X, UDPPacket(insideA.AddrPort, outsideX.port(port).AddrPort, payload))
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(string(got.Frame.Payload), payload) || len(got.Frame.Payload) != len(payload) {
			return Outcome(fmt.Sprintf("the payload to port %d changes", port)), nil
		}
		// TFTP's server answers from another port; media come to the port in SDP.
		for _, to := range []uint16{got.Frame.Tuple().Src.Port(), 4002} {
			came, err := p.Send(X, UDPPacket(outsideX.port(6000).AddrPort, netip.AddrPortFrom(got.Frame.Source, to), ""))
			if err != nil {
				return "", err
			}
			if len(came.At(A)) > 0 {
				return Outcome(fmt.Sprintf("a flow to port %d lets in another", port)), nil
			}
		}
	}
	return "off", nil
}
