package observe

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestExplainForeign: another program's nat chain comes first, and decides. What it
// sends back inside is a hairpin as well.
func TestExplainForeign(t *testing.T) {
	facts := withDMZ(router)
	docker := gateway.Foreign{Source: "iptables-nft", Owner: "docker", Family: "ip", Table: "nat", Chain: "PREROUTING", Type: "nat", Hook: "prerouting", Priority: -100, Policy: "accept", Rules: 3,
		NAT: []snapshot.NATRule{{Kind: snapshot.NATDest, First: netip.MustParseAddr("172.17.0.9"), Last: netip.MustParseAddr("172.17.0.9"), FirstPort: 80, LastPort: 80, Text: "dnat to 172.17.0.9:80", NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 8080}}}}
	masq := gateway.Foreign{Family: "ip", Table: "nat", Chain: "POSTROUTING", Type: "nat", Hook: "postrouting", Priority: 100, Rules: 1,
		NAT: []snapshot.NATRule{{Kind: snapshot.NATMasquerade, Text: "masquerade", Partial: true, NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("192.168.0.0/24")}}}}
	filter := gateway.Foreign{Owner: "docker", Family: "ip", Table: "filter", Chain: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop", Rules: 2}
	empty := gateway.Foreign{Family: "ip", Table: "mangle", Chain: "FORWARD", Type: "filter", Hook: "forward", Policy: "accept"}
	v6 := gateway.Foreign{Family: "ip6", Table: "filter", Chain: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop"}
	facts.Foreign = []gateway.Foreign{docker, masq, filter, empty, v6}
	want := `prerouting: ` + tracked + `
prerouting -100 ip nat PREROUTING: dnat to 172.17.0.9:80: the destination becomes 172.17.0.9:80; natkit's chain is not asked
prerouting -80 inet natkit prerouting: not asked: the destination is translated already
routing: to 172.17.0.9 by eth2
forward 0 ip filter FORWARD: 2 rules that natkit does not follow; what none of them accepts is dropped
postrouting 100 ip nat POSTROUTING: "masquerade" may translate it first: it has conditions that natkit does not know
postrouting 120 inet natkit postrouting nat[3] dnat: the source becomes 203.0.113.7:4000; if that port is taken towards this destination, another of 1024-65535
` + confirmed + `
forwarded 203.0.113.7:4000 -> 172.17.0.9:80
back: an answer from 172.17.0.9:80 comes for 203.0.113.7:4000: the destination becomes 192.168.0.9:4000 again
back: to 192.168.0.9 by eth1
back: the source becomes 203.0.113.7:8080 again
note: if "masquerade" in ip nat POSTROUTING translates it, natkit's rules are not asked, and it becomes something else
`
	e := explainText(t, manyKinds, facts, "eth1", "tcp 192.168.0.9:4000 -> 203.0.113.7:8080")
	e.Near = nil
	if diff := cmp.Diff(want, explained(e)); diff != "" {
		t.Error(diff)
	}
	if len(e.Unless) != 2 || !strings.Contains(e.Unless[0], "ip filter FORWARD") || !strings.Contains(e.Unless[1], "ip nat POSTROUTING") {
		t.Errorf("taken for certain: %q", e.Unless)
	}
	facts.Foreign = []gateway.Foreign{docker, empty, v6}
	if e = explainText(t, manyKinds, facts, "eth1", "tcp 192.168.0.9:4000 -> 203.0.113.7:8080"); len(e.Unless) > 0 {
		t.Errorf("all of it is known: %q", e.Unless)
	}
}

// TestExplainForeignMarks: whoever sets marks may set them on anything, but for kube-proxy,
// which marks what it translates.
func TestExplainForeignMarks(t *testing.T) {
	for owner, want := range map[string]int{"": 1, "kubernetes": 0} {
		facts := withDMZ(router)
		facts.Foreign = []gateway.Foreign{{Owner: owner, Family: "ip", Table: "t", Chain: "c", Type: "nat", Hook: "prerouting", Priority: -100, Rules: 1, NAT: []snapshot.NATRule{
			{Kind: snapshot.NATDest, First: netip.MustParseAddr("172.17.0.9"), Last: netip.MustParseAddr("172.17.0.9"), Text: "dnat to 172.17.0.9", Marked: true, Partial: true}}}}
		if e := explainText(t, manyKinds, facts, "eth0", "tcp 198.18.0.1:4000 -> 203.0.113.7:8080"); len(e.Unless) != want {
			t.Errorf("marks of %q: %q", owner, e.Unless)
		}
	}
}

// TestExplainForeignTooMany: the effect of a chain that was not followed to its end is not
// certain, and neither is that of what could not be read.
func TestExplainForeignTooMany(t *testing.T) {
	facts := withDMZ(router)
	facts.Foreign = []gateway.Foreign{{Family: "ip", Table: "t", Chain: "c", Type: "nat", Hook: "prerouting", Priority: -100, Policy: "accept", Rules: 1, TooMany: true}}
	facts.Unknown = []string{"other programs' rules: refused"}
	e := explainText(t, manyKinds, facts, "eth0", "tcp 198.18.0.1:4000 -> 203.0.113.7:8080")
	theirs := slices.IndexFunc(e.Steps, func(s Step) bool { return s.Chain == "ip t c" })
	if theirs < 0 || !e.Steps[theirs].Unsure {
		t.Errorf("taken for sure: %+v", e.Steps)
	}
	for _, want := range []string{"too many to follow", "refused"} {
		if !slices.ContainsFunc(e.Notes, func(n string) bool { return strings.Contains(n, want) }) {
			t.Errorf("%q is not in the notes: %q", want, e.Notes)
		}
	}
}

// TestExplainForeignConditions: a rule for this host's own addresses, unless by an
// interface and unless by a rule before it, as Docker's and libvirt's are.
func TestExplainForeignConditions(t *testing.T) {
	to := netip.MustParseAddr("172.17.0.9")
	dnat := snapshot.NATRule{Kind: snapshot.NATDest, First: to, Last: to, Text: "dnat to 172.17.0.9", Unless: []snapshot.NATCondition{{InInterface: "eth1"}, {Protocol: "tcp", DestinationPort: 22, FromSource: netip.MustParsePrefix("198.18.0.0/24")}}, NATCondition: snapshot.NATCondition{Protocol: "tcp", LocalDestination: true}}
	facts := withDMZ(router)
	facts.Foreign = []gateway.Foreign{{Family: "ip", Type: "nat", Hook: "prerouting", Priority: -100, Policy: "accept", Rules: 1, NAT: []snapshot.NATRule{dnat}}}
	for _, c := range []struct{ in, packet, to string }{
		{"eth0", "tcp 198.18.0.1:4000 -> 203.0.113.1:80", "172.17.0.9:80"},
		{"eth0", "tcp 198.18.1.1:4000 -> 203.0.113.1:22", "172.17.0.9:22"},
		{"eth0", "tcp 198.18.0.1:4000 -> 203.0.113.1:22", "203.0.113.1:22"},
		{"eth0", "udp 198.18.0.1:4000 -> 203.0.113.1:80", "203.0.113.1:80"},
		{"eth0", "tcp 198.18.0.1:4000 -> 172.17.0.3:80", "172.17.0.3:80"},
		{"eth1", "tcp 192.168.0.9:4000 -> 203.0.113.1:80", "203.0.113.1:80"},
	} {
		e := explainText(t, "\n  interfaces: {wan: eth0, lan: eth1}\n  nat:\n    - masquerade: {from: 192.168.0.0/24}", facts, c.in, c.packet)
		if got := e.Destination.String(); got != c.to || len(e.Notes) > 0 {
			t.Errorf("%s: to %s, want %s; %q", c.packet, got, c.to, e.Notes)
		}
	}
}

// TestExplainForeignError: the routes are also asked on the way, for other programs' rules.
func TestExplainForeignError(t *testing.T) {
	facts := withDMZ(router)
	facts.Foreign = []gateway.Foreign{{Family: "ip", Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept", Rules: 1,
		NAT: []snapshot.NATRule{{Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{LocalDestination: true}}}}}
	failed := errors.New("no netlink")
	route := func(l Lookup) (Hop, error) {
		if !l.Source.IsValid() { // whether the destination is this host's own
			return Hop{}, failed
		}
		return routes(facts)(l)
	}
	packet, err := ParsePacket([]string{"tcp 192.168.0.9:4000 -> 198.18.0.1:443"})
	if err != nil {
		t.Fatal(err)
	}
	packet.In = "eth1"
	if _, err := Follow(&gateway.Plan{}, facts, route, packet); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}
