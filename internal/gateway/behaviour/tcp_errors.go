package behaviour

import (
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

func tcpErrors() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "rfc5382-req-9", RFC: 5382, Requirement: "REQ-9", Level: Should, Want: []Outcome{Translated},
			Asks: "Destination Unreachable about a connection is translated, both that of the outside and that of the inside"}, tcpUnreachable),
		bothFamilies(Case{ID: "rfc5382-req-10", RFC: 5382, Requirement: "REQ-10", Level: Must, Want: []Outcome{Passes},
			Asks: "no ICMP message ends a connection: after errors of every kind from both sides data passes both ways"}, tcpSurvivesErrors),
	)
}

// openWith opens a connection and gives the last packets of both ways.
func openWith(p *Play, e endsOf) (*connection, flow, error) {
	c := between(p, e.a, e.x)
	if err := inTurn(func() error { return c.open(&c.inside) }, c.talk); err != nil {
		return c, flow{}, err
	}
	var f flow
	var err error
	if f.out, err = carry(p, e.a, e.x, c.segment(&c.inside, frame.ACK, "")); err != nil {
		return c, f, err
	}
	f.in, err = carry(p, e.x, e.a, c.segment(&c.outside, frame.ACK, ""))
	return c, f, err
}

func tcpUnreachable(p *Play, e endsOf) (Outcome, error) {
	_, f, err := openWith(p, e)
	if err != nil {
		return verdict("", err)
	}
	got, err := report{by: e.x, kind: e.portUnreachableKind}.seen(p, f.out, e.x.Addr())
	if err != nil || got != Translated {
		return "from outside: " + got, err
	}
	got, err = report{by: e.a, kind: e.portUnreachableKind}.seen(p, f.in, e.wan)
	return yes(got == Translated, Translated, "from inside: "+got), err
}

func tcpSurvivesErrors(p *Play, e endsOf) (Outcome, error) {
	c, f, err := openWith(p, e)
	if err != nil {
		return verdict("", err)
	}
	for _, h := range allErrors(e.v6) {
		for _, r := range []struct {
			by end
			of exchanged
		}{{e.x, f.out}, {e.router, f.out}, {e.a, f.in}} {
			if _, err := p.Send(r.by.host, report{by: r.by, kind: h}.about(r.of)); err != nil {
				return "", err
			}
		}
		if err := c.talk(); err != nil {
			return verdict("", err)
		}
	}
	return verdict(Passes, c.close(&c.inside))
}
