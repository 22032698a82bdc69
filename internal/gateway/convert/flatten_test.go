package convert

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/ruleset"
)

// TestChainsThatLeadToEachOther are more ways through them than anybody can follow: the
// kernel refuses loops, and a text need not come from one.
func TestChainsThatLeadToEachOther(t *testing.T) {
	loop := "*nat\n" + strings.Repeat("-A A -j A\n-A A -p tcp -j RETURN\n", 3) + "-A POSTROUTING -j A\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"
	var fan strings.Builder
	fan.WriteString("*nat\n-A POSTROUTING -j c0\n")
	for i := range 40 {
		fmt.Fprintf(&fan, "-A c%d -j c%d\n-A c%[1]d -s 10.0.0.0/8 -j c%[2]d\n", i, i+1)
	}
	fan.WriteString("-A c40 -j MASQUERADE\nCOMMIT\n")
	for _, text := range []string{loop, fan.String()} {
		r, err := Import(ruleset.Parse(text, 4))
		switch {
		case errors.Is(err, ruleset.ErrTooMany):
		case err != nil:
			t.Error(err)
		case len(r.Untranslated()) == 0:
			t.Errorf("all of it was translated:\n%s", r.YAML())
		}
	}
}

// TestChainsAtTheSamePlace: iptables-nft and iptables-legacy may both have rules, and the
// kernel does not report which comes first.
func TestChainsAtTheSamePlace(t *testing.T) {
	one := ruleset.Parse("*nat\n-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE\n-A PREROUTING -d 203.0.113.1 -j DNAT --to-destination 10.0.0.2\nCOMMIT", 4)
	other := ruleset.Parse("*nat\n-A POSTROUTING -s 10.1.0.0/16 -j SNAT --to-source 203.0.113.2\n-A POSTROUTING -s 192.168.0.0/16 -j MASQUERADE\nCOMMIT", 4)
	one.Tables = append(one.Tables, other.Tables...)
	r, err := Import(one)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Config.NAT) != 2 || len(r.Untranslated()) != 2 {
		t.Errorf("%s%+v", r.YAML(), r.Notes)
	}
}

// A rule behind more chains than are followed is not said to be met by no packet.
func TestRuleBehindManyChains(t *testing.T) {
	const chains = 20000
	var text strings.Builder
	text.WriteString("*nat\n-A POSTROUTING -j C0\n")
	for i := range chains {
		fmt.Fprintf(&text, "-A C%d -j C%d\n", i, i+1)
	}
	fmt.Fprintf(&text, "-A C%d -j MASQUERADE\nCOMMIT\n", chains)
	r, err := Import(ruleset.Parse(text.String(), 4))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range r.Notes {
		if n.Kind != ruleset.Untranslated {
			t.Errorf("%+v", n)
		}
	}
	if !r.cutShort() {
		t.Errorf("not said to be cut short: %+v", r.Notes)
	}
}
