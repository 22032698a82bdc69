package conntrack

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	shown = 10
	// remainingSteps covers the 600 s of snapshot.ConntrackTable.Remaining.
	remainingMax   = 600
	remainingSteps = remainingMax/snapshot.RemainingStep + 1
)

// Sampler summarises a stream of entries in memory that does not grow with it.
type Sampler struct {
	sampled                                        int64
	protocols                                      [256]int64
	states                                         [tcpStates + 1]int64
	assured, unreplied, snat, dnat, offloaded, tcp int64
	remaining                                      [classes]*[remainingSteps]int64
	sources                                        *top[netip.Addr]
	services                                       *top[service]
	unanswered                                     unanswered
	idle                                           idle
}

// service is what is asked for: the destination that the client names.
type service struct {
	addr  netip.Addr
	port  uint16
	proto uint8
}

func serviceOf(e *Entry) service { return service{e.Orig.Dst, e.Orig.DstPort, e.Orig.Proto} }

func (s service) String() string {
	if s.port == 0 {
		return ProtocolName(s.proto) + " " + s.addr.String()
	}
	return ProtocolName(s.proto) + " " + netip.AddrPortFrom(s.addr, s.port).String()
}

// NewSampler makes an empty Sampler.
func NewSampler() *Sampler {
	return &Sampler{
		sources: newTop(addrForm), services: newTop(serviceForm),
		unanswered: newUnanswered(), idle: newIdle(),
	}
}

// EstablishedTimeout says what nf_conntrack_tcp_timeout_established is, in seconds,
// before the first entry: idle times are known by it.
func (s *Sampler) EstablishedTimeout(seconds uint32) { s.idle.timeout = seconds }

// Add counts one entry. It keeps nothing of e.
func (s *Sampler) Add(e *Entry) {
	s.sampled++
	s.protocols[e.Orig.Proto]++
	c := classOf(e)
	if c <= class(tcpStates) {
		s.states[c]++
		s.tcp++
	}
	s.countStatus(e)
	if e.Timeout <= remainingMax {
		if s.remaining[c] == nil {
			s.remaining[c] = new([remainingSteps]int64)
		}
		s.remaining[c][e.Timeout/snapshot.RemainingStep]++
	}
	s.sources.add(e.Orig.Src)
	s.services.add(serviceOf(e))
	s.unanswered.add(e)
	s.idle.add(e)
}

func (s *Sampler) countStatus(e *Entry) {
	if e.Status.Has(Assured) {
		s.assured++
	}
	if !e.Status.Has(SeenReply) {
		s.unreplied++
	}
	if e.Status&(Offload|HWOffload) != 0 {
		s.offloaded++
	}
	if e.IsSNAT() {
		s.snat++
	}
	if e.IsDNAT() {
		s.dnat++
	}
}

// Table is the summary so far; complete says whether it is of the whole table.
func (s *Sampler) Table(complete bool) *snapshot.ConntrackTable {
	t := &snapshot.ConntrackTable{
		Sampled: s.sampled, Complete: complete,
		ByProtocol: map[string]int64{}, ByTCPState: map[string]int64{}, Remaining: map[string][]int64{},
		Assured: s.assured, Unreplied: s.unreplied, SNAT: s.snat, DNAT: s.dnat, Offloaded: s.offloaded,
		TopSources:  s.sources.talkers(shown, netip.Addr.String),
		TopServices: s.services.talkers(shown, service.String),
		Unanswered:  s.unanswered.summary(s.sources), Idle: s.idle.summary(),
	}
	for proto, n := range s.protocols {
		if n > 0 {
			t.ByProtocol[ProtocolName(uint8(proto))] = n
		}
	}
	for state, n := range s.states {
		if n > 0 {
			t.ByTCPState[TCPState(state).String()] = n
		}
	}
	for c, steps := range s.remaining {
		if steps != nil {
			t.Remaining[class(c).String()] = trimZeros(steps[:])
		}
	}
	return t
}

func trimZeros(steps []int64) []int64 {
	n := len(steps)
	for n > 0 && steps[n-1] == 0 {
		n--
	}
	return steps[:n:n]
}
