package behaviour

import (
	"slices"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

func icmpQueries() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "rfc5508-req-1", RFC: 5508, Requirement: "REQ-1", Level: Must, Want: []Outcome{"answered with its identifier"},
			Asks: "an echo from inside goes out and its reply comes back with the identifier and the data that were sent"}, echoes),
		bothFamilies(Case{ID: "rfc5508-req-1-a", RFC: 5508, Requirement: "REQ-1 a", Level: Should, Want: []Outcome{EndpointIndependent},
			Asks: "an identifier is mapped to the same one for all destinations"}, identifierMapping),
		bothFamilies(Case{ID: "rfc5508-req-1-a-contended", RFC: 5508, Requirement: "REQ-1 a", Level: Should, Want: []Outcome{EndpointIndependent},
			Asks: "so it is where another host inside uses it with one of the destinations",
			Expect: onNetfilter("address-dependent",
				"a mapping belongs to one query session: the identifier is kept where the tuple is free, and another is taken where it is not")}, identifierContended),
		bothFamilies(Case{ID: "icmp-same-identifier", Level: Natkit, Want: []Outcome{"each its own reply"},
			Asks: "two hosts inside that ask one destination with the same identifier get each its own reply"}, sameIdentifier),
		[]Case{{
			ID: "rfc5508-req-1-timestamp", RFC: 5508, Requirement: "REQ-1", Level: Must, Want: []Outcome{"answered"},
			Asks: "Timestamp and its reply pass, too", Run: timestampQuery,
		}},
		bothFamilies(Case{ID: "rfc5508-req-2", RFC: 5508, Requirement: "REQ-2", Level: Must, Want: []Outcome{"at least 1m0s"},
			Asks:   "a query session is kept for 60 s at least",
			Expect: onNetfilter("30 s", "that is the kernel's default; net.netfilter.nf_conntrack_icmp_timeout and …icmpv6_timeout are the administrator's to raise")}, queryTimer),
		bothFamilies(Case{ID: "rfc5508-req-2-a", RFC: 5508, Requirement: "REQ-2 a", Level: Should, Want: []Outcome{"as set"},
			Asks: "that time is configurable"}, queryTimerSet),
	)
}

func echoes(p *Play, e endsOf) (Outcome, error) {
	f, err := flowEcho.start(p, e.a, e.x)
	if err != nil {
		return "", err
	}
	asked, answer := &f.out.got.Frame, &f.in.got.Frame
	ok := asked.Source == e.wan && answer.Source == e.x.Addr() && answer.Destination == e.a.Addr() &&
		answer.ICMP.Identifier() == e.a.Port() && slices.Equal(answer.Payload, asked.Payload)
	return yes(ok, "answered with its identifier", "answered otherwise"), nil
}

// identifiers are those that the echoes of an end have at some destinations.
func identifiers(p *Play, a end, to ...end) ([]uint16, error) {
	var seen []uint16
	for _, x := range to {
		f, err := flowEcho.start(p, a, x)
		if err != nil {
			return nil, err
		}
		seen = append(seen, f.mapped().Port())
	}
	return seen, nil
}

func (e endsOf) y() end {
	if e.v6 {
		return outsideY6
	}
	return outsideY
}

func identifierMapping(p *Play, e endsOf) (Outcome, error) {
	seen, err := identifiers(p, e.a, e.x, e.y())
	if err != nil {
		return "", err
	}
	return yes(seen[0] == seen[1], EndpointIndependent, AddressDependent), nil
}

func identifierContended(p *Play, e endsOf) (Outcome, error) {
	if _, err := identifiers(p, e.b, e.y()); err != nil {
		return "", err
	}
	return identifierMapping(p, e)
}

func sameIdentifier(p *Play, e endsOf) (Outcome, error) {
	ofA, err := flowEcho.start(p, e.a, e.x)
	if err != nil {
		return "", err
	}
	ofB, err := flowEcho.start(p, e.b, e.x)
	if err != nil {
		return "", err
	}
	if ofA.mapped() == ofB.mapped() {
		return "one identifier for both", nil
	}
	// start wants each reply at the host that asked; this is that with its identifier.
	ok := ofA.in.got.Frame.ICMP.Identifier() == e.a.Port() && ofB.in.got.Frame.ICMP.Identifier() == e.b.Port()
	return yes(ok, "each its own reply", "replies with other identifiers"), nil
}

func timestampQuery(p *Play) (Outcome, error) {
	const id = 4000 << 16
	times := make([]byte, 12)
	asked, err := carry(p, insideA, outsideX, icmp(insideA.Addr(), outsideX.Addr(), frame.ICMP{Type: timestampRequest, Rest: id}, times))
	if err != nil {
		return "", err
	}
	seen := &asked.got.Frame
	answer, err := carry(p, outsideX, insideA, icmp(outsideX.Addr(), seen.Source, frame.ICMP{Type: timestampReply, Rest: seen.ICMP.Rest}, times))
	if err != nil {
		return "", err
	}
	return yes(answer.got.Frame.ICMP.Rest == id && seen.Source == WANAddress.Addr(), "answered", "answered otherwise"), nil
}

func queryTimer(p *Play, e endsOf) (Outcome, error) {
	if _, err := flowEcho.start(p, e.a, e.x); err != nil {
		return "", err
	}
	left, found, err := leftOf(p, e.a.AddrPort)
	if err != nil || !found {
		return "no session", err
	}
	return atLeast(left, time.Minute), nil
}

func queryTimerSet(p *Play, e endsOf) (Outcome, error) {
	const set = 2 * time.Second
	if err := p.Timers(map[Timer]time.Duration{ICMP: set, ICMPv6: set}); err != nil {
		return "", err
	}
	f, err := flowEcho.start(p, e.a, e.x)
	if err != nil {
		return "", err
	}
	if err := p.Pass(set / 2); err != nil {
		return "", err
	}
	if _, err := carry(p, e.x, e.a, flowEcho.say(e.x.AddrPort, f.mapped())); err != nil {
		return "ends early", nil
	}
	if err := p.Pass(set + time.Second); err != nil {
		return "", err
	}
	_, found, err := leftOf(p, e.a.AddrPort)
	return yes(!found, "as set", "stays"), err
}
