// Package syn follows the SYNs that arrive at a namespace and how they are answered:
// which are repeated, and which meet a connection that is in TIME_WAIT still. It holds
// bounded memory, however many come.
package syn

import (
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

// Bounds of what is held: of attempts twice as many, the older ones forgotten first.
const (
	mostAttempts = 1 << 15
	mostSources  = 1 << 12
	mostAsked    = 1000 // at once, before the kernel is asked
	mostListed   = 50
)

// answerWithin is for how long after a SYN, in seconds, an ACK is its answer.
const answerWithin = 3

// acceptedWindow is how far behind its first acknowledgement number the SYN of an accepted
// connection can be, at most, where the SYN-ACK was lost on the way to natkit: a first window.
const acceptedWindow = 1 << 16

// attempt is what is known of the SYN that a tuple last had.
type attempt struct {
	from       *source
	isn, tsval uint32
	timestamps bool
	accepted   bool
	// watched: answers were looked at when it came last.
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
	listens func(netip.AddrPort) bool
	// recent and older are the attempts; older ones are forgotten when recent is full.
	recent, older map[frame.Tuple]*attempt
	// numbers are the same of initial sequence numbers, which a SYN keeps when it comes
	// again, through a NAT perhaps from another port.
	numbers, olderNumbers map[number]sighting
	sources               map[pair]*source
	// rest is everybody else's, once there are mostSources.
	rest source

	elsewhere uint64
	suspicion bool
	watching  bool
	ask       []Question
}

// Question is a tuple, client first, whose state in the kernel Told wants.
type Question struct {
	Tuple frame.Tuple
	from  *source
	why   verdict
}

// sighting is when a number came first, and whether it counts as late.
type sighting struct {
	at   float64
	late bool
}

type verdict uint8

const (
	byTimestamp verdict = iota
	bySequence
)

// NewWatch looks at SYNs to those for whom listens is true.
func NewWatch(listens func(netip.AddrPort) bool) *Watch {
	return &Watch{
		listens: listens,
		recent:  map[frame.Tuple]*attempt{}, older: map[frame.Tuple]*attempt{},
		numbers: map[number]sighting{}, olderNumbers: map[number]sighting{},
		sources: map[pair]*source{},
	}
}

// Arrived takes in a segment that came to the namespace, in seconds of any clock that
// goes steadily. Only SYNs and RSTs matter.
func (w *Watch) Arrived(f *frame.Frame, at float64) {
	switch f.TCP.Flags & (frame.SYN | frame.ACK | frame.RST) {
	case frame.SYN:
		w.syn(f, at)
	case frame.RST:
		// A RST without ACK answers a segment that the client did not expect.
		if a := w.find(f.Tuple()); a != nil && !a.accepted && at-a.at < answerWithin {
			w.suspicion = true
		}
	}
}

func (w *Watch) syn(f *frame.Frame, at float64) {
	t := f.Tuple()
	if !w.listens(t.Dst) {
		w.elsewhere++
		return
	}
	s := w.source(pair{t.Src.Addr(), t.Dst.Addr()})
	s.SYNs++
	tsval, _, timestamps := f.TCP.Timestamps()
	if !timestamps {
		s.Plain++
	}
	a := w.find(t)
	if again, late := w.again(number{t.Src.Addr(), t.Dst, f.TCP.SequenceNumber}, at); again {
		s.Repeated++
		w.suspicion = true
		if late {
			s.Late++
		}
	}
	if a == nil || a.isn != f.TCP.SequenceNumber {
		a = &attempt{from: s, isn: f.TCP.SequenceNumber}
		w.keep(t, a)
		if timestamps {
			s.clocks.Add(int64(at*1e9), tsval)
		}
	}
	a.tsval, a.timestamps, a.at, a.watched, a.decided = tsval, timestamps, at, w.watching, false
}

// again reports whether that number came before, and notes it; late is true once, when it
// comes again long after the first time.
func (w *Watch) again(n number, at float64) (again, late bool) {
	seen, recent := w.numbers[n]
	old := false
	if !recent {
		seen, old = w.olderNumbers[n]
	}
	if recent || old {
		late = !seen.late && at-seen.at >= snapshot.LateSYN
		if late && recent {
			w.numbers[n] = sighting{seen.at, true}
		} else if late {
			w.olderNumbers[n] = sighting{seen.at, true}
		}
		return true, late
	}
	if len(w.numbers) >= mostAttempts {
		w.olderNumbers, w.numbers = w.numbers, map[number]sighting{}
	}
	w.numbers[n] = sighting{at: at}
	return false, false
}

// Watching tells that from now on Answered has what the namespace sends.
func (w *Watch) Watching() { w.watching = true }

// Suspicion is whether a SYN was seen that may not have been accepted: then it is
// worth looking at the answers.
func (w *Watch) Suspicion() bool { return w.suspicion }

// Answered takes in a segment that the namespace sent: SYN-ACKs and bare ACKs matter.
func (w *Watch) Answered(f *frame.Frame, at float64) {
	t := f.Tuple()
	t.Src, t.Dst = t.Dst, t.Src
	a := w.find(t)
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

// rejected tells by the answer which test of TIME_WAIT the SYN failed: the ACK carries
// the next sequence number that is expected, and the client's last timestamp
// (tcp_timewait_state_process and tcp_v4_timewait_ack of the kernel). What passes either
// test TIME_WAIT would have accepted: then it is the ACK of a connection that is open, or
// a challenge (RFC 5961). Others wait for what the kernel tells; those for which there is
// no room are not counted, as in a flood nobody knows what they met.
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

// States of tuples that Told knows (include/net/tcp_states.h); 0 is none.
const (
	stateFinWait2 = 5
	stateTimeWait = 6
)

// Told is the kernel's answer: the state of the tuple's socket, 0 where there is none
// any more.
func (w *Watch) Told(q Question, state uint8) {
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

func (w *Watch) find(t frame.Tuple) *attempt {
	if a := w.recent[t]; a != nil {
		return a
	}
	a := w.older[t]
	if a != nil {
		delete(w.older, t)
		w.keep(t, a)
	}
	return a
}

func (w *Watch) keep(t frame.Tuple, a *attempt) {
	if len(w.recent) >= mostAttempts {
		w.older, w.recent = w.recent, map[frame.Tuple]*attempt{}
	}
	w.recent[t] = a
}

// Result is what was seen; what it does not know is 0.
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
