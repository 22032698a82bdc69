package behaviour

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// end is a host with one of its addresses and a port.
type end struct {
	host Host
	netip.AddrPort
}

func at(h Host, s string) end { return end{h, ap(s)} }

func (e end) port(n uint16) end {
	e.AddrPort = netip.AddrPortFrom(e.Addr(), n)
	return e
}

// The ends that most cases use. insideA and insideB have the same port, as hosts
// that use a protocol's own port have.
var (
	insideA  = at(A, "192.168.0.2:4000")
	insideB  = at(B, "192.168.0.3:4000")
	outsideX = at(X, "198.18.0.10:5000")
	outsideY = at(Y, "198.18.1.20:5000")

	insideA6  = at(A, "[fd00:1::2]:4000")
	insideB6  = at(B, "[fd00:1::3]:4000")
	outsideX6 = at(X, "[2001:db8:f:1::10]:5000")
	outsideY6 = at(Y, "[2001:db8:f:2::20]:5000")
)

// ipFamily are the ends of IPv4 or IPv6.
type ipFamily struct{ a, b, x, y end }

var (
	four = ipFamily{insideA, insideB, outsideX, outsideY}
	six  = ipFamily{insideA6, insideB6, outsideX6, outsideY6}
)

// of makes what runs with the ends of a family run.
func (f ipFamily) of(run func(*Play, ipFamily) (Outcome, error)) func(*Play) (Outcome, error) {
	return func(p *Play) (Outcome, error) { return run(p, f) }
}

// out sends a datagram that has to arrive, and gives the source under which it did.
func (p *Play) out(from, to end) (netip.AddrPort, error) {
	got, err := p.Exchange(from.host, to.host, UDPPacket(from.AddrPort, to.AddrPort, ""))
	if err != nil {
		return netip.AddrPort{}, err
	}
	if t := got.Frame.Tuple(); t.Dst != to.AddrPort {
		return t.Src, fmt.Errorf("%v to %v arrived for %v", from, to, t.Dst)
	}
	return got.Frame.Tuple().Src, nil
}

// in sends a datagram to an address of the gateway, and reports whether it came to the
// end want. What the gateway answers does not matter; that it comes to anybody else, or
// to another port, is an error.
func (p *Play) in(from end, to netip.AddrPort, want end) (bool, error) {
	arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, to, "in"))
	if err != nil {
		return false, err
	}
	came := false
	for i := range arrivals {
		a := &arrivals[i]
		t := a.Frame.Tuple()
		switch {
		case a.At == from.host && a.Frame.ICMPError():
		case a.At == want.host && t.Dst == want.AddrPort && t.Src == from.AddrPort:
			came = true
		default:
			return came, fmt.Errorf("%v to %v arrived elsewhere: %s", from, to, arrivals)
		}
	}
	return came, nil
}

// both sends a datagram out and an answer back, and gives the source outside.
func (p *Play) both(from, to end) (netip.AddrPort, error) {
	mapped, err := p.out(from, to)
	if err != nil {
		return mapped, err
	}
	came, err := p.in(to, mapped, from)
	if err == nil && !came {
		err = fmt.Errorf("the answer of %v to %v did not come to %v", to, mapped, from)
	}
	return mapped, err
}

// mapping is the one of an inside end, of UDP.
func (p *Play) mapping(inside netip.AddrPort) (Mapping, error) {
	all, err := p.Mappings()
	if err != nil {
		return Mapping{}, err
	}
	var found []Mapping
	for _, m := range all {
		if m.Inside == inside && m.Protocol == unix.IPPROTO_UDP {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		return Mapping{}, fmt.Errorf("%d mappings of %v, expected one: %+v", len(found), inside, all)
	}
	return found[0], nil
}

// yes makes an outcome of a truth.
func yes(ok bool, is, isNot Outcome) Outcome {
	if ok {
		return is
	}
	return isNot
}
