package aggregate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
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
}

// services finds out what became of translated connections. How long ago an entry had its last
// packet is its timeout less what is left of it.
type services struct {
	found map[serviceKey]*outcomes
	kept  map[string]int
	// births is true where two dumps show which connections are new.
	births bool
}

func newServices() services {
	return services{found: map[serviceKey]*outcomes{}, kept: map[string]int{}}
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
func (o *Outcomes) Add(e *conntrack.Entry) { o.services.add(e, o.gap, true, false) }

// Services ends the dump; complete reports whether it reached the table's end.
func (o *Outcomes) Services(complete bool) *snapshot.Services { return o.services.result(complete) }

// outcome is what became of a connection.
type outcome int

const (
	outcomeNone outcome = iota
	outcomeAnswered
	outcomeReset
	outcomeOpen
	outcomeUnanswered
	outcomeHalfOpen
	outcomeOneWay
)

// add takes an entry of the second dump. isNew is whether it was not in the first one, idle
// whether it was, and no packet came since.
func (s *services) add(e *conntrack.Entry, gap Gap, isNew, idle bool) {
	plain := !e.IsDNAT() && !e.IsSNAT()
	if e.Status.Has(conntrack.Expected) || plain && !leavesPrivately(e) {
		return
	}
	what := outcomeOf(e, isNew, idle)
	since, known := gap.since(e)
	if e.IsDNAT() && s.births {
		s.began(e, gap, isNew, !known || float64(since) <= gap.Whole+wholeDoubt)
	}
	if what == outcomeNone || !known || what != outcomeOpen && since > servicesReach {
		return
	}
	if what == outcomeOneWay && !e.IsDNAT() {
		return
	}
	if e.IsDNAT() {
		s.of(destinationOf(e)).count(e, what, since)
		return
	}
	if plain {
		network, _ := e.Orig.Src.Prefix(24)
		s.of(serviceKey{kind: snapshot.ServiceUntranslated, proto: e.Orig.Proto, zone: e.Zone, given: network.Addr()}).count(e, what, since)
		return
	}
	key := serviceKey{kind: snapshot.ServiceSNAT, proto: e.Orig.Proto, zone: e.Zone, given: e.Reply.Dst}
	s.of(key).count(e, what, since)
	key.kind, key.service = snapshot.ServiceDestination, netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)
	s.of(key).count(e, what, since)
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
	switch o := s.of(destinationOf(e)); {
	case o == nil:
	case isNew:
		o.New++
	default:
		o.Lately++
	}
}

// destinationOf is the service of an entry with a DNAT.
func destinationOf(e *conntrack.Entry) serviceKey {
	return serviceKey{snapshot.ServiceDNAT, e.Orig.Proto, e.Zone, end{e.Orig.Dst, e.Orig.DstPort, 0}.addrPort(), end{e.Reply.Src, e.Reply.SrcPort, 0}.addrPort(), netip.Addr{}}
}

// leavesPrivately reports whether a connection goes from a private address to a public one.
func leavesPrivately(e *conntrack.Entry) bool {
	to := e.Orig.Dst
	return e.Orig.Src.Is4() && e.Orig.Src.IsPrivate() && !to.IsPrivate() && to.IsGlobalUnicast()
}

func (e end) addrPort() netip.AddrPort { return netip.AddrPortFrom(e.addr, e.port) }

// since returns the seconds since an entry's last packet; false where its timeout is not known.
func (g Gap) since(e *conntrack.Entry) (seconds uint32, known bool) {
	c := classOf(e)
	if g.timeouts == nil || g.timeouts[c] == 0 || e.Status&(conntrack.Offload|conntrack.HWOffload|conntrack.FixedTimeout) != 0 {
		return 0, tcpStateOf(e) == conntrack.TCPEstablished
	}
	return g.timeouts[c] - min(e.Timeout, g.timeouts[c]), true
}

// outcomeOf says what became of a connection. One that was there before may go on for another
// reason than an answer.
func outcomeOf(e *conntrack.Entry, isNew, idle bool) outcome {
	seen := e.Status.Has(conntrack.SeenReply)
	if e.Orig.Proto != unix.IPPROTO_TCP {
		switch {
		case !seen && e.Orig.Proto == unix.IPPROTO_UDP && (nat.IsOneWay(e.Orig.DstPort) || nat.IsOneWay(e.Reply.SrcPort)):
			return outcomeOneWay
		case !seen:
			return outcomeUnanswered
		case seen && (isNew || idle):
			return outcomeAnswered
		}
		return outcomeOpen
	}
	switch e.TCPState {
	case conntrack.TCPSynSent, conntrack.TCPSynSent2:
		return outcomeUnanswered
	case conntrack.TCPSynRecv:
		return outcomeHalfOpen
	case conntrack.TCPEstablished:
		if isNew && seen {
			return outcomeAnswered
		}
		return outcomeOpen
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
	if s.kept[k.kind] == keptServices {
		return nil
	}
	s.kept[k.kind]++
	o := &outcomes{answered: servicesReach + 1, Service: snapshot.Service{
		Kind: k.kind, Protocol: nat.ProtocolName(k.proto), Service: k.service, Target: k.target, Given: k.given, Zone: k.zone,
	}}
	s.found[k] = o
	return o
}

func (o *outcomes) count(e *conntrack.Entry, what outcome, since uint32) {
	if o == nil {
		return
	}
	switch what {
	case outcomeOpen:
		o.Open++
	case outcomeOneWay:
		o.OneWay++
	case outcomeReset:
		o.Reset++
		fallthrough
	case outcomeAnswered:
		o.Answered++
		o.answered = min(o.answered, since)
	default:
		o.fails(e, what, since)
	}
}

func (o *outcomes) fails(e *conntrack.Entry, what outcome, since uint32) {
	switch {
	case since < snapshot.PatienceSeconds:
		o.Waiting++
		return
	case what == outcomeHalfOpen:
		o.HalfOpen++
	default:
		o.Unanswered++
	}
	o.failed[since]++
	o.Clients = named(o.Clients, e.Orig.Src)
	if o.Kind == snapshot.ServiceSNAT || o.Kind == snapshot.ServiceUntranslated {
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

// result lists the services, those of which most fail first, and of the others the busiest.
func (s *services) result(complete bool) *snapshot.Services {
	r := &snapshot.Services{Seconds: servicesReach, All: []snapshot.Service{}, Complete: complete && s.kept[snapshot.ServiceDNAT] < keptServices}
	r.NewKnown = s.births && r.Complete
	for _, o := range s.found {
		if o.Kind != snapshot.ServiceDestination || o.Failed() > 0 {
			r.All = append(r.All, o.service())
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

// service completes what was counted.
func (o *outcomes) service() snapshot.Service {
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
