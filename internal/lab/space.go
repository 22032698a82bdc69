package lab

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// Ports where a mix names none: those that Linux gives to clients by default, the
// identifiers of ICMP, and those that NAT may use for a client's port above 1023
// (nf_nat_l4proto_unique_tuple).
var (
	clientPorts = Ports{32768, 60999}
	icmpIDs     = Ports{0, 65535}
	natPorts    = Ports{1024, 65535}
)

// space is all connections that can be between the same ends with the same
// translation. Its k-th one is a pure function of k and the key; all differ in
// their original and in their reply tuple.
type space struct {
	// text is the same for parts with the same ends.
	text string
	// path leads to the part in the mix that it was made for.
	path []any
	key  uint64

	protocol   uint8
	ports      bool
	sources    pool
	sport      Ports
	dst, real  endpoints // real are behind the destinations; empty without DNAT
	to         endpoints
	natPort    Ports
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
func newSpace(p *Part, path []any) (*space, error) {
	s := &space{
		protocol: p.Protocol.Number, ports: p.Protocol.Number != unix.IPPROTO_ICMP,
		sources: p.Sources.pool(), sport: p.SourcePorts, dst: poolsOf(p.Destinations),
		sequential: p.Order == Sequential, path: path,
	}
	if s.sport == (Ports{}) {
		s.sport = clientPorts
		if !s.ports {
			s.sport = icmpIDs
		}
	}
	if p.NAT != nil {
		s.real = poolsOf(p.NAT.DNAT)
		if p.NAT.SNAT != nil {
			s.to, s.natPort, s.order = poolsOf(p.NAT.SNAT.To), p.NAT.SNAT.Ports, p.NAT.SNAT.Order
		}
	}
	s.text = fmt.Sprint(s.protocol, s.sources, s.sport, s.dst, s.real, s.to, s.natPort, s.order, s.sequential)
	return s, s.measure()
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
	if s.natPort == (Ports{}) {
		s.natPort = natPorts
		if !s.ports {
			s.natPort = icmpIDs
		}
	}
	addresses := s.to.len()
	s.perAddress = s.sources.n / addresses
	if s.perAddress == 0 {
		return fmt.Errorf("%d addresses for %d clients: expected at most as many, as each client has one of them", addresses, s.sources.n)
	}
	ports := s.natPort
	if s.order == Preserve || s.order == "" {
		ports = Ports{max(ports.First, s.sport.First), min(ports.Last, s.sport.Last)}
		if ports.First > ports.Last {
			return fmt.Errorf("no port is both in the clients' %s and in NAT's %s, so none can be preserved", s.sport, s.natPort)
		}
		s.order = Preserve
	}
	clients := s.perAddress * uint64(s.sport.Len())
	s.natPort = ports
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

// translation is what NAT makes of the k-th connection; the port counts from the
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
	*orig = conntrack.Tuple{Src: s.sources.at(client), Proto: s.protocol}
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
	orig := s.sources.overlaps(o.sources) && s.sport.overlap(o.sport) && s.dst.overlaps(o.dst, true)
	return orig || s.servers().overlaps(o.servers(), true) && s.answered(o)
}

// servers are where replies come from.
func (s *space) servers() endpoints {
	if len(s.real) > 0 {
		return s.real
	}
	return s.dst
}

// answered reports whether replies of both can go to the same address and port.
func (s *space) answered(o *space) bool {
	return s.replyPorts().overlap(o.replyPorts()) && s.replyTo().overlaps(o.replyTo(), false)
}

func (s *space) replyPorts() Ports {
	if len(s.to) > 0 {
		return s.natPort
	}
	return s.sport
}

func (s *space) replyTo() endpoints {
	if len(s.to) > 0 {
		return s.to
	}
	return endpoints{{pool: s.sources}}
}

func (p Ports) overlap(o Ports) bool { return p.First <= o.Last && o.First <= p.Last }
