package follow

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

// Bounds of what is kept of segments: those of one generation, the connections whose handshake was
// not seen, and the seconds of a generation, longer than the first retransmissions take.
const (
	mostSegments   = 1 << 14
	mostMidstream  = 1 << 12
	generationTime = 4
)

// Of segments sent again: one that came again once and never left is lost here; one that left so
// often is lost beyond, as single losses are common there.
const leftAgain = 2

// segment is one of TCP with payload, or a RST: a NAT does not change its sequence number.
type segment struct {
	conn *attempt
	// answer is true of those of the server.
	answer bool
	tuple  frame.Tuple
	// iface is where it came in first, or left where it did not come in; out, where it left.
	iface, out int
	came, left bool
	// first and last are when it came first and last; again counts how often it came, or left, again.
	first, last     float64
	again, outAgain int
	bytes           int
	pause           float64
}

// stream is the segments of a connection.
type stream struct {
	// ways are those of the client and of the server.
	ways [2]struct {
		// newest is when a segment was seen that was none before: the ones before it were acknowledged.
		newest float64
		// most is the size of the largest that left.
		most int
		lost *segment
	}
	last float64
	// pause is the time without a segment before the last one of the client.
	pause float64
	// asks is true if the client sent last.
	asks, closing bool
	reset         *refusal
	wait          wait
	// tooBig is the last ICMP error about the size of its packets.
	tooBig *tooBig
}

// wait is how a client waits for data of the server.
type wait struct {
	// asked is true once it sent something. last is when data of either side was seen, next the number of the byte
	// that the client waits for, furthest that of the last segment of the server that came in, if one did.
	asked, came    bool
	last           float64
	next, furthest uint32
	// ended is when the client ended the connection after a silence, 0 where it did not; gap is what was missing then
	// before what had come.
	ended float64
	gap   int
}

// data notes data of the client that acknowledges what is before next, or of the server.
func (s *wait) data(at float64, answer bool, seq, next uint32) {
	switch {
	case !answer:
		s.asked, s.next = true, next
	case !s.came || int32(seq-s.furthest) > 0:
		s.came, s.furthest = true, seq
	}
	s.last = at
	if answer && (s.gap == 0 || seq == s.next) {
		s.ended, s.gap = 0, 0 // late
	}
}

// end notes that the client ends the connection. Only what it acknowledges shows what came to it. One that resets it
// leaves none that would end its side.
func (s *wait) end(at float64, next uint32, reset bool) {
	gap := int32(s.furthest - next)
	if !s.came || gap < 0 {
		gap = 0
	}
	if !s.asked || at-s.last < patience || reset && gap == 0 {
		return
	}
	s.ended, s.next, s.gap = at, next, int(gap)
}

// done notes that the server ends its side as well, or that the client, gone, was sent data.
func (s *wait) done() {
	if s.gap == 0 {
		s.ended = 0
	}
}

type tooBig struct {
	refusal
	mtu    int
	passed bool
}

// segments is the state of a Watch that is about connections after their handshakes.
type segments struct {
	now, before map[number]*segment
	since       float64
	// conns are connections by their tuples, as they came and as they left, in both directions.
	conns map[frame.Tuple]*attempt
	// midstream are those whose handshake was not seen.
	midstream []*attempt
	// unasked are those of which a SYN-ACK came and no SYN was seen.
	unasked map[number]*attempt
}

func newSegments() segments {
	return segments{now: map[number]*segment{}, before: map[number]*segment{}, conns: map[frame.Tuple]*attempt{}, unasked: map[number]*attempt{}}
}

// knows has a connection found by a tuple.
func (s *segments) knows(a *attempt, t frame.Tuple) {
	if len(s.conns) < 4*mostAttempts {
		s.conns[t], s.conns[reverse(t)] = a, a
	}
}

// isSegment reports whether a packet is a segment after the handshake.
func isSegment(f *frame.Frame) bool {
	return f.Transport == unix.IPPROTO_TCP && f.TCP.Flags&frame.SYN == 0 && (f.TCP.Flags&(frame.RST|frame.FIN) != 0 || len(f.Payload)+f.Missing > 0)
}

// segment takes a segment after the handshake.
func (w *Watch) segment(p *Packet, t frame.Tuple) {
	s, key := &w.segments, number{version: p.Frame.Version, isn: p.Frame.TCP.SequenceNumber}
	w.age(p.At)
	a := s.conns[t]
	if a == nil {
		if a = w.midway(p, t); a == nil {
			return
		}
	}
	if a.stream == nil {
		a.stream = &stream{last: p.At}
	}
	a.wait(p, t)
	switch flags := p.Frame.TCP.Flags; {
	case flags&frame.RST != 0:
		w.reset(a, p, t, key)
	case flags&frame.FIN != 0 && len(p.Frame.Payload)+p.Frame.Missing == 0:
		a.stream.closing = true
	default:
		w.data(a, p, t, key)
		a.stream.closing = a.stream.closing || flags&frame.FIN != 0
	}
}

// wait notes what a segment says of whether the client waits for data: as it comes in, or as a program of this
// host sends it.
func (a *attempt) wait(p *Packet, t frame.Tuple) {
	h, s, answer := &p.Frame.TCP, &a.stream.wait, a.isAnswer(t)
	ends, reset := h.Flags&(frame.FIN|frame.RST) != 0, h.Flags&frame.RST != 0
	switch {
	case answer && p.Sent || !answer && p.Sent == (a.came != nil):
	case answer && ends, reset && s.ended != 0:
		s.done()
	case ends && !a.stream.closing && h.Flags&frame.ACK != 0:
		s.end(p.At, h.AcknowledgmentNumber, reset)
	case !ends:
		s.data(p.At, answer, h.SequenceNumber, h.AcknowledgmentNumber)
	}
}

// headers are those of IP and TCP, without options, that the MSS does not count.
func headers(version uint8) int {
	if version == 6 {
		return 60
	}
	return 40
}

// mssOf is the MSS that a SYN names; 0 where it names none.
func mssOf(f *frame.Frame) int {
	const kind = 2
	if v, _ := f.TCP.Option(kind); len(v) == 2 {
		return int(v[0])<<8 | int(v[1])
	}
	return 0
}

// misses reports whether a client gave up waiting for data that is lost on its way here. A gap shows it; or the MSS
// that the server was told is larger than the interface takes, and the server does not end its side as it does once
// all it sent is acknowledged.
func (a *attempt) misses(now float64) bool {
	if a.stream == nil || a.stream.wait.ended == 0 {
		return false
	}
	s := &a.stream.wait
	return s.gap > 0 || a.mtu > 0 && a.sends() > a.mtu-headers(a.version()) && now-s.ended >= within
}

// sends is how many bytes a segment of the server has at most: as it was told, and as its own link takes.
func (a *attempt) sends() int {
	if a.answeredMSS == 0 {
		return a.mss
	}
	return min(a.mss, a.answeredMSS)
}

func (a *attempt) version() uint8 {
	if a.asked().Addr().Is6() {
		return 6
	}
	return 4
}

// age forgets what is older than two generations.
func (w *Watch) age(now float64) {
	s := &w.segments
	if now-s.since < generationTime {
		return
	}
	w.findLost()
	s.before, s.now, s.since = s.now, map[number]*segment{}, now
}

// midway is a connection whose handshake was not seen; nil where there is no room for it. Of its ends
// the one with the lower port is the server.
func (w *Watch) midway(p *Packet, t frame.Tuple) *attempt {
	s := &w.segments
	if p.Frame.TCP.Flags&frame.RST != 0 || len(s.midstream) == mostMidstream {
		return nil
	}
	if p.Sent { // it is one that came in before, by another name
		if g := s.find(number{version: p.Frame.Version, isn: p.Frame.TCP.SequenceNumber}); g != nil && g.came && !g.left {
			s.knows(g.conn, t)
			return g.conn
		}
	}
	ask := t
	if t.Src.Port() < t.Dst.Port() {
		ask = reverse(t)
	}
	if !isEnd(w.service, ask.Dst) || !isEnd(w.client, ask.Src) {
		return nil
	}
	a := &attempt{protocol: unix.IPPROTO_TCP, midstream: true}
	s.midstream = append(s.midstream, a)
	s.knows(a, t)
	a.place(p, t, ask != t)
	return a
}

// unasked takes a SYN-ACK to a SYN that was not seen: it came before, and comes again, or passes by another way.
func (w *Watch) unasked(p *Packet, t frame.Tuple, n number) {
	s := &w.segments
	a := s.unasked[n]
	switch {
	case a == nil && (p.Sent || p.Passing || len(s.unasked) == mostMidstream || !isEnd(w.service, t.Src) || !isEnd(w.client, t.Dst)):
	case a == nil:
		s.unasked[n] = &attempt{protocol: unix.IPPROTO_TCP, midstream: true, answered: p.sight(t)}
	case !p.Sent && p.Interface == a.answered.iface:
		a.repeated++
	default:
		a.answer(p, t)
	}
}

// isUnasked reports whether nothing but a SYN-ACK was seen of a connection.
func (a *attempt) isUnasked() bool {
	return a.midstream && a.stream == nil && a.came == nil && a.left == nil
}

// place notes by which name a segment of a connection passes a point, where that is not known.
func (a *attempt) place(p *Packet, t frame.Tuple, answer bool) {
	if !a.midstream {
		return
	}
	at := map[bool]**sight{false: &a.came, true: &a.left}[p.Sent]
	if answer {
		at = map[bool]**sight{false: &a.answered, true: &a.returned}[p.Sent]
	}
	if *at == nil {
		*at = p.sight(t)
	}
}

func (s *segments) find(key number) *segment {
	if g := s.now[key]; g != nil {
		return g
	}
	return s.before[key]
}

// data takes a segment with payload.
func (w *Watch) data(a *attempt, p *Packet, t frame.Tuple, key number) {
	s, answer := &w.segments, a.isAnswer(t)
	g := s.find(key)
	if g != nil && (g.conn != a || g.answer != answer) {
		g = nil
	}
	a.place(p, t, answer)
	size := p.Frame.Size()
	switch {
	case g == nil && p.Sent && a.forwarded():
		return // a part of one that came in as a larger one
	case g == nil && len(s.now) >= mostSegments:
		return
	case g == nil:
		g = &segment{conn: a, answer: answer, tuple: t, iface: p.Interface, came: !p.Sent, left: p.Sent, out: p.Interface, first: p.At, last: p.At, bytes: size, pause: p.At - a.stream.last}
		s.now[key] = g
		a.stream.ways[index(answer)].newest = p.At
	case !p.Sent && p.Interface == g.iface:
		g.again++
		g.last = p.At
	case p.Sent && !g.left:
		g.left, g.out, g.bytes = true, p.Interface, max(g.bytes, size)
	case p.Sent && p.Interface == g.out:
		g.outAgain++
		g.last = p.At
	}
	if p.Sent {
		way := &a.stream.ways[index(answer)]
		if g.outAgain == 0 && g.again == 0 {
			way.most = max(way.most, size)
		}
	}
	if !answer && !p.Sent && g.again == 0 {
		a.stream.pause = g.pause
	}
	a.stream.last, a.stream.asks = p.At, !answer
}

// forwarded reports whether a connection is seen to pass this host.
func (a *attempt) forwarded() bool {
	return a.came != nil && a.left != nil || a.midstream && (a.came != nil || a.answered != nil)
}

func index(answer bool) int {
	if answer {
		return 1
	}
	return 0
}

// isAnswer reports whether a tuple is of what the server sends.
func (a *attempt) isAnswer(t frame.Tuple) bool {
	for _, ask := range []*sight{a.came, a.left} {
		if ask != nil && t == ask.Tuple {
			return false
		}
	}
	for _, answer := range []*sight{a.answered, a.returned} {
		if answer != nil && t == answer.Tuple {
			return true
		}
	}
	for _, ask := range []*sight{a.came, a.left} {
		if ask != nil && (t.Src == ask.Dst || t.Dst == ask.Src) {
			return true
		}
	}
	return a.came == nil && a.left == nil
}

// reset takes a RST. This host sent it of its own if it leaves and did not come in.
func (w *Watch) reset(a *attempt, p *Packet, t frame.Tuple, key number) {
	key.reset = true
	s := &w.segments
	if !p.Sent {
		if len(s.now) < mostSegments {
			s.now[key] = &segment{conn: a}
		}
		if !a.stream.closing && a.isAnswer(t) && a.stream.asks && a.stream.reset == nil && !w.partial {
			a.stream.reset = &refusal{at: p.At, by: t.Src.Addr()}
		}
		a.stream.closing = true
		return
	}
	// One of a connection of this host's is of its own programs.
	if s.find(key) == nil && !a.stream.closing && a.stream.reset == nil && a.came != nil && (a.left != nil || a.midstream) {
		a.stream.reset = &refusal{at: p.At, sent: true, by: t.Src.Addr()}
	}
	a.stream.closing = true
}

// findLost notes of each connection the first segment that is lost, as far as segments are kept.
func (w *Watch) findLost() {
	for _, generation := range []map[number]*segment{w.segments.before, w.segments.now} {
		for _, g := range generation {
			if g.conn == nil || g.conn.stream == nil || !g.isLost() {
				continue
			}
			way := &g.conn.stream.ways[index(g.answer)]
			if way.newest <= g.last && (way.lost == nil || g.first < way.lost.first) {
				way.lost = g
			}
		}
	}
}

// isLost reports whether a segment was sent again, and did not leave, or leaves again and again. Of a
// connection that ends here, or leaves in a tunnel, none leaves.
func (g *segment) isLost() bool {
	least := 1
	if g.conn.left == nil {
		least = leftAgain
	}
	return g.came && !g.left && g.again >= least || g.left && g.outAgain >= leftAgain
}

// lost is the segment with which a connection ends; nil where it goes on.
func (a *attempt) lost() *segment {
	if a.stream == nil {
		return nil
	}
	for i := range a.stream.ways {
		if g := a.stream.ways[i].lost; g != nil && a.stream.ways[i].newest <= g.last {
			return g
		}
	}
	return nil
}

// later is how a connection ends after its handshake; empty where it goes on.
func (a *attempt) later() snapshot.Step {
	g := a.lost()
	switch {
	case a.stream == nil:
	case a.stream.reset != nil && a.stream.reset.sent:
		return snapshot.StepResetHere
	case g != nil && !g.left:
		return snapshot.StepDataLost
	case g != nil:
		return snapshot.StepDataUnanswered
	case a.stream.reset != nil:
		return snapshot.StepReset
	}
	return ""
}

// midway is how far a connection came whose handshake was not seen: nothing is known of one of which nothing left,
// as far as its segments came so often.
func (a *attempt) midway() snapshot.Step {
	if step := a.later(); step != "" {
		return step
	}
	if a.isUnasked() && a.returned == nil && a.repeated > 0 {
		return snapshot.StepAnswerLost
	}
	if a.left == nil && a.returned == nil {
		return snapshot.StepWaiting
	}
	return snapshot.StepAnswered
}

// oneSided reports whether a client goes on after its SYN left, so that it was answered, by a way that does not
// pass this host, which then drops or resets what follows.
func (a *attempt) oneSided() bool {
	if a.protocol != unix.IPPROTO_TCP || a.midstream || a.came == nil || a.left == nil || a.answered != nil || a.returned != nil {
		return false
	}
	step := a.later()
	return step == snapshot.StepDataLost || step == snapshot.StepResetHere
}

// describe adds to an example what became of its segments.
func (a *attempt) describe(f *snapshot.FailedConnection, names func(int) string) {
	s := a.stream
	if s == nil {
		return
	}
	if s.reset != nil && (f.Step == snapshot.StepReset || f.Step == snapshot.StepResetHere) {
		f.By, f.PauseSeconds = s.reset.by, s.pause
	}
	if g := a.lost(); g != nil && f.Step != snapshot.StepResetHere {
		f.Answer, f.Bytes, f.PassedBytes, f.PauseSeconds = g.answer, g.bytes, s.ways[index(g.answer)].most, g.pause
		f.DataIn = names(g.iface)
	}
	if f.Step == snapshot.StepDataMissing {
		f.PassedBytes = s.ways[index(true)].most
		f.MSSBytes, f.LinkMTUBytes, f.GapBytes = a.sends(), a.mtu, s.wait.gap
	}
	if b := s.tooBig; b != nil {
		f.TooBig = &snapshot.TooBig{By: b.by, Here: b.sent, MTUBytes: b.mtu, Passed: b.sent || b.passed}
	}
}

// oversize takes an ICMP error about the size of a segment, or of a datagram.
func (w *Watch) oversize(p *Packet, inner *frame.Frame) bool {
	mtu := 0
	switch i := p.Frame.ICMP; {
	case p.Frame.Version == 4 && i.Type == 3 && i.Code == 4:
		mtu = int(i.Rest & 0xffff)
	case p.Frame.Version == 6 && i.Type == 2:
		mtu = int(i.Rest)
	default:
		return false
	}
	if inner.Transport != unix.IPPROTO_TCP {
		return false
	}
	a := w.segments.conns[inner.Tuple()]
	if g := w.segments.find(number{version: inner.Version, isn: inner.TCP.SequenceNumber}); a == nil && g != nil {
		a = g.conn
	}
	if a == nil || a.stream == nil {
		return true
	}
	if b := a.stream.tooBig; b != nil && b.mtu == mtu && !b.sent {
		b.passed = b.passed || p.Sent
	} else {
		a.stream.tooBig = &tooBig{refusal: refusal{at: p.At, sent: p.Sent, by: p.Frame.Source}, mtu: mtu}
	}
	return true
}

// ended are the attempts, and the connections whose handshake was not seen of services of which one ended
// for want of an answer.
func (w *Watch) ended(now float64) []*attempt {
	fails, targets := map[serviceKey]bool{}, map[netip.AddrPort]bool{}
	for _, a := range w.all {
		if a.left != nil && a.came != nil && a.left.Dst != a.came.Dst {
			targets[a.left.Dst] = true
		}
	}
	midstream := slices.AppendSeq(slices.Clone(w.segments.midstream), maps.Values(w.segments.unasked))
	for _, a := range midstream {
		// Of one that shows at the server alone it is not known how clients name it.
		if a.step(now).Fails() && (a.came != nil || a.returned != nil || !targets[a.asked()]) {
			fails[a.key()] = true
		}
	}
	all := slices.Clone(w.all)
	for _, a := range midstream {
		if fails[a.key()] {
			all = append(all, a)
		}
	}
	return all
}
