// Package follow follows the first packets of connections, and of their answers, through a
// network namespace: where they came in, left, and where they got lost. It watches by packet
// sockets with a filter, bounded in rate, memory and time, and works on any kernel.
package follow

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Bounds of what is kept.
const (
	mostAttempts = 1 << 14
	mostListed   = 50
)

// Seconds after which something that has not come is missed.
const (
	// patience is that for an answer from beyond: the first timeout (RFC 6298, section 2).
	patience = 1
	// within is that for a packet to pass the namespace.
	within = 0.2
)

// Packet is one that was seen at an interface.
type Packet struct {
	// At is in seconds of any steady clock.
	At        float64
	Interface int
	// Sent is false for a packet that came in, Passing is true for a frame of another host.
	Sent, Passing bool
	// Astray is true of such a frame that no bridge passes on: this host drops it, though its address is in it.
	Astray bool
	Frame  *frame.Frame
}

// sight is where and when a packet was seen first. by are the interfaces it was seen at: those of
// one way, such as a port of a bridge and the bridge.
type sight struct {
	at    float64
	iface int
	by    [4]int
	// passing is true of a frame for another host.
	passing bool
	ttl     uint8
	frame.Tuple
}

func (p *Packet) sight(t frame.Tuple) *sight {
	return &sight{at: p.At, iface: p.Interface, by: [4]int{p.Interface}, passing: p.Passing, ttl: p.Frame.IPv4.TTL, Tuple: t}
}

// also notes one more interface.
func (s *sight) also(iface int) {
	for i, known := range s.by {
		if known == iface {
			return
		}
		if known == 0 {
			s.by[i] = iface
			return
		}
	}
}

// last is the interface that it was seen at last: the bridge of a port, the VLAN of a card.
func (s *sight) last() (iface int) {
	for _, i := range s.by {
		if i != 0 {
			iface = i
		}
	}
	return iface
}

// elsewhere is the interface of a packet whose counterpart was seen at none of the same ones;
// 0 where it was, or either was not seen.
func (s *sight) elsewhere(counterpart *sight) int {
	if s == nil || counterpart == nil || slices.ContainsFunc(s.by[:], func(i int) bool { return i != 0 && slices.Contains(counterpart.by[:], i) }) {
		return 0
	}
	return s.iface
}

// attempt is a connection that a client tries to open, or a question.
type attempt struct {
	protocol uint8
	// came, left, answered and returned are the four points: nil where it was not seen there.
	came, left, answered, returned *sight
	// last is when the first packet came, or left, last; asked again so many times, of them
	// afterwards once the answer had returned.
	last                float64
	repeated, afterward int
	// here is how long the copy of the first packet that left took, in seconds.
	here float64
	// expected is how many of its datagrams are to leave.
	expected int
	// refused is a RST, unreachable an ICMP error; sent is whether this host sent it, of its
	// own.
	refused, unreachable *refusal
	// final, where set, is how far it had come at a Pause.
	final snapshot.Step
	// fragmented is true of datagrams that came in fragments, the largest of so many bytes.
	fragmented bool
	// stream is what came after the handshake; midstream is true if that was not seen.
	stream    *stream
	midstream bool
	// mss is that of the SYN as it left, answeredMSS that of the answer as it came in; 0 where it has none.
	mss, answeredMSS int
	// mtu is that of the interface that it left by; 0 where it is not known.
	mtu int
	// passed are the datagrams that came in, and that left, of the client and of the server.
	passed [2]struct{ in, out uint64 }
	// bridged is true if it came in by frames for other hosts alone.
	bridged bool
	// astray is the interface by which its answer came in with another hardware address than that has.
	astray int
}

type refusal struct {
	at   float64
	sent bool
	by   netip.Addr
	icmp frame.ICMP
}

// number is an initial sequence number, which a NAT does not change.
type number struct {
	version uint8
	isn     uint32
	// reset is true of a RST: its number may be that of data.
	reset bool
}

// end is a question by its addresses and ports.
type end struct {
	protocol uint8
	frame.Tuple
}

// Watch holds the state. It is not safe for concurrent use.
type Watch struct {
	all []*attempt
	// handshakes are of TCP. questions have UDP and echo requests as they came in, or were sent
	// by this host; answers, as they are expected to come in, and returns, to leave.
	handshakes                  map[number]*attempt
	questions, answers, returns map[end]*attempt
	// others are questions by the port that answers come from, of whatever address.
	others map[end]*attempt
	// contents find what came in when it leaves: the datagrams of those that did not yet.
	contents map[uint64][]*attempt
	lost     uint64
	segments segments
	// partial is true once not all segments are seen.
	partial bool
	// mtus are those of interfaces.
	mtus map[int]int
	// service and client are those to follow, where valid; a port of 0 is any.
	service, client netip.AddrPort
}

// NewWatch follows what See is given: connections to a service and of a client, where they are
// valid; a port of 0 is any.
func NewWatch(service, client netip.AddrPort) *Watch {
	return &Watch{service: service, client: client,
		handshakes: map[number]*attempt{}, questions: map[end]*attempt{}, answers: map[end]*attempt{}, returns: map[end]*attempt{}, others: map[end]*attempt{},
		contents: map[uint64][]*attempt{}, segments: newSegments(),
	}
}

// See takes a packet, in the order of time. Those that are not followed are ignored.
func (w *Watch) See(p Packet) {
	f := p.Frame
	switch {
	case f.Version == 0 || !forwardable(f.Source) || !forwardable(f.Destination):
	case p.Astray:
		w.astray(&p)
	case isSegment(f) && !w.refuses(&p):
		w.segment(&p, f.Tuple())
	case f.Transport == unix.IPPROTO_TCP:
		w.tcp(&p)
	case f.ICMPError():
		w.icmpError(&p)
	case f.Transport == unix.IPPROTO_UDP:
		w.datagram(&p, f.Tuple())
	case isEcho(f):
		w.datagram(&p, echoTuple(f))
	case f.Transport == 0 && f.Fragment.Offset == 0 && !nat.HasPorts(f.Protocol) && f.Protocol != unix.IPPROTO_ICMP && f.Protocol != unix.IPPROTO_ICMPV6:
		w.datagram(&p, f.Tuple()) // ESP, GRE, …: by their addresses
	}
}

// astray notes an answer that this host drops, as its frame has another hardware address.
func (w *Watch) astray(p *Packet) {
	var a *attempt
	switch f := p.Frame; {
	case f.Transport == unix.IPPROTO_TCP && f.TCP.Flags&(frame.SYN|frame.ACK) == frame.SYN|frame.ACK:
		a = w.handshakes[number{version: f.Version, isn: f.TCP.AcknowledgmentNumber - 1}]
	case f.Transport == unix.IPPROTO_UDP:
		a = w.answers[end{f.Protocol, f.Tuple()}]
	case isEcho(f):
		a = w.answers[end{f.Protocol, echoTuple(f)}]
	}
	if a != nil && a.left != nil {
		a.astray = p.Interface
	}
}

// refuses reports whether a segment is the RST that answers a SYN.
func (w *Watch) refuses(p *Packet) bool {
	h := &p.Frame.TCP
	return h.Flags&frame.RST != 0 && h.Flags&frame.ACK != 0 && w.handshakes[number{version: p.Frame.Version, isn: h.AcknowledgmentNumber - 1}] != nil
}

// Pause goes before a time in which packets are not seen: how far connections have come is kept,
// and those that wait for something are forgotten.
func (w *Watch) Pause(now float64) {
	w.findLost()
	for _, a := range w.all {
		a.final = a.step(now)
	}
	w.segments = newSegments()
	waits := func(a *attempt) bool { return a.final == snapshot.StepWaiting }
	w.all = slices.DeleteFunc(w.all, waits)
	maps.DeleteFunc(w.handshakes, func(_ number, a *attempt) bool { return waits(a) })
	for _, m := range []map[end]*attempt{w.questions, w.answers, w.returns, w.others} {
		maps.DeleteFunc(m, func(_ end, a *attempt) bool { return waits(a) })
	}
	clear(w.contents)
}

// forwardable reports whether routers pass packets of an address on.
func forwardable(a netip.Addr) bool {
	return !(a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback() || a.IsUnspecified() || a == broadcast)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// add returns a new attempt; nil where there is no room for it, or it is not to be followed.
func (w *Watch) add(protocol uint8, t frame.Tuple) *attempt {
	if !isEnd(w.service, t.Dst) || !isEnd(w.client, t.Src) {
		return nil
	}
	if len(w.all) == mostAttempts {
		w.lost++
		return nil
	}
	a := &attempt{protocol: protocol}
	w.all = append(w.all, a)
	return a
}

// isEnd reports whether an end is the wanted one, which may be any.
func isEnd(wanted, end netip.AddrPort) bool {
	return !wanted.IsValid() || wanted.Addr() == end.Addr() && (wanted.Port() == 0 || wanted.Port() == end.Port())
}

func reverse(t frame.Tuple) frame.Tuple { return frame.Tuple{Src: t.Dst, Dst: t.Src} }

func (w *Watch) tcp(p *Packet) {
	h, t := &p.Frame.TCP, p.Frame.Tuple()
	key := func(isn uint32) number { return number{version: p.Frame.Version, isn: isn} }
	switch h.Flags & (frame.SYN | frame.ACK | frame.RST) {
	case frame.SYN:
		w.syn(p, t, key(h.SequenceNumber))
	case frame.SYN | frame.ACK:
		if a := w.handshakes[key(h.AcknowledgmentNumber-1)]; a != nil {
			a.answer(p, t)
			w.segments.knows(a, t)
			if !p.Sent {
				a.answeredMSS = mssOf(p.Frame)
			}
		} else {
			w.unasked(p, t, key(h.AcknowledgmentNumber-1))
		}
	case frame.RST | frame.ACK:
		if a := w.handshakes[key(h.AcknowledgmentNumber-1)]; a != nil && a.refused == nil && a.answered == nil {
			a.refused = &refusal{at: p.At, sent: p.Sent, by: p.Frame.Source}
		}
	}
}

func (w *Watch) syn(p *Packet, t frame.Tuple, n number) {
	a := w.handshakes[n]
	if a == nil {
		if a = w.add(unix.IPPROTO_TCP, t); a == nil {
			return
		}
		w.handshakes[n] = a
		delete(w.segments.unasked, n)
	}
	a.ask(p, t)
	if p.Sent {
		a.mss, a.mtu = mssOf(p.Frame), w.mtus[p.Interface]
	}
	w.segments.knows(a, t)
}

// ask takes a first packet, of an interface that it was not seen at before or sent again.
func (a *attempt) ask(p *Packet, t frame.Tuple) {
	switch {
	case !p.Sent && a.came == nil && a.left == nil:
		a.came, a.last, a.bridged = p.sight(t), p.At, p.Passing
	case !p.Sent && a.came != nil && a.came.iface == p.Interface, p.Sent && a.came == nil && a.left != nil && a.left.iface == p.Interface:
		a.last = p.At
		if a.repeated++; a.returned != nil {
			a.afterward++
		}
	case !p.Sent && a.came != nil:
		a.came.also(p.Interface)
		a.bridged = a.bridged && p.Passing
	case p.Sent && a.left == nil:
		a.left = p.sight(t)
		if a.came == nil {
			a.last = p.At
		}
		a.here = p.At - a.last
	case p.Sent:
		a.left.also(p.Interface)
	}
}

// answer takes an answer, that came in or leaves.
func (a *attempt) answer(p *Packet, t frame.Tuple) {
	switch {
	case !p.Sent && a.answered == nil:
		a.answered = p.sight(t)
	case !p.Sent:
		a.answered.also(p.Interface)
	case a.returned == nil:
		a.returned = p.sight(t)
	default:
		a.returned.also(p.Interface)
	}
}

func isEcho(f *frame.Frame) bool {
	switch f.Transport {
	case unix.IPPROTO_ICMP:
		return f.ICMP.Type == 8 || f.ICMP.Type == 0
	case unix.IPPROTO_ICMPV6:
		return f.ICMP.Type == 128 || f.ICMP.Type == 129
	}
	return false
}

// echoTuple has the identifier for the port of the end that asks.
func echoTuple(f *frame.Frame) frame.Tuple {
	t, id := f.Tuple(), f.ICMP.Identifier()
	if f.ICMP.Type == 0 || f.ICMP.Type == 129 {
		t.Dst = netip.AddrPortFrom(t.Dst.Addr(), id)
	} else {
		t.Src = netip.AddrPortFrom(t.Src.Addr(), id)
	}
	return t
}

// datagram takes one of a protocol without handshakes. What comes in is an answer if it is to
// what left; what leaves has come in if it has the content of something that did.
func (w *Watch) datagram(p *Packet, t frame.Tuple) {
	key, protocol := end{p.Frame.Protocol, t}, p.Frame.Protocol
	content := p.Frame.Content()
	if p.Sent {
		w.datagramSent(p, key, content)
		return
	}
	a := w.answers[key]
	if a == nil {
		a = w.returns[key] // br_netfilter has translated it back
	}
	if other := w.others[anySource(key)]; a == nil && w.questions[key] == nil && other != nil && other.answered == nil &&
		(nat.AnswersAlways(t.Src.Port()) || near(other.left.Dst.Addr(), t.Src.Addr())) {
		a = other
	}
	if a != nil {
		a.answer(p, t)
		a.pass(p, true)
		if a.returned == nil {
			w.expect(content, a)
		}
		return
	}
	if a = w.questions[key]; a == nil {
		if a = w.add(protocol, t); a == nil {
			return
		}
		w.questions[key], w.returns[end{protocol, reverse(t)}] = a, a
	}
	a.ask(p, t)
	a.pass(p, false)
	a.fragmented = a.fragmented || p.Frame.Fragment.Is()
	if a.left == nil {
		w.expect(content, a)
	}
}

// mostAlike bounds the attempts of one content, and the contents of one attempt.
const mostAlike = 8

// expect notes that a datagram of this content is to leave.
func (w *Watch) expect(content uint64, a *attempt) {
	if a.expected == mostAlike {
		return
	}
	a.expected++
	all := w.contents[content]
	if len(all) == mostAlike {
		all = all[1:]
	}
	w.contents[content] = append(all, a)
}

// came finds the attempt whose datagram leaves: that of the same source or destination where
// several have the same content, as one of both mostly stays.
func (w *Watch) came(content uint64, t frame.Tuple) *attempt {
	all := w.contents[content]
	at := slices.IndexFunc(all, func(a *attempt) bool {
		in := a.came
		if a.answered != nil {
			in = a.answered
		}
		return in != nil && (in.Src == t.Src || in.Dst == t.Dst)
	})
	if at < 0 && len(all) > 0 {
		at = 0
	}
	if at < 0 {
		return nil
	}
	a := all[at]
	if w.contents[content] = slices.Concat(all[:at], all[at+1:]); len(all) == 1 {
		delete(w.contents, content)
	}
	return a
}

func (w *Watch) datagramSent(p *Packet, key end, content uint64) {
	if a := w.returns[key]; a != nil {
		a.answer(p, key.Tuple)
		a.pass(p, true)
		return
	}
	back := end{key.protocol, reverse(key.Tuple)}
	if a := w.answers[back]; a != nil {
		a.pass(p, false)
		return // it has left before
	}
	a := w.came(content, key.Tuple)
	if a != nil && a.answered != nil { // an answer that leaves by another name
		a.answer(p, key.Tuple)
		return
	}
	if a == nil {
		if a = w.add(key.protocol, key.Tuple); a == nil {
			return
		}
		w.questions[key] = a
	}
	a.ask(p, key.Tuple)
	a.pass(p, false)
	w.answers[back] = a
	if key.protocol == unix.IPPROTO_UDP {
		w.others[anySource(back)] = a
	}
}

// near reports whether two addresses may be of one server: peers of one protocol have the same port.
func near(a, b netip.Addr) bool {
	p, err := a.Prefix(map[bool]int{false: 24, true: 64}[a.Is6()])
	return err == nil && p.Contains(b)
}

// pass counts a datagram at the interfaces by which the first one came and left.
func (a *attempt) pass(p *Packet, answer bool) {
	in, out := a.came, a.left
	if answer {
		in, out = a.answered, a.returned
	}
	n := &a.passed[index(answer)]
	switch {
	case !p.Sent && in != nil && in.iface == p.Interface:
		n.in++
	case p.Sent && out != nil && out.iface == p.Interface:
		n.out++
	}
}

// Of a flow of datagrams of which so many came in, a part is lost that users of calls and games feel.
const (
	leastFlow = 30
	lostPart  = 0.1
)

// partLost is the direction in which a part of a flow is lost here; false where none is.
func (a *attempt) partLost() (answer, is bool) {
	for i, n := range a.passed {
		if n.in >= leastFlow && n.out > 0 && float64(n.in-min(n.in, n.out)) >= lostPart*float64(n.in) {
			return i == 1, true
		}
	}
	return false, false
}

func (a *attempt) losesPart() bool { _, is := a.partLost(); return is }

// anySource is an end without the address that it comes from.
func anySource(e end) end {
	e.Src = netip.AddrPortFrom(netip.Addr{}, e.Src.Port())
	return e
}

// icmpError takes an error about a packet that was followed.
func (w *Watch) icmpError(p *Packet) {
	var inner frame.Frame
	if p.Frame.Quoted(&inner) != nil {
		return
	}
	if w.oversize(p, &inner) {
		return
	}
	var a *attempt
	switch {
	case inner.Transport == unix.IPPROTO_TCP:
		a = w.handshakes[number{version: inner.Version, isn: inner.TCP.SequenceNumber}]
	case isEcho(&inner):
		a = w.about(end{inner.Transport, echoTuple(&inner)})
	default:
		a = w.about(end{inner.Protocol, inner.Tuple()})
	}
	if a != nil && a.unreachable == nil {
		a.unreachable = &refusal{at: p.At, sent: p.Sent, by: p.Frame.Source, icmp: p.Frame.ICMP}
	}
}

// about finds a question by how it came, or how it left.
func (w *Watch) about(key end) *attempt {
	if a := w.questions[key]; a != nil {
		return a
	}
	key.Tuple = reverse(key.Tuple)
	return w.answers[key]
}

// step is how far an attempt has come by now.
func (a *attempt) step(now float64) snapshot.Step {
	isTCP := a.protocol == unix.IPPROTO_TCP
	switch {
	case a.final != "":
		return a.final
	case a.midstream:
		return a.midway()
	case a.answered != nil && a.left != nil && a.answered.Src != a.left.Dst: // br_netfilter may have translated the destination back
		return snapshot.StepOtherSource
	case a.returned != nil && a.came != nil && a.returned.Src != a.came.Dst:
		return snapshot.StepAnswerUntranslated
	case a.returned != nil && isTCP && (a.afterward > 1 || a.afterward > 0 && a.stream == nil):
		return snapshot.StepClientSilent
	case a.left != nil && a.protocol == unix.IPPROTO_UDP && a.losesPart():
		return snapshot.StepPartLost
	case a.returned != nil, a.came == nil && a.answered != nil:
		if step := a.later(); step != "" {
			return step
		}
		if a.misses(now) {
			return snapshot.StepDataMissing
		}
		return snapshot.StepAnswered
	case a.refused != nil && (!a.refused.sent || a.left != nil && a.refused.by == a.asked().Addr()):
		return snapshot.StepRefused
	case a.refused != nil:
		return snapshot.StepRefusedHere
	case a.answered != nil:
		return late(now-a.answered.at, within, snapshot.StepAnswerLost)
	case a.unreachable != nil && !a.unreachable.sent:
		return snapshot.StepUnreachable
	case a.unreachable != nil:
		return snapshot.StepUnreachableHere
	case a.oneSided():
		return a.later()
	case a.left != nil:
		return late(now-a.left.at, patience, snapshot.StepNoAnswer)
	}
	return late(now-a.came.at, within, snapshot.StepLostHere)
}

// late is the step after so many seconds.
func late(seconds, most float64, step snapshot.Step) snapshot.Step {
	if seconds < most {
		return snapshot.StepWaiting
	}
	return step
}

// asked is the destination as the client names it.
func (a *attempt) asked() netip.AddrPort {
	switch {
	case a.came != nil:
		return a.came.Dst
	case a.returned != nil && a.midstream:
		return a.returned.Src
	case a.left != nil:
		return a.left.Dst
	}
	return a.answered.Src
}
