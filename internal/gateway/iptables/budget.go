package iptables

import "errors"

// A text of some KB may have more ways through its chains, elements of sets and pairs of
// rules than anybody can follow: what is too many is not translated, and that is told.
const (
	// mostRules bounds what sets and chains become that many rules ask or jump to.
	mostRules = 300_000
	// mostSteps bounds comparisons of rules with each other: 10,000 rules of one hook take
	// more than a third of it.
	mostSteps = 1 << 28
)

var errTooMany = errors.New("too many rules, exceptions, ports and elements of sets to follow: import a part of them, such as one chain")

// budget is what was used: one of reading a text, and one of translating it.
type budget struct{ rules, steps int }

// makes reports whether so many more rules may be made.
func (b *budget) makes(rules int) bool { return take(&b.rules, rules, mostRules) }

// takes reports whether so many more comparisons may be made.
func (b *budget) takes(steps int) bool { return take(&b.steps, steps, mostSteps) }

func take(used *int, more, most int) bool {
	if more > most-*used {
		return false
	}
	*used += more
	return true
}

// size is how much a comparison has to look at.
func (m *Match) size() int {
	return max(1, len(m.NotFrom)+len(m.NotTo)+len(m.NotIn)+len(m.NotOut)+len(m.Ports)+len(m.SourcePorts)+len(m.Unknown))
}

// size counts what keeps packets from the entry, too.
func (e *entry) size() int { return e.match.size() + sizeOf(e.except) }

func sizeOf(list []*exception) (n int) {
	for _, x := range list {
		n += x.match.size()
	}
	return n
}

// stepsOf is how often a pass compares entries with others of their side.
func stepsOf(all []*entry) (steps int) {
	sizes := map[side]int{}
	for _, e := range all {
		sizes[e.side] += e.size()
	}
	for _, e := range all {
		if left, _ := e.leftAlone(); left {
			continue
		}
		m := e.match.size()
		steps += m * (sizes[e.side] - m)
	}
	return steps
}
