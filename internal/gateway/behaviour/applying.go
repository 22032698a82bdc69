package behaviour

import "fmt"

// applying are cases of what becomes of flows as rules come, change and go, and of
// the limit in a file.
func applying() []Case {
	cases := []Case{
		{ID: "apply-again", Requirement: "apply", Asks: "flows go on under the mapping that they have when the same rules are applied again",
			Run: appliedAgain, Want: []Outcome{"go on"}},
		{ID: "apply-changed-source", Requirement: "apply", Asks: "when another address is given from now on, new flows get it, and old ones go on as they are",
			Gateway: rules("  - snat: {from: 192.168.0.0/24, to: 203.0.113.7}"), Run: changedSource, Want: []Outcome{"old ones go on, new ones change"}},
		{ID: "apply-changed-forward", Requirement: "apply", Asks: "the same of a port that is forwarded to another host",
			Gateway: forwardTo("192.168.0.2:80"), Run: changedForward, Want: []Outcome{"old ones go on, new ones change"},
			Expect: map[string]Expectation{EBPF: {Outcome: "old ones change, too",
				Reason: "the programs translate packets by what the file says now, and have no memory of flows: that is what makes them fast. Engine netfilter keeps flows"}}},
		{ID: "remove", Requirement: "remove", Asks: "without the rules new flows are left alone",
			Untranslated: true, Run: removed, Want: []Outcome{"left alone"}},
		{ID: "limit-inside-only", Requirement: "connections-per-source", Asks: "the limit is for hosts inside, not for clients of what is forwarded, nor is what these do the server's",
			Gateway: limitedForward, Run: insideOnly, Want: []Outcome{"inside only"}},
	}
	for i := range cases {
		cases[i].Level = Natkit
	}
	return cases
}

func forwardTo(to string) string {
	return rules(fmt.Sprintf("  - dnat: {on: 203.0.113.7, port: udp/8000, to: %q}", to))
}

// appliedAgain takes the mapping of a host whose port is another's, and so was chosen:
// a new one would show.
func appliedAgain(p *Play) (Outcome, error) {
	if _, err := p.both(insideA, outsideX); err != nil {
		return "", err
	}
	before, err := p.both(insideB, outsideX)
	if err != nil {
		return "", err
	}
	if err := p.Apply(p.Plan); err != nil {
		return "", err
	}
	after, err := p.both(insideB, outsideX)
	return yes(before == after, "go on", Outcome(fmt.Sprintf("%v became %v", before, after))), err
}

func changedSource(p *Play) (Outcome, error) {
	before, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	if err := p.change(rules("  - snat: {from: 192.168.0.0/24, to: 203.0.113.8}")); err != nil {
		return "", err
	}
	after, err := p.both(insideA, outsideX)
	if err != nil || after != before {
		return Outcome(fmt.Sprintf("%v became %v", before, after)), err
	}
	fresh, err := p.both(insideB, outsideX)
	return yes(fresh == ap("203.0.113.8:4000"), "old ones go on, new ones change", Outcome(fmt.Sprintf("a new flow as %v", fresh))), err
}

func changedForward(p *Play) (Outcome, error) {
	first, second := at(A, "192.168.0.2:80"), at(B, "192.168.0.3:80")
	if _, err := inTo(forwarded.String(), first)(p); err != nil {
		return "", err
	}
	if err := p.change(forwardTo("192.168.0.3:80")); err != nil {
		return "", err
	}
	old, err := p.reached(outsideX, forwarded)
	if err != nil || old != first {
		return yes(old == second, "old ones change, too", "the old flow went elsewhere"), err
	}
	if got, err := inTo(forwarded.String(), first)(p); err != nil || got != bothWays {
		return "of the old flow: " + got, err
	}
	got, err := inFrom(outsideY, forwarded.String(), second)(p)
	return yes(got == bothWays, "old ones go on, new ones change", "of a new flow: "+got), err
}

func removed(p *Play) (Outcome, error) {
	if _, err := p.both(insideA, outsideX); err != nil {
		return "", err
	}
	if err := p.Remove(); err != nil {
		return "", err
	}
	as, err := p.both(insideB, outsideX)
	return yes(as == insideB.AddrPort, "left alone", Outcome("as "+as.String())), err
}
