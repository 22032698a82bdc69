package behaviour

import (
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// tcpSeenAs opens a connection, and gives the source that it has outside.
func tcpSeenAs(p *Play, from, to end) (netip.AddrPort, error) {
	c := between(p, from, to)
	err := c.open(&c.inside)
	return c.outside.peer, err
}

func tcpMappingOf(p *Play) (Outcome, error) {
	var seen [3]netip.AddrPort
	for i, to := range []end{outsideX, outsideX.port(444), outsideY} {
		var err error
		if seen[i], err = tcpSeenAs(p, insideA, to); err != nil {
			return verdict("", err)
		}
	}
	return classify(seen[0], seen[1], seen[2]), nil
}

// tcpOverloading lets two hosts with the same port call two destinations, then one.
func tcpOverloading(p *Play) (Outcome, error) {
	var seen [3]netip.AddrPort
	for i, ends := range [][2]end{{insideA, outsideX}, {insideB, outsideY}, {insideB, outsideX}} {
		var err error
		if seen[i], err = tcpSeenAs(p, ends[0], ends[1]); err != nil {
			return verdict("", err)
		}
	}
	switch seen[0] {
	case seen[2]:
		return "shared for one destination", nil
	case seen[1]:
		return "shared for different destinations", nil
	}
	return "none shared", nil
}

// tcpFiltering opens a connection to X and lets others call its mapping.
func tcpFiltering(p *Play) (Outcome, error) {
	c, err := dial(p)
	if err != nil {
		return verdict("", err)
	}
	admitted := func(from end) (bool, error) {
		other := toInside(p, from, c.outside.peer, insideA)
		arrivals, err := p.Send(from.host, other.segment(&other.outside, frame.SYN, "").bytes())
		return len(arrivals.At(A)) > 0, err
	}
	anybody, err := admitted(outsideY)
	if err != nil || anybody {
		return EndpointIndependent, err
	}
	same, err := admitted(outsideX.port(9999))
	return yes(same, AddressDependent, AddressAndPortDependent), err
}

// silence is how long a gateway does not answer an unsolicited SYN.
const silence = 6 * time.Second

func unsolicitedSYN(p *Play) (Outcome, error) {
	c := toInside(p, outsideX, ap("203.0.113.1:4000"), insideA)
	arrivals, err := p.Send(X, c.segment(&c.outside, frame.SYN, "").bytes())
	if err != nil || len(arrivals) > 0 {
		return "answered at once: " + Outcome(arrivals.kinds()), err
	}
	if err := p.Pass(silence + time.Second); err != nil {
		return "", err
	}
	// What the gateway itself sends arrives with the answer to something else.
	arrivals, err = p.Send(Y, UDPPacket(outsideY.AddrPort, ap("198.18.0.99:9"), ""))
	if err != nil {
		return "", err
	}
	for i := range arrivals {
		if f := &arrivals[i].Frame; f.ICMPError() && f.ICMP.Code == portUnreachable {
			return "port unreachable after 6 s", nil
		}
	}
	return "silent", nil
}

// kinds says what arrived, without where.
func (a Arrivals) kinds() string {
	s := ""
	for i := range a {
		s += " and " + kindOf(&a[i].Frame)
	}
	if s == "" {
		return "nothing"
	}
	return s[len(" and "):]
}

// crossedByUnsolicited has the outside's SYN come first, and then that of the inside.
func crossedByUnsolicited(p *Play) (Outcome, error) {
	early := toInside(p, outsideX, ap("203.0.113.1:4000"), insideA)
	if _, err := p.Send(X, early.segment(&early.outside, frame.SYN, "").bytes()); err != nil {
		return "", err
	}
	c, err := dial(p)
	if err != nil {
		return verdict("", err)
	}
	return yes(c.outside.peer.Port() == insideA.Port(), "opens with its own port", "opens with another port"), nil
}

// ftpCommand sends what FTP's helper would rewrite.
func ftpCommand(p *Play) (Outcome, error) {
	c := between(p, insideA, outsideX.port(21))
	return verdict(Untouched, inTurn(
		func() error { return c.open(&c.inside) },
		func() error { return c.say(&c.outside, frame.PSH|frame.ACK, "220 ready\r\n") },
		func() error { return c.say(&c.inside, frame.PSH|frame.ACK, "PORT 192,168,0,2,15,160\r\n") },
	))
}
