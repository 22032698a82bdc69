package pair

import (
	"math"
	"net/netip"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/unix"
)

// observed is what is kept of a packet.
type observed struct {
	at, frame int64
	// key is made of what a NAT does not change; weak keys may be those of several flows.
	key  uint64
	weak bool
	// mark is the TCP timestamps, which some NATs change; 0 where there are none.
	mark uint64
	frame.Tuple
	ipid     uint16 // 0 where there is none
	protocol uint8
	kind     Kind
	ttl      uint8
}

// class of a packet: whether the other capture may have it.
type class uint8

const (
	comparable class = iota
	unreadable
	unforwardable
)

// set fills in o, and returns the class of the packet.
func (o *observed) set(p *pcap.Packet) class {
	f := &p.Frame
	switch {
	case p.Reason != pcap.Decoded || f.Version == 0:
		return unreadable
	case !forwardable(f.Source) || !forwardable(f.Destination):
		return unforwardable
	}
	*o = observed{at: p.At, frame: p.Number, protocol: f.Protocol, ttl: f.IPv4.TTL, ipid: f.IPv4.Identification}
	if f.Version == 6 {
		o.ttl = f.IPv6.HopLimit
	}
	o.Tuple = f.Tuple()
	o.identify(p)
	return comparable
}

// forwardable reports whether routers pass packets of an address on.
func forwardable(a netip.Addr) bool {
	return !(a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback() || a.IsUnspecified() || a == broadcast)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// identify makes the key. The version of IP is not in it, nor are addresses and ports.
func (o *observed) identify(p *pcap.Packet) {
	f := &p.Frame
	length := uint64(len(f.Payload) + f.Missing)
	switch {
	case f.Fragment.Is():
		o.kind, o.weak = Fragment, true
		o.key = frame.Mix(uint64(f.Protocol), uint64(f.Fragment.Identification), uint64(f.Fragment.Offset), length)
		o.ports(0)
	case f.Transport == unix.IPPROTO_TCP:
		o.tcp(p, length)
	case f.Transport == unix.IPPROTO_UDP:
		o.kind, o.weak = UDP, true
		o.key = frame.Content(unix.IPPROTO_UDP, uint64(f.UDP.Length), f.Payload)
	case f.ICMPError():
		o.kind, o.weak = ICMPError, true
		o.key = frame.Mix(unix.IPPROTO_ICMP, uint64(f.ICMP.Type)<<8|uint64(f.ICMP.Code), quoted(p))
		o.ports(0)
	case f.Transport == unix.IPPROTO_ICMP || f.Transport == unix.IPPROTO_ICMPV6:
		o.kind, o.weak = Echo, true
		about := frame.Mix(uint64(f.ICMP.Type), uint64(f.ICMP.Code), uint64(f.ICMP.SequenceNumber()))
		o.key = about ^ frame.Content(unix.IPPROTO_ICMP, length, f.Payload)
		o.echo(f.ICMP.Type, f.ICMP.Identifier())
	default:
		o.kind, o.weak = Other, true
		o.key = frame.Content(uint64(f.Protocol), length, f.Payload)
	}
}

func (o *observed) ports(n uint16) {
	o.Src, o.Dst = netip.AddrPortFrom(o.Src.Addr(), n), netip.AddrPortFrom(o.Dst.Addr(), n)
}

// Types of ICMP messages that answer a query (RFC 792, RFC 4443).
const (
	echoReply   = 0
	echoReplyV6 = 129
)

// echo makes the identifier the port of the end that chose it (RFC 5508, section 3.1).
func (o *observed) echo(kind uint8, identifier uint16) {
	o.ports(0)
	if kind == echoReply && o.protocol == unix.IPPROTO_ICMP || kind == echoReplyV6 {
		o.Dst = netip.AddrPortFrom(o.Dst.Addr(), identifier)
	} else {
		o.Src = netip.AddrPortFrom(o.Src.Addr(), identifier)
	}
}

// tcp takes sequence numbers, which are random (RFC 6528), and the length: nearly unique. Some
// NATs change timestamps.
func (o *observed) tcp(p *pcap.Packet, length uint64) {
	h := &p.Frame.TCP
	ack := uint64(0)
	if h.Flags&frame.ACK != 0 {
		ack = uint64(h.AcknowledgmentNumber)
	}
	o.key = frame.Mix(unix.IPPROTO_TCP, uint64(h.SequenceNumber)<<32|ack, uint64(h.Flags), length)
	if p.HasTimestamps {
		o.mark = uint64(p.TSVal)<<32 | uint64(p.TSEcr)
	}
	o.kind = tcpKind(h.Flags, length)
}

func tcpKind(flags frame.TCPFlags, length uint64) Kind {
	switch {
	case flags&frame.RST != 0:
		return RST
	case flags&(frame.SYN|frame.ACK) == frame.SYN|frame.ACK:
		return SYNACK
	case flags&frame.SYN != 0:
		return SYN
	case flags&frame.FIN != 0:
		return FIN
	case length > 0:
		return Data
	}
	return ACK
}

// quoted returns a hash of the fields that a NAT does not change in an ICMP error's quote.
func quoted(p *pcap.Packet) uint64 {
	if !p.HasQuoted {
		return 0
	}
	q := &p.Quoted
	return frame.Mix(uint64(q.Protocol), uint64(q.IPv4.Identification), uint64(q.IPv4.TotalLength)|uint64(q.IPv6.PayloadLength), uint64(q.TCP.SequenceNumber))
}

// flowKey is a pair of addresses and ports on one side, whichever way packets go.
type flowKey struct {
	low, high netip.AddrPort
	protocol  uint8
	side      uint8
}

// Directions, by number of the capture where packets go in.
const (
	fromFirst = iota
	fromSecond
	unknown
)

// flow is a flow on one side. Its ways are 0 from low to high, and 1 back.
type flow struct {
	flowKey
	// travel is the direction of each way's packets.
	travel [2]uint8
	seen   [2]bool
	// firstWay is that of the first packet.
	firstWay uint8
	// flipped is set if this flow's way 0 is the peer's way 1.
	flipped bool
	// peer is the same flow on the other side, as it was matched last.
	peer    *flow
	matched int64
	missed  *missed
	// waiting packets are not judged yet.
	waiting int32
}

// missed are a flow's unmatched packets by way: at times that the other capture covers, and
// before.
type missed struct{ covered, before [2]misses }

// misses are counted by kind.
type misses struct {
	packets [kinds]uint32
	first   missing
}

// missing is a packet that is missed on the other side.
type missing struct {
	at, raw, frame int64
	side           uint8
	kind           Kind
}

func (m *misses) total() (n int64) {
	for _, k := range m.packets {
		n += int64(k)
	}
	return n
}

func (m *misses) add(s *sighting) {
	if m.total() == 0 {
		m.first = missing{s.at, s.raw, s.frame, s.side, s.kind}
	}
	m.packets[s.kind]++
}

// tuple returns the addresses and ports of a way.
func (f *flow) tuple(way uint8) frame.Tuple {
	if way == 0 {
		return frame.Tuple{Src: f.low, Dst: f.high}
	}
	return frame.Tuple{Src: f.high, Dst: f.low}
}

// known is the direction that packets of a way travel.
func (f *flow) known(way uint8) uint8 {
	if d := f.travel[way]; d != unknown {
		return d
	}
	if d := f.travel[1-way]; d != unknown {
		return 1 - d
	}
	return unknown
}

// flows are by the time of their last packet; most of them fit into the memory.
type flows struct {
	*simplelru.LRU[flowKey, *flow]
	most int
}

func newFlows(most int) flows {
	lru, _ := simplelru.NewLRU[flowKey, *flow](math.MaxInt, nil) // makeRoom evicts
	return flows{lru, most}
}

func (t *flows) find(side uint8, o *observed) (f *flow, way uint8) {
	key := flowKey{o.Src, o.Dst, o.protocol, side}
	if o.Dst.Compare(o.Src) < 0 {
		key.low, key.high, way = o.Dst, o.Src, 1
	}
	f, ok := t.Get(key)
	if !ok {
		f = &flow{flowKey: key, firstWay: way, travel: [2]uint8{unknown, unknown}}
		t.Add(key, f)
	}
	f.seen[way] = true
	return f, way
}

// oldest returns the flow that has been silent for longest; nil if there is none.
func (t *flows) oldest() *flow {
	_, f, _ := t.GetOldest()
	return f
}

// marry makes two flows each other's peer; it reports whether they were not before.
func marry(a, b *flow, flipped bool) bool {
	if a.peer == b && b.peer == a {
		return false
	}
	for _, f := range []*flow{a, b} {
		if f.peer != nil {
			f.peer.peer = nil
		}
	}
	a.peer, b.peer, a.flipped, b.flipped = b, a, flipped, flipped
	return true
}
