package diagnose

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// twoLines is a gateway with two uplinks, of which the same destination is asked by both.
func twoLines(rows ...snapshot.FollowedService) *snapshot.Recording {
	rec := household(rows...)
	rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{
		{Name: "wan0", Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.2/24")}},
		{Name: "wan2", Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.2.2/30")}},
		{Name: "lan0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}},
	}}
	return rec
}

func TestLineThatIsDeadBeyondItsRouter(t *testing.T) {
	by := func(out, given, service string, step snapshot.Step) snapshot.FollowedService {
		s := failed(step, "tcp", "lan0", pc, service, snapshot.FailedPlace{Out: out, Uplink: true})
		s.Out, s.Given = out, netip.MustParseAddr(given)
		if step == snapshot.StepAnswered {
			s.Failed = nil
		}
		return s
	}
	const far, other = "203.0.113.10:443", "203.0.113.20:443"
	lost := by("wan2", "198.18.2.2", far, snapshot.StepNoAnswer)
	works := by("wan0", "198.51.100.2", far, snapshot.StepAnswered)
	inbound := by("lan0", "198.18.2.2", "198.18.2.2:80", snapshot.StepAnswered)
	inbound.In, inbound.Given = "wan2", netip.Addr{}
	for name, c := range map[string]struct {
		rows []snapshot.FollowedService
		by   string
	}{
		"dead, and the other one answers":         {[]snapshot.FollowedService{lost, works}, "wan0"},
		"other destinations answer by this line":  {[]snapshot.FollowedService{lost, works, by("wan2", "198.18.2.2", other, snapshot.StepAnswered)}, ""},
		"its router alone answers by this line":   {[]snapshot.FollowedService{lost, works, by("wan2", "198.18.2.2", "198.18.2.1:53", snapshot.StepAnswered)}, "wan0"},
		"what comes in by this line is answered":  {[]snapshot.FollowedService{lost, works, inbound}, ""},
		"the other line is not asked for it":      {[]snapshot.FollowedService{lost, by("wan0", "198.51.100.2", other, snapshot.StepAnswered)}, ""},
		"with the address of the other interface": {[]snapshot.FollowedService{by("wan2", "198.51.100.2", far, snapshot.StepNoAnswer), works}, ""},
	} {
		if r := rows(twoLines(c.rows...))[0]; r.answersBy() != c.by {
			t.Errorf("%s: %q", name, r.answersBy())
		}
	}
}

func TestLineOfWhichTheTableShowsNoAnswer(t *testing.T) {
	lost := snapshot.Service{Kind: snapshot.ServiceSNAT, Protocol: "tcp", Given: netip.MustParseAddr("198.18.2.2"), Unanswered: 9, Failing: 9,
		Destinations: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.10:443")},
		Routes:       &snapshot.Routes{Question: &snapshot.Route{Hops: []snapshot.Route{{Out: "wan0"}, {Out: "wan2"}}}}}
	works := snapshot.Service{Kind: snapshot.ServiceSNAT, Protocol: "tcp", Given: netip.MustParseAddr("198.51.100.2"), Answered: 9}
	published := snapshot.Service{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort("198.18.2.2:80"), Answered: 9}
	elsewhere := lost
	elsewhere.Routes = &snapshot.Routes{Question: &snapshot.Route{Out: "wan0"}}
	for name, c := range map[string]struct {
		lost   snapshot.Service
		others []snapshot.Service
		other  string
	}{
		"dead, and the other one answers":        {lost, []snapshot.Service{works}, "wan0"},
		"nothing answers at all":                 {lost, nil, ""},
		"what is published on it is answered":    {lost, []snapshot.Service{works, published}, ""},
		"it has the address, and leaves by wan0": {elsewhere, []snapshot.Service{works}, ""},
	} {
		rec := twoLines()
		rec.Flows = &snapshot.Flows{Services: &snapshot.Services{All: append(c.others, c.lost)}}
		a, _ := readAudit(rec)
		if _, other := a.deadLine(&c.lost); other != c.other {
			t.Errorf("%s: %q", name, other)
		}
		if c.other == "" {
			continue
		}
		for destinations, confidence := range map[string]string{"203.0.113.10:80": "possible", "203.0.113.20:443": "likely"} {
			s, f := c.lost, failing{}
			s.Destinations = append(s.Destinations[:1:1], netip.MustParseAddrPort(destinations))
			if f.hasDeadLine(rec, a, &s); f.confidence != confidence {
				t.Errorf("%s and %s: %s", name, destinations, f.confidence)
			}
		}
	}
}
