package behaviour

import (
	"fmt"
	"net/netip"
)

// classify names the mapping behaviour by three mappings of one inside end: that to
// some destination, to another port of the same address, and to another address.
func classify(first, otherPort, otherAddress netip.AddrPort) Outcome {
	switch {
	case first != otherPort:
		return AddressAndPortDependent
	case first != otherAddress:
		return AddressDependent
	}
	return EndpointIndependent
}

func (p *Play) classifyMapping(from end, to ...end) (Outcome, error) {
	var seen [3]netip.AddrPort
	for i := range seen {
		var err error
		if seen[i], err = p.both(from, to[i]); err != nil {
			return "", err
		}
	}
	return classify(seen[0], seen[1], seen[2]), nil
}

func mappingAlone(p *Play, f ipFamily) (Outcome, error) {
	return p.classifyMapping(f.a, f.x, f.x.port(5001), f.y)
}

// mappingUnderContention has A begin, then B talk from the same port to the other
// destinations before A does. Where mappings are for all destinations, B has got
// another port at once, and A keeps its.
func mappingUnderContention(p *Play, f ipFamily) (Outcome, error) {
	first, err := p.both(f.a, f.x)
	if err != nil {
		return "", err
	}
	for _, to := range []end{f.x.port(5001), f.y} {
		if _, err := p.both(f.b, to); err != nil {
			return "", err
		}
	}
	otherPort, err := p.both(f.a, f.x.port(5001))
	if err != nil {
		return "", err
	}
	otherAddress, err := p.both(f.a, f.y)
	return classify(first, otherPort, otherAddress), err
}

func determinism(p *Play) (Outcome, error) {
	alone, err := p.classifyMapping(insideA.port(4002), outsideX, outsideX.port(5001), outsideY)
	if err != nil {
		return "", err
	}
	contended, err := mappingUnderContention(p, four)
	if alone == contended {
		return "the same alone and under contention", err
	}
	return alone + " alone, " + contended + " under contention", err
}

// pooling has each of some hosts talk to many destinations from many ports, none of them
// another's.
func pooling(p *Play, f ipFamily) (Outcome, error) {
	addresses := map[netip.Addr]bool{}
	for i := range 16 {
		own := map[netip.Addr]bool{}
		for n := range uint16(8) {
			to := f.x.port(5000 + n)
			for range n {
				to.AddrPort = netip.AddrPortFrom(to.Addr().Next(), to.Port())
			}
			mapped, err := p.out(f.hostIn(i, uint16(4000+16*i)+n), to)
			if err != nil {
				return "", err
			}
			own[mapped.Addr()], addresses[mapped.Addr()] = true, true
		}
		if len(own) > 1 {
			return "arbitrary", nil
		}
	}
	if len(addresses) < 2 {
		return "", fmt.Errorf("16 hosts have all got %v: pooling cannot be tested with one address", addresses)
	}
	return "paired", nil
}

// insideHost is the n-th host in the LAN, counted from 0.
func insideHost(n int, port uint16) end {
	host := A
	if n%2 == 1 {
		host = B
	}
	return end{host, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + n)}), port)}
}

// hostIn is insideHost in a family.
func (f ipFamily) hostIn(n int, port uint16) end {
	e := insideHost(n, port)
	if f.a.Addr().Is6() {
		b := f.a.Addr().As16()
		b[15] = byte(2 + n)
		e.AddrPort = netip.AddrPortFrom(netip.AddrFrom16(b), port)
	}
	return e
}

func overloading(p *Play) (Outcome, error) {
	first, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	second, err := p.both(insideB, outsideY)
	return yes(first == second, "overloading", "no overloading"), err
}

func preservation(p *Play) (Outcome, error) {
	for _, port := range []uint16{1, 53, 511, 512, 1023, 1024, 32768, 65535} {
		mapped, err := p.both(insideA.port(port), outsideX)
		if err != nil {
			return "", err
		}
		if mapped.Port() != port {
			return "changed", nil
		}
	}
	return "preserved", nil
}

// portRanges has hosts take the same port at the same destination.
func portRanges(p *Play) (Outcome, error) {
	for _, port := range []uint16{1, 400, 512, 700, 1023, 1024, 40000} {
		for n := range 8 {
			mapped, err := p.both(insideHost(n, port), outsideX)
			if err != nil {
				return "", err
			}
			if (mapped.Port() < 1024) != (port < 1024) {
				return Outcome(fmt.Sprintf("%d became %d", port, mapped.Port())), nil
			}
		}
	}
	return "in its range", nil
}

// parity has 24 hosts take the same port, so that chance looks like a rule once in
// 2^23 times.
func parity(p *Play) (Outcome, error) {
	for n := range 24 {
		mapped, err := p.out(insideHost(n, 4000), outsideX)
		if err != nil {
			return "", err
		}
		if mapped.Port()%2 != 0 {
			return "not preserved", nil
		}
	}
	return "preserved", nil
}
