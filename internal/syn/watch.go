package syn

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/snapshot"
)

// Bounds of what is kept; of attempts at most twice as many.
const (
	mostAttempts = 1 << 15
	mostSources  = 1 << 12
	mostAsked    = 1000 // at once, before the kernel is asked
	mostListed   = 50
)

// answerWithin is for how long after a SYN, in seconds, an ACK is its answer.
const answerWithin = 3

// acceptedWindow bounds an ACK's distance from the SYN of an accepted connection whose SYN-ACK
// natkit missed: a first window.
const acceptedWindow = 1 << 16

// attempt is what is known of the SYN that a tuple last had.
type attempt struct {
	from       *source
	isn, tsval uint32
	timestamps bool
	accepted   bool
	// watched: answers were watched when it last came.
	watched bool
	// decided: its last transmission has its answer.
	decided bool
	at      float64
}

// number is an initial sequence number of a client to a service.
type number struct {
	from netip.Addr
	to   netip.AddrPort
	isn  uint32
}

// Watch holds the state. It is not safe for concurrent use.
type Watch struct {
	listens  func(netip.AddrPort) bool
	attempts recent[frame.Tuple, *attempt]
	// numbers are initial sequence numbers, which a repeated SYN keeps, even if a NAT changed
	// its port.
	numbers recent[number, sighting]
	sources map[pair]*source
	// rest counts all others, once there are mostSources.
	rest source

	elsewhere uint64
	suspicion bool
	watching  bool
	ask       []Question
}

// Question is a tuple, client first, whose state in the kernel Resolve needs.
type Question struct {
	Tuple frame.Tuple
	from  *source
	why   verdict
}

// sighting is when and where a number came first, and whether it counts as late.
type sighting struct {
	at    float64
	iface int
	// last is when it came last by that interface.
	last float64
	late bool
}

// copyWithin is the time, in seconds, in which a SYN of another interface is the same one, such as that of a
// bridge after that of its port: less than any retransmission takes.
const copyWithin = 0.1

type verdict uint8

const (
	byTimestamp verdict = iota
	bySequence
)

// NewWatch follows SYNs to ends for which listens is true.
func NewWatch(listens func(netip.AddrPort) bool) *Watch {
	return &Watch{
		listens: listens,
		sources: map[pair]*source{},
	}
}

// Arrived processes a segment that came in by an interface, in seconds of any steady clock. Only SYNs and RSTs
// matter.
func (w *Watch) Arrived(f *frame.Frame, iface int, at float64) {
	switch f.TCP.Flags & (frame.SYN | frame.ACK | frame.RST) {
	case frame.SYN:
		w.syn(f, iface, at)
	case frame.RST:
		// A RST without ACK answers a segment that the client did not expect.
		if a, ok := w.attempts.get(f.Tuple()); ok && !a.accepted && at-a.at < answerWithin {
			w.suspicion = true
		}
	}
}

func (w *Watch) syn(f *frame.Frame, iface int, at float64) {
	t := f.Tuple()
	if !w.listens(t.Dst) {
		w.elsewhere++
		return
	}
	again, late, copied := w.again(number{t.Src.Addr(), t.Dst, f.TCP.SequenceNumber}, iface, at)
	if copied {
		return
	}
	s := w.source(pair{t.Src.Addr(), t.Dst.Addr()})
	s.SYNs++
	tsval, _, timestamps := f.TCP.Timestamps()
	if !timestamps {
		s.Plain++
	}
	a, _ := w.attempts.get(t)
	if again {
		s.Repeated++
		w.suspicion = true
		if late {
			s.Late++
		}
	}
	if a == nil || a.isn != f.TCP.SequenceNumber {
		a = &attempt{from: s, isn: f.TCP.SequenceNumber}
		w.attempts.put(t, a)
		if timestamps {
			s.clocks.Add(int64(at*1e9), tsval)
		}
	}
	a.tsval, a.timestamps, a.at, a.watched, a.decided = tsval, timestamps, at, w.watching, false
}

// again reports whether the number came before; late is true once, long after the first time. It is copied if
// another interface has just had it.
func (w *Watch) again(n number, iface int, at float64) (again, late, copied bool) {
	seen, again := w.numbers.get(n)
	switch {
	case !again:
		seen.at, seen.iface = at, iface
	case iface != seen.iface && at-seen.last < copyWithin:
		return true, false, true
	}
	late = again && !seen.late && at-seen.at >= snapshot.LateSYN
	seen.late, seen.last, seen.iface = seen.late || late, at, iface
	w.numbers.put(n, seen)
	return again, late, false
}

// Watching marks that from now on Answered gets what the namespace sends.
func (w *Watch) Watching() { w.watching = true }

// Pause marks that what comes from now on until the next segment is not seen: answers may be among it.
func (w *Watch) Pause() {
	for _, all := range []map[frame.Tuple]*attempt{w.attempts.newer, w.attempts.older} {
		for _, a := range all {
			a.decided = true
		}
	}
}

// Suspicion reports whether a SYN may not have been accepted: then answers are worth watching.
func (w *Watch) Suspicion() bool { return w.suspicion }

// Answered takes in a segment that the namespace sent: SYN-ACKs and bare ACKs matter.
func (w *Watch) Answered(f *frame.Frame, at float64) {
	t := f.Tuple()
	t.Src, t.Dst = t.Dst, t.Src
	a, _ := w.attempts.get(t)
	if a == nil || !a.watched || a.decided || at-a.at > answerWithin {
		return
	}
	// What it acknowledges beyond the SYN.
	beyond := f.TCP.AcknowledgmentNumber - a.isn
	switch flags := f.TCP.Flags & (frame.SYN | frame.ACK | frame.RST | frame.FIN); {
	case flags == frame.SYN|frame.ACK, flags == frame.ACK && beyond-1 < acceptedWindow:
		a.accepted, a.decided = true, true
	case flags == frame.ACK:
		a.decided = true
		w.rejected(t, a, f)
	}
}

// rejected determines from the answer which test of TIME_WAIT the SYN failed: the ACK carries the
// expected sequence number and the client's last timestamp (tcp_timewait_state_process,
// tcp_v4_timewait_ack). If either test passes it answers for an open connection, or is a
// challenge (RFC 5961). Others become Questions; without room for them they are not counted.
func (w *Watch) rejected(t frame.Tuple, a *attempt, answer *frame.Frame) {
	_, recent, echoed := answer.TCP.Timestamps()
	later := int32(0)
	if a.timestamps && echoed {
		later = int32(a.tsval - recent)
	}
	why := bySequence
	switch {
	case later < 0:
		why = byTimestamp
	case later > 0, int32(a.isn-answer.TCP.AcknowledgmentNumber) > 0:
		return
	}
	if len(w.ask) < mostAsked {
		w.ask = append(w.ask, Question{t, a.from, why})
	}
}

// Questions are the tuples to ask the kernel about now, each once, and mostAsked at most.
func (w *Watch) Questions() []Question {
	q := w.ask
	w.ask = nil
	return q
}

// States of tuples that Resolve knows (include/net/tcp_states.h); 0 is none.
const (
	stateFinWait2 = 5
	stateTimeWait = 6
)

// Resolve processes the kernel's answer: the state of the tuple's socket, 0 for none.
func (w *Watch) Resolve(q Question, state uint8) {
	switch state {
	case 0:
	case stateFinWait2, stateTimeWait:
		q.from.TimeWait++
	default:
		q.from.Challenged++
		return
	}
	q.from.count(q.why)
}

// recent is a map of the keys that were last used: mostAttempts of them, up to twice as many.
type recent[K comparable, V any] struct{ newer, older map[K]V }

func (r *recent[K, V]) get(k K) (v V, ok bool) {
	if v, ok = r.newer[k]; ok {
		return v, true
	}
	if v, ok = r.older[k]; ok {
		delete(r.older, k)
		r.put(k, v)
	}
	return v, ok
}

func (r *recent[K, V]) put(k K, v V) {
	if r.newer == nil || len(r.newer) >= mostAttempts {
		r.older, r.newer = r.newer, map[K]V{}
	}
	r.newer[k] = v
}

// Result returns what was seen; unknown values are 0.
func (w *Watch) Result() *snapshot.SYNs {
	r := &snapshot.SYNs{Sample: 1, LateKnown: true, Elsewhere: w.elsewhere, Sources: w.listed()}
	r.MoreSources = int64(len(w.sources) - len(r.Sources))
	for _, s := range w.sources {
		r.SYNs += s.SYNs
		r.Repeated += s.Repeated
		r.Late += s.Late
	}
	r.SYNs += w.rest.SYNs
	r.Repeated += w.rest.Repeated
	r.Late += w.rest.Late
	return r
}

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
