package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
)

// Ports where a mix names none: those that Linux gives to clients by default, the
// identifiers of ICMP, and those that NAT may use for a client's port above 1023
// (nf_nat_l4proto_unique_tuple).
var (
	clientPorts = Ports{32768, 60999}
	icmpIDs     = Ports{0, 65535}
	natPorts    = Ports{1024, 65535}
)

// maxPool bounds the addresses of one prefix that a mix uses.
const maxPool = 1 << 20

// pool is n addresses that hosts can have, with a port, 0 for none.
type pool struct {
	nat.AddrRange
	port uint16
	n    uint64
}

func poolOf(e Endpoint) pool {
	hosts := nat.Hosts(e.Prefix)
	return pool{hosts, e.Port, uint64(hosts.Size())}
}

func (s Sources) pool() pool {
	p := poolOf(s.Prefix)
	if s.Hosts > 0 {
		p.n, p.Last = uint64(s.Hosts), p.At(uint64(s.Hosts-1))
	}
	return p
}

// pools are numbered one after the other.
type pools []pool

func poolsOf(list []Endpoint) pools {
	all := make(pools, len(list))
	for i, e := range list {
		all[i] = poolOf(e)
	}
	return all
}

func (all pools) len() (n uint64) {
	for _, p := range all {
		n += p.n
	}
	return n
}

func (all pools) at(i uint64) (netip.Addr, uint16) {
	k := 0
	for ; i >= all[k].n; k++ {
		i -= all[k].n
	}
	return all[k].At(i), all[k].port
}

// overlaps reports whether an address is in both; with ports, under the same one.
func (all pools) overlaps(others pools, ports bool) bool {
	return slices.ContainsFunc(all, func(p pool) bool {
		return slices.ContainsFunc(others, func(o pool) bool { return p.Overlaps(o.AddrRange) && (!ports || p.port == o.port) })
	})
}

// space is all connections that can be between the same ends with the same
// translation. Its k-th one is a pure function of k and the key; all differ in
// their original and in their reply tuple.
type space struct {
	// text is the same for parts with the same ends, of which part is the first.
	text string
	part int
	key  uint64
	// counted connections belong to parts that have a count; of the others shares come in
	// each cycle.
	counted, shares int64

	protocol  uint8
	ports     bool
	sources   pool
	sport     Ports
	dst, real pools // real are behind the destinations; empty without DNAT
	to        pools
	natPort   Ports
	// order is that of NAT's ports; sequential is that of sources and ports without it.
	order      string
	sequential bool

	// n connections: ways × hosts × ports without SNAT, ways × addresses × ports with it.
	n, ways, perAddress uint64
	// all orders the whole, turns the destinations and addresses of one port,
	// clients those of one destination and address. spread lays few connections
	// over many ports; its n is 0 where they fill all.
	all, turns, clients, spread shuffle
}

// newSpace is for a part whose single values were checked.
func newSpace(m *Mix, part int) (*space, error) {
	p := &m.Parts[part]
	s := &space{ports: p.hasPorts(), sources: p.Sources.pool(), sport: p.SourcePorts, dst: poolsOf(p.Destinations), sequential: p.Order == Sequential, part: part}
	s.protocol, _ = nat.ParseProtocol(p.Protocol)
	s.sport = s.portsOr(p.SourcePorts, clientPorts)
	if p.NAT != nil {
		s.real = poolsOf(p.NAT.DNAT)
		if p.NAT.SNAT != nil {
			s.to, s.order = poolsOf(p.NAT.SNAT.To), cmp.Or(p.NAT.SNAT.Order, Preserve)
			s.natPort = s.portsOr(p.NAT.SNAT.Ports, natPorts)
		}
	}
	s.text = fmt.Sprint(s.protocol, s.sources, s.sport, s.dst, s.real, s.to, s.natPort, s.order, s.sequential)
	return s, s.measure()
}

// portsOr are the usual ones, or the identifiers of ICMP, where none are given.
func (s *space) portsOr(given, usual Ports) Ports {
	if !s.ports {
		usual = icmpIDs
	}
	return cmp.Or(given, usual)
}

// measure counts what can be distinct.
func (s *space) measure() error {
	s.ways = s.dst.len()
	if len(s.real) > 0 {
		// Two destinations with one server behind them have the same replies.
		s.ways = min(s.ways, s.real.len())
	}
	s.n = s.ways * s.sources.n * uint64(s.sport.Len())
	if len(s.to) > 0 {
		if err := s.measureSNAT(); err != nil {
			return err
		}
	}
	s.all = newShuffle(s.n)
	return nil
}

func (s *space) measureSNAT() error {
	addresses := s.to.len()
	s.perAddress = s.sources.n / addresses
	if s.perAddress == 0 {
		return fmt.Errorf("%d addresses for %d clients: expected at most as many, as each client has one of them", addresses, s.sources.n)
	}
	if s.order == Preserve {
		both, ok := nat.Ports(s.natPort).Common(nat.Ports(s.sport))
		if !ok {
			return fmt.Errorf("no port is both in the clients' %s and in NAT's %s, so none can be preserved", s.sport, s.natPort)
		}
		s.natPort = Ports(both)
	}
	ports := s.natPort
	clients := s.perAddress * uint64(s.sport.Len())
	s.n = s.ways * addresses * min(uint64(ports.Len()), clients)
	s.turns, s.clients = newShuffle(s.ways*addresses), newShuffle(clients)
	if s.order == Random && clients < uint64(ports.Len()) {
		s.spread = newShuffle(uint64(ports.Len()))
	}
	return nil
}

// tuples sets both tuples of e to those of the k-th connection, for k below n.
func (s *space) tuples(k uint64, e *conntrack.Entry) {
	var client, way, address, port, natPort uint64
	if len(s.to) == 0 {
		if !s.sequential {
			k = s.all.at(k, s.key)
		}
		client, k = k%s.sources.n, k/s.sources.n
		port, way = k%uint64(s.sport.Len()), k/uint64(s.sport.Len())
		port += uint64(s.sport.First)
	} else {
		way, address, natPort = s.translation(k)
		client, port = s.client(way, address, natPort)
	}
	s.ends(e, client, way, port)
	if len(s.to) == 0 {
		s.answer(e, way, client<<16|port)
		return
	}
	if s.spread.n > 0 {
		natPort = s.spread.at(natPort, hash(s.key, way<<32|address))
	}
	natPort += uint64(s.natPort.First)
	s.answer(e, way, address<<16|natPort)
	e.Reply.Dst, _ = s.to.at(address)
	s.setPort(&e.Reply, natPort)
}

// translation returns what NAT makes of the k-th connection; the port counts from the
// first one.
func (s *space) translation(k uint64) (way, address, port uint64) {
	turn := s.turns.n
	if s.order == Sequential {
		port, k = k/turn, k%turn
		k = s.turns.at(k, s.key+port)
	} else {
		k = s.all.at(k, s.key)
		port, k = k/turn, k%turn
	}
	return k % s.ways, k / s.ways, port
}

// client is who has this translation.
func (s *space) client(way, address, natPort uint64) (client, port uint64) {
	if s.order == Preserve {
		port = natPort + uint64(s.natPort.First)
		client = scale(hash(s.key, hash(way<<32|address, natPort)), s.perAddress)
	} else {
		x := s.clients.at(natPort, hash(s.key, way<<32|address))
		client, port = x%s.perAddress, x/s.perAddress+uint64(s.sport.First)
	}
	return client*s.to.len() + address, port
}

// ends sets the original tuple. With DNAT the destination is another one for each
// client and port, so that all are used.
func (s *space) ends(e *conntrack.Entry, client, way, port uint64) {
	if len(s.real) > 0 {
		way = (way + hash(s.key, client<<16|port)) % s.dst.len()
	}
	orig := &e.Orig
	*orig = conntrack.Tuple{Src: s.sources.At(client), Proto: s.protocol}
	orig.Dst, orig.DstPort = s.dst.at(way)
	if s.ports {
		orig.SrcPort = uint16(port)
		return
	}
	orig.ICMPID, orig.ICMPType = uint16(port), 8 // echo request, RFC 792
	if orig.Src.Is6() {
		orig.Proto, orig.ICMPType = unix.IPPROTO_ICMPV6, 128 // RFC 4443
	}
}

// answer sets the reply tuple of a connection without SNAT. to is the address and
// port that replies go to, and with DNAT the server is another one for each.
func (s *space) answer(e *conntrack.Entry, way, to uint64) {
	e.Reply = e.Orig.Mirror()
	if len(s.real) > 0 {
		e.Reply.Src, e.Reply.SrcPort = s.real.at((way + hash(s.key+1, to)) % s.real.len())
	}
}

func (s *space) setPort(reply *conntrack.Tuple, port uint64) {
	if s.ports {
		reply.DstPort = uint16(port)
	} else {
		reply.ICMPID = uint16(port)
	}
}

// meets reports whether a connection of one space can have a tuple that one of the
// other has.
func (s *space) meets(o *space) bool {
	if s.protocol != o.protocol {
		return false
	}
	orig := s.sources.Overlaps(o.sources.AddrRange) && s.sport.overlap(o.sport) && s.dst.overlaps(o.dst, true)
	return orig || s.servers().overlaps(o.servers(), true) && s.answered(o)
}

// servers returns the addresses that replies come from.
func (s *space) servers() pools {
	if len(s.real) > 0 {
		return s.real
	}
	return s.dst
}

// answered reports whether replies of both can go to the same address and port.
func (s *space) answered(o *space) bool {
	to, ports := s.replyTo()
	otherTo, otherPorts := o.replyTo()
	return ports.overlap(otherPorts) && to.overlaps(otherTo, false)
}

func (s *space) replyTo() (pools, Ports) {
	if len(s.to) > 0 {
		return s.to, s.natPort
	}
	return pools{s.sources}, s.sport
}

func (p Ports) overlap(o Ports) bool { return p.First <= o.Last && o.First <= p.Last }

// shuffle is an order of the numbers below n that looks random and needs no
// memory: a Feistel network over pairs, as in Black and Rogaway, "Ciphers with
// Arbitrary Finite Domains" (2002), whose results outside of n are fed in again.
// load.Permutation is simpler and goes in steps of one length; NAT's random ports
// do not.
type shuffle struct{ n, a, b uint64 }

const shuffleRounds = 6

// newShuffle takes n from 1 to 2^62.
func newShuffle(n uint64) shuffle {
	a := uint64(math.Ceil(math.Sqrt(float64(n))))
	return shuffle{n: n, a: a, b: (n + a - 1) / a}
}

// at is the k-th number in the order of a key, for k below n.
func (s shuffle) at(k, key uint64) uint64 {
	for {
		r, l := k/s.a, k%s.a
		for round := uint64(0); round < shuffleRounds; round += 2 {
			l = (l + scale(hash(key+round, r), s.a)) % s.a
			r = (r + scale(hash(key+round+1, l), s.b)) % s.b
		}
		if k = r*s.a + l; k < s.n {
			return k
		}
	}
}

// scale maps 64 random bits evenly to the numbers below n.
func scale(random, n uint64) uint64 {
	hi, _ := bits.Mul64(random, n)
	return hi
}

// hash is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", 2014) over two numbers.
func hash(key, v uint64) uint64 {
	x := v + key*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
