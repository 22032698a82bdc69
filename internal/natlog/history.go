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
	// begin it was still there. again is the run that has another connection, of which Until is, 0 for none.
	from, confirmed, to, again int
	// startWithin is how much later than Since it may have begun, endWithin how much earlier than Until it may have ended.
	startWithin, endWithin time.Duration
	// sightings are when lists had it. lists is how many its last run had begun when it was last in the log without its end.
	sightings []sighting
	lists     int
	// Between shownFrom and shownTo one record shows that it was there all the time, whatever the log lacks: that has its start.
	shownFrom, shownTo time.Time
}

// sighting is when the lists of a run have a connection: the first of them, and the others.
type sighting struct {
	run   int
	first time.Time
	more  []time.Time
}

// lastUntil is the last time until another one, the first where all are later.
func (s *sighting) lastUntil(at time.Time) time.Time {
	last := s.first
	for _, seen := range s.more {
		if !seen.After(at) {
			last = latest(last, seen)
		}
	}
	return last
}

// see takes that a list of a run has it.
func (h *Held) see(in int, at time.Time) {
	if n := len(h.sightings); n > 0 && h.sightings[n-1].run == in {
		h.sightings[n-1].more = append(h.sightings[n-1].more, at)
		return
	}
	h.sightings = append(h.sightings, sighting{run: in, first: at})
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
	// Silent: the run has no record of that time, although one says each minute that it is written.
	Silent Doubt = "silent"
	// LostRecords: the log says that some are missing.
	LostRecords Doubt = "lost-records"
	// NoBegin: nothing was found, and who had it may be in a file before those that were read, which lack the begin of a run.
	NoBegin Doubt = "no-begin"
	// RowsAlone: there are rows of tables, which do not say what they lack.
	RowsAlone Doubt = "rows-alone"
	// NotAll: nothing was found, and the run of that time lacks starts of what was there when it began, or has none at all.
	NotAll Doubt = "not-all"
	// NoEnd and NoStart: the log lacks one of them.
	NoEnd   Doubt = "no-end"
	NoStart Doubt = "no-start"
	// Unread: there are lines that are none of a NAT log, which may have been some.
	Unread Doubt = "unread-lines"
	// BetweenReadings: it began or ended at some time between two readings of the table, and the time is between them; or the run
	// has readings alone, and lacks what came and went between two of them.
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

// run is a time in which a log was written without a gap, from its begin on, or from a file of it on.
type run struct {
	from, to time.Time
	// begun: its first record is known. begin is when the run began, by which its files know it; first and part are the numbers
	// of the first and the last one of these.
	begun, stopped bool
	begin          time.Time
	first, part    int
	// lists are those of what was there when it, and each of its files, began. netns is that of its begin.
	lists   []list
	netns   string
	without Without
	// lost are the times of which records are missing, silent those of which it has none.
	lost, silent []span
	// readings: it is of readings of the table, within which time at most.
	readings bool
	within   time.Duration
}

// list is what was there at a time, from when on all has a record once it is done.
type list struct {
	from, until time.Time
	done        bool
}

type span struct{ from, to time.Time }

// silence is the longest time of which a run that is written has no record: twice that after which one says so.
const silence = 2 * time.Minute

// isListed reports whether the run has a start of all that was there when it began, or an end: what has none was not there.
func (r *run) isListed() bool {
	return r.begun && r.without == "" && slices.ContainsFunc(r.lists, func(l list) bool { return l.done })
}

// isGood reports whether a list has all that was there: nothing was lost that happened while it was made.
func (r *run) isGood(l list) bool {
	return l.done && r.without == "" && !r.lacks(l.from, l.until)
}

// listedSince is when the last list began that has all that was there at a time or before.
func (r *run) listedSince(at time.Time) time.Time {
	since := r.from
	for _, l := range r.lists {
		if r.isGood(l) && !l.from.After(at) && l.from.After(since) {
			since = l.from
		}
	}
	return since
}

// isWhole reports whether the run has a record of each connection that was there in its time.
func (r *run) isWhole() bool { return r.isListed() && len(r.lost) == 0 }

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
		if !slices.ContainsFunc(of.all, func(known run) bool { return known.first == 1 && known.begin.Equal(r.Time) }) {
			of.begin(r, r.Time, 1)
		}
		return
	case r.Kind == Continue:
		of.proceed(r)
		return
	case last < 0 || of.all[last].stopped && r.Time.After(of.all[last].to): // its begin is not in the log
		of.all = append(of.all, run{from: r.Time, to: r.Time})
		last++
	}
	now := &of.all[last]
	now.hears(r)
	if r.Kind == Lost {
		now.lost = append(now.lost, span{earliest(now.to, r.Time.Add(-told)).Add(-now.within), r.Time})
	}
	if r.Time.After(now.to) {
		now.to = r.Time
	}
	if !now.begun && r.Time.Before(now.from) {
		now.from = r.Time
	}
	if r.Time.Before(now.from) { // of the run before, delivered twice
		return
	}
	now.stopped = now.stopped || r.Kind == Stop
	if n := len(now.lists); r.Kind == Listed && r.Netns == now.netns && n > 0 && !now.lists[n-1].done && !r.Time.Before(now.lists[n-1].from) {
		now.lists[n-1].done, now.lists[n-1].until = true, r.Time
	}
}

// begin begins a run, or the part of it that a file and those after it have.
func (of *runs) begin(r *Record, begin time.Time, part int) {
	of.begun = true
	of.all = append(of.all, run{from: r.Time, to: r.Time, begun: true, begin: begin, first: part, part: part, lists: []list{{from: r.Time}},
		netns: r.Netns, without: r.Without, readings: r.Within > 0, within: r.Within})
}

// proceed takes the first record of a file: the run goes on, unless files between that and the last one are missing.
func (of *runs) proceed(r *Record) {
	of.begun = true
	i := slices.IndexFunc(of.all, func(known run) bool {
		return known.begin.Equal(r.Started) && r.Part >= known.first && r.Part <= known.part+1
	})
	switch {
	case i < 0 || r.Part > of.all[i].part && i < len(of.all)-1:
		of.begin(r, r.Started, r.Part)
	case r.Part > of.all[i].part:
		now := &of.all[i]
		now.part, now.lists = r.Part, append(now.lists, list{from: r.Time})
		if r.Time.After(now.to) {
			now.to = r.Time
		}
	}
}

// hears notes a time without a record before this one. What a reading of the table spans is none.
func (r *run) hears(next *Record) {
	if next.Time.Sub(r.to) > silence {
		r.silent = append(r.silent, span{r.to, next.Time})
	}
	if next.Within == 0 {
		return
	}
	r.readings, r.within = true, max(r.within, next.Within)
	since := next.Time.Add(-next.Within - silence)
	r.silent = slices.DeleteFunc(r.silent, func(s span) bool { return !s.from.Before(since) && !s.to.After(next.Time) })
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
				h.begunLists(&h.held[i])
				return
			}
		}
		h.keep(key, Held{Record: *r, Since: since, startWithin: r.Within, from: in, confirmed: in})
		return
	}
	if i, known := h.ended[key]; known && h.held[i].Until.Equal(r.Time) {
		return
	}
	if i := h.lasting(key, in); i >= 0 && !h.isLater(r, &h.held[i], in) {
		one := &h.held[i]
		one.Until, one.endWithin, one.again, one.to = r.Time, r.Within, 0, in
		one.Stepped = r.Time.Before(one.Since)
		one.show(r)
		h.ended[key] = i
		if h.open[key] = slices.DeleteFunc(h.open[key], func(open int) bool { return open == i }); len(h.open[key]) == 0 {
			delete(h.open, key)
		}
		return
	}
	h.ended[key] = len(h.held)
	one := Held{Record: *r, Since: r.began(), startWithin: r.StartedWithin, Until: r.Time, endWithin: r.Within, Stepped: r.Time.Before(r.Started), to: in}
	one.show(r)
	h.keep(session{}, one)
}

// begunLists notes how many lists of its run had begun when a connection without an end was in the log.
func (h *History) begunLists(one *Held) {
	one.lists = len(h.places[one.place()].all[one.confirmed-1].lists)
}

// began is the earliest time at which a connection may have begun, zero where that is not known.
func (r *Record) began() time.Time {
	if r.Started.IsZero() {
		return time.Time{}
	}
	return r.Started.Add(-r.StartedWithin)
}

// show takes what a record says by itself: from its start until then the connection was there.
func (h *Held) show(r *Record) {
	until := r.Time.Add(-r.Within)
	if r.Started.IsZero() || until.Before(r.Started) {
		return
	}
	if h.shownTo.IsZero() || r.Started.Before(h.shownFrom) || r.Started.After(h.shownTo) {
		h.shownFrom = r.Started
	}
	h.shownTo = until
}

// isShown reports whether one record shows that it was there at a time.
func (h *Held) isShown(at time.Time) bool {
	return !h.shownTo.IsZero() && !at.Before(h.shownFrom) && !at.After(h.shownTo)
}

// isLater reports whether a record of a run is of another connection than one with the same addresses and ports: it began after the
// last run that has that.
func (h *History) isLater(r *Record, one *Held, in int) bool {
	return in > one.confirmed && r.began().After(h.places[one.place()].all[one.confirmed-1].to)
}

// lasting is the first without an end of those with the same addresses and ports that may be there in a run, rather one whose
// translation another one did not have since; -1 for none.
func (h *History) lasting(key session, in int) int {
	found := -1
	for _, i := range h.open[key] {
		one := &h.held[i]
		of := h.places[one.place()]
		switch {
		case of.goneBy(one, of.all[in-1].from.Add(-1)) || of.isUnlisted(one, in): // the list of a run between, or one since, lacks it
		case one.again == 0:
			return i
		case found < 0:
			found = i
		}
	}
	return found
}

// isUnlisted reports whether a run has read what is there since a connection without an end was in the log, without it.
func (of *runs) isUnlisted(one *Held, in int) bool {
	run := &of.all[in-1]
	lists := run.lists
	if in == one.confirmed {
		lists = lists[one.lists:]
	}
	return in >= one.confirmed && run.without == "" && run.netns == one.Netns && slices.ContainsFunc(lists, func(l list) bool { return l.done })
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
	first := one.first()
	return one.Since.IsZero() && slices.ContainsFunc(of.all[:first-1], func(r run) bool {
		return r.isWhole() && r.netns == one.Netns && !r.to.After(of.all[first-1].from) && !r.to.Before(then)
	})
}

// addPresent takes what was there when a run began: it may be known from the run before.
func (h *History) addPresent(key session, r *Record, in int) {
	if i := h.lasting(key, in); i >= 0 && h.held[i].again == 0 && !h.isLater(r, &h.held[i], in) {
		one := &h.held[i]
		one.confirmed = max(one.confirmed, in)
		one.see(in, r.Time)
		h.begunLists(one)
		one.show(r)
		return
	}
	if i, known := h.ended[key]; known && !r.Time.After(h.held[i].Until) { // delivered twice
		return
	}
	one := Held{Record: *r, Since: r.began(), startWithin: r.StartedWithin, Seen: r.Time, from: in, confirmed: in}
	one.see(in, r.Time)
	one.show(r)
	h.keep(key, one)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (h *History) keep(key session, one Held) {
	if len(h.held) >= maxHeld {
		delete(h.ended, one.session())
		h.More++
		return
	}
	h.free(&one)
	if one.Kind == Start {
		h.begunLists(&one)
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
			before.Until, before.again = since, max(one.from, one.to)
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
		return (h.Since.IsZero() || !h.Since.After(at)) && (h.Until.IsZero() || !h.Until.Before(at)) && !of.notYet(h, at) && !of.goneBy(h, at) && !of.isLeftOut(h, at)
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
	case one.isShown(h.at):
		return ""
	case doubt != "":
		return doubt
	case one.again > 0 && one.again <= one.confirmed && !isBefore(in, one.confirmed): // its end is missing in that run
		return NoEnd
	case isBefore(in, one.first()) && one.Since.IsZero():
		return NoStart
	case isBefore(in, one.first()): // it was there from then until it was seen
	default:
		for i, run := range in {
			d := of.evidence(one, run, h.at)
			if i == 0 || d == "" {
				doubt = d
			}
		}
	}
	if doubt == "" && one.isBetween(h.at) {
		return BetweenReadings
	}
	return doubt
}

// first is the first run that has it.
func (h *Held) first() int {
	if h.from == 0 {
		return h.to
	}
	return h.from
}

// withinUnit is that of within_s in a log.
const withinUnit = time.Millisecond

// isBetween reports whether a time is between the readings of the table of which the later one had it first, or no longer.
func (h *Held) isBetween(at time.Time) bool {
	return !h.Since.IsZero() && at.Before(h.Since.Add(h.startWithin-withinUnit)) ||
		!h.Until.IsZero() && h.again == 0 && at.After(h.Until.Add(withinUnit-h.endWithin))
}

// unseen is the doubt about one of which the start is not known.
func (h *Held) unseen(at time.Time) Doubt {
	if h.Seen.IsZero() || at.Before(h.Seen) {
		return NoStart
	}
	return ""
}

// isBefore reports whether all the runs are before another one.
func isBefore(in []int, other int) bool {
	return !slices.ContainsFunc(in, func(run int) bool { return run >= other })
}

// evidence is the doubt that a run of the time that is asked for leaves about a connection.
func (of *runs) evidence(one *Held, in int, at time.Time) Doubt {
	run := &of.all[in-1]
	since, until := run.from, at
	seen := slices.IndexFunc(one.sightings, func(s sighting) bool { return s.run == in })
	switch {
	case seen >= 0 && in > one.from && at.Before(one.sightings[seen].first): // it was there when the run began
		until = one.sightings[seen].first
	case in == one.from && !one.Seen.IsZero() && at.Before(one.Seen) && one.Since.IsZero():
		return NoStart
	case seen >= 0 && !at.Before(one.sightings[seen].first):
		since = one.sightings[seen].lastUntil(at)
	case in == one.from:
	case in == one.to: // so it was when the run has its end alone
		until = one.Until
	default:
		return Gap
	}
	if in == one.from {
		since = latest(since, one.Since)
	}
	if run.lacks(since, until) {
		return LostRecords
	}
	return ""
}

// isLeftOut reports whether a list of its run that was begun until then lacks a connection without an end, of which there is nothing
// since then. That is by the order of the log: times are not, quite.
func (of *runs) isLeftOut(one *Held, then time.Time) bool {
	if one.to != 0 {
		return false
	}
	run := &of.all[one.confirmed-1]
	return run.netns == one.Netns && slices.ContainsFunc(run.lists[one.lists:], func(l list) bool {
		return !l.from.After(then) && run.isGood(l)
	})
}

// lacks reports whether records of a time are missing.
func (r *run) lacks(since, until time.Time) bool {
	return slices.ContainsFunc(r.lost, func(s span) bool { return !s.to.Before(since) && !s.from.After(until) })
}

// at are the numbers of the runs of a time. Without any that was written then, from and to are the times around it that the log has,
// zero where it begins or ends there.
func (of *runs) at(at time.Time) (in []int, doubt Doubt, from, to time.Time) {
	var silent []span
	for i := range of.all {
		r := &of.all[i]
		switch {
		case r.covers(at):
			in = append(in, i+1)
			if s := slices.IndexFunc(r.silent, func(s span) bool { return at.After(s.from) && at.Before(s.to) }); s >= 0 {
				silent = append(silent, r.silent[s])
			}
		case r.to.Before(at) && r.to.After(from):
			from = r.to
		case r.from.After(at) && (to.IsZero() || r.from.Before(to)):
			to = r.from
		}
	}
	switch {
	case len(in) > 0 && len(silent) == len(in):
		return in, Silent, silent[0].from, silent[0].to
	case len(in) > 0:
		return in, "", from, to
	case from.IsZero():
		return nil, BeforeLog, from, to
	case to.IsZero():
		return nil, AfterLog, from, to
	}
	return nil, Gap, from, to
}

// told is how long after records were lost the log says so, unless it had none meanwhile: they have the time of another record.
const told = time.Minute

// Omits is why a connection of the time that is asked for may not be in what was read, although the log was written then: the
// begin of its run is in a file before, or the run leaves some out, or lost some. Another one than was found may have had the same
// port as well, towards another peer.
func (h *History) Omits() (doubt Doubt) {
	for _, of := range h.concerned() {
		in, _, _, _ := of.at(h.at)
		for _, n := range in {
			switch run := &of.all[n-1]; {
			case !run.begun && h.Tables:
				return RowsAlone
			case !run.begun:
				return NoBegin
			case !run.isListed():
				doubt = NotAll
			case doubt == "" && run.lacks(run.listedSince(h.at), h.at):
				doubt = LostRecords
			case doubt == "" && run.readings:
				doubt = BetweenReadings
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
		if _, d, f, t := of.at(h.at); d != "" && !(d == Silent && h.Tables && !of.begun) && (doubt == "" || f.After(from)) {
			doubt, from, to = d, f, t
		}
	}
	return doubt, from, to
}

// IsOfRows reports whether all is of rows of tables, which do not say what they lack.
func (h *History) IsOfRows() bool {
	return h.Tables && !slices.ContainsFunc(h.concerned(), func(of *runs) bool { return of.begun })
}

// IsOfReadings reports whether there is a run of readings of the table, which lacks what came and went between two of them.
func (h *History) IsOfReadings() bool {
	for _, of := range h.concerned() {
		if slices.ContainsFunc(of.all, func(r run) bool { return r.readings }) {
			return true
		}
	}
	return false
}

// Gaps are how many times the log was not written between its first and its last record, and when the last of them was.
func (h *History) Gaps() (n int, from, to time.Time) {
	for _, of := range h.places {
		for i := range of.all {
			if !h.Tables || of.begun {
				for _, s := range of.all[i].silent {
					if n++; s.from.After(from) {
						from, to = s.from, s.to
					}
				}
			}
			if i == 0 {
				continue
			}
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
