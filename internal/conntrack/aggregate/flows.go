package aggregate

import (
	"cmp"
	"math"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// FlowEstimator estimates from two dumps of a table how many connections are new in
// the second. The kernel has no counter for them: since 4.9 `insert` counts only
// entries inserted by ctnetlink.
//
// Every entry of the first dump is remembered by a 64-bit key of its tuple; an entry
// of the second dump that was not in the first, or has been reopened since, is new.
// Connections that began and ended between the dumps are not seen, except for the
// estimate by recent: the rate is one of entries that live, or keep their tuple,
// longer than the time between.
//
// A dump walks the hash table in the order of a keyed hash, in which resizing
// keeps the order (reciprocal_scale). So the beginning of a dump is a sample
// without bias, and where a dump was cut short only the part that both dumps
// reached can be compared: the second one up to its last entry that the first
// one had too.
type FlowEstimator struct {
	seed          uint64
	known         map[uint64]known
	firstComplete bool
	gap           Gap

	seen, compared int64
	born           [classes]int64
	groups         map[uint64]struct{}
	// pending are births behind the last entry that both dumps have.
	pending   []birth
	recent    recent
	oneWay    oneWay
	services  services
	forgotten forgotten
	controls  controls
	// unanswered are births by who asked.
	unanswered *top
}

// birth is a new entry.
type birth struct {
	group  uint64
	class  class
	lately bool
	// asker is the zero value where the entry was answered.
	asker end
}

// NewFlowEstimator makes an estimator. The seed keys its hashes and should be random,
// so that colliding addresses cannot be chosen from outside.
func NewFlowEstimator(seed uint64) *FlowEstimator {
	b := &FlowEstimator{
		seed: seed, known: map[uint64]known{}, groups: map[uint64]struct{}{},
		oneWay: newOneWay(), services: newServices(), unanswered: newTop(),
		forgotten: newForgotten(), controls: newControls(),
	}
	b.services.births = true
	return b
}

// First takes an entry of the first dump.
func (b *FlowEstimator) First(e *conntrack.Entry) {
	id := identity(b.seed, e)
	b.known[id] = know(e)
	b.oneWay.first(id, e)
	b.forgotten.first(id, e)
	b.services.first(id, e)
}

// EndFirst ends the first dump; complete reports whether it reached the table's end.
func (b *FlowEstimator) EndFirst(complete bool) { b.firstComplete = complete }

// BeginSecond sets the gap between the dumps, before the second one's entries.
func (b *FlowEstimator) BeginSecond(gap Gap) {
	b.gap = gap.known()
	b.recent.begin(b.gap)
}

// Second takes an entry of the second dump, in the order of the dump.
func (b *FlowEstimator) Second(e *conntrack.Entry) {
	b.seen++
	b.recent.look(e)
	id := identity(b.seed, e)
	k, ok := b.known[id]
	isNew := !ok || k.reopened(e, b.gap)
	if isNew {
		n := birth{group: group(b.seed, e), class: classOf(e), lately: b.gap.lately(tcpStateOf(e), e.Timeout)}
		if isUnanswered(e) {
			n.asker = end{addr: e.Orig.Src, proto: e.Orig.Proto}
		}
		b.pending = append(b.pending, n)
	}
	if ok {
		b.recent.again(k, isNew)
		delete(b.services.expiring, id)
	}
	b.forgotten.second(id, e, isNew, b.gap)
	b.controls.add(e)
	before := past{isNew: isNew && (ok || b.firstComplete)}
	if !isNew {
		b.oneWay.add(id, e, k, b.gap)
		before.known, before.idle, before.state = true, !k.refreshed(e, b.gap), k.state()
	}
	b.services.add(e, b.gap, before)
	if ok || b.firstComplete {
		b.settle()
	}
}

// settle makes everything seen so far comparable.
func (b *FlowEstimator) settle() {
	b.compared = b.seen
	for _, n := range b.pending {
		b.born[n.class]++
		b.groups[n.group] = struct{}{}
		if n.lately {
			b.recent.born[n.class]++
		}
		if n.asker != (end{}) {
			b.unanswered.add(n.asker)
		}
	}
	b.pending = b.pending[:0]
}

// Flows ends the second dump. seconds is the time between the middles of the
// dumps, count is nf_conntrack_count at the second one, complete says whether
// that reached the table's end. It is nil where nothing can be compared.
func (b *FlowEstimator) Flows(seconds float64, count int64, complete bool) *snapshot.Flows {
	if seconds <= 0 || (b.compared == 0 && !(b.firstComplete && complete)) {
		return nil
	}
	if b.firstComplete && complete {
		b.services.expire(b.gap)
	}
	// A whole table needs no scaling; the count would only add entries that have
	// expired and that the kernel has yet to remove.
	scale := 1.0
	if (!complete || b.compared < b.seen) && count > b.compared {
		scale = float64(count) / float64(b.compared)
	}
	f := &snapshot.Flows{
		Seconds: seconds, Sampled: b.compared, Groups: int64(len(b.groups)),
		PerSecond: map[string]float64{},
		OneWay:    b.oneWay.list(), OneWayKnown: true, Services: b.services.result(b.firstComplete && complete),
		Controls: b.controls.list(), ControlsKnown: true,
	}
	if b.firstComplete && complete {
		f.Expired = b.forgotten.list(b.gap)
	}
	for _, c := range b.unanswered.largest(shown) {
		f.Unanswered = append(f.Unanswered, snapshot.Rate{Who: c.String(), PerSecond: float64(c.n) / seconds * scale})
	}
	born := int64(0)
	unseen := b.recent.unseen(&b.born, seconds)
	for c, n := range b.born {
		if n > 0 {
			born += n
			rate := (float64(n)/seconds + unseen[class(c)]) * scale
			f.PerSecond[class(c).String()] = rate
			f.TotalPerSecond += rate
		}
	}
	f.StandardErrorPerSecond = standardError(born, b.compared, scale) / seconds
	if len(unseen) > 0 {
		// What was corrected is known by the fewer births of one second.
		f.StandardErrorPerSecond *= math.Sqrt(seconds)
	}
	return f
}

// standardError is that of scale*born: of drawing the sample (binomial, with the
// correction for a sample that is a large part of the whole) and of arrivals
// that are a Poisson process.
func standardError(born, seen int64, scale float64) float64 {
	if seen == 0 {
		return 0
	}
	share := float64(born) / float64(seen)
	drawing := scale * scale * float64(born) * (1 - share) * (1 - 1/scale)
	arrivals := scale * float64(born)
	return math.Sqrt(drawing + arrivals)
}

// Gap is what lies between two dumps of a table.
type Gap struct {
	// Seconds passed at least between the two visits of any entry: from the end of
	// the first dump to the beginning of the second one.
	Seconds float64
	// Whole is the time from the beginning of the first reading, with the counters of rules, to the
	// second dump; 0 where it is not known.
	Whole float64
	// Sysctls has the timeouts, as far as they are known.
	Sysctls snapshot.Sysctls
	// Now is the wall clock at the second dump; zero where it is not known.
	Now time.Time

	timeouts *[classes]uint32
	// unackedTimeout is what an open TCP connection has while data is not acknowledged.
	unackedTimeout uint32
}

// known is the gap with the timeouts of all classes.
func (g Gap) known() Gap {
	g.timeouts = new([classes]uint32)
	for c := range class(classes) {
		g.timeouts[c] = g.Sysctls.ClassTimeout(c.String())
	}
	for _, proto := range []class{unix.IPPROTO_IPIP, unix.IPPROTO_IPV6, unix.IPPROTO_ESP, unix.IPPROTO_AH} { // without a tracker of their own
		g.timeouts[classProtocol+proto] = g.Sysctls.ClassTimeout("")
	}
	g.unackedTimeout = cmp.Or(g.Sysctls.ClassTimeout("tcp/unacknowledged"), unackedTimeout)
	return g
}

// tickSeconds is how far off a remaining time can be that the kernel counts in
// its slowest ticks (CONFIG_HZ=100), at both ends.
const tickSeconds = 0.02

// seconds is Gap.Seconds without what the kernel's clock does not show.
func (g Gap) seconds() float64 { return max(0, g.Seconds-tickSeconds) }

// timeout returns how long a closed entry stays; 0 if the state is not a closed one,
// or not known.
func (g Gap) timeout(s conntrack.TCPState) uint32 {
	if g.timeouts == nil || !closed(s) {
		return 0
	}
	return g.timeouts[s]
}

// lately reports whether an entry was closed at most a second ago. A closed entry
// has its whole timeout at the moment of closing; what is left is rounded down
// (ctnetlink_dump_timeout).
func (g Gap) lately(s conntrack.TCPState, left uint32) bool {
	t := g.timeout(s)
	return t > 0 && left <= t && left >= t-1
}

// known is what is kept of an entry of the first dump, besides its tuple.
type known struct {
	// life distinguishes two entries of the same tuple, where the kernel does.
	life uint32
	// rest is the seconds left and, in the lower bits, the TCP state and status.
	rest uint32
}

const (
	knownSeen    = 1 << 0
	knownAssured = 1 << 1
	knownState   = 2
	knownLeft    = 6
	leftMax      = 1<<(32-knownLeft) - 1 // two years
)

func know(e *conntrack.Entry) known {
	rest := min(e.Timeout, leftMax)<<knownLeft | uint32(tcpStateOf(e))<<knownState
	if e.Status.Has(conntrack.SeenReply) {
		rest |= knownSeen
	}
	if e.Status.Has(conntrack.Assured) {
		rest |= knownAssured
	}
	return known{life(e), rest}
}

func (k known) left() uint32 { return k.rest >> knownLeft }

func (k known) state() conntrack.TCPState { return conntrack.TCPState(k.rest >> knownState & 0xf) }

// tcpStateOf is TCPNone for what is not TCP, and for states that are not known here.
func tcpStateOf(e *conntrack.Entry) conntrack.TCPState {
	if e.Orig.Proto != unix.IPPROTO_TCP || e.TCPState >= conntrack.TCPStates {
		return conntrack.TCPNone
	}
	return e.TCPState
}

// life is the entry's ID, and where it has one its time of birth.
func life(e *conntrack.Entry) uint32 {
	if e.Start == 0 {
		return e.ID
	}
	return uint32(mix(uint64(e.ID), e.Start))
}

// refreshed reports whether a packet came between the dumps. What is left is in whole seconds,
// so that one of them is in doubt.
func (k known) refreshed(e *conntrack.Entry, gap Gap) bool {
	return float64(e.Timeout) >= float64(k.left())+1-gap.seconds()
}

// progress orders the states of one connection: none is followed by an earlier
// one except by reopening (tcp_conntracks, net/netfilter/nf_conntrack_proto_tcp.c).
var progress = [conntrack.TCPStates]int8{
	conntrack.TCPSynSent: 1, conntrack.TCPSynSent2: 2, conntrack.TCPSynRecv: 3, conntrack.TCPEstablished: 4, conntrack.TCPFinWait: 5,
	conntrack.TCPCloseWait: 6, conntrack.TCPLastAck: 7, conntrack.TCPTimeWait: 8, conntrack.TCPClose: 9,
}

func closed(s conntrack.TCPState) bool { return s == conntrack.TCPTimeWait || s == conntrack.TCPClose }

// reopened reports whether e, which has the tuple of an entry of the first dump, is
// another connection than that one was.
//
// The kernel deletes a closed entry when its tuple is opened again, and makes the
// new one in the memory that this freed, often at the same address. As the ID is
// a hash of address and tuple, it then is the same too. Other signs:
//
//   - IPS_SEEN_REPLY and IPS_ASSURED are never taken back from an entry.
//   - A TCP state does not go back. (The tracker also puts an entry back to
//     SYN_RECV where it finds that both ends have begun a new connection in it.)
//   - Nothing follows a connection in TIME_WAIT or CLOSE. Another of these states,
//     or more time left than the earlier rest less the time that passed, is a new
//     one's. Rests are whole seconds rounded down: one second of doubt counts as
//     not reopened.
//
// A late packet of the old connection, such as a FIN sent again because its
// acknowledgement was lost, makes a closed entry look like this as well. It can
// do so only within about a second of the closing, so the error is the share of
// such connections times that second through the time between the dumps.
//
// It cannot be detected where packets of a living connection extend the timeout too:
// a TCP connection that was open in the first dump, closed, and opened again; UDP
// and other protocols unless the new connection has not been answered, or is not
// assured, while the old one was. Their entries are not deleted by reuse, so
// there the same ID means that the old one expired, or was deleted, between the
// dumps, and that the same memory was taken again.
func (k known) reopened(e *conntrack.Entry, gap Gap) bool {
	if k.life != life(e) {
		return true
	}
	if k.rest&knownSeen != 0 && !e.Status.Has(conntrack.SeenReply) || k.rest&knownAssured != 0 && !e.Status.Has(conntrack.Assured) {
		return true
	}
	before, now := k.state(), tcpStateOf(e)
	if before == conntrack.TCPNone || now == conntrack.TCPNone {
		return false
	}
	if !closed(before) {
		return progress[now] < progress[before]
	}
	return now != before || k.refreshed(e, gap)
}

// recent estimates the births that two dumps do not show because their tuple was
// used once more before the second one. Linux clients do this: connect(2) walks
// the port range of a destination in steps of about nine ports (table_perturb,
// net/ipv4/inet_hashtables.c), so at 3,000 connections/s with the default range it
// comes around every second.
//
// The entries that were closed in the last second before the second dump have had
// less time to be replaced than those of the whole time between the dumps: they
// show a higher rate. So does a busy last second. Therefore the higher rate counts
// only where it is more than a standard deviation away, and no further than the
// reuse that was seen explains: of tuples that were closed in the second before
// the first dump a share q was opened again by the second one; of the births
// between, no greater share can be missing. Where no tuple is reused within the
// time between the dumps nothing is corrected; where most are, the rate is that
// of the last second.
type recent struct {
	gap Gap
	// enough is whether the last second lies between the dumps.
	enough bool
	born   [classes]int64
	// young tuples were closed in the second before the first dump; reused of them
	// are new in the second one.
	young, reused int64
	// foreign is set by an entry with more time left than its timeout: another
	// timeout holds for some, so ages are not known.
	foreign bool
}

func (r *recent) begin(gap Gap) {
	r.gap = gap
	r.enough = gap.seconds() >= 1
}

// look takes every entry of the second dump.
func (r *recent) look(e *conntrack.Entry) {
	if t := r.gap.timeout(tcpStateOf(e)); t > 0 && e.Timeout > t {
		r.foreign = true
	}
}

// again takes an entry of the first dump whose tuple is in the second one.
func (r *recent) again(k known, reopened bool) {
	if !r.gap.lately(k.state(), k.left()) {
		return
	}
	r.young++
	if reopened {
		r.reused++
	}
}

// unseen is the rate of TCP births that were not seen, by the class in which they
// ended; empty if it cannot be estimated. born counts the births that were seen in the
// given number of seconds.
func (r *recent) unseen(born *[classes]int64, seconds float64) map[class]float64 {
	tcp, late := int64(0), int64(0)
	for c := class(0); c <= class(conntrack.TCPStates); c++ {
		tcp += born[c]
		late += r.born[c]
	}
	if !r.enough || r.foreign || late == 0 || r.reused == 0 {
		return nil
	}
	seen, rate := float64(tcp)/seconds, float64(late)
	if rate < seen+math.Sqrt(rate) {
		return nil
	}
	if missing := float64(r.reused) / float64(r.young); missing < 1 {
		rate = min(rate, seen/(1-missing))
	}
	unseen := map[class]float64{}
	for c := class(0); c <= class(conntrack.TCPStates); c++ {
		if r.born[c] > 0 {
			unseen[c] = (rate - seen) * float64(r.born[c]) / float64(late)
		}
	}
	return unseen
}
