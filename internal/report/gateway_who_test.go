package report

import (
	"net/netip"
	"strings"
	"testing"
)

// TestWhoIsAmbiguous: one address in several zones is several hosts, which is not one of a network.
func TestWhoIsAmbiguous(t *testing.T) {
	owner := func(source, host string, zone uint16) NATOwner {
		return NATOwner{Source: source, Inside: host, Zone: zone, Certain: source != "rules", Outside: "203.0.113.9"}
	}
	for name, c := range map[string]struct {
		owners []NATOwner
		answer WhoAnswer
		want   string
	}{
		"two zones":         {[]NATOwner{owner("log", "10.77.0.2", 6), owner("log", "10.77.0.2", 5), owner("log", "10.77.0.2", 6)}, WhoSeveral, "203.0.113.9: ambiguous, 10.77.0.2 in several conntrack zones (5, 6)"},
		"one zone":          {[]NATOwner{owner("log", "10.77.0.2", 5), owner("table", "10.77.0.2", 5)}, WhoOne, "203.0.113.9: 10.77.0.2"},
		"a network":         {[]NATOwner{owner("rules", "10.77.0.0/24", 0)}, WhoSeveral, "203.0.113.9: ambiguous, one of 10.77.0.0/24"},
		"two hosts and two": {[]NATOwner{owner("log", "10.77.0.2", 5), owner("log", "10.77.0.3", 6)}, WhoSeveral, "203.0.113.9: ambiguous, 2 possible answers"},
	} {
		g := GatewayWho{Address: netip.MustParseAddr("203.0.113.9"), Owners: c.owners}
		g.Settle()
		var text strings.Builder
		if err := g.Text(&text, Style{}); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := strings.Cut(text.String(), "\n"); got != c.want || g.Answer != c.answer {
			t.Errorf("%s: %s: %q, want %q", name, g.Answer, got, c.want)
		}
	}
}
