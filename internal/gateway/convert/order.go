package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

// rival is a part of a rule among those that packets meet at one hook.
type rival struct {
	*made
	want *gateway.Entry
	// at is its place in the order of the original.
	at int
}

// rank is the rivals that are equally specific, by the prefixes that they are for: of those with others no packet
// meets both.
type rank struct {
	like *gateway.Entry
	all  []rival
	of   map[[2]netip.Prefix][]rival
}

// ranks are rivals in groups that win or lose together.
type ranks []*rank

func (r *ranks) add(one rival) {
	i := slices.IndexFunc(*r, func(k *rank) bool { return compare(k.like, one.want) == 0 })
	if i < 0 {
		i = len(*r)
		*r = append(*r, &rank{like: one.want, of: map[[2]netip.Prefix][]rival{}})
	}
	k, key := (*r)[i], prefixesFor(one.want)
	k.all, k.of[key] = append(k.all, one), append(k.of[key], one)
}

// compare returns which of two entries wins if none is preferred.
func compare(a, b *gateway.Entry) int {
	x, y := *a, *b
	x.Prefer, y.Prefer = 0, 0
	return x.Compare(&y)
}

func prefixesFor(e *gateway.Entry) (key [2]netip.Prefix) {
	for i, list := range [][]netip.Prefix{e.To, e.From} {
		if len(list) > 0 {
			key[i] = list[0]
		}
	}
	return key
}

// order gives rules what they need so that of two that match a packet the one wins that comes first in the original:
// there the first one does, in the file the most specific one. The later one excepts what the first one matches, or,
// where they are equally specific, the first one is preferred. Where neither is possible the later one is refused.
func (t *translator) order() {
	places := map[*entry]int{}
	for i, e := range t.entries {
		places[e] = i
	}
	for i, do := range []func(hook string, all []rival){t.yield, t.prefer} {
		if i > 0 {
			t.replace(func(m *made) []*made {
				if t.never[m.key()] {
					return nil
				}
				return []*made{m}
			})
		}
		for _, version := range []int{4, 6} {
			for _, hook := range []string{"postrouting", "prerouting", "output"} {
				if do(hook, t.rivals(version, hook, places)); t.again {
					return
				}
			}
		}
	}
}

// key names a part of an entry's packets.
func (m *made) key() string {
	return fmt.Sprintf("%p %s", m.from[0], written(gateway.Entry{Match: m.match}))
}

// rivals are the parts of rules that packets meet at a hook, in the order of the original.
func (t *translator) rivals(version int, hook string, places map[*entry]int) (all []rival) {
	for _, m := range t.rules {
		for i := range m.parts {
			of, want := m.parts[i].of, &m.parts[i].want
			if hook == "output" && m.twin != nil && of.hook == "prerouting" {
				of = m.twin
			}
			if m.version == version && of.hook == hook {
				all = append(all, rival{m, want, places[of]})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b rival) int { return cmp.Compare(a.at, b.at) })
	return all
}

// yield lets later rules except what earlier ones match, where they would win.
func (t *translator) yield(hook string, all []rival) {
	var before ranks
	divided := map[*made][]*made{}
	for _, later := range all {
		for todo := []rival{later}; len(todo) > 0; {
			one := todo[0]
			todo = todo[1:]
			first := before.loses(one)
			if first == nil {
				before.add(one)
				if one.made != later.made {
					divided[later.made] = append(divided[later.made], one.made)
				}
				continue
			}
			if one.isPair() || one.twin != nil && (first.twin == nil || hook == "output") {
				t.separate(one.made, first)
				return
			}
			parts, word := without(&one.match, &first.want.Match, hook == "output")
			if len(divided[later.made])+len(todo)+len(parts) > mostForms {
				word = "many fields"
			}
			if word != "" {
				t.refuse(one.from[0], fmt.Sprintf("%s wins now where both match, as it comes first; natkit lets the more specific rule win, and this one cannot say the opposite of a condition on the %s",
					where(first.from[0].Rule), word))
				return
			}
			if divided[later.made] == nil {
				divided[later.made] = []*made{}
			}
			for i := range parts {
				part := *one.made
				part.match = parts[i]
				part.write()
				todo = append(todo, rival{&part, &part.parts[0].want, later.at})
			}
		}
	}
	t.replace(func(m *made) []*made {
		if parts, is := divided[m]; is {
			return parts
		}
		return []*made{m}
	})
}

// replace puts others in the place of rules. No packet comes to an entry of which nothing is left.
func (t *translator) replace(by func(m *made) []*made) {
	var rules []*made
	left := map[*entry]bool{}
	for _, m := range t.rules {
		some := by(m)
		left[m.from[0]] = left[m.from[0]] || len(some) > 0
		rules = append(rules, some...)
	}
	t.rules = rules
	for e, is := range left {
		if !is {
			t.unreached[e], t.again = "other rules take all its packets, or do the same to them", true
		}
	}
}

// loses is the first rule that does something else and that another one would win over where both match; nil if there
// is none.
func (r ranks) loses(to rival) *rival {
	for _, k := range r {
		if compare(k.like, to.want) <= 0 {
			continue
		}
		for i := range k.all {
			if one := &k.all[i]; !farApart(&one.want.Match, &to.want.Match) && one.want.Overlaps(&to.want.Match) && !givesSame(&one.from[0].Rule.Target, &to.from[0].Rule.Target) {
				return one
			}
		}
	}
	return nil
}

// separate makes several rules of one that stands for several of the original, or, where that has no word, none.
func (t *translator) separate(m *made, first *rival) {
	switch {
	case m.rule.Static != nil:
		for _, e := range m.from {
			t.apart[e] = true
		}
		t.again = true
	case m.isPair():
		for _, e := range m.from {
			t.refuse(e, where(first.from[0].Rule)+" wins now where both match, as it comes first; natkit's "+m.rule.Kind()+" would win over it")
		}
	default:
		t.alone[m.from[0]], t.again = true, true
	}
}

// mostPreferred bounds prefer in a file.
const mostPreferred = 1000

// prefer lets earlier rules win over equally specific ones.
func (t *translator) prefer(_ string, all []rival) {
	var after ranks
	for _, one := range slices.Backward(all) {
		if k := after.like(one.want); k != nil {
			for _, later := range k.of[prefixesFor(one.want)] {
				if farApart(&later.want.Match, &one.want.Match) || later.made == one.made || later.rule.Prefer < one.rule.Prefer || !later.want.Overlaps(&one.want.Match) {
					continue
				}
				if one.isPair() || later.rule.Prefer == mostPreferred {
					t.refuse(later.from[0], where(one.from[0].Rule)+" is as specific and comes first, which natkit's rules cannot say")
					return
				}
				one.rule.Prefer = later.rule.Prefer + 1
				for i := range one.parts {
					one.parts[i].want.Prefer = int(one.rule.Prefer)
				}
			}
		}
		after.add(one)
	}
}

// like is the rank of an entry; nil if there is none yet.
func (r ranks) like(e *gateway.Entry) *rank {
	for _, k := range r {
		if compare(k.like, e) == 0 {
			return k
		}
	}
	return nil
}
