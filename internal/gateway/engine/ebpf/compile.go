package ebpf

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// roles are what interfaces are for the mappings of a plan: the first bit is that of all, then comes one for each list of
// interfaces, the last one is plane.Inside.
type roles struct {
	lists [][]string
	plan  *gateway.Plan
}

// anyInterface is the bit that all interfaces have.
const anyInterface plane.Roles = 1

// mostLists is how many lists have a bit.
const mostLists = 30

// add gives a list its bit; false where there is none left.
func (r *roles) add(list []string) bool {
	if len(list) == 0 || r.of(list) >= 0 {
		return true
	}
	if len(r.lists) == mostLists {
		return false
	}
	r.lists = append(r.lists, list)
	return true
}

func (r *roles) of(list []string) int {
	return slices.IndexFunc(r.lists, func(l []string) bool { return slices.Equal(l, list) })
}

// asked is the role that a list asks for; none is met by all.
func (r *roles) asked(list []string) plane.Roles {
	if len(list) == 0 {
		return anyInterface
	}
	return anyInterface << (1 + r.of(list))
}

// Of are the roles of an interface.
func (r *roles) Of(i gateway.Interface) plane.Roles {
	is := anyInterface
	for _, list := range r.lists {
		if slices.ContainsFunc(list, i.Is) {
			is |= r.asked(list)
		}
	}
	inside := len(r.plan.WAN) > 0 && !slices.ContainsFunc(r.plan.WAN, i.Is)
	if len(r.plan.LAN) > 0 {
		inside = slices.ContainsFunc(r.plan.LAN, i.Is)
	}
	if inside {
		is |= plane.Inside
	}
	return is
}

// compiled is what the programs carry out of a plan.
type compiled struct {
	plane.Tables
	roles roles
	// rules are the rules of the file by the numbers of their counters; 0 is none's.
	rules []gateway.Ref
}

// compile makes tables of the part of a plan that Claim took.
func compile(part *gateway.Plan) *compiled {
	all, _ := links(part)
	c := &compiled{roles: roles{plan: part}, rules: make([]gateway.Ref, 1)}
	numbers, n := map[gateway.Ref]uint32{}, 0
	for i := range all {
		k := &all[i]
		if n += k.mappings(); numbers[k.rule] == 0 {
			numbers[k.rule], c.rules = uint32(len(c.rules)), append(c.rules, k.rule)
		}
	}
	c.Rules, c.Elsewhere = uint32(len(c.rules)), part.Elsewhere
	c.Destinations, c.Sources = make([]plane.Mapping, 0, n), make([]plane.Mapping, 0, n)
	for i := range all {
		k := &all[i]
		c.roles.add(k.in)
		c.roles.add(k.out)
		in, out := c.roles.asked(k.in), c.roles.asked(k.out)
		if k.hairpin {
			in, out = in|plane.Inside, out|plane.Inside
		}
		c.Destinations = k.appendTo(c.Destinations, in, numbers[k.rule], true)
		c.Sources = k.appendTo(c.Sources, out, numbers[k.rule], false)
	}
	return c
}

// mappings is how many a link becomes in each table: one for all of its pairs, or for each port that it names.
func (k *link) mappings() int {
	if k.pairs != nil || k.isWhole() {
		return 1
	}
	return k.outside.ports.Len()
}

// hosts are pairs in one direction.
func hosts(pairs []nat.AddrPair, toInside bool) *plane.Hosts {
	return &plane.Hosts{Len: len(pairs), Each: func(yield func(from, to netip.Addr) bool) {
		for _, p := range pairs {
			from, to := p.Inside, p.Outside
			if toInside {
				from, to = to, from
			}
			if !yield(from, to) {
				return
			}
		}
	}}
}

func (k *link) isWhole() bool { return k.outside.ports.Len() == 1<<16 }

func (k *link) appendTo(table []plane.Mapping, asked plane.Roles, number uint32, toInside bool) []plane.Mapping {
	from, to := k.inside, k.outside
	if toInside {
		from, to = to, from
	}
	m := plane.Mapping{Match: from.prefix, To: to.prefix, Protocol: from.protocol, Neutral: k.neutral, Roles: asked, Rule: number}
	if k.pairs != nil {
		m.Hosts = hosts(k.pairs.Pairs(k.rule.BitLen()), toInside)
		return append(table, m)
	}
	if k.isWhole() {
		return append(table, m)
	}
	for i := range k.mappings() {
		m.Port = from.ports.First + uint16(i)
		if m.ToPort = to.ports.First + uint16(i); m.ToPort == m.Port {
			m.ToPort = 0
		}
		table = append(table, m)
	}
	return table
}
