package aggregate

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// keptOneWay limits the keys of each kind; further ones are dropped. A scan has
	// thousands of plain destinations and must not displace translations.
	keptOneWay  = 4096
	shownOneWay = 64
	// keptReceived limits the entries whose counters are remembered because their source is translated, as
	// that of all is which leave a gateway.
	keptReceived = 65536
)

// oneWayKey is a service and what became of it.
type oneWayKey struct {
	service, target netip.AddrPort
	given           netip.Addr
	zone            uint16
	// answered and silent are as HadAnswers and Silent of snapshot.OneWay.
	answered, silent bool
}

// oneWay finds UDP entries to which clients sent packets between two dumps and that
// never had an answer, and ones that had, of which the destination or the source is translated: the kernel does not report which
// side's packet refreshed an entry. A client that keeps sending keeps its entry, and with
// it the translation of its first packet, even after the rules have changed.
type oneWay struct {
	found map[oneWayKey]*snapshot.OneWay
	// kept is how many were found of each kind.
	kept [4]int
	// received are the answers that translated entries had in the first dump, where the
	// kernel counts them.
	received map[uint64]uint64
}

func newOneWay() oneWay {
	return oneWay{found: map[oneWayKey]*snapshot.OneWay{}, received: map[uint64]uint64{}}
}

// wasAnswered reports whether an entry is translated UDP that had answers.
func wasAnswered(e *conntrack.Entry) bool {
	return e.Orig.Proto == unix.IPPROTO_UDP && e.Status&conntrack.SeenReply != 0 && (e.IsDNAT() || e.Orig.Src != e.Reply.Dst)
}

// first takes an entry of the first dump.
func (o *oneWay) first(id uint64, e *conntrack.Entry) {
	if e.Fields&conntrack.HasCounters != 0 && wasAnswered(e) && (e.IsDNAT() || len(o.received) < keptReceived) {
		o.received[id] = e.Received.Packets
	}
}

// add takes an entry of the second dump that is the same connection as before in the
// first one. Entries of helpers are translated without a rule.
func (o *oneWay) add(id uint64, e *conntrack.Entry, before known, gap Gap) {
	answered := wasAnswered(e)
	if e.Orig.Proto != unix.IPPROTO_UDP || e.Status&conntrack.Expected != 0 || e.Status&conntrack.SeenReply != 0 && !answered {
		return
	}
	had, counted := o.received[id]
	if answered && before.rest&knownSeen == 0 || counted && e.Received.Packets != had {
		return // one came since
	}
	if !before.refreshed(e, gap) {
		return
	}
	w := o.of(e, answered, counted)
	if w == nil {
		return
	}
	w.Entries++
	w.OldestSeconds = max(w.OldestSeconds, gap.age(e))
}

func (o *oneWay) of(e *conntrack.Entry, answered, silent bool) *snapshot.OneWay {
	given := netip.Addr{}
	if e.Orig.Src != e.Reply.Dst {
		given = e.Reply.Dst
	}
	k := oneWayKey{
		netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort), given, e.Zone, answered, silent,
	}
	if w := o.found[k]; w != nil {
		return w
	}
	w := &snapshot.OneWay{Service: k.service, Target: k.target, Given: k.given, Zone: k.zone, Source: e.Orig.Src, HadAnswers: answered, Silent: silent}
	kept := &o.kept[kindOf(w)]
	if *kept == keptOneWay {
		return nil
	}
	*kept++
	o.found[k] = w
	return w
}

// age is that of an entry of both dumps, at least.
func (g Gap) age(e *conntrack.Entry) float64 {
	if e.Start == 0 || g.Now.IsZero() {
		return g.seconds()
	}
	return max(g.seconds(), g.Now.Sub(time.Unix(0, int64(e.Start))).Seconds())
}

// kindOf orders what is found: translated and without an answer, untranslated, and what
// may be answered, last that of which the source alone is translated. None keeps another out.
func kindOf(w *snapshot.OneWay) int {
	switch {
	case !w.Unanswered() && !w.Translated():
		return 3
	case !w.Unanswered():
		return 2
	case !w.Translated():
		return 1
	}
	return 0
}

// list has each kind with the most entries first, and shownOneWay besides of each kind that may be
// answered.
func (o *oneWay) list() []snapshot.OneWay {
	all := make([]snapshot.OneWay, 0, len(o.found))
	for _, w := range o.found {
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b snapshot.OneWay) int {
		return cmp.Or(cmp.Compare(kindOf(&a), kindOf(&b)), cmp.Compare(b.Entries, a.Entries), a.Service.Compare(b.Service), a.Target.Compare(b.Target), a.Given.Compare(b.Given), cmp.Compare(a.Zone, b.Zone))
	})
	unanswered, named := o.kept[0]+o.kept[1], o.kept[0]+o.kept[1]+o.kept[2]
	return slices.Concat(all[:min(unanswered, shownOneWay)], all[unanswered:min(named, unanswered+shownOneWay)], all[named:min(len(all), named+shownOneWay)])
}

// isUnanswered reports whether the first packet of a TCP or UDP connection has not been
// answered. A TCP entry that was picked up in the middle of a connection is
// ESTABLISHED from its first packet on (nf_conntrack_tcp_loose) and does not count, nor
// does UDP of services that never answer.
func isUnanswered(e *conntrack.Entry) bool {
	if e.Status.Has(conntrack.SeenReply) {
		return false
	}
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return e.TCPState == conntrack.TCPSynSent
	case unix.IPPROTO_UDP:
		return !nat.IsOneWay(e.Orig.DstPort)
	}
	return false
}

// unanswered counts connections without an answer by source and by service.
type unanswered struct {
	tcp, udp         int64
	askers, services *top
}

func (u *unanswered) add(e *conntrack.Entry) {
	if !isUnanswered(e) {
		return
	}
	if e.Orig.Proto == unix.IPPROTO_TCP {
		u.tcp++
	} else {
		u.udp++
	}
	u.askers.add(end{addr: e.Orig.Src, proto: e.Orig.Proto})
	u.services.add(serviceOf(e))
}

// summary compares with all entries of each source.
func (u *unanswered) summary(sources *top) *snapshot.Unanswered {
	s := &snapshot.Unanswered{
		TCP: u.tcp, UDP: u.udp,
		Sources: []snapshot.UnansweredSource{}, Services: u.services.talkers(),
	}
	for _, c := range u.askers.largest(shown) {
		s.Sources = append(s.Sources, snapshot.UnansweredSource{
			Who: c.addr.String(), Protocol: nat.ProtocolName(c.proto),
			Entries: c.n, OfEntries: max(c.n, sources.count(end{addr: c.addr})),
		})
	}
	return s
}

// idleBands are where the bands of idle times begin, in seconds.
var idleBands = [...]uint32{0, 60, 600, snapshot.IdleLong, 86400}

// idle counts TCP connections in ESTABLISHED by how long no packet came.
type idle struct {
	timeout           uint32
	entries           int64
	bands             [len(idleBands)]int64
	sources, services *top
}

// unackedTimeout is what a TCP entry has in place of its state's timeout while data is
// not acknowledged, or after many retransmissions, by default, in seconds
// (nf_conntrack_tcp_timeout_unacknowledged, _max_retrans).
const unackedTimeout = 300

// add leaves out offloaded entries, whose timeout is a day, and those whose time was
// fixed (IPS_FIXED_TIMEOUT). One with little left is in use and waits for an
// acknowledgement, which is much more likely than that its days end now. The kernel does
// not report a timeout set by a rule (nft ct timeout).
func (i *idle) add(e *conntrack.Entry) {
	if i.timeout > unackedTimeout && e.Timeout <= unackedTimeout {
		return
	}
	if i.timeout == 0 || tcpStateOf(e) != conntrack.TCPEstablished || e.Status&(conntrack.Offload|conntrack.HWOffload|conntrack.FixedTimeout) != 0 {
		return
	}
	i.entries++
	since := i.timeout - min(e.Timeout, i.timeout)
	band := len(idleBands) - 1
	for since < idleBands[band] {
		band--
	}
	i.bands[band]++
	if since >= snapshot.IdleLong {
		i.sources.add(end{addr: e.Orig.Src})
		i.services.add(serviceOf(e))
	}
}

func (i *idle) summary() *snapshot.IdleEstablished {
	if i.timeout == 0 {
		return nil
	}
	s := &snapshot.IdleEstablished{
		TimeoutSeconds: int64(i.timeout), Entries: i.entries,
		Sources: i.sources.talkers(), Services: i.services.talkers(),
	}
	for b, n := range i.bands {
		s.Bands = append(s.Bands, snapshot.IdleBand{FromSeconds: int64(idleBands[b]), Entries: n})
	}
	return s
}

// top counts how often each end comes, in bounded memory: exactly up to some 65,000 of
// them. With n additions of more a count is too low by at most n/65,000 or so, and never
// too high, as nothing must be found that is not there: what the tally says an end came at
// least.
type top struct {
	table *tally
	key   []byte
}

const (
	// topMemory has room for 65,000 ends.
	topMemory = 4 << 20
	endBytes  = 16 + 2 + 1
)

func newTop() *top {
	// The seed changes no result; it keeps colliding addresses from being chosen.
	seed := maphash.Bytes(maphash.MakeSeed(), nil)
	return &top{table: newTally(endBytes, seed, NewBudget(topMemory))}
}

func (e end) append(b []byte) []byte {
	raw := e.addr.As16()
	return append(binary.BigEndian.AppendUint16(append(b, raw[:]...), e.port), e.proto)
}

func (t *top) add(e end) {
	t.key = e.append(t.key[:0])
	t.table.Add(t.key)
}

// count returns the minimum number of times that an end was counted.
func (t *top) count(e end) int64 {
	r, _ := t.table.Get(e.append(nil))
	return int64(r.Count - r.Excess)
}

// counted is an end and how often it came.
type counted struct {
	end
	n int64
}

// largest are the n ends with the most additions; equals by name.
func (t *top) largest(n int) (all []counted) {
	for _, number := range t.table.Top(n, 1) {
		r := t.table.Row(number)
		e := end{netip.AddrFrom16([16]byte(r.Key)).Unmap(), binary.BigEndian.Uint16(r.Key[16:]), r.Key[18]}
		all = append(all, counted{e, int64(r.Count - r.Excess)})
	}
	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.String(), b.String()))
	})
	return all
}

// talkers are those that are shown.
func (t *top) talkers() []snapshot.Talker {
	out := make([]snapshot.Talker, 0, shown)
	for _, c := range t.largest(shown) {
		out = append(out, snapshot.Talker{Who: c.String(), Entries: c.n})
	}
	return out
}
