package tune

import (
	"net/netip"
	"testing"
)

func TestRoutingTexts(t *testing.T) {
	for _, want := range []RoutingTarget{{Number: 20000}, {V6: true, Number: 1}, {Table: true, Number: 27001}, {V6: true, Table: true, Number: 256}} {
		if got, err := ParseRoutingTarget(want.String()); err != nil || got != want {
			t.Errorf("%s: %+v, %v", want, got, err)
		}
	}
	for _, want := range []RoutingRule{{Mark: 0x1000000, Mask: 0xf000000, Table: 27001}, {Mask: 0xf000000, Except: true, Specific: true}, {Mask: 0xf000000, Own: true, Table: 27001}} {
		if got, err := ParseRoutingRule(want.String()); err != nil || got != want {
			t.Errorf("%s: %+v, %v", want, got, err)
		}
	}
	for _, want := range []RoutingRoute{{Dev: "ppp0"}, {Via: netip.MustParseAddr("203.0.113.1"), Dev: "eth0"}, {To: netip.MustParsePrefix("10.0.0.0/24"), Dev: "eth1"}, {Via: netip.MustParseAddr("fe80::1"), Dev: "via", OnLink: true}} {
		if got, err := ParseRoutingRoute(want.String()); err != nil || got != want {
			t.Errorf("%s: %+v, %v", want, got, err)
		}
	}
}

// A journal can be edited: what natkit would not have written is not undone.
func TestRoutingRefused(t *testing.T) {
	const rule, route = "fwmark 0x1000000/0xf000000 lookup 27001", "default via 203.0.113.1 dev eth0"
	for _, c := range []Change{
		{Target: "ip rule 0", After: rule}, {Target: "ip rule 32766", After: rule}, {Target: "ip route table 254", After: route},
		{Target: "ip rule 020000", After: rule}, {Target: "ip  rule 20000", After: rule}, {Target: "rule 20000", After: rule},
		{Target: "ip rule 20000", After: route}, {Target: "ip route table 27001", After: rule},
		{Target: "ip rule 20000", Before: "lookup 27001"}, {Target: "ip rule 20000", After: rule + " x"}, {Target: "ip rule 20000", After: "not not " + rule},
		{Target: "ip rule 20000", After: "fwmark 0x1/0x0 lookup 5"},
		{Target: "ip route table 27001", After: "default"}, {Target: "ip route table 27001", After: "default via x dev eth0"},
		{Target: "ip route table 27001", After: "10.0.0.0/8"}, {Target: "ip route table 27001", After: "10.0.0.0 dev eth0"},
		{Target: "ip route table 27001", After: "10.0.0.0/8 dev eth0; 10.0.0.0/8 dev eth1"}, {Target: "ip route table 27001", After: "10.0.0.0/8 dev eth0; "}, {Target: "ip route table 27001", After: "default dev eth0 dev eth1"},
	} {
		c.Kind = Routing
		if err := c.Validate(); err == nil {
			t.Errorf("%q %q → %q is taken", c.Target, c.Before, c.After)
		}
	}
	if err := (Change{Kind: Routing, Target: "ip route table 26001", After: "10.0.0.0/24 dev eth1; 10.5.0.0/16 via 10.0.0.9 dev eth1"}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Change{Kind: Routing, Target: "ip -6 route table 27001", After: "default via fe80::1 dev eth0"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestAreLeftOf(t *testing.T) {
	const a, b, other = "10.0.0.0/24 dev eth1", "10.5.0.0/16 via 10.0.0.2 dev eth1", "10.5.0.0/16 via 10.0.0.3 dev eth1"
	for routes, want := range map[string]bool{a: true, b: true, a + "; " + b: true, "": false, other: false, a + "; " + other: false} {
		if got := AreLeftOf(routes, a+"; "+b); got != want {
			t.Errorf("%q: %v", routes, got)
		}
	}
}
