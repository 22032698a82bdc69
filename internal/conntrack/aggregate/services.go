package aggregate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// servicesReach is how far back outcomes count, in seconds: the shortest of the timeouts
	// by which the kernel forgets that there was no answer (udp_timeout, icmp_timeout).
	servicesReach = 30
	// keptServices limits the services of each kind; further ones are dropped. Entries come in
	// the order of a hash, so that the busiest are among the first.
	keptServices  = 4096
	shownServices = 64
	// namedClients is how many clients and destinations of failed connections are named.
	namedClients = 8
)

// serviceKey is what translated connections have in common.
type serviceKey struct {
	kind            string
	proto           uint8
	zone            uint16
	service, target netip.AddrPort
	given           netip.Addr
}

// outcomes is a service with when its connections failed.
type outcomes struct {
	snapshot.Service
	// failed counts them by the seconds since their last packet.
	failed [servicesReach + 1]int64
	// answered is the least number of seconds since an answer.
	answered uint32
	// halfClosed are connections in CLOSE_WAIT that no packet came of for a while, the last one
	// closedSince ago: the server does not close its side, or what it sends does not arrive. repeats
	// are those of which it is known that it sends, and sending others of which it may be new data.
	halfClosed, repeats, sending int64
	closedSince                  uint32
}

// services finds out what became of translated connections. How long ago an entry had its last
// packet is its timeout less what is left of it.
type services struct {
	found map[serviceKey]*outcomes
	kept  map[string]int
	// births is true where two dumps show which connections are new.
	births bool
	// expiring are open connections of the first dump, by identity, that expire soon unless a
	// packet comes.
	expiring map[uint64]expiring
	// asked has the service of each unanswered flow of datagrams with DNAT, by where its answer would go; told has
	// the source of each other unanswered flow, by where it goes.
	asked map[question]serviceKey
	told  map[question]netip.Addr
}

// question is where the answer to a datagram goes, and the port that it comes from.
type question struct {
	to   netip.AddrPort
	from uint16
}

// keptQuestions is how many are compared.
const keptQuestions = 4096

// cross notes a flow of datagrams without an answer, which may be the answer to another one: from an address that
// was not asked it belongs to no entry, and gets one of its own. Where both ends have one port, as with IKE
// and SIP, each may open a flow itself.
func (s *services) cross(e *conntrack.Entry) {
	if e.Orig.Proto != unix.IPPROTO_UDP || e.Status.Has(conntrack.SeenReply) {
		return
	}
	if e.IsDNAT() && e.Reply.SrcPort != e.Reply.DstPort && len(s.asked) < keptQuestions {
		s.asked[question{netip.AddrPortFrom(e.Reply.Dst, e.Reply.DstPort), e.Reply.SrcPort}] = publishedKey(e)
	}
	if !e.IsDNAT() && len(s.told) < keptQuestions {
		s.told[question{netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), e.Orig.SrcPort}] = e.Orig.Src
	}
}

// crossed gives to services who answers in place of their targets.
func (s *services) crossed() {
	for q, k := range s.asked {
		if by, o := s.told[q], s.found[k]; by.IsValid() && o != nil {
			o.AnsweredBy = by
		}
	}
}

// expiring is a connection that expires in so many seconds.
type expiring struct {
	key  serviceKey
	left uint32
}

const (
	// soon is how many seconds an open connection has left to be watched, keptExpiring how many
	// of them are.
	soon         = 8
	keptExpiring = 4096
)

func newServices() services {
	return services{found: map[serviceKey]*outcomes{}, kept: map[string]int{}, expiring: map[uint64]expiring{},
		asked: map[question]serviceKey{}, told: map[question]netip.Addr{}}
}

// past is what the first dump has of an entry of the second one.
type past struct {
	// isNew is whether it was not there, known whether it was, and idle whether no packet came since.
	isNew, known, idle bool
	// state is the TCP state that it had.
	state conntrack.TCPState
}

// Outcomes finds out what became of translated connections from one dump alone. Connections that
// are open count as answered when they had their last packet: whether that was an answer takes two
// dumps to know.
type Outcomes struct {
	services services
	gap      Gap
}

// NewOutcomes needs the timeouts of the namespace.
func NewOutcomes(sysctls snapshot.Sysctls) *Outcomes {
	return &Outcomes{services: newServices(), gap: Gap{Sysctls: sysctls}.known()}
}

// Add takes an entry.
func (o *Outcomes) Add(e *conntrack.Entry) { o.services.add(e, o.gap, past{isNew: true}) }

// Services ends the dump; complete reports whether it reached the table's end.
func (o *Outcomes) Services(complete bool) *snapshot.Services { return o.services.result(complete) }

// outcome is what became of a connection.
type outcome int

const (
	outcomeNone outcome = iota
	outcomeAnswered
	outcomeBusy
	outcomeReset
	outcomeOpen
	outcomeUnanswered
	outcomeHalfOpen
	outcomeOneWay
	outcomeStalled
	outcomeHalfClosed
	outcomeRepeats
	outcomeSending
)

// first takes an entry of the first dump.
func (s *services) first(id uint64, e *conntrack.Entry) {
	if e.Timeout > soon || tcpStateOf(e) != conntrack.TCPEstablished || len(s.expiring) == keptExpiring || e.Status.Has(conntrack.Expected) {
		return
	}
	if keys, n := keysOf(e); n > 0 {
		s.expiring[id] = expiring{keys[0], e.Timeout}
	}
}

// add takes an entry of the second dump.
func (s *services) add(e *conntrack.Entry, gap Gap, before past) {
	s.cross(e)
	keys, n := keysOf(e)
	if e.Status.Has(conntrack.Expected) || n == 0 {
		return
	}
	since, known := gap.since(e)
	if e.IsDNAT() && s.births {
		s.began(e, gap, before.isNew, !known || float64(since) <= gap.Whole+wholeDoubt)
	}
	what := outcomeOf(e, since, gap.unacked(e), before)
	if what == outcomeNone || !known || what != outcomeOpen && since > servicesReach {
		return
	}
	if what == outcomeOneWay && !e.IsDNAT() {
		return
	}
	for _, k := range keys[:n] {
		s.of(k).count(e, what, since, before)
	}
}

// keysOf returns the n services that a connection is counted in; none where it is of no interest.
func keysOf(e *conntrack.Entry) (keys [3]serviceKey, n int) {
	k := serviceKey{proto: e.Orig.Proto, zone: e.Zone}
	network := snapshot.NetworkOf(e.Orig.Src).Addr()
	switch {
	case e.IsDNAT():
		k = publishedKey(e)
		keys[0] = k
		k.kind, k.given = snapshot.ServiceNetwork, network
		keys[1] = k
		return keys, 2
	case e.IsSNAT():
		k.kind, k.given = snapshot.ServiceSNAT, e.Reply.Dst
		keys[0] = k
		k.kind, k.service = snapshot.ServiceDestination, netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)
		keys[1] = k
		keys[2] = serviceKey{kind: snapshot.ServiceNetwork, proto: k.proto, zone: k.zone, given: network}
		return keys, 3
	case leavesPrivately(e):
		k.kind, k.given = snapshot.ServiceUntranslated, network
		keys[0] = k
		return keys, 1
	case e.Orig.Src.IsPrivate() && e.Orig.Dst.IsPrivate():
		k.kind, k.given, k.target = snapshot.ServiceUntranslated, network, netip.AddrPortFrom(snapshot.NetworkOf(e.Orig.Dst).Addr(), 0)
		keys[0] = k
		k.service = netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)
		keys[1] = k
		return keys, 2
	}
	return keys, 0
}

// wholeDoubt is how far Gap.Whole and the time since an entry's last packet may be off, in seconds: both
// are of the beginning of a dump, and the kernel rounds.
const wholeDoubt = 3

// began counts connections that began between the dumps, and those that may have begun between the reading
// of the rules' counters and the first dump: they are in both, and the counters have them.
func (s *services) began(e *conntrack.Entry, gap Gap, isNew, lately bool) {
	if !isNew && (!lately || gap.Whole == 0) {
		return
	}
	switch o := s.of(publishedKey(e)); {
	case o == nil:
	case isNew:
		o.New++
	default:
		o.Lately++
	}
}

// publishedKey is the service of an entry whose destination is translated.
func publishedKey(e *conntrack.Entry) serviceKey {
	return serviceKey{kind: snapshot.ServiceDNAT, proto: e.Orig.Proto, zone: e.Zone,
		service: end{e.Orig.Dst, e.Orig.DstPort, 0}.addrPort(), target: end{e.Reply.Src, e.Reply.SrcPort, 0}.addrPort()}
}

// leavesPrivately reports whether a connection goes from a private address to a public one.
func leavesPrivately(e *conntrack.Entry) bool {
	to := e.Orig.Dst
	return e.Orig.Src.IsPrivate() && !to.IsPrivate() && to.IsGlobalUnicast()
}

func (e end) addrPort() netip.AddrPort { return netip.AddrPortFrom(e.addr, e.port) }

// since returns the seconds since an entry's last packet; false where its timeout is not known.
func (g Gap) since(e *conntrack.Entry) (seconds uint32, known bool) {
	c := classOf(e)
	if g.timeouts == nil || g.timeouts[c] == 0 || e.Status&(conntrack.Offload|conntrack.HWOffload|conntrack.FixedTimeout) != 0 {
		return 0, tcpStateOf(e) == conntrack.TCPEstablished
	}
	if g.unacked(e) {
		return g.unackedTimeout - e.Timeout, true
	}
	return g.timeouts[c] - min(e.Timeout, g.timeouts[c]), true
}

// unacked reports whether what one side of an open connection sent is not acknowledged: it has a
// shorter timeout until then (nf_conntrack_tcp_timeout_unacknowledged). Only what had a packet within
// servicesReach is known from one with little left of its days.
func (g Gap) unacked(e *conntrack.Entry) bool {
	return g.timeouts != nil && tcpStateOf(e) == conntrack.TCPEstablished && e.Status.Has(conntrack.SeenReply) && g.timeouts[conntrack.TCPEstablished] > g.unackedTimeout &&
		e.Timeout <= g.unackedTimeout && e.Timeout+servicesReach >= g.unackedTimeout
}

// outcomeOf says what became of a connection whose last packet came so many seconds ago. One that was
// there before may go on for another reason than an answer.
func outcomeOf(e *conntrack.Entry, since uint32, unacked bool, before past) outcome {
	seen := e.Status.Has(conntrack.SeenReply)
	switch {
	case e.Orig.Proto == unix.IPPROTO_TCP:
		return outcomeOfTCP(e.TCPState, seen, since >= snapshot.PatienceSeconds, unacked, before)
	case !seen && e.Orig.Proto == unix.IPPROTO_UDP && (nat.IsOneWay(e.Orig.DstPort) || nat.IsOneWay(e.Reply.SrcPort)):
		return outcomeOneWay
	case !seen:
		return outcomeUnanswered
	case before.isNew || before.idle:
		return outcomeAnswered
	}
	return outcomeOpen
}

// outcomeOfTCP is outcomeOf by the state; late is whether the last packet came longer ago than its answer
// takes.
func outcomeOfTCP(state conntrack.TCPState, seen, late, unacked bool, before past) outcome {
	switch state {
	case conntrack.TCPSynSent, conntrack.TCPSynSent2:
		return outcomeUnanswered
	case conntrack.TCPSynRecv:
		return outcomeHalfOpen
	case conntrack.TCPEstablished:
		switch {
		case late && unacked:
			return outcomeStalled
		case before.isNew && unacked:
			return outcomeBusy
		case before.isNew && seen:
			return outcomeAnswered
		}
		return outcomeOpen
	case conntrack.TCPFinWait: // the FIN is not acknowledged
		if seen && (late || before.state == conntrack.TCPFinWait) {
			return outcomeStalled
		}
		return outcomeBusy
	case conntrack.TCPCloseWait:
		switch {
		case late && before.state == conntrack.TCPCloseWait && !before.idle:
			return outcomeRepeats
		case late:
			return outcomeHalfClosed
		case before.state == conntrack.TCPCloseWait:
			return outcomeSending
		}
		return outcomeBusy
	case conntrack.TCPClose:
		if !seen {
			return outcomeUnanswered
		}
		return outcomeReset
	case conntrack.TCPNone:
		return outcomeNone
	}
	return outcomeAnswered
}

// of returns the service of a key; nil where there is no room for it.
func (s *services) of(k serviceKey) *outcomes {
	if o := s.found[k]; o != nil {
		return o
	}
	kind := k.kind
	if kind == snapshot.ServiceUntranslated && k.service.IsValid() {
		kind += " service" // a scan of them does not displace networks
	}
	if s.kept[kind] == keptServices {
		return nil
	}
	s.kept[kind]++
	o := &outcomes{answered: servicesReach + 1, closedSince: servicesReach + 1, Service: snapshot.Service{
		Kind: k.kind, Protocol: nat.ProtocolName(k.proto), Service: k.service, Target: k.target, Given: k.given, Zone: k.zone,
	}}
	s.found[k] = o
	return o
}

// count takes a connection.
func (o *outcomes) count(e *conntrack.Entry, what outcome, since uint32, before past) {
	if o == nil {
		return
	}
	switch {
	case o.Kind != snapshot.ServiceDNAT:
	case e.Orig.Src.IsPrivate():
		o.Inside++
	default:
		o.Outside++
	}
	switch what {
	case outcomeOpen:
		o.Open++
	case outcomeOneWay:
		o.OneWay++
	case outcomeStalled:
		o.Stalled++
		o.name(e)
	case outcomeHalfClosed, outcomeRepeats:
		o.halfClosed++
		if what == outcomeRepeats {
			o.repeats++
			o.name(e)
		}
		o.closedSince = min(o.closedSince, since)
	case outcomeReset, outcomeBusy, outcomeSending, outcomeAnswered:
		o.Answered++
		o.answered = min(o.answered, since)
		switch what {
		case outcomeReset:
			o.Reset++
		case outcomeSending:
			o.sending++
			o.Busy++
		case outcomeBusy:
			o.Busy++
		}
	default:
		o.fails(e, what, since, before)
	}
}

// fails takes a connection that came to nothing. One that had no answer in the first dump either has
// waited long enough, whenever its client asked again.
func (o *outcomes) fails(e *conntrack.Entry, what outcome, since uint32, before past) {
	switch {
	case since < snapshot.PatienceSeconds && !before.known:
		o.Waiting++
		return
	case what == outcomeHalfOpen:
		o.HalfOpen++
	default:
		o.Unanswered++
		if before.known && !before.idle && e.Orig.Proto != unix.IPPROTO_TCP {
			o.Asking++
		}
	}
	o.failed[since]++
	o.name(e)
}

// name keeps the ends of a connection that failed.
func (o *outcomes) name(e *conntrack.Entry) {
	o.Clients = named(o.Clients, e.Orig.Src)
	if !o.Service.Service.IsValid() {
		o.Destinations = named(o.Destinations, netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort))
	}
}

// named adds one that is not there yet, while there is room.
func named[T comparable](list []T, v T) []T {
	if len(list) == namedClients || slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// expire counts the open connections that came to their end between the dumps, as no packet came: one
// that was closed stays for longer. It comes before result.
func (s *services) expire(gap Gap) {
	if closing := gap.timeout(conntrack.TCPClose); float64(closing) <= gap.Seconds+1 {
		return
	}
	for _, e := range s.expiring {
		if o := s.of(e.key); o != nil && float64(e.left) <= gap.Seconds {
			o.Expired++
		}
	}
}

// result lists the services, those of which most fail first, and of the others the busiest.
func (s *services) result(complete bool) *snapshot.Services {
	r := &snapshot.Services{Seconds: servicesReach, All: []snapshot.Service{}, Complete: complete && s.kept[snapshot.ServiceDNAT] < keptServices}
	r.NewKnown = s.births && r.Complete
	s.crossed()
	elsewhere := s.answered()
	for k, o := range s.found {
		v := o.service()
		switch {
		case v.Kind == snapshot.ServiceDestination && v.Failed() == 0:
		case v.Kind == snapshot.ServiceUntranslated && v.Target.IsValid() && (v.Failed() == 0 || v.Answered+v.Open+v.Stalled > 0):
		case v.Kind == snapshot.ServiceNetwork && (v.Failed() == 0 || v.Answered+v.Open+v.Stalled > 0 || !elsewhere[k.whole()]):
		default:
			r.All = append(r.All, v)
		}
	}
	slices.SortFunc(r.All, func(a, b snapshot.Service) int {
		return cmp.Or(cmp.Compare(b.Failed(), a.Failed()), cmp.Compare(b.Answered+b.Open, a.Answered+a.Open), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.String(), b.String()), cmp.Compare(a.Zone, b.Zone))
	})
	shown := map[string]int{}
	r.All = slices.DeleteFunc(r.All, func(o snapshot.Service) bool {
		shown[o.Kind]++
		return o.Kind != snapshot.ServiceDNAT && shown[o.Kind] > shownServices
	})
	return r
}

// whole is the key of what the service of a network is a part of.
func (k serviceKey) whole() serviceKey {
	k.kind, k.given = snapshot.ServiceDNAT, netip.Addr{}
	if !k.service.IsValid() {
		k.kind = snapshot.ServiceSNAT
	}
	return k
}

// answered has the services that answer any of their clients, of those with a translated source one for
// each protocol.
func (s *services) answered() map[serviceKey]bool {
	answered := map[serviceKey]bool{}
	for k, o := range s.found {
		if !o.IsPart() && o.Answered+o.Open > 0 {
			k.given = netip.Addr{}
			answered[k] = true
		}
	}
	return answered
}

// service completes what was counted.
func (o *outcomes) service() snapshot.Service {
	if o.repeats > 0 {
		o.Stalled += o.halfClosed + o.sending
		o.Answered, o.Busy = o.Answered-o.sending, o.Busy-o.sending
	} else {
		o.Answered, o.answered = o.Answered+o.halfClosed, min(o.answered, o.closedSince)
	}
	o.SilentSeconds = -1
	if o.answered <= servicesReach {
		o.SilentSeconds = int64(o.answered)
	}
	for since, n := range o.failed {
		if uint32(since) < o.answered {
			o.Failing += n
		}
	}
	slices.SortFunc(o.Clients, netip.Addr.Compare)
	slices.SortFunc(o.Destinations, netip.AddrPort.Compare)
	return o.Service
}
