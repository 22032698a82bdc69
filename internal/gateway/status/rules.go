package status

import (
	"cmp"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

// RulesOf are the rules of the file that a plan has entries for or waits with, in the
// file's order, with what the first entry of each does and how many more it has.
func RulesOf(p *gateway.Plan) []Rule {
	var all []Rule
	at := map[gateway.Ref]int{}
	add := func(r gateway.Ref, text string) {
		if i, known := at[r]; known {
			all[i].More++
			return
		}
		at[r] = len(all)
		all = append(all, Rule{Rule: r, Text: text})
	}
	for _, d := range p.Destinations {
		add(d.Rule, d.String())
	}
	for _, hairpin := range []bool{false, true} { // what comes back inside is not what a rule is for
		for _, s := range p.Sources {
			if s.Hairpin.Prefix.IsValid() == hairpin {
				add(s.Rule, s.String())
			}
		}
	}
	for _, s := range p.Stateless {
		add(s.Rule, s.String())
	}
	for _, u := range p.Untracked {
		add(u.Rule, u.String())
	}
	for _, w := range p.Waiting {
		if _, known := at[w.Rule]; !known {
			add(w.Rule, "waits for an address of "+w.Interface)
		}
	}
	Sort(all)
	return all
}

// Sort puts rules in the order of the file, those of nat before those of ipv6.
func Sort(all []Rule) {
	slices.SortStableFunc(all, func(a, b Rule) int { return a.Rule.Compare(b.Rule) })
}

// Busiest are the n rules with most connections, those first that lose some, in the
// order of the file.
func Busiest(rules []Rule, n int) []Rule {
	all := slices.Clone(rules)
	slices.SortStableFunc(all, func(a, b Rule) int {
		return cmp.Or(compareCounts(b.Dropped, a.Dropped), cmp.Compare(b.Flows, a.Flows), compareCounts(b.New, a.New))
	})
	all = all[:min(n, len(all))]
	Sort(all)
	return all
}

// compareCounts takes what is not known for 0.
func compareCounts(a, b *uint64) int {
	var none uint64
	return cmp.Compare(*cmp.Or(a, &none), *cmp.Or(b, &none))
}
