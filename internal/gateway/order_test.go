package gateway

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOrderInTheFileMeansNothing shuffles rules and compares what is left of them
// without their numbers.
func TestOrderInTheFileMeansNothing(t *testing.T) {
	rules := []string{
		"masquerade: {from: 192.168.0.0/16}", "masquerade: {from: 10.0.0.0/8, except-to: 10.9.0.0/16}",
		"snat: {from: [192.168.1.0/24, 10.1.0.0/16], to: 203.0.113.8}", "snat: {from: 192.168.1.7, to: 203.0.113.9}",
		"static: {inside: 192.168.1.8, outside: 203.0.113.10, hairpin: true}", "netmap: {inside: 10.7.0.0/24, outside: 198.51.100.0/24}",
		"dnat: {on: wan, port: tcp/80, to: 192.168.1.9, hairpin: true}", "dnat: {on: wan, port: tcp/443, to: 192.168.1.9}",
		"dnat: {on: wan, port: tcp, to: 192.168.1.10, from: 198.51.100.0/24}", "notrack: {on: 203.0.113.77}",
	}
	r := rand.New(rand.NewPCG(1, 2))
	var want *Plan
	for range 50 {
		p := compile(t, roles+"\n  nat:\n    - "+strings.Join(rules, "\n    - "), router)
		p.forgetRules()
		if want == nil {
			want = p
		}
		if Digest(p) != Digest(want) {
			t.Fatalf("another order, another plan:\n%s", cmp.Diff(lines(want), lines(p)))
		}
		r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	}
}

func (p *Plan) forgetRules() {
	for i := range p.Sources {
		p.Sources[i].Rule.Index = 0
	}
	for i := range p.Destinations {
		p.Destinations[i].Rule.Index = 0
	}
	for i := range p.Untracked {
		p.Untracked[i].Rule.Index = 0
	}
}
