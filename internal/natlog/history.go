package natlog

import (
	"net/netip"
	"slices"
	"time"
)

// Held is a time in which a connection had a translation.
type Held struct {
	Record
	// Since and Until are zero where the log does not say it: it began before the log, or had not ended at its end.
	Since, Until time.Time
}

// maxHeld bounds what a history keeps.
const maxHeld = 100_000

// History finds in the records of a log, in any order of files but in order within each, who held an address and a port.
type History struct {
	query Query
	// inside: the query is the host inside, and what is looked for what it had outside.
	inside bool
	at     time.Time
	// open are those without an end, ended the last of each that has one.
	open  map[session][]int
	ended map[session]int
	held  []Held
	// Records is how many were read, Lost how many the log says are missing, in a time that may concern the query.
	Records, Lost uint64
	// First and Last are the times of the log. More is how many were found that are not kept.
	First, Last time.Time
	More        int
}

// NewHistory looks for an address outside, or for one inside; at is zero for any time.
func NewHistory(q Query, inside bool, at time.Time) *History {
	return &History{query: q, inside: inside, at: at, open: map[session][]int{}, ended: map[session]int{}}
}

// Add takes a record.
func (h *History) Add(r *Record) {
	h.Records++
	if h.First.IsZero() || r.Time.Before(h.First) {
		h.First = r.Time
	}
	if r.Time.After(h.Last) {
		h.Last = r.Time
	}
	switch {
	case r.Kind == Lost:
		h.Lost += r.Count
	case r.IsSession() && h.concerns(r):
		h.add(r)
	}
}

func (h *History) concerns(r *Record) bool { return h.query.concerns(r, h.inside) }

// concerns reports whether a connection had what is asked for: as its source outside or, of one that came in, as its
// destination.
func (q *Query) concerns(r *Record, inside bool) bool {
	if q.Protocol != 0 && q.Protocol != r.Protocol {
		return false
	}
	is := func(a netip.AddrPort) bool {
		return a.IsValid() && a.Addr() == q.Address && (q.Port == 0 || a.Port() == q.Port)
	}
	if inside {
		return r.NAT.IsValid() && is(r.Src) || is(r.Server)
	}
	return is(r.NAT) || r.Server.IsValid() && is(r.Dst)
}

// add takes the start or the end of a connection. One that was delivered twice counts once.
func (h *History) add(r *Record) {
	key := r.session()
	if r.Kind == Start {
		since := r.Time.Add(-r.Within)
		for _, i := range h.open[key] {
			if h.held[i].Since.Equal(since) {
				return
			}
		}
		h.keep(key, Held{Record: *r, Since: since})
		return
	}
	if i, known := h.ended[key]; known && h.held[i].Until.Equal(r.Time) {
		return
	}
	if list := h.open[key]; len(list) > 0 {
		h.held[list[0]].Until = r.Time
		h.ended[key] = list[0]
		if h.open[key] = list[1:]; len(list) == 1 {
			delete(h.open, key)
		}
		return
	}
	h.ended[key] = len(h.held)
	h.keep(session{}, Held{Record: *r, Since: r.Started, Until: r.Time})
}

func (h *History) keep(key session, one Held) {
	if len(h.held) >= maxHeld {
		delete(h.ended, one.session())
		h.More++
		return
	}
	if one.Kind == Start {
		h.open[key] = append(h.open[key], len(h.held))
	}
	h.held = append(h.held, one)
}

// Held returns what was found, of the time that is asked for, in order.
func (h *History) Held() (all []Held) {
	for _, one := range h.held {
		if h.at.IsZero() || one.holds(h.at) {
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b Held) int { return a.Since.Compare(b.Since) })
	return all
}

// holds reports whether it may have been held at a time; what is not known does not exclude it.
func (h *Held) holds(at time.Time) bool {
	return (h.Since.IsZero() || !h.Since.After(at)) && (h.Until.IsZero() || !h.Until.Before(at))
}

// Owner is the host inside, and its port, of what a query for an address outside found.
func (q *Query) Owner(r *Record) netip.AddrPort {
	if r.NAT.IsValid() && r.NAT.Addr() == q.Address && (q.Port == 0 || r.NAT.Port() == q.Port) {
		return r.Src
	}
	return r.Server
}

// Outside is what a host inside had, of what a query for it found.
func (q *Query) Outside(r *Record) netip.AddrPort {
	if r.NAT.IsValid() && r.Src.Addr() == q.Address {
		return r.NAT
	}
	return r.Dst
}
