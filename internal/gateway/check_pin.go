package gateway

import (
	"math"
	"net/netip"
	"slices"
	"sort"

	"github.com/natkit/natkit/internal/nat"
)

// pin is a condition that asks for one value: no packet matches two entries that ask for different ones. Of thousands
// about the same addresses most differ so, and comparing all of them with all others in full takes long.
type pin struct {
	of    nat.Condition
	value uint32
}

// pinned are the conditions that may be one, those first by which most differ.
var pinned = [...]nat.Condition{nat.From, nat.To, nat.Owner, nat.MarkBits}

// pins finds them in the entries of a plan.
type pins struct {
	// numbers are those of sets: no address is in two sets of different numbers. Without them no set is a pin.
	numbers map[*nat.Set]uint32
	// runs are the addresses of all these sets, in order, each with the number of the sets that have some of it.
	runs []setRun
}

type setRun struct {
	nat.AddrRange
	number uint32
}

// fewSets are so few that comparing each with all others takes less than putting their elements in order.
const fewSets = 64

// pinsOf numbers the sets in which a plan's entries ask for addresses: those that have one in common have one number.
func pinsOf(p *Plan) *pins {
	x := &pins{}
	if len(p.Sets) <= fewSets {
		return x
	}
	x.numbers = map[*nat.Set]uint32{}
	var all []setRun
	for i, s := range p.Sets {
		x.numbers[s] = uint32(i)
		for _, r := range s.Addresses {
			all = append(all, setRun{r, uint32(i)})
		}
	}
	slices.SortFunc(all, func(a, b setRun) int { return a.First.Compare(b.First) })
	joined := newUnions(len(p.Sets))
	for _, r := range all {
		n := len(x.runs) - 1
		if n < 0 || x.runs[n].Last.Less(r.First) {
			x.runs = append(x.runs, r)
			continue
		}
		joined.join(x.runs[n].number, r.number)
		if x.runs[n].Last.Less(r.Last) {
			x.runs[n].Last = r.Last
		}
	}
	for i := range x.runs {
		x.runs[i].number = joined.of(x.runs[i].number)
	}
	for s, number := range x.numbers {
		x.numbers[s] = joined.of(number)
	}
	return x
}

// unions are numbers of which some were joined: of is the same for these.
type unions []uint32

func newUnions(n int) unions {
	u := make(unions, n)
	for i := range u {
		u[i] = uint32(i)
	}
	return u
}

func (u unions) of(n uint32) uint32 {
	for u[n] != n {
		u[n] = u[u[n]]
		n = u[n]
	}
	return n
}

func (u unions) join(a, b uint32) { u[u.of(a)] = u.of(b) }

// value is the one that an entry asks for; false where it asks for none, or for several.
func (x *pins) value(e *Entry, of nat.Condition) (value uint32, one bool) {
	switch of {
	case nat.Owner:
		return single(e.Users)
	case nat.MarkBits:
		return e.Mark.Value, e.Mark.Mask == math.MaxUint32
	}
	for i := range e.Members {
		if m := &e.Members[i]; m.Of == of && !m.Not && !m.Pairs {
			value, one = x.numbers[m.Set]
			return value, one
		}
	}
	return 0, false
}

// single is the user that all of a list are; false where they are several.
func single(users []nat.IDs) (id uint32, one bool) {
	for _, u := range users {
		if u.First != u.Last || u != users[0] {
			return 0, false
		}
		id, one = u.First, true
	}
	return id, one
}

// of is the first pin of an entry; the zero pin where it has none.
func (x *pins) of(e *Entry) pin {
	for _, of := range pinned {
		if value, one := x.value(e, of); one {
			return pin{of, value}
		}
	}
	return pin{}
}

// covering are the pins that an entry may have which matches all that e does, the zero one among them; false where it may
// be any.
func (x *pins) covering(e *Entry) (all []pin, few bool) {
	all = append(make([]pin, 0, 4), pin{})
	add := func(of nat.Condition, value uint32, is bool) {
		if p := (pin{of, value}); is && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, of := range pinned {
		value, one := x.value(e, of)
		add(of, value, one)
	}
	for _, asked := range []struct {
		of       nat.Condition
		prefixes []netip.Prefix
	}{{nat.From, e.From}, {nat.To, e.To}} {
		if len(asked.prefixes) > 0 {
			number, is := x.numberOf(asked.prefixes[0].Addr())
			add(asked.of, number, is)
		}
	}
	_, one := single(e.Users)
	return all, one || len(e.NotUsers) == 0 // of several users all but one may be excepted
}

// numberOf is that of the sets that have an address; false where none has it.
func (x *pins) numberOf(a netip.Addr) (number uint32, is bool) {
	i := sort.Search(len(x.runs), func(i int) bool { return a.Less(x.runs[i].First) })
	if i == 0 || !x.runs[i-1].Contains(a) {
		return 0, false
	}
	return x.runs[i-1].number, true
}

// fewEntries are so few that they need not be divided.
const fewEntries = 32

// split divides entries of which none may match a packet of another part: by how specific they are, and by those
// conditions in which all are pinned.
func (x *pins) split(entries []*Entry) [][]*Entry {
	if len(entries) < fewEntries {
		return [][]*Entry{entries}
	}
	type values [len(pinned)]uint32
	var parts [][]*Entry
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, compareEntries)
	for len(sorted) > 0 {
		n := slices.IndexFunc(sorted, func(e *Entry) bool { return compareEntries(sorted[0], e) != 0 })
		if n < 0 {
			n = len(sorted)
		}
		alike := sorted[:n]
		sorted = sorted[n:]
		places := map[values]int{}
		of := make([]values, len(alike))
		for i, condition := range pinned {
			if slices.ContainsFunc(alike, func(e *Entry) bool { _, one := x.value(e, condition); return !one }) {
				continue
			}
			for j, e := range alike {
				of[j][i], _ = x.value(e, condition)
			}
		}
		for j, e := range alike {
			at, known := places[of[j]]
			if !known {
				at = len(parts)
				places[of[j]], parts = at, append(parts, nil)
			}
			parts[at] = append(parts[at], e)
		}
	}
	return parts
}
