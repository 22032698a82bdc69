package natlog

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Held is a time in which a connection had a translation.
type Held struct {
	Record
	// Since and Until are zero where the log does not say it: it began before the log, or its end is not in it. Until is
	// also when another connection had the translation, towards the same peer, where that is all that is known.
	Since, Until time.Time
	// Seen is from when the log says that it was there, of one that was there when a run began; else zero.
	Seen time.Time
	// Stepped: the end is before the start, so the clock was set back between them.
	Stepped bool
	// Doubt is why it may not have been held at the time that is asked for; empty where the log shows that it was.
	Doubt Doubt
	// from and to are the numbers of the runs that have its start and its end, 0 for none; confirmed is the last one at whose
	// begin it was still there. again: Until is of another connection.
	from, confirmed, to int
	again               bool
	// endWithin is how much earlier than Until it may have ended.
	endWithin time.Duration
}

// Doubt is why a log does not say it for sure.
type Doubt string

// The doubts. Those before NoEnd are about a time, the others about a connection.
const (
	// NoRecords: there are none of a NAT log.
	NoRecords Doubt = "no-records"
	// BeforeLog and AfterLog: the log begins later, or ends earlier.
	BeforeLog Doubt = "before-log"
	AfterLog  Doubt = "after-log"
	// Gap: it was not written at that time, or not between the start and that time.
	Gap Doubt = "gap"
	// LostRecords: the log says that some are missing.
	LostRecords Doubt = "lost-records"
	// NoBegin: nothing was found, and who had it may be in a file before those that were read, which lack the begin of a run.
	NoBegin Doubt = "no-begin"
	// NotAll: nothing was found, and the run of that time lacks starts of what was there when it began, or has none at all.
	NotAll Doubt = "not-all"
	// NoEnd and NoStart: the log lacks one of them.
	NoEnd   Doubt = "no-end"
	NoStart Doubt = "no-start"
	// Unread: there are lines that are none of a NAT log, which may have been some.
	Unread Doubt = "unread-lines"
	// BetweenReadings: it began or ended at some time between two readings of the table, and the time is between them.
	BetweenReadings Doubt = "between-readings"
	// ClockStepped: the clock was set back between start and end.
	ClockStepped Doubt = "clock-stepped"
)

// maxHeld bounds what a history keeps.
const maxHeld = 100_000

// History finds in the records of a log, which are in order for each place, who held an address and a port. A place is a
// namespace of a host. What holds at a time is certain within a run alone: a run ends with its stop, with the next begin, or
// with its last record.
type History struct {
	query Query
	// inside: the query is the host inside, and what is looked for what it had outside.
	inside bool
	at     time.Time
	// open are those without an end, ended the last of each that has one, using the last that has a translation towards a
	// peer.
	open  map[session][]int
	ended map[session]int
	using map[session]int
	held  []Held
	// places have the runs, in their order.
	places map[place]*runs
	// Records is how many were read, Lost how many the log says are missing, in a time that may concern the query.
	Records, Lost uint64
	// First and Last are the times of the log. More is how many were found that are not kept.
	First, Last time.Time
	More        int
	// Tables: there are rows of tables among the records, which have no begin and no stop.
	Tables bool
}

// place is where records are from. A namespace without a name has another number after each boot, and none in logs of an
// earlier natkit: those of a host are one.
type place struct{ node, netns string }

func (r *Record) place() place {
	if strings.Trim(r.Netns, "0123456789") == "" {
		return place{r.Node, ""}
	}
	return place{r.Node, r.Netns}
}

// runs are those of a place.
type runs struct {
	all []run
	// begun: one of them has its begin. asked: a record is about the address of the query.
	begun, asked bool
}

// run is a time in which a log was written.
type run struct {
	from, to       time.Time
	begun, stopped bool
	// listed: all that was there when it began has a start. netns is that of its begin.
	listed  bool
	netns   string
	without Without
	lost    []time.Time
}

// lists reports whether the run has a start of all that was there when it began: what has none was not there.
func (r *run) lists() bool { return r.begun && r.listed && r.without == "" }

// isWhole reports whether the run has a record of each connection that was there in its time.
func (r *run) isWhole() bool { return r.lists() && len(r.lost) == 0 }

func (r *run) covers(at time.Time) bool { return !at.Before(r.from) && !at.After(r.to) }

// NewHistory looks for an address outside, or for one inside; at is zero for any time.
func NewHistory(q Query, inside bool, at time.Time) *History {
	return &History{query: q, inside: inside, at: at, open: map[session][]int{}, ended: map[session]int{}, using: map[session]int{}, places: map[place]*runs{}}
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
	of := h.places[r.place()]
	if of == nil {
		of = &runs{}
		h.places[r.place()] = of
	}
	of.add(r)
	switch {
	case r.Kind == Lost:
		h.Lost += r.Count
	case r.IsSession() && h.concerns(r):
		of.asked = true
		h.add(r, len(of.all))
	case r.IsSession():
		any := Query{Address: h.query.Address}
		of.asked = of.asked || any.concerns(r, h.inside)
	}
}

// add takes a record of the place. What was delivered twice is in a run that is known.
func (of *runs) add(r *Record) {
	last := len(of.all) - 1
	switch {
	case r.Kind == Begin:
		of.begun = true
		if !slices.ContainsFunc(of.all, func(known run) bool { return known.begun && known.from.Equal(r.Time) }) {
			of.all = append(of.all, run{from: r.Time, to: r.Time, begun: true, netns: r.Netns, without: r.Without})
		}
		return
	case last < 0 || of.all[last].stopped && r.Time.After(of.all[last].to): // its begin is not in the log
		of.all = append(of.all, run{from: r.Time, to: r.Time})
		last++
	}
	now := &of.all[last]
	if r.Time.After(now.to) {
		now.to = r.Time
	}
	if !now.begun && r.Time.Before(now.from) {
		now.from = r.Time
	}
	if r.Kind == Lost {
		now.lost = append(now.lost, r.Time)
	}
	if r.Time.Before(now.from) { // of the run before, delivered twice
		return
	}
	now.stopped = now.stopped || r.Kind == Stop
	now.listed = now.listed || r.Kind == Listed && r.Netns == now.netns
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

// add takes the start or the end of a connection in a run. One that was delivered twice counts once.
func (h *History) add(r *Record, in int) {
	key := r.session()
	if r.Before {
		h.addPresent(key, r, in)
		return
	}
	if r.Kind == Start {
		since := r.Time.Add(-r.Within)
		if i, known := h.ended[key]; known && h.held[i].Since.Equal(since) {
			return
		}
		for _, i := range h.open[key] {
			if h.held[i].Since.Equal(since) {
				return
			}
		}
		h.keep(key, Held{Record: *r, Since: since, from: in, confirmed: in})
		return
	}
	if i, known := h.ended[key]; known && h.held[i].Until.Equal(r.Time) {
		return
	}
	if i := h.lasting(key, in); i >= 0 {
		one := &h.held[i]
		one.Until, one.endWithin, one.again, one.to = r.Time, r.Within, false, in
		one.Stepped = r.Time.Before(one.Since)
		h.ended[key] = i
		if h.open[key] = slices.DeleteFunc(h.open[key], func(open int) bool { return open == i }); len(h.open[key]) == 0 {
			delete(h.open, key)
		}
		return
	}
	h.ended[key] = len(h.held)
	h.keep(session{}, Held{Record: *r, Since: r.Started, Until: r.Time, endWithin: r.Within, Stepped: r.Time.Before(r.Started), to: in})
}

// lasting is the first without an end of those with the same addresses and ports that may be there in a run, rather one whose
// translation another one did not have since; -1 for none.
func (h *History) lasting(key session, in int) int {
	found := -1
	for _, i := range h.open[key] {
		one := &h.held[i]
		of := h.places[one.place()]
		switch {
		case of.goneBy(one, of.all[in-1].from.Add(-1)): // the list of a run between lacks it
		case !one.again:
			return i
		case found < 0:
			found = i
		}
	}
	return found
}

// goneBy reports whether a run that began until then, after those that have it, shows that a connection without an end had
// ended: it has neither its start nor its end.
func (of *runs) goneBy(one *Held, then time.Time) bool {
	if one.to != 0 {
		return false
	}
	last := &of.all[one.confirmed-1]
	return slices.ContainsFunc(of.all[one.confirmed:], func(r run) bool {
		return r.isWhole() && r.netns == one.Netns && !r.from.Before(last.to) && !r.from.After(then)
	})
}

// notYet reports whether a run that was written until then or later, before the first that has it, shows that a connection
// whose start is not known had not begun: it would have it.
func (of *runs) notYet(one *Held, then time.Time) bool {
	first := one.from
	if first == 0 {
		first = one.to
	}
	return one.Since.IsZero() && slices.ContainsFunc(of.all[:first-1], func(r run) bool {
		return r.isWhole() && r.netns == one.Netns && !r.to.After(of.all[first-1].from) && !r.to.Before(then)
	})
}

// addPresent takes what was there when a run began: it may be known from the run before.
func (h *History) addPresent(key session, r *Record, in int) {
	if i := h.lasting(key, in); i >= 0 && !h.held[i].again {
		h.held[i].confirmed = max(h.held[i].confirmed, in)
		return
	}
	if i, known := h.ended[key]; known && !r.Time.After(h.held[i].Until) { // delivered twice
		return
	}
	h.keep(key, Held{Record: *r, Since: r.Started, Seen: r.Time, from: in, confirmed: in})
}

func (h *History) keep(key session, one Held) {
	if len(h.held) >= maxHeld {
		delete(h.ended, one.session())
		h.More++
		return
	}
	h.free(&one)
	if one.Kind == Start {
		h.open[key] = append(h.open[key], len(h.held))
	}
	h.held = append(h.held, one)
}

// free ends what had the same translation towards the same peer before: the kernel gives it to one at a time. It was there
// when this one began, or when the run began that has the end alone.
func (h *History) free(one *Held) {
	key := one.outside()
	since := one.Since
	switch {
	case !since.IsZero():
	case !one.Seen.IsZero():
		since = one.Seen
	default:
		since = h.places[one.place()].all[one.to-1].from
	}
	if i, known := h.using[key]; known {
		before := &h.held[i]
		if before.Until.IsZero() && !since.Before(before.Since) {
			before.Until, before.again = since, true
		}
		if one.Since.IsZero() && one.to > 0 && before.to == one.to { // both ended in this run, that one first
			one.Since = before.Until
		}
	}
	h.using[key] = len(h.held)
}

// outside is what one connection at a time has in a table: what the answers are sent to, and by whom.
func (r *Record) outside() session {
	key := session{protocol: r.Protocol, nat: r.NAT, server: r.Server, node: r.Node, netns: r.Netns, replyZone: r.ReplyZone}
	if !key.nat.IsValid() {
		key.nat = r.Src
	}
	if !key.server.IsValid() {
		key.server = r.Dst
	}
	return key
}

// Held returns what was found, of the time that is asked for, in order.
func (h *History) Held() (all []Held) {
	for i := range h.held {
		one := h.held[i]
		of := h.places[one.place()]
		if !h.at.IsZero() {
			if !one.holds(of, h.at) {
				continue
			}
			one.Doubt = h.doubt(&one, of)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b Held) int { return a.Since.Compare(b.Since) })
	return all
}

// holds reports whether it may have been held at a time; what is not known does not exclude it.
func (h *Held) holds(of *runs, at time.Time) bool {
	if !h.Stepped {
		return (h.Since.IsZero() || !h.Since.After(at)) && (h.Until.IsZero() || !h.Until.Before(at)) && !of.notYet(h, at) && !of.goneBy(h, at)
	}
	// Of two readings of the clock one was the same for another time; another run is not concerned.
	for i := range of.all {
		if of.all[i].covers(at) && i+1 != h.from && i+1 != h.to {
			return false
		}
	}
	return !at.Before(h.Since) || !at.After(h.Until) && !at.Before(of.all[h.to-1].from)
}

// doubt is why one that holds at the time may not have been there.
func (h *History) doubt(one *Held, of *runs) Doubt {
	if one.Stepped {
		return ClockStepped
	}
	in, doubt, _, _ := of.at(h.at)
	noRuns := h.Tables && !of.begun
	switch {
	case one.to == 0 && noRuns:
		return NoEnd
	case one.Since.IsZero() && noRuns:
		return one.unseen(h.at)
	case noRuns:
		return ""
	case doubt != "":
		return doubt
	case one.again:
		return NoEnd
	case one.to == 0 && one.isBefore(in) && one.Since.IsZero():
		return NoStart
	case one.to == 0 && one.isBefore(in): // it was there from then until it was seen
		return ""
	case one.to == 0 && !one.isKnown(in):
		return Gap
	case one.to == 0 && of.lacks(one.from, one.confirmed, one.Since, h.at):
		return LostRecords
	case one.isBetween(h.at):
		return BetweenReadings
	case one.Since.IsZero() && !one.Seen.IsZero():
		return one.unseen(h.at)
	case one.Since.IsZero() && !slices.Contains(in, one.to):
		return NoStart
	}
	return ""
}

// withinUnit is that of within_s in a log.
const withinUnit = time.Millisecond

// isBetween reports whether a time is between the readings of the table of which the later one had it first, or no longer.
func (h *Held) isBetween(at time.Time) bool {
	return h.Kind == Start && !h.Since.IsZero() && at.Before(h.Since.Add(h.Within-withinUnit)) ||
		!h.Until.IsZero() && !h.again && at.After(h.Until.Add(withinUnit-h.endWithin))
}

// unseen is the doubt about one of which the start is not known.
func (h *Held) unseen(at time.Time) Doubt {
	if h.Seen.IsZero() || at.Before(h.Seen) {
		return NoStart
	}
	return ""
}

// isKnown reports whether one of the runs has its start, or had it at its begin.
func (h *Held) isKnown(in []int) bool {
	return slices.ContainsFunc(in, func(run int) bool { return run >= h.from && run <= h.confirmed })
}

// isBefore reports whether all the runs are before the first that has it.
func (h *Held) isBefore(in []int) bool {
	return !slices.ContainsFunc(in, func(run int) bool { return run >= h.from })
}

// lacks reports whether records are missing since a connection was last known to be there, until at.
func (of *runs) lacks(from, confirmed int, since, at time.Time) bool {
	run := &of.all[confirmed-1]
	if confirmed > from {
		since = run.from
	}
	return run.lacks(since, at)
}

// lacks reports whether records of a time are missing.
func (r *run) lacks(since, until time.Time) bool {
	return slices.ContainsFunc(r.lost, func(at time.Time) bool { return !at.Before(since) && !at.After(until) })
}

// at are the numbers of the runs of a time. Without any, from and to are the times around it that the log has, zero where
// it begins or ends there.
func (of *runs) at(at time.Time) (in []int, doubt Doubt, from, to time.Time) {
	for i := range of.all {
		r := &of.all[i]
		switch {
		case r.covers(at):
			in = append(in, i+1)
		case r.to.Before(at) && r.to.After(from):
			from = r.to
		case r.from.After(at) && (to.IsZero() || r.from.Before(to)):
			to = r.from
		}
	}
	switch {
	case len(in) > 0:
		return in, "", from, to
	case from.IsZero():
		return nil, BeforeLog, from, to
	case to.IsZero():
		return nil, AfterLog, from, to
	}
	return nil, Gap, from, to
}

// told is how long after records were lost the log says so at the latest: it has a record each minute.
const told = time.Minute

// Omits is why a connection of the time that is asked for may not be in what was read, although the log was written then: the
// begin of its run is in a file before, or the run leaves some out, or lost some. Another one than was found may have had the same
// port as well, towards another peer.
func (h *History) Omits() (doubt Doubt) {
	for _, of := range h.concerned() {
		in, _, _, _ := of.at(h.at)
		for _, n := range in {
			switch run := &of.all[n-1]; {
			case !run.begun:
				return NoBegin
			case !run.lists():
				doubt = NotAll
			case doubt == "" && run.lacks(run.from, h.at.Add(told)):
				doubt = LostRecords
			}
		}
	}
	return doubt
}

// concerned are the places in which the address was seen, all where it was in none.
func (h *History) concerned() (all []*runs) {
	asked := false
	for _, of := range h.places {
		asked = asked || of.asked
	}
	for _, of := range h.places {
		if of.asked == asked {
			all = append(all, of)
		}
	}
	return all
}

// Covers reports whether the log was written at the time that is asked for, wherever the address was seen; else why it was
// not, and the times around it that the log has.
func (h *History) Covers() (doubt Doubt, from, to time.Time) {
	if h.Records == 0 {
		return NoRecords, from, to
	}
	if h.at.IsZero() {
		return "", from, to
	}
	for _, of := range h.concerned() {
		if _, d, f, t := of.at(h.at); d != "" && (doubt == "" || f.After(from)) {
			doubt, from, to = d, f, t
		}
	}
	return doubt, from, to
}

// Gaps are how many times the log was not written between its first and its last record, and when the last of them was.
func (h *History) Gaps() (n int, from, to time.Time) {
	for _, of := range h.places {
		for i := 1; i < len(of.all); i++ {
			if a, b := of.all[i-1].to, of.all[i].from; b.After(a) {
				if n++; a.After(from) {
					from, to = a, b
				}
			}
		}
	}
	return n, from, to
}

// GapAfter is the first time without the log after the last run that is known to have had a connection; zero where the time
// that is asked for is not after that, as it is in a run before the first that has it.
func (h *History) GapAfter(one *Held) (from, to time.Time) {
	of := h.places[one.place()]
	if one.confirmed == 0 || h.at.Before(of.all[one.confirmed-1].to) {
		return from, to
	}
	from = of.all[one.confirmed-1].to
	if one.confirmed < len(of.all) {
		to = of.all[one.confirmed].from
	}
	return from, to
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
