package ports

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// sources counts ports by source, in bounded memory: with more than maxSources
// different ones a count is too low by at most ports/(maxSources+1) (Misra and
// Gries, "Finding repeated elements", 1982). There is one for each large pool: a
// tally.Table, which needs 57 KiB for its first key, is as large as the pool itself.
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

// addresses gives addresses numbers, so that a port needs four bytes for its
// source. When maxAddresses are known, others have the number 0.
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
