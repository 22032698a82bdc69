package aggregate

import (
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	shown = 10
	// remainingSteps covers the 600 s of snapshot.ConntrackTable.Remaining.
	remainingMax   = 600
	remainingSteps = remainingMax/snapshot.RemainingStep + 1
)

// Sampler summarises a stream of entries in memory that does not grow with it.
type Sampler struct {
	sampled           int64
	protocols         [256]int64
	states            [conntrack.TCPStates + 1]int64
	statuses          [statuses]int64
	translated        [translations]int64
	remaining         [classes]*[remainingSteps]int64
	sources, services *top
	unanswered        unanswered
	idle              idle
}

// end is what is asked for: the destination that the client names; or, without a port, who
// asks by a protocol, or, without either, an address.
type end struct {
	addr  netip.Addr
	port  uint16
	proto uint8
}

func serviceOf(e *conntrack.Entry) end { return end{e.Orig.Dst, e.Orig.DstPort, e.Orig.Proto} }

func (s end) String() string {
	switch {
	case s.port != 0:
		return nat.ProtocolName(s.proto) + " " + netip.AddrPortFrom(s.addr, s.port).String()
	case s.proto != 0:
		return nat.ProtocolName(s.proto) + " " + s.addr.String()
	}
	return s.addr.String()
}

// NewSampler makes an empty Sampler.
func NewSampler() *Sampler {
	return &Sampler{
		sources: newTop(), services: newTop(),
		unanswered: unanswered{askers: newTop(), services: newTop()}, idle: idle{sources: newTop(), services: newTop()},
	}
}

// EstablishedTimeout sets nf_conntrack_tcp_timeout_established, in seconds,
// before the first entry: idle times are known by it.
func (s *Sampler) EstablishedTimeout(seconds uint32) { s.idle.timeout = seconds }

// Add counts one entry. It keeps nothing of e.
func (s *Sampler) Add(e *conntrack.Entry) {
	s.sampled++
	s.protocols[e.Orig.Proto]++
	c := classOf(e)
	if c <= class(conntrack.TCPStates) {
		s.states[c]++
	}
	s.statuses[statusOf(e)]++
	s.translated[natOf(e)]++
	if e.Timeout <= remainingMax {
		if s.remaining[c] == nil {
			s.remaining[c] = new([remainingSteps]int64)
		}
		s.remaining[c][e.Timeout/snapshot.RemainingStep]++
	}
	s.sources.add(end{addr: e.Orig.Src})
	s.services.add(serviceOf(e))
	s.unanswered.add(e)
	s.idle.add(e)
}

// Table is the summary so far; complete reports whether it is of the whole table.
func (s *Sampler) Table(complete bool) *snapshot.ConntrackTable {
	t := &snapshot.ConntrackTable{
		Sampled: s.sampled, Complete: complete,
		ByProtocol: map[string]int64{}, ByTCPState: map[string]int64{}, Remaining: map[string][]int64{},
		Assured: with(s.statuses[:], statusAssured), Unreplied: s.sampled - with(s.statuses[:], statusAnswered),
		Offloaded: with(s.statuses[:], statusOffloaded|statusHardware),
		SNAT:      with(s.translated[:], natSource), DNAT: with(s.translated[:], natDestination),
		TopSources: s.sources.talkers(), TopServices: s.services.talkers(),
		Unanswered: s.unanswered.summary(s.sources), Idle: s.idle.summary(),
	}
	for proto, n := range s.protocols {
		if n > 0 {
			t.ByProtocol[nat.ProtocolName(uint8(proto))] = n
		}
	}
	for state, n := range s.states {
		if n > 0 {
			t.ByTCPState[conntrack.TCPState(state).String()] = n
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

// class groups entries by what decides how long they live: the TCP state, for
// UDP whether the stream timeout holds, otherwise the protocol.
type class uint16

const (
	classUDPUnreplied = class(conntrack.TCPStates) + 1 + iota
	classUDPStream
	classProtocol
	classes = classProtocol + 256
)

// classOf follows the kernel's choice of timeout. A UDP entry takes the stream
// timeout at the moment it becomes assured; before that, answered or not, it has
// the short one (nf_conntrack_udp_packet, net/netfilter/nf_conntrack_proto_udp.c).
func classOf(e *conntrack.Entry) class {
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return class(min(e.TCPState, conntrack.TCPStates))
	case unix.IPPROTO_UDP:
		if e.Status.Has(conntrack.Assured) {
			return classUDPStream
		}
		return classUDPUnreplied
	default:
		return classProtocol + class(e.Orig.Proto)
	}
}

func (c class) String() string {
	switch {
	case c <= class(conntrack.TCPStates):
		return "tcp/" + conntrack.TCPState(c).String()
	case c == classUDPUnreplied:
		return "udp/unreplied"
	case c == classUDPStream:
		return "udp/stream"
	default:
		return nat.ProtocolName(uint8(c - classProtocol))
	}
}

// identity is a 64-bit key of what the tracker allows one entry at a time:
// original tuple and zone. Two of a million have the same one with a probability
// of 3 in 10^8.
func identity(seed uint64, e *conntrack.Entry) uint64 {
	return mix(mixTuple(seed, &e.Orig), uint64(e.Zone))
}

// group is a key of what bounds the number of entries together with the source
// ports: protocol, source, destination, destination port.
func group(seed uint64, e *conntrack.Entry) uint64 {
	t := e.Orig
	t.SrcPort, t.ICMPID = 0, 0
	return mixTuple(seed, &t)
}

func mixTuple(seed uint64, t *conntrack.Tuple) uint64 {
	src, dst := t.Src.As16(), t.Dst.As16()
	h := mix(seed, binary.NativeEndian.Uint64(src[:8]))
	h = mix(h, binary.NativeEndian.Uint64(src[8:]))
	h = mix(h, binary.NativeEndian.Uint64(dst[:8]))
	h = mix(h, binary.NativeEndian.Uint64(dst[8:]))
	h = mix(h, uint64(t.SrcPort)<<48|uint64(t.DstPort)<<32|uint64(t.ICMPID)<<16|uint64(t.ICMPType)<<8|uint64(t.ICMPCode))
	return mix(h, uint64(t.Proto))
}

// IdleTime returns a function for how many seconds an entry had no packet: the timeout of its class less what is left of it.
// It is not known of an entry with more left than its class has, as a rule has given it another timeout.
func IdleTime(timeouts snapshot.Sysctls) func(*conntrack.Entry) (seconds int64, known bool) {
	g := Gap{Sysctls: timeouts}.known()
	return func(e *conntrack.Entry) (int64, bool) {
		timeout := g.timeouts[classOf(e)]
		if timeout == 0 || e.Timeout > timeout || e.Fields.Has(conntrack.NoTimeout) {
			return 0, false
		}
		return int64(timeout - e.Timeout), true
	}
}
