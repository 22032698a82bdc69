package nat

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
)

// Set is a set of addresses, of services, or of pairs of addresses, that matches refer to by its name.
type Set struct {
	Name string
	// Addresses are in order, and none overlaps another; those of IPv4 come first, and are as many as v4.
	Addresses AddrRanges
	v4        int
	// Services are in order, and none overlaps another. Each has a protocol.
	Services []Service
	// pairs is nil for a set of others.
	pairs *pairs

	sum  sync.Once
	hash string
	// relations are to other sets, as far as they were asked for.
	relations sync.Map
}

// NewSet makes a set of what is in any order, repeated, and overlaps.
func NewSet(name string, addresses AddrRanges, services []Service) *Set {
	s := &Set{Name: name, Addresses: apart(addresses, func(a, b AddrRange) int { return a.First.Compare(b.First) }, AddrRange.Overlaps, func(a, b AddrRange) AddrRange {
		if a.Last.Less(b.Last) {
			a.Last = b.Last
		}
		return a
	}), Services: apart(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Ports.First, b.Ports.First))
	}, func(a, b Service) bool { return a.Protocol == b.Protocol && b.Ports.First <= a.Ports.Last }, func(a, b Service) Service {
		a.Ports.Last = max(a.Ports.Last, b.Ports.Last)
		return a
	})}
	s.v4 = sort.Search(len(s.Addresses), func(i int) bool { return s.Addresses[i].First.Is6() })
	return s
}

// apart sorts a list, which it may change, and joins what overlaps.
func apart[S ~[]T, T any](all S, order func(a, b T) int, overlap func(a, b T) bool, join func(a, b T) T) S {
	if !slices.IsSortedFunc(all, order) {
		slices.SortFunc(all, order)
	}
	n := 0
	for _, one := range all {
		if n > 0 && overlap(all[n-1], one) {
			all[n-1] = join(all[n-1], one)
			continue
		}
		all[n] = one
		n++
	}
	return all[:n]
}

// Of are the addresses of a family, 32 or 128; all for 0.
func (s *Set) Of(family int) AddrRanges {
	switch family {
	case 32:
		return s.Addresses[:s.v4]
	case 128:
		return s.Addresses[s.v4:]
	}
	return s.Addresses
}

// Len is the number of elements.
func (s *Set) Len() int { return len(s.Addresses) + len(s.Services) + len(s.Pairs(0)) }

// LenOf is the number of elements that are for a family, 32 or 128.
func (s *Set) LenOf(family int) int {
	return len(s.Of(family)) + len(s.Services) + len(s.Pairs(family))
}

// HasAddr reports whether an address is in the set.
func (s *Set) HasAddr(a netip.Addr) bool {
	i := after(s.Addresses, a)
	return i > 0 && s.Addresses[i-1].Contains(a)
}

// after is the place of the first range that begins behind an address.
func after(all AddrRanges, a netip.Addr) int {
	return sort.Search(len(all), func(i int) bool { return a.Less(all[i].First) })
}

// HasService reports whether a port of a protocol is in the set.
func (s *Set) HasService(protocol uint8, port uint16) bool {
	i := sort.Search(len(s.Services), func(i int) bool {
		x := s.Services[i]
		return x.Protocol > protocol || x.Protocol == protocol && x.Ports.First > port
	})
	return i > 0 && s.Services[i-1].Protocol == protocol && s.Services[i-1].Ports.Contains(port)
}

// Text is the set with one element on a line, in order: equal sets have the same text.
func (s *Set) Text() []byte {
	b := make([]byte, 0, 32*s.Len())
	for _, p := range s.Pairs(0) {
		b = append(p.appendTo(b), '\n')
	}
	for _, r := range s.Addresses {
		b = r.First.AppendTo(b)
		if !r.IsSingle() {
			b = r.Last.AppendTo(append(b, '-'))
		}
		b = append(b, '\n')
	}
	for _, x := range s.Services {
		b = append(append(b, x.String()...), '\n')
	}
	return b
}

// ParseSet reads what Text writes.
func ParseSet(name string, text []byte) (*Set, error) {
	if line, _, _ := bytes.Cut(text, []byte("\n")); bytes.IndexByte(line, ' ') >= 0 {
		return parsePairs(name, text)
	}
	addresses := make(AddrRanges, 0, bytes.Count(text, []byte("\n")))
	var services []Service
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if protocol, ports, is := strings.Cut(line, "/"); is {
			number, err := ParseProtocol(protocol)
			if err != nil {
				return nil, fmt.Errorf("set %s: %w", name, err)
			}
			p, err := ParsePorts(ports)
			if err != nil {
				return nil, fmt.Errorf("set %s: %w", name, err)
			}
			services = append(services, Service{number, p})
			continue
		}
		first, last, isRange := strings.Cut(line, "-")
		if !isRange {
			last = first
		}
		r := AddrRange{}
		var err error
		if r.First, err = netip.ParseAddr(first); err == nil && isRange {
			r.Last, err = netip.ParseAddr(last)
		} else {
			r.Last = r.First
		}
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		addresses = append(addresses, r)
	}
	return NewSet(name, addresses, services), nil
}

func parsePairs(name string, text []byte) (*Set, error) {
	all := make([]AddrPair, 0, bytes.Count(text, []byte("\n")))
	for line := range strings.Lines(string(text)) {
		outside, inside, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var p AddrPair
		var err error
		if p.Outside, err = netip.ParseAddr(outside); err == nil {
			p.Inside, err = netip.ParseAddr(inside)
		}
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		all = append(all, p)
	}
	s, twice := NewPairs(name, all)
	if twice != nil {
		return nil, fmt.Errorf("set %s: %s is in two pairs", name, twice.Address)
	}
	return s, nil
}

// Digest is the SHA-256 of Text, in hex; of a set that was read from JSON what that has.
func (s *Set) Digest() string {
	s.sum.Do(func() {
		if s.hash == "" {
			sum := sha256.Sum256(s.Text())
			s.hash = hex.EncodeToString(sum[:])
		}
	})
	return s.hash
}

// setJSON is a set in JSON: its elements are kept apart, by their digest.
type setJSON struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Elements int    `json:"elements"`
}

// MarshalJSON is the set without its elements.
func (s *Set) MarshalJSON() ([]byte, error) {
	return json.Marshal(setJSON{s.Name, s.Digest(), s.Len()})
}

// UnmarshalJSON reads a set without its elements.
func (s *Set) UnmarshalJSON(text []byte) error {
	var j setJSON
	err := json.Unmarshal(text, &j)
	s.Name, s.hash = j.Name, j.Digest
	return err
}

// SetChange counts the elements that come and go from one set to another; nil is an empty one.
func SetChange(before, after *Set) (added, removed int) {
	b, a := cmp.Or(before, &Set{}), cmp.Or(after, &Set{})
	more, less := CountChanged(b.Addresses, a.Addresses, func(x, y AddrRange) int { return cmp.Or(x.First.Compare(y.First), x.Last.Compare(y.Last)) })
	moreServices, lessServices := CountChanged(b.Services, a.Services, func(x, y Service) int {
		return cmp.Or(cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.Ports.First, y.Ports.First), cmp.Compare(x.Ports.Last, y.Ports.Last))
	})
	morePairs, lessPairs := CountChanged(b.Pairs(0), a.Pairs(0), AddrPair.Compare)
	return more + moreServices + morePairs, less + lessServices + lessPairs
}

// CountChanged is how many elements of two ordered lists only the second one, or only the first one has.
func CountChanged[T any](before, after []T, order func(a, b T) int) (added, removed int) {
	eachChanged(before, after, order, func(T) { added++ }, func(T) { removed++ })
	return added, removed
}

// Changed are the elements that CountChanged counts.
func Changed[T any](before, after []T, order func(a, b T) int) (added, removed []T) {
	eachChanged(before, after, order, func(x T) { added = append(added, x) }, func(x T) { removed = append(removed, x) })
	return added, removed
}

func eachChanged[T any](before, after []T, order func(a, b T) int, added, removed func(T)) {
	for len(before) > 0 && len(after) > 0 {
		switch c := order(before[0], after[0]); {
		case c == 0:
			before, after = before[1:], after[1:]
		case c < 0:
			removed(before[0])
			before = before[1:]
		default:
			added(after[0])
			after = after[1:]
		}
	}
	for _, x := range before {
		removed(x)
	}
	for _, x := range after {
		added(x)
	}
}

// Member is the condition that something of a packet is in a set, or, Not, that it is not.
type Member struct {
	// Of is From, To, DestPorts or OriginalPorts.
	Of   Condition `json:"of"`
	Name string    `json:"set"`
	Not  bool      `json:"not,omitempty"`
	// Pairs: the set has pairs, and the condition is about one side of these.
	Pairs bool `json:"pairs,omitempty"`
	Set   *Set `json:"-"`
}

// Compare orders members by what they ask.
func (x Member) Compare(y Member) int {
	return cmp.Or(cmp.Compare(x.Of, y.Of), cmp.Compare(x.Name, y.Name), cmp.Compare(not(x.Not), not(y.Not)))
}

func not(is bool) int {
	if is {
		return 1
	}
	return 0
}

// met reports whether a packet meets the condition.
func (x *Member) met(p *Packet) bool {
	in := false
	switch x.Of {
	case From:
		in = x.Set.Side(From).HasAddr(p.Src)
	case To:
		in = x.Set.Side(To).HasAddr(p.Dst)
	case DestPorts:
		in = x.Set.HasService(p.Protocol, p.DstPort)
	case OriginalPorts:
		in = x.Set.HasService(p.Protocol, p.OriginalPort)
	}
	return in != x.Not
}

// members reports whether a packet meets all conditions of the match on sets of one kind.
func (m *Match) members(of Condition, not bool, p *Packet) bool {
	for i := range m.Members {
		if x := &m.Members[i]; x.Of == of && x.Not == not && !x.met(p) {
			return false
		}
	}
	return true
}

// relation is how two sets of one family lie.
type relation struct{ disjoint, within bool }

type related struct {
	to     *Set
	family int
}

// to returns whether the set has nothing in common with another, and whether all of it is in that. It is linear in the
// smaller one, and kept.
func (s *Set) to(o *Set, family int) relation {
	if s == o {
		return relation{len(s.Of(family))+len(s.Services) == 0, true}
	}
	if known, ok := s.relations.Load(related{o, family}); ok {
		return known.(relation)
	}
	a, b := s.Of(family), o.Of(family)
	r := relation{!meet(a, b), true}
	for i := 0; i < len(a) && r.within; i++ {
		r.within = contains(b, a[i])
	}
	for _, x := range s.Services {
		all := r.within
		for port := int(x.Ports.First); port <= int(x.Ports.Last); port++ {
			has := o.HasService(x.Protocol, uint16(port))
			r.disjoint, all = r.disjoint && !has, all && has
		}
		r.within = all
	}
	s.relations.Store(related{o, family}, r)
	return r
}

// meet reports whether two ordered lists have an address in common.
func meet(a, b AddrRanges) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return slices.ContainsFunc(a, func(r AddrRange) bool { return meets(b, r) })
}

// meets reports whether an ordered list has an address of r.
func meets(all AddrRanges, r AddrRange) bool {
	i := after(all, r.Last)
	return i > 0 && all[i-1].Overlaps(r)
}

// Within are those ranges of an ordered list that have an address of s.
func (r AddrRanges) Within(s AddrRange) AddrRanges {
	first := max(0, after(r, s.First)-1)
	if first < len(r) && r[first].Last.Less(s.First) {
		first++
	}
	return r[first:max(first, after(r, s.Last))]
}

// contains reports whether an ordered list has all addresses of r.
func contains(all AddrRanges, r AddrRange) bool {
	for i := max(0, after(all, r.First)-1); i < len(all) && all[i].Contains(r.First); i++ {
		if r.Last.Compare(all[i].Last) <= 0 {
			return true
		}
		r.First = all[i].Last.Next()
	}
	return false
}

// prefixesOf are the prefixes that a match asks for, or excepts, where a member does.
func (m *Match) prefixesOf(of Condition) (asked, excepted []netip.Prefix) {
	switch of {
	case From:
		return m.From, m.NotFrom
	case To:
		return m.To, m.NotTo
	}
	return nil, nil
}

// membersOverlap is false where the sets that two matches ask for leave no packet to both.
func (m *Match) membersOverlap(o *Match, family int) bool {
	for _, x := range [2]*Match{m, o} {
		for i := range x.Members {
			if a := &x.Members[i]; !a.leaves(m, family) || !a.leaves(o, family) {
				return false
			}
		}
	}
	return true
}

// leaves is false where no packet that meets the condition meets those of a match on the same.
func (x *Member) leaves(m *Match, family int) bool {
	set := x.Set.Side(x.Of)
	own := set.Of(family)
	asked, excepted := m.prefixesOf(x.Of)
	within := func(p netip.Prefix) bool { return contains(own, RangeOf(p)) }
	if x.Not {
		return (len(asked) == 0 || !all(asked, within)) && !x.hasServices(m)
	}
	if len(asked) > 0 && !slices.ContainsFunc(asked, func(p netip.Prefix) bool { return meets(own, RangeOf(p)) }) {
		return false
	}
	if len(excepted) > 0 && len(own) > 0 {
		var out AddrRanges
		for _, p := range excepted {
			out = append(out, RangeOf(p))
		}
		out = out.Join()
		if all(own, func(r AddrRange) bool { return contains(out, r) }) {
			return false
		}
	}
	if len(x.Set.Services) > 0 && !x.leavesServices(m) {
		return false
	}
	for i := range m.Members {
		y := &m.Members[i]
		if y.Of != x.Of {
			continue
		}
		if r := set.to(y.Set.Side(y.Of), family); y.Not && r.within || !y.Not && r.disjoint {
			return false
		}
	}
	return true
}

// hasServices reports whether the set has all services that a match asks for, and it does ask for some.
func (x *Member) hasServices(m *Match) bool {
	asked := m.Services()
	return x.Of == DestPorts && len(asked) > 0 && all(asked, func(s Service) bool {
		return s.Protocol != 0 && services.within(s, x.Set.Services, nil)
	})
}

// leavesServices is leaves of the services that a match names.
func (x *Member) leavesServices(m *Match) bool {
	asked, excepted := m.Services(), m.NotServices
	if x.Of == OriginalPorts {
		asked, excepted = nil, nil
	}
	return services.overlap(x.Set.Services, nil, asked, excepted, 0)
}

func all[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(one T) bool { return !is(one) })
}

// membersCover reports whether every packet of o is in the sets that m asks for.
func (m *Match) membersCover(o *Match, family int) bool {
	for i := range m.Members {
		if !m.Members[i].covers(o, family) {
			return false
		}
	}
	return true
}

func (x *Member) covers(o *Match, family int) bool {
	set := x.Set.Side(x.Of)
	own := set.Of(family)
	if asked, _ := o.prefixesOf(x.Of); len(asked) > 0 && all(asked, func(p netip.Prefix) bool {
		if x.Not {
			return !meets(own, RangeOf(p))
		}
		return contains(own, RangeOf(p))
	}) {
		return true
	}
	if !x.Not && x.hasServices(o) {
		return true
	}
	return slices.ContainsFunc(o.Members, func(y Member) bool {
		if y.Of != x.Of {
			return false
		}
		switch {
		case x.Not && y.Not:
			return set.to(y.Set.Side(y.Of), family).within
		case x.Not:
			return y.Set.Side(y.Of).to(set, family).disjoint
		}
		return !y.Not && y.Set.Side(y.Of).to(set, family).within
	})
}

// named are the sets that a match asks for, or excepts, as the file has them.
func (m *Match) named(of Condition, not bool) (names []string) {
	for _, x := range m.Members {
		if x.Of == of && x.Not == not && !slices.Contains(names, "$"+x.Name) {
			names = append(names, "$"+x.Name)
		}
	}
	return names
}

// Excepted is what a packet falls under of what a condition excepts (To, From, NotServices), as the file has it; empty
// where it falls under none of it.
func (m *Match) Excepted(c Condition, p *Packet) string {
	var prefixes []netip.Prefix
	addr := p.Dst
	switch c {
	case To:
		prefixes = m.NotTo
	case From:
		prefixes, addr = m.NotFrom, p.Src
	case NotServices:
		c = DestPorts // as its sets are kept
	}
	var all []string
	for _, one := range prefixes {
		if one.Contains(addr) {
			all = append(all, PrefixString(one))
		}
	}
	for _, s := range m.NotServices {
		if c == DestPorts && s.Has(p) {
			all = append(all, s.String())
		}
	}
	for i := range m.Members {
		if x := &m.Members[i]; x.Of == c && x.Not && !x.met(p) {
			all = append(all, "$"+x.Name)
		}
	}
	return strings.Join(all, ", ")
}

// Asked is the match without what it excepts of addresses and services.
func (m *Match) Asked() Match {
	asked := *m
	asked.NotTo, asked.NotFrom, asked.NotServices = nil, nil, nil
	asked.Members = slices.DeleteFunc(slices.Clone(m.Members), func(x Member) bool { return x.Not })
	return asked
}

// withoutTo are the members but for those that ask for destinations.
func (m *Match) withoutTo() []Member {
	return slices.DeleteFunc(slices.Clone(m.Members), func(x Member) bool { return x.Of == To && !x.Not })
}

// places are prefixes and sets, with commas between: all addresses are not worth a word beside a set.
func places(prefixes []netip.Prefix, sets []string) string {
	if len(sets) == 0 {
		return PrefixesString(prefixes)
	}
	var texts []string
	for _, p := range prefixes {
		if p.Bits() > 0 {
			texts = append(texts, PrefixString(p))
		}
	}
	return strings.Join(append(texts, sets...), ", ")
}
