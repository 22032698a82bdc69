package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestTraceKeepsWhatIsKnown: what a trace saw of a service does not replace a cause that rules and
// addresses prove.
func TestTraceKeepsWhatIsKnown(t *testing.T) {
	for name, known := range map[string]bool{"clients-on-the-servers-network": true, "its-answers-are-not-tracked": true, "clients-from-outside-too": false} {
		rec := recorded(t, "service-unanswered", name)
		s := &rec.Flows.Services.All[0]
		f := judgeService(rec, s)
		f.explain(rec, s)
		before := f.cause
		got := traceAdded([]failing{f}, []failing{{key: f.key, cause: "seen"}})
		if len(got) != 1 || !strings.Contains(got[0].cause, "seen") || strings.Contains(got[0].cause, before) != known {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestHangsForErrors: connections hang, and a rule drops the ICMP errors that would say why: the rule is named
// though it drops pings as well.
func TestHangsForErrors(t *testing.T) {
	for counted, named := range map[uint64]bool{30: true, 1: false} {
		rec := recorded(t, "service-unanswered", "downloads-hang")
		for i, s := range []*snapshot.Snapshot{rec.First(), rec.Last()} {
			drops := &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: "iptables -t filter -A FORWARD -p icmp -j DROP", Counted: true, Packets: uint64(i) * counted}}}
			s.NATRules = &snapshot.NATRules{}
			s.Ways = &snapshot.Ways{All: []snapshot.Way{
				{Kind: snapshot.WayErrors, Protocol: "icmp", Filter: drops},
				{Kind: snapshot.WaySource, Protocol: "icmp", Filter: drops},
			}}
		}
		f, _ := checkServices(rec)
		if first := f.Remedies[0].Title; strings.Contains(f.Cause, "-p icmp -j DROP") != named || strings.Contains(first, "iptables -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT") != named {
			t.Errorf("%d packets: %s; %s", counted, f.Cause, first)
		}
	}
}

// TestKeptOut: of several strict filters the one is named by whose interface nothing of a rule's connections comes
// about, and none where that may be several.
func TestKeptOut(t *testing.T) {
	for name, c := range map[string]struct {
		in    string
		paths []snapshot.ReversePath
		want  string
	}{
		"an uplink that a mark leads to":    {"", []snapshot.ReversePath{{Interface: "wan0", Default: true}, {Interface: "lan0"}, {Interface: "wan1", Selected: "100: fwmark 0x2 lookup 102"}}, "tcp 192.0.2.1:80, which is asked for by wan1"},
		"an interface that the rule names":  {"wan1", []snapshot.ReversePath{{Interface: "wan0", Default: true}, {Interface: "wan1"}}, "tcp 192.0.2.1:80, which is asked for by wan1"},
		"two uplinks of which none answers": {"", []snapshot.ReversePath{{Interface: "wan2", Default: true}, {Interface: "wan1", Default: true}}, ""},
		"an uplink by which others come":    {"", []snapshot.ReversePath{{Interface: "wan0", Default: true}}, ""},
	} {
		rec := recorded(t, "rp-filter", "translated-packets-that-became-no-connection")
		last := rec.Last()
		for _, s := range []*snapshot.Snapshot{rec.First(), last} {
			s.NATRules.Rules[0].InInterface = c.in
		}
		last.ReversePaths = c.paths
		last.Audit = &snapshot.Audit{}
		for device, address := range map[string]string{"wan0": "203.0.113.1/24", "wan1": "192.0.2.1/24", "wan2": "198.18.2.2/24"} {
			last.Audit.Interfaces = append(last.Audit.Interfaces, snapshot.Interface{Name: device, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}})
		}
		rule := &last.NATRules.Rules[0]
		rec.Flows.Services = &snapshot.Services{NewKnown: true, All: []snapshot.Service{{
			Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort("203.0.113.1:80"), Target: netip.AddrPortFrom(rule.First, rule.FirstPort), New: 15, Answered: 15,
		}}}
		i := slices.IndexFunc(Rules(), func(r Rule) bool { return r.ID == "rp-filter" })
		f, _ := Rules()[i].Check(rec)
		switch {
		case f == nil:
			t.Errorf("%s: no finding", name)
		case c.want == "" && strings.Contains(f.Title, "asked for"), !strings.Contains(f.Title, c.want):
			t.Errorf("%s: %s", name, f.Title)
		case c.want != "" && (!strings.Contains(f.Remedies[0].Title, "net.ipv4.conf.wan1.rp_filter=2") || strings.Contains(f.Remedies[0].Title, "is there (100: fwmark 0x2 lookup 102)") != (c.in == "")):
			t.Errorf("%s: %s", name, f.Remedies[0].Title)
		}
	}
}

// TestAnswersTakenForNone: answers from an address that was not asked are the cause, and where the server answers
// clients from outside at other ports, its default route is none.
func TestAnswersTakenForNone(t *testing.T) {
	beside := snapshot.Service{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort("203.0.113.1:4430"), Answered: 9, Outside: 9}
	for name, c := range map[string]struct {
		by    string
		other bool
		cause string
	}{
		"another address": {"192.168.1.77", false, "192.168.1.77 sends from port"},
		"another port":    {"", true, "answers clients at other ports"},
		"the only port":   {"", false, "its default route is by another gateway"},
	} {
		rec := recorded(t, "service-unanswered", "a-server-that-is-up")
		s := &rec.Flows.Services.All[0]
		s.Routes.Question.Out, s.Clients = "lan0", []netip.Addr{netip.MustParseAddr("198.51.100.10")}
		if s.Answered, s.Open, s.Stalled = 0, 0, 0; c.by != "" {
			s.AnsweredBy = netip.MustParseAddr(c.by)
		}
		for _, at := range rec.Snapshots {
			f := &snapshot.Filter{Passes: true}
			at.DNATTargets = &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{{Protocol: s.Protocol, Address: s.Target.Addr(), Port: s.Target.Port(), Filter: f, AnswerFilter: f}}}
			if at.Audit == nil {
				at.Audit = &snapshot.Audit{}
			}
			for i := range at.NATRules.Rules {
				at.NATRules.Rules[i].OutInterface = "wan0"
			}
		}
		if beside.Target = netip.AddrPortFrom(s.Target.Addr(), 4430); c.other {
			rec.Flows.Services.All = append(rec.Flows.Services.All, beside)
		}
		if f, _ := checkServices(rec); !strings.Contains(f.Cause, c.cause) {
			t.Errorf("%s: %s", name, f.Cause)
		}
	}
}

// TestForeignPrefix: a prefix that rules give and this host has nothing of is named, unless something of it is answered.
func TestForeignPrefix(t *testing.T) {
	for name, c := range map[string]struct {
		answered int64
		named    bool
	}{"nothing is answered": {0, true}, "another source is": {5, false}} {
		rec := household()
		given := netip.MustParseAddr("2001:db8:a1::20")
		service := func(given netip.Addr, answered, unanswered int64) snapshot.Service {
			return snapshot.Service{Kind: snapshot.ServiceSNAT, Protocol: "tcp", Given: given, Answered: answered, Unanswered: unanswered, Failing: unanswered,
				Clients: []netip.Addr{netip.MustParseAddr("fd00:1::20")}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8:1::10]:443")}}
		}
		rec.Followed, rec.Flows = nil, &snapshot.Flows{Services: &snapshot.Services{Seconds: 30, All: []snapshot.Service{service(given, 0, 30), service(given.Next(), c.answered, 0)}}}
		rule := snapshot.NATRule{Family: "ip6", Hook: "postrouting", Kind: snapshot.NATSource, Text: "NETMAP", First: netip.MustParseAddr("2001:db8:a1::"), Last: netip.MustParseAddr("2001:db8:a1::ffff")}
		rec.Last().NATRules.Rules = append(rec.Last().NATRules.Rules, rule)
		rec.Last().Audit = &snapshot.Audit{Elsewhere: []snapshot.GivenElsewhere{{Rule: 2, Address: rule.First, Last: rule.Last}}}
		f, check := checkServices(rec)
		if f == nil || strings.Contains(f.Place, "no interface or route of this host has (NETMAP)") != c.named {
			t.Errorf("%s: %+v %v", name, f, check)
		}
	}
}

// TestInvalidFromBeyond: of what a rule drops as INVALID a route by a router beside the hosts is the likeliest cause.
func TestInvalidFromBeyond(t *testing.T) {
	for name, beyond := range map[string][]snapshot.BeyondNetwork{"none": nil, "a network": {{Network: netip.MustParsePrefix("10.8.0.0/24"), Router: netip.MustParseAddr("192.168.1.2"), Interface: "lan0"}}} {
		rec := recorded(t, "ct-invalid", "this-host-resets-them")
		for i, s := range []*snapshot.Snapshot{rec.First(), rec.Last()} {
			s.Audit = &snapshot.Audit{Beyond: beyond, Refusals: []snapshot.Refusal{{RulePlace: snapshot.RulePlace{Text: "iptables -t filter -A FORWARD (conntrack) -j DROP", Counted: true, Packets: uint64(26 * i)}, Why: snapshot.RefusalInvalid}}}
		}
		i := slices.IndexFunc(Rules(), func(r Rule) bool { return r.ID == "ct-invalid" })
		f, check := Rules()[i].Check(rec)
		if f == nil {
			t.Fatalf("%s: %+v", name, check)
		}
		if named := strings.Contains(f.Place, "10.8.0.0/24") && strings.Contains(f.Remedies[0].Title, "ip route add 10.8.0.0/24 via 192.168.1.2"); named != (beyond != nil) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestSilentNear: filters are ruled out where all that may drop the service's packets counts, and dropped none.
func TestSilentNear(t *testing.T) {
	place := func(packets uint64, counted bool) *snapshot.Filter {
		return &snapshot.Filter{Passes: true, Drops: []snapshot.RulePlace{{Text: "iptables -t filter -A FORWARD -m set -j DROP", Counted: counted, Packets: packets}}}
	}
	for name, c := range map[string]struct {
		before, now *snapshot.Filter
		ruledOut    bool
	}{
		"nothing drops":               {&snapshot.Filter{Passes: true}, &snapshot.Filter{Passes: true}, true},
		"a counter that stood":        {place(7, true), place(7, true), true},
		"a counter that grew":         {place(7, true), place(9, true), false},
		"a rule that counts none":     {place(0, false), place(0, false), false},
		"filters that were not asked": {nil, nil, false},
	} {
		rec := recorded(t, "service-unanswered", "a-server-that-is-up")
		s := &rec.Flows.Services.All[0]
		s.Routes.Question.Out = "lan0"
		for at, f := range map[*snapshot.Snapshot]*snapshot.Filter{rec.First(): c.before, rec.Last(): c.now} {
			at.DNATTargets = &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{{Protocol: s.Protocol, Address: s.Target.Addr(), Port: s.Target.Port(), Filter: f, AnswerFilter: &snapshot.Filter{Passes: true}}}}
		}
		f, _ := checkServices(rec)
		if first := f.Remedies[0].Title; strings.Contains(f.Cause, "or filters of this host drop it") == c.ruledOut || strings.HasPrefix(first, "on "+s.Target.Addr().String()) != c.ruledOut {
			t.Errorf("%s: %s; %s", name, f.Cause, first)
		}
	}
}

// TestFormerLine: a rule for the line that they do not leave by is named, if none is for that one.
func TestFormerLine(t *testing.T) {
	for name, c := range map[string]struct {
		out, beside   string
		found, exists bool
	}{
		"by another line":                {"wan1", "", true, true},
		"by its own":                     {"wan0", "", false, false},
		"by a line that is not known":    {"", "", false, false},
		"another rule is for their line": {"wan1", "wan1", false, false},
		"its interface is gone":          {"wan0", "gone", true, false},
	} {
		rec := household()
		last := rec.Last()
		last.Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan0", Up: true}, {Name: "wan1", Up: true}}}
		if c.beside == "gone" {
			last.NATRules.Rules[0].OutInterface = "gone0"
		} else if c.beside != "" {
			last.NATRules.Rules = append(last.NATRules.Rules, snapshot.NATRule{Family: "ip", Hook: "postrouting", Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{OutInterface: c.beside}})
		}
		s := &snapshot.Service{Kind: snapshot.ServiceUntranslated, Protocol: "tcp", Clients: []netip.Addr{netip.MustParseAddr("192.168.1.20")}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("198.51.100.10:443")},
			Routes: &snapshot.Routes{Question: &snapshot.Route{Out: c.out}}}
		if r, exists := formerLine(rec, s); (r != nil) != c.found || exists != c.exists {
			t.Errorf("%s: %+v, %t", name, r, exists)
		}
	}
}

// TestOneSidedByTable: a service beside a router on the clients' own network is said to lose what follows its first packets
// only where filters surely drop that, and as much was INVALID.
func TestOneSidedByTable(t *testing.T) {
	drops := &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: "inet fw forward: ct state invalid drop"}}}
	for name, c := range map[string]struct {
		out     string
		unseen  *snapshot.Filter
		invalid uint64
		want    bool
	}{
		"dropped":                        {"lan0", drops, 200, true},
		"let pass":                       {"lan0", &snapshot.Filter{Passes: true}, 200, false},
		"few are INVALID":                {"lan0", drops, 5, false},
		"it leaves by another interface": {"wan0", drops, 200, false},
	} {
		rec := recorded(t, "service-unanswered", "answers-take-another-way-and-the-rest-is-dropped")
		rec.Last().ConntrackStat.PerCPU[0]["invalid"] = rec.First().ConntrackStat.PerCPU[0]["invalid"] + c.invalid
		s := snapshot.Service{
			Kind: snapshot.ServiceUntranslated, Protocol: "tcp", Service: netip.MustParseAddrPort("10.50.0.10:1433"), Target: netip.MustParseAddrPort("10.50.0.0:0"),
			Given: netip.MustParseAddr("192.168.1.0"), Unanswered: 30, Failing: 30, SilentSeconds: -1, Clients: []netip.Addr{netip.MustParseAddr("192.168.1.20")},
			Routes: &snapshot.Routes{In: "lan0", Question: &snapshot.Route{Out: c.out, NextHop: netip.MustParseAddr("192.168.1.2"), Neighbour: snapshot.NeighbourReachable, Unseen: c.unseen}},
		}
		network := s
		network.Service, network.Destinations = netip.AddrPort{}, []netip.AddrPort{s.Service}
		rec.Flows.Services.All = []snapshot.Service{s, network}
		f, _ := checkServices(rec)
		if got := f != nil && strings.HasPrefix(f.Title, "tcp 10.50.0.10:1433") && strings.Contains(f.Remedies[0].Title, "by 192.168.1.2"); got != c.want || passesOneSide(rec) != c.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestStoodStill: of places that may drop what DNAT leads to, one whose counter stood still is not the one, and
// not that for the answers either.
func TestStoodStill(t *testing.T) {
	rec := recorded(t, "dnat-filtered", "the-policy-drops-it")
	policy := snapshot.RulePlace{Text: "iptables -t filter -P FORWARD DROP", Counted: true, Packets: 4}
	other := snapshot.RulePlace{Text: "inet filter forward: policy drop"}
	for i, s := range []*snapshot.Snapshot{rec.First(), rec.Last()} {
		s.NATRules = &snapshot.NATRules{Rules: []snapshot.NATRule{{
			Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80}, Counted: true, Packets: uint64(i) * 60,
		}}}
		drops := &snapshot.Filter{Drops: []snapshot.RulePlace{policy, other}}
		s.DNATTargets = &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{{Protocol: "tcp", Address: netip.MustParseAddr("172.17.0.2"), Port: 80, Filter: drops, AnswerFilter: drops}}}
	}
	f, _ := checkDNATFiltered(rec)
	if f == nil || strings.Contains(f.Cause, "iptables") || strings.Contains(f.Remedies[0].Title, "iptables") || !strings.Contains(f.Remedies[0].Title, "nft insert rule inet filter forward ct state") {
		t.Errorf("%+v", f)
	}
}

// TestHangsBeyond: the filters of this host are ruled out for connections that hang where they let pass all of them.
func TestHangsBeyond(t *testing.T) {
	some := &snapshot.Filter{Passes: true, Drops: []snapshot.RulePlace{{Text: "inet fw forward: meta length 1200-65535 drop", Part: true}}}
	for name, c := range map[string]struct {
		later  *snapshot.Filter
		beyond bool
	}{
		"all of them":  {&snapshot.Filter{Passes: true}, true},
		"some of them": {some, false},
		"not asked":    {nil, false},
	} {
		rec := recorded(t, "service-unanswered", "downloads-hang")
		for _, s := range []*snapshot.Snapshot{rec.First(), rec.Last()} {
			s.Ways = &snapshot.Ways{All: []snapshot.Way{{
				Kind: snapshot.WaySource, Network: netip.MustParsePrefix("192.168.2.0/24"), Protocol: "tcp", Filter: &snapshot.Filter{Passes: true}, LaterFilter: c.later,
			}}}
		}
		f, _ := checkServices(rec)
		if first := f.Remedies[0].Title; strings.Contains(first, "--set-mss") != c.beyond || strings.Contains(f.Cause, "by a rule of this host") == c.beyond {
			t.Errorf("%s: %s; %s", name, f.Cause, first)
		}
	}
}
