package syn

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/snapshot"
)

// pair is a client's address and one of the namespace's.
type pair struct{ source, destination netip.Addr }

// source is what came from one address to another.
type source struct {
	snapshot.SYNSource
	pair   pair
	clocks pcap.ClockSet
}

func (w *Watch) source(p pair) *source {
	s := w.sources[p]
	if s == nil && len(w.sources) < mostSources {
		s = &source{pair: p}
		w.sources[p] = s
	}
	if s == nil {
		s = &w.rest
	}
	return s
}

// count adds a rejected SYN.
func (s *source) count(why verdict) {
	if why == byTimestamp {
		s.ByTimestamp++
	} else {
		s.BySequence++
	}
}

func (s *source) rejected() uint64 { return s.ByTimestamp + s.BySequence }

// listed are the sources that matter most.
func (w *Watch) listed() []snapshot.SYNSource {
	all := make([]*source, 0, len(w.sources))
	for _, s := range w.sources {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *source) int {
		return cmp.Or(cmp.Compare(b.rejected(), a.rejected()), cmp.Compare(b.Repeated, a.Repeated), cmp.Compare(b.SYNs, a.SYNs),
			a.pair.source.Compare(b.pair.source), a.pair.destination.Compare(b.pair.destination))
	})
	list := make([]snapshot.SYNSource, 0, min(len(all), mostListed))
	for _, s := range all[:min(len(all), mostListed)] {
		s.Source, s.Destination = s.pair.source.String(), s.pair.destination.String()
		s.Clocks, s.PerConnection = s.clocks.Count(), s.clocks.PerConnection()
		list = append(list, s.SYNSource)
	}
	return list
}
