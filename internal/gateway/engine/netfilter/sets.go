package netfilter

import (
	"bytes"
	"cmp"
	"iter"
	"math/bits"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// member is the condition that something of a packet is in a set of the plan. The address that a pair has for it is then
// in pairRegister.
func (t *table) member(f *family, x nat.Member) []expression {
	if x.Pairs {
		offset := f.saddr
		if x.Of == nat.To {
			offset = f.daddr
		}
		return t.pairs(x.Set, f, x.Of).inPairs(payload(expr.PayloadBaseNetworkHeader, offset, uint32(f.bytes), reg1))
	}
	switch x.Of {
	case nat.From:
		return []expression{payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), reg1), t.planned(x.Set, f).lookup(reg1, x.Not)}
	case nat.To:
		return []expression{payload(expr.PayloadBaseNetworkHeader, f.daddr, uint32(f.bytes), reg1), t.planned(x.Set, f).lookup(reg1, x.Not)}
	}
	port := part{field: destinationPort}
	if x.Of == nat.OriginalPorts {
		port.field = originalPort
	}
	return []expression{part{field: protocol}.loadAll(f, word00), port.loadAll(f, word00+1), t.planned(x.Set, nil).lookup(reg1, x.Not)}
}

// planned is a set of the plan, of addresses of one family or, without one, of services.
func (t *table) planned(of *nat.Set, f *family) *set {
	s := &set{of: of, family: f, name: ruleset.GatewaySet + "-" + of.Name, key: concat(nftables.TypeInetProto, nftables.TypeInetService), about: "set " + of.Name}
	if f != nil {
		s.name, s.key = ruleset.GatewaySet+f.suffix+"-"+of.Name, f.address
		if slices.ContainsFunc(of.Of(f.bits()), func(r nat.AddrRange) bool { return !r.IsSingle() }) {
			s.flags |= unix.NFT_SET_INTERVAL
		}
	}
	return t.once(s)
}

// pairRegister has what a pair makes of an address: other conditions and keys, which have no addresses then, leave it
// alone.
const pairRegister = reg3

// pairs is the map of a set of pairs in one direction: from the addresses inside (nat.From) or those outside (nat.To).
func (t *table) pairs(of *nat.Set, f *family, from nat.Condition) *set {
	direction := "out"
	if from == nat.To {
		direction = "in"
	}
	s := &set{of: of, family: f, from: from, name: ruleset.GatewayPairs + f.suffix + "-" + direction + "-" + of.Name, key: f.address, data: f.address,
		flags: unix.NFT_SET_MAP, about: "set " + of.Name}
	return t.once(s)
}

// inPairs puts what the map has for what load puts into reg1 into pairRegister; a packet of which it has nothing is none of
// the rule's.
func (s *set) inPairs(load expression) []expression {
	return []expression{load, s.translateTo(pairRegister, reg1)}
}

// read has nft(8) list what put something into pairRegister, where nothing else of the rule reads that.
func (f *family) read() expression { return unequal(pairRegister, make([]byte, f.bytes)) }

// hasPairs reports whether a condition of a group is on pairs.
func (g *group) hasPairs() bool {
	return slices.ContainsFunc(g.other.Members, func(x nat.Member) bool { return x.Pairs })
}

// once adds a set of the plan, unless it is there.
func (t *table) once(s *set) *set {
	if i := slices.IndexFunc(t.sets, func(known *set) bool { return known.name == s.name }); i >= 0 {
		return t.sets[i]
	}
	s.size = s.room()
	return t.add(s)
}

// mostCompared is the number of elements up to which a set is read back and compared with what was written; intervals
// have room for twice as many (ruleset.RoomOfRead).
const mostCompared = 10_000

// room is the declared size of a set of the plan, which has the kernel take a hash table of that size (nft_hash): at least
// twice its elements, so that it can grow. A table without one is resized as it grows (nft_rhash): to insert a million
// elements takes three times as long, and many times as long where the CPUs are busy, as the worker that moves them to a
// larger table comes late. Sets of intervals are trees.
func (s *set) room() uint32 {
	n := s.len()
	switch {
	case n <= mostCompared:
		return ruleset.RoomOfRead
	case s.flags&unix.NFT_SET_INTERVAL != 0:
		return 0
	}
	return uint32(max(2*ruleset.RoomOfRead, 1<<bits.Len(uint(2*n-1))))
}

// len is the number of elements, each port of a range being one.
func (s *set) len() (n int) {
	if s.from != "" {
		return len(s.of.Pairs(s.family.bits()))
	}
	if s.family != nil {
		return len(s.of.Of(s.family.bits()))
	}
	for _, x := range s.of.Services {
		n += x.Ports.Len()
	}
	return n
}

// spans are the elements of a set of the plan, from the first value to the last: ports one by one, as keys of several
// parts are intervals since Linux 5.6 only, and ranges that touch as one, as the kernel refuses overlaps.
func (s *set) spans() (all []addrSpan) {
	if s.from != "" {
		return s.mapped()
	}
	if s.family == nil {
		for _, x := range s.of.Services {
			for port := int(x.Ports.First); port <= int(x.Ports.Last); port++ {
				key := [16]byte{x.Protocol, 4: byte(port >> 8), 5: byte(port)}
				all = append(all, addrSpan{key, key})
			}
		}
		return all
	}
	ranges := s.of.Of(s.family.bits())
	all = make([]addrSpan, 0, len(ranges))
	for _, r := range ranges {
		one := addrSpan{s.family.key(r.First.As16()), s.family.key(r.Last.As16())}
		if n := len(all) - 1; n >= 0 && s.flags&unix.NFT_SET_INTERVAL != 0 && next(all[n].last) == one.first {
			all[n].last = one.last
			continue
		}
		all = append(all, one)
	}
	return all
}

// mapped are the elements of a map of pairs, in the order of the addresses outside.
func (s *set) mapped() []addrSpan {
	pairs := s.of.Pairs(s.family.bits())
	all := make([]addrSpan, len(pairs))
	for i, p := range pairs {
		all[i] = addrSpan{s.family.key(p.Outside.As16()), s.family.key(p.Inside.As16())}
		if s.from == nat.From {
			all[i].first, all[i].last = all[i].last, all[i].first
		}
	}
	return all
}

// order is that of spans.
func (s *set) order(a, b addrSpan) int {
	if s.from == nat.From {
		return cmp.Or(bytes.Compare(a.last[:], b.last[:]), bytes.Compare(a.first[:], b.first[:]))
	}
	return cmp.Or(bytes.Compare(a.first[:], b.first[:]), bytes.Compare(a.last[:], b.last[:]))
}

// addrSpan is an element: the bytes of its key, from the left; of a map last is what the key becomes.
type addrSpan struct{ first, last [16]byte }

// key is an address from the left: As16 has one of IPv4 at its end.
func (f *family) key(a [16]byte) (key [16]byte) {
	copy(key[:], a[16-f.bytes:])
	return key
}

// next is the key behind one of 16 bytes, of which those of IPv4 use four.
func next(key [16]byte) [16]byte {
	n := 16
	if [12]byte(key[4:]) == [12]byte{} {
		n = 4
	}
	for i := n - 1; i >= 0; i-- {
		if key[i]++; key[i] != 0 {
			break
		}
	}
	return key
}

// elementsOf are some spans as the kernel has them. Those of intervals have an end behind them, but for one that has all
// to the last address.
func (s *set) elementsOf(spans []addrSpan) iter.Seq[element] {
	length := s.key.Bytes
	interval := s.flags&unix.NFT_SET_INTERVAL != 0
	return func(yield func(element) bool) {
		for i := range spans {
			one := element{key: spans[i].first[:length]}
			if s.from != "" {
				one.data = spans[i].last[:length]
			}
			if !yield(one) {
				return
			}
			if !interval {
				continue
			}
			end := after(spans[i].last[:length])
			if end != nil && !yield(element{key: end, end: true}) {
				return
			}
		}
	}
}

// after is the value behind one; nil behind the last.
func after(key []byte) []byte {
	end := slices.Clone(key)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end
		}
	}
	return nil
}

// isRead reports whether the elements are read back.
func (s *set) isRead() bool { return s.size == ruleset.RoomOfRead }

// elementChanges are the messages that make a table of one plan that of another, if they differ in elements of sets
// alone; false where they do not, or a set needs another form. One that has grown beyond its room the kernel refuses (ENFILE). Rules, counters and what packets look up stay, but for
// the digest in MarkChain.
func elementChanges(was, is *gateway.Plan, digest string) ([]message, bool) {
	if was == nil || len(is.Sets) == 0 || !gateway.SameButElements(was, is) {
		return nil, false
	}
	before, after := build(was, host{netmap: true}), build(is, host{netmap: true})
	var all []message
	for _, s := range after.sets {
		if s.of == nil {
			continue
		}
		i := slices.IndexFunc(before.sets, func(old *set) bool { return old.name == s.name })
		if i < 0 || before.sets[i].flags != s.flags || before.sets[i].isRead() != s.isRead() {
			return nil, false
		}
		if before.sets[i].of.Digest() != s.of.Digest() {
			all = append(all, s.replacing(before.sets[i])...)
		}
	}
	all = append(all, removal(unix.NFT_MSG_DELRULE, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, MarkChain))
	mark := &table{}
	mark.mark(digest)
	m, err := mark.rules[0].message()
	return append(all, m), err == nil
}

// replacing are the messages that give a set, which is there with former elements, its own: what changed, or all anew
// where that is less.
func (s *set) replacing(former *set) []message {
	now, then := s.spans(), former.spans()
	if more, less := nat.CountChanged(then, now, s.order); more+less > len(now) {
		return append([]message{s.flush()}, s.carrying(unix.NFT_MSG_NEWSETELEM, s.elementsOf(now))...)
	}
	added, removed := nat.Changed(then, now, s.order)
	return append(s.carrying(unix.NFT_MSG_DELSETELEM, s.elementsOf(removed)), s.carrying(unix.NFT_MSG_NEWSETELEM, s.elementsOf(added))...)
}
