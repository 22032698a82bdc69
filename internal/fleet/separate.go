package fleet

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"unique"
)

// Separation is an attribute that nodes with a finding have and nodes that were checked without it hardly have. It is a
// count: what the nodes share besides may as well be the reason.
type Separation struct {
	Attribute
	// Compared is "=", "≤" or "≥" for an attribute with a value, "has" or "has not" for one without.
	Compared string `json:"compared"`
	// Sick of SickKnown nodes with the finding are so, Healthy of HealthyKnown nodes without it. Those of which it is not
	// known are in neither.
	Sick         int `json:"sick"`
	SickKnown    int `json:"sick_known"`
	Healthy      int `json:"healthy"`
	HealthyKnown int `json:"healthy_known"`
	// Chance is the probability of counts as far apart, or further, if the finding had nothing to do with the attribute
	// (Fisher's exact test, one-sided), times the number of comparisons that were made: 1 at most.
	Chance float64 `json:"chance"`
	// Same are other attributes of exactly the same nodes, which these nodes cannot tell from this one.
	Same []SameNodes `json:"same_nodes,omitempty"`
	// MoreSame is how many more there are.
	MoreSame int `json:"more_same_nodes,omitempty"`
}

// SameNodes is an attribute of the same nodes as another one.
type SameNodes struct {
	Attribute
	Compared string `json:"compared"`
}

const (
	// surely is the Chance below which an attribute is said to separate.
	surely = 0.01
	// apartBy is how much larger the share among the sick nodes has to be.
	apartBy = 0.5
	// mostSeparations and mostSame bound what is reported of a finding.
	mostSeparations = 5
	mostSame        = 4
)

// set is a set of nodes by their place in a list.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) add(i int) { s[i/64] |= 1 << (i % 64) }

// both counts what is in two sets.
func (s set) both(other set) (n int) {
	for i := range s {
		n += bits.OnesCount64(s[i] & other[i])
	}
	return n
}

func (s set) count() int { return s.both(s) }

// index has for each attribute the nodes that have it.
type index struct {
	nodes []*Node
	// names are the scalar attributes by kind and name, and those without a value one by one; in a fixed order.
	names []*named
}

// named is an attribute with its values.
type named struct {
	kind Kind
	name string
	// known are the nodes of which it is known, by the values that they have.
	known  set
	values []valued
	// numeric is whether all values are numbers, and there are enough of them for an order to mean something.
	numeric bool
	scalar  bool
}

type valued struct {
	value  string
	number float64
	nodes  set
}

// leastNumbers is the number of values from which on thresholds are tried besides equality.
const leastNumbers = 3

func newIndex(nodes []*Node) *index {
	x := &index{nodes: nodes}
	holders := map[unique.Handle[Attribute]]set{}
	for i, n := range nodes {
		for _, a := range n.attributes {
			if holders[a] == nil {
				holders[a] = newSet(len(nodes))
			}
			holders[a].add(i)
		}
	}
	ruled := holders[unique.Make(rulesRead)]
	all := newSet(len(nodes))
	for i := range nodes {
		all.add(i)
	}
	at := map[[2]string]*named{}
	for a, holding := range holders {
		a := a.Value()
		if a == rulesRead {
			continue
		}
		key := [2]string{string(a.Kind), a.Name}
		n := at[key]
		if n == nil {
			n = &named{kind: a.Kind, name: a.Name, known: newSet(len(nodes)), scalar: a.Value != "" || a.Kind == KindSysctl}
			at[key] = n
			x.names = append(x.names, n)
		}
		number, isNumber := a.number()
		if !isNumber {
			number = math.NaN()
		}
		n.values = append(n.values, valued{a.Value, number, holding})
		switch {
		case n.scalar:
			for i := range n.known {
				n.known[i] |= holding[i]
			}
		case a.Kind == KindRule && ruled != nil:
			n.known = ruled
		default:
			n.known = all
		}
	}
	for _, n := range x.names {
		slices.SortFunc(n.values, func(a, b valued) int {
			return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.value, b.value))
		})
		n.numeric = n.scalar && len(n.values) >= leastNumbers && !slices.ContainsFunc(n.values, func(v valued) bool { return math.IsNaN(v.number) })
	}
	slices.SortFunc(x.names, func(a, b *named) int {
		return compareAttributes(Attribute{a.kind, a.name, ""}, Attribute{b.kind, b.name, ""})
	})
	return x
}

// candidate is an attribute that may separate, with the nodes that have it.
type candidate struct {
	Separation
	nodes set
}

// each calls fn with each comparison: a value that nodes have, a bound that their numbers keep, something that they have
// or have not.
func (x *index) each(fn func(a Attribute, compared string, nodes, known set)) {
	for _, n := range x.names {
		if !n.scalar {
			fn(Attribute{n.kind, n.name, ""}, "has", n.values[0].nodes, n.known)
			without := newSet(len(x.nodes))
			for i := range without {
				without[i] = n.known[i] &^ n.values[0].nodes[i]
			}
			fn(Attribute{n.kind, n.name, ""}, "has not", without, n.known)
			continue
		}
		if len(n.values) < 2 { // all that have it have the same
			continue
		}
		for _, v := range n.values {
			fn(Attribute{n.kind, n.name, v.value}, "=", v.nodes, n.known)
		}
		if !n.numeric {
			continue
		}
		below := newSet(len(x.nodes))
		for i, v := range n.values[:len(n.values)-1] {
			for w := range below {
				below[w] |= v.nodes[w]
			}
			above := newSet(len(x.nodes))
			for w := range above {
				above[w] = n.known[w] &^ below[w]
			}
			if i > 0 { // one value alone is "="
				fn(Attribute{n.kind, n.name, v.value}, "≤", slices.Clone(below), n.known)
			}
			if i < len(n.values)-2 {
				fn(Attribute{n.kind, n.name, n.values[i+1].value}, "≥", above, n.known)
			}
		}
	}
}

// separate returns what separates sick nodes from healthy ones, the surest first, and how many attributes all of the sick and
// none of the healthy nodes have that are too few to be sure of.
func (x *index) separate(sick, healthy set) (found []Separation, unsure int) {
	var all []candidate
	comparisons := 0
	x.each(func(a Attribute, compared string, nodes, known set) {
		c := candidate{Separation{Attribute: a, Compared: compared, Sick: nodes.both(sick), SickKnown: known.both(sick), Healthy: nodes.both(healthy), HealthyKnown: known.both(healthy)}, nodes}
		if c.SickKnown == 0 || c.HealthyKnown == 0 || c.Sick+c.Healthy == c.SickKnown+c.HealthyKnown || c.Sick+c.Healthy == 0 {
			return // it does not divide these nodes
		}
		comparisons++
		if share(c.Sick, c.SickKnown)-share(c.Healthy, c.HealthyKnown) < apartBy {
			return
		}
		c.Chance = fisher(c.Sick, c.SickKnown, c.Healthy, c.HealthyKnown)
		all = append(all, c)
	})
	perfect := 0
	for i := range all {
		c := &all[i]
		if c.Sick == c.SickKnown && c.Healthy == 0 {
			perfect++
		}
		c.Chance = min(1, c.Chance*float64(comparisons))
	}
	all = slices.DeleteFunc(all, func(c candidate) bool { return c.Chance > surely })
	if len(all) == 0 {
		return nil, perfect
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.Chance, b.Chance) })
	return merged(all, sick, healthy), 0
}

// merged joins attributes of exactly the same nodes, and keeps the surest.
func merged(all []candidate, sick, healthy set) (found []Separation) {
	var kept []candidate
	for _, c := range all {
		i := slices.IndexFunc(kept, func(k candidate) bool { return sameNodes(k.nodes, c.nodes, sick, healthy) })
		switch {
		case i < 0:
			kept = append(kept, c)
		case len(kept[i].Same) < mostSame:
			kept[i].Same = append(kept[i].Same, SameNodes{c.Attribute, c.Compared})
		default:
			kept[i].MoreSame++
		}
	}
	for _, k := range kept[:min(len(kept), mostSeparations)] {
		found = append(found, k.Separation)
	}
	return found
}

func sameNodes(a, b, sick, healthy set) bool {
	for i := range a {
		if (a[i]^b[i])&(sick[i]|healthy[i]) != 0 {
			return false
		}
	}
	return true
}

func share(n, of int) float64 { return float64(n) / float64(of) }

// fisher is the probability that sick of sickKnown nodes, or more, have what sick+healthy of all have, if that is drawn by
// chance: the upper tail of the hypergeometric distribution.
func fisher(sick, sickKnown, healthy, healthyKnown int) float64 {
	having, total := sick+healthy, sickKnown+healthyKnown
	sum := 0.0
	for k := sick; k <= min(having, sickKnown); k++ {
		if having-k > healthyKnown {
			continue
		}
		sum += math.Exp(choose(sickKnown, k) + choose(healthyKnown, having-k) - choose(total, having))
	}
	return min(1, sum)
}

// choose is the logarithm of the binomial coefficient.
func choose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}
