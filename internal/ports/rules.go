package ports

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// share is the part of a pool's ports that one rule, or one class of source ports, gives.
type share struct {
	nat.Ports
	class string
	// rule is an index in NATRules.Rules; -1 is none.
	rule  int
	draws bool
	from  string
}

// holds is the share of a pool's translated ports that must lie in a rule's range. The rest are
// entries older than the rule.
const holds = 0.98

// shares returns the rules that gave a pool's ports, those with a range before the one without. Rules
// with an original destination come last: a pool does not record that, and other rules do not fit it.
func (q *Query) shares(k key, p *pool, addrs *addresses) []share {
	var narrow []share
	whole, inRanges := -1, 0
	for _, original := range []bool{false, true} {
		if original && (len(narrow) > 0 || whole >= 0) {
			break
		}
		for _, i := range q.index.about(k.addr.Unmap()) {
			rule := &q.Rules.Rules[i]
			hasRange := rule.FirstPort != 0 || rule.LastPort != 0
			if rule.OriginalDestination != original || !q.mayGive(rule, k, p, addrs) || whole >= 0 && !(hasRange && isChosen(rule)) {
				continue
			}
			if !hasRange {
				whole = i
				if !isChosen(rule) && rule.OutInterface == "" && !rule.Partial {
					break // none after it is reached
				}
				continue
			}
			s := share{Ports: rule.Ports(), rule: i, draws: draws(rule), from: named(rule)}
			inside := p.count(s.Ports, 0)
			if inside > 0 && !slices.ContainsFunc(narrow, func(o share) bool { return o.Ports == s.Ports }) {
				narrow, inRanges = append(narrow, s), inRanges+inside
			}
			if p.gaveAll(s.Ports, inside) && p.isOnlyFrom(rule.FromSource, addrs) {
				return narrow
			}
		}
	}
	switch {
	case len(narrow) > 0 && (whole < 0 || p.gaveAll(nat.AllPorts, inRanges)):
		return narrow
	case whole >= 0:
		rule := &q.Rules.Rules[whole]
		return append(narrow, byClass(k.proto, p, whole, draws(rule), sourceOf(rule))...)
	case q.Rules == nil:
		return byClass(k.proto, p, -1, false, "the kernel's own, if no rule gives one: rules are not known")
	}
	return byClass(k.proto, p, -1, false, "the kernel's own")
}

// isChosen reports whether a rule is for some sources, or gives addresses of its own: it may be the
// pool's though one before it fits, too.
func isChosen(r *snapshot.NATRule) bool { return r.FromSource.IsValid() || r.First.IsValid() }

// ruleIndex finds rules by their single address: 10,000 rules take no more time than one.
type ruleIndex struct {
	of map[netip.Addr][]int
	// other have several addresses, or that of an interface.
	other []int
}

func indexRules(rules []snapshot.NATRule) ruleIndex {
	x := ruleIndex{of: map[netip.Addr][]int{}}
	for i := range rules {
		if r := &rules[i]; r.First.IsValid() && lastOf(r) == r.First {
			x.of[r.First] = append(x.of[r.First], i)
		} else {
			x.other = append(x.other, i)
		}
	}
	return x
}

// about returns the rules that may give an address, in order.
func (x *ruleIndex) about(a netip.Addr) []int {
	all := slices.Concat(x.of[a], x.other)
	slices.Sort(all)
	return all
}

// gaveAll reports whether the ports inside a range are, but for a few, all that were given.
func (p *pool) gaveAll(r nat.Ports, inside int) bool {
	localOutside := p.count(nat.AllPorts, isLocal) - p.count(r, isLocal)
	return float64(inside) >= holds*float64(p.count(nat.AllPorts, 0)-localOutside)
}

func (q *Query) rules() []snapshot.NATRule {
	if q.Rules == nil {
		return nil
	}
	return q.Rules.Rules
}

// sourceOf returns the origin of the range of a rule without constant ports.
func sourceOf(r *snapshot.NATRule) string {
	if r.PortsFromMap {
		return "not known, the map of " + named(r) + " has it: the kernel's own at most"
	}
	return "the kernel's own, " + named(r)
}

// byClass splits the ports as the kernel does without a range.
func byClass(proto uint8, p *pool, rule int, draws bool, from string) []share {
	var out []share
	for _, c := range classesOf(proto) {
		if p.count(c.all, 0) > 0 {
			out = append(out, share{Ports: c.drawn, class: c.name, rule: rule, draws: draws, from: from})
		}
	}
	return out
}

func draws(r *snapshot.NATRule) bool { return r.Random || r.FullyRandom }

func named(r *snapshot.NATRule) string { return fmt.Sprintf("%s: %s", r.Place(), r.Text) }

// mayGive reports whether the rule's known conditions fit the pool. Postrouting sees the
// translated destination.
func (q *Query) mayGive(r *snapshot.NATRule, k key, p *pool, addrs *addresses) bool {
	addr := k.addr.Unmap()
	return r.TranslatesSource() && familyFits(r.Family, addr) &&
		(r.Protocol == "" || r.Protocol == nat.ProtocolName(k.proto)) &&
		r.MayMatchPort(k.remotePort) &&
		(!r.ToDestination.IsValid() || r.ToDestination.Contains(k.remote)) &&
		(!r.First.IsValid() || r.First.Compare(addr) <= 0 && addr.Compare(lastOf(r)) <= 0) &&
		(!r.FromSource.IsValid() || p.comesFrom(r.FromSource, addrs))
}

func lastOf(r *snapshot.NATRule) netip.Addr {
	if r.Last.IsValid() {
		return r.Last
	}
	return r.First
}

func familyFits(family string, addr netip.Addr) bool {
	switch family {
	case "ip":
		return addr.Is4()
	case "ip6":
		return addr.Is6()
	}
	return true
}

// Given returns the single addresses of rules.
func Given(rules *snapshot.NATRules) []netip.Addr {
	if rules == nil {
		return nil
	}
	var given []netip.Addr
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.TranslatesSource() && r.First.IsValid() && lastOf(r) == r.First {
			given = append(given, r.First)
		}
	}
	return given
}

// sources counts ports by source; beyond maxSources a count is too low by at most
// ports/(maxSources+1) (Misra and Gries, "Finding repeated elements", 1982). A tally.Table for
// each large pool would be as large as the pool.
type sources struct{ counts map[uint32]int64 }

const maxSources = 256

func newSources() *sources { return &sources{counts: map[uint32]int64{}} }

func (s *sources) add(id uint32) {
	if n, ok := s.counts[id]; ok || len(s.counts) < maxSources {
		s.counts[id] = n + 1
		return
	}
	for other, n := range s.counts {
		if n == 1 {
			delete(s.counts, other)
		} else {
			s.counts[other] = n - 1
		}
	}
}

// addresses numbers addresses, for four bytes per port. Beyond maxAddresses the number is 0.
type addresses struct {
	numbers map[netip.Addr]uint32
	all     []netip.Addr
}

const (
	maxAddresses = 1 << 18
	addressBytes = 96
)

func newAddresses() *addresses {
	return &addresses{numbers: map[netip.Addr]uint32{}, all: []netip.Addr{{}}}
}

func (a *addresses) number(addr netip.Addr) uint32 {
	if n, ok := a.numbers[addr]; ok {
		return n
	}
	if len(a.all) > maxAddresses {
		return 0
	}
	n := uint32(len(a.all))
	a.numbers[addr] = n
	a.all = append(a.all, addr)
	return n
}

// largest names the sources with the most ports, of a prefix where it is valid.
func (a *addresses) largest(s *sources, n int, from netip.Prefix) []snapshot.Talker {
	talkers := make([]snapshot.Talker, 0, len(s.counts))
	for id, count := range s.counts {
		if id != 0 && (!from.IsValid() || from.Contains(a.all[id])) {
			talkers = append(talkers, snapshot.Talker{Who: a.all[id].String(), Entries: count})
		}
	}
	slices.SortFunc(talkers, func(a, b snapshot.Talker) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Who, b.Who))
	})
	return talkers[:min(n, len(talkers))]
}
