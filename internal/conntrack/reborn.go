package conntrack

import (
	"time"

	"golang.org/x/sys/unix"
)

// Gap is what lies between two dumps of a table.
type Gap struct {
	// Seconds passed at least between the two visits of any entry: from the end of
	// the first dump to the beginning of the second one.
	Seconds float64
	// TimeWait and Close are nf_conntrack_tcp_timeout_time_wait and _close in
	// seconds; 0 where they are not known.
	TimeWait, Close uint32
	// Now is the wall clock at the second dump; zero where it is not known.
	Now time.Time
}

// tickSeconds is how far off a remaining time can be that the kernel counts in
// its slowest ticks (CONFIG_HZ=100), at both ends.
const tickSeconds = 0.02

// seconds is Gap.Seconds without what the kernel's clock does not show.
func (g Gap) seconds() float64 { return max(0, g.Seconds-tickSeconds) }

// timeout is how long an entry that was closed stays; 0 where it is not closed,
// or not known.
func (g Gap) timeout(s TCPState) uint32 {
	switch s {
	case TCPTimeWait:
		return g.TimeWait
	case TCPClose:
		return g.Close
	default:
		return 0
	}
}

// lately reports whether an entry was closed at most a second ago. A closed entry
// has its whole timeout at the moment of closing; what is left is rounded down
// (ctnetlink_dump_timeout).
func (g Gap) lately(s TCPState, left uint32) bool {
	t := g.timeout(s)
	return t > 0 && left <= t && left >= t-1
}

// known is what is kept of an entry of the first dump, besides its tuple.
type known struct {
	// life tells two entries of the same tuple apart, where the kernel does.
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

func know(e *Entry) known {
	rest := min(e.Timeout, leftMax)<<knownLeft | uint32(stateOf(e))<<knownState
	if e.Status.Has(SeenReply) {
		rest |= knownSeen
	}
	if e.Status.Has(Assured) {
		rest |= knownAssured
	}
	return known{life(e), rest}
}

func (k known) left() uint32 { return k.rest >> knownLeft }

func (k known) state() TCPState { return TCPState(k.rest >> knownState & 0xf) }

// stateOf is TCPNone for what is not TCP, and for states that are not known here.
func stateOf(e *Entry) TCPState {
	if e.Orig.Proto != unix.IPPROTO_TCP || e.TCPState >= tcpStates {
		return TCPNone
	}
	return e.TCPState
}

// life is the entry's ID, and where it has one its time of birth.
func life(e *Entry) uint32 {
	if e.Start == 0 {
		return e.ID
	}
	return uint32(mix(uint64(e.ID), e.Start))
}

// progress orders the states of one connection: none is followed by an earlier
// one except by reopening (tcp_conntracks, net/netfilter/nf_conntrack_proto_tcp.c).
var progress = [tcpStates]int8{
	TCPSynSent: 1, TCPSynSent2: 2, TCPSynRecv: 3, TCPEstablished: 4, TCPFinWait: 5,
	TCPCloseWait: 6, TCPLastAck: 7, TCPTimeWait: 8, TCPClose: 9,
}

func closed(s TCPState) bool { return s == TCPTimeWait || s == TCPClose }

// reborn reports whether e, which has the tuple of an entry of the first dump, is
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
//     not reborn.
//
// A late packet of the old connection, such as a FIN sent again because its
// acknowledgement was lost, makes a closed entry look like this as well. It can
// do so only within about a second of the closing, so the error is the share of
// such connections times that second through the time between the dumps.
//
// It cannot be told where packets of a living connection give an entry time too:
// a TCP connection that was open in the first dump, closed, and opened again; UDP
// and other protocols unless the new connection has not been answered, or is not
// assured, while the old one was. Their entries are not deleted by reuse, so
// there the same ID means that the old one expired, or was deleted, between the
// dumps, and that the same memory was taken again.
func (k known) reborn(e *Entry, gap Gap) bool {
	if k.life != life(e) {
		return true
	}
	if k.rest&knownSeen != 0 && !e.Status.Has(SeenReply) || k.rest&knownAssured != 0 && !e.Status.Has(Assured) {
		return true
	}
	before, now := k.state(), stateOf(e)
	if before == TCPNone || now == TCPNone {
		return false
	}
	if !closed(before) {
		return progress[now] < progress[before]
	}
	return now != before || float64(e.Timeout) >= float64(k.left())+1-gap.seconds()
}
