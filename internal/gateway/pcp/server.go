// Package pcp answers hosts inside that ask for ports outside: by the Port Control Protocol (RFC 6887) and by its
// predecessor NAT-PMP (RFC 6886), which most programs speak, at the same port. It decides who gets which port, and for
// how long; it has no clock, and no socket. Sections without another number are those of RFC 6887.
package pcp

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// Server has the leases of a gateway.
type Server struct {
	plan *gateway.Plan
	// serves reports whether a host may open ports, busy whether a program of the gateway itself has one.
	serves func(netip.Addr) bool
	busy   func(protocol uint8, port uint16) bool
	leases []gateway.Lease
	// began is when the epoch did (section 8.5), external the address that it is of; not valid before the first one.
	began    time.Time
	external netip.Addr
	// claimed are ports that rules of the plan have.
	claimed map[uint8]*gateway.PortSet
}

// New is a server that goes on with a state; without one (nil) its epoch begins. It serves once it has a plan (Use).
func New(s *State, now time.Time) *Server {
	server := &Server{began: now}
	if s != nil {
		server.began, server.leases = s.at(now)
		server.external = s.External
	}
	return server
}

// Use has it answer for a plan with PCP: serves reports whether a host may open ports, busy whether a program of the
// gateway itself has one. Leases that the plan cannot have end. Where the address outside is another than before, they
// move to it and the epoch begins anew. It reports whether leases have changed, and whether clients should
// hear of a new epoch.
func (s *Server) Use(p *gateway.Plan, serves func(netip.Addr) bool, busy func(uint8, uint16) bool, now time.Time) (changed, announce bool) {
	s.plan, s.serves, s.busy, s.claimed = p, serves, busy, map[uint8]*gateway.PortSet{}
	for _, protocol := range gateway.LeaseProtocols {
		s.claimed[protocol] = p.Claimed(protocol)
	}
	if !p.PCP.External.IsValid() {
		return false, false // it is about to come again, and may be the same
	}
	before := slices.Clone(s.leases)
	announce = s.external != p.PCP.External
	if announce && s.external.IsValid() {
		s.began = now // section 8.5
	}
	s.external = p.PCP.External
	for i := range s.leases {
		l := &s.leases[i]
		l.External = netip.AddrPortFrom(s.external, l.External.Port())
	}
	s.leases = slices.DeleteFunc(p.Lends(s.leases, now), func(l gateway.Lease) bool {
		return !serves(l.Internal.Addr()) || busy(l.Protocol, l.External.Port())
	})
	return !slices.Equal(before, s.leases), announce
}

// Leases are those at a time, by address and port inside.
func (s *Server) Leases(now time.Time) []gateway.Lease {
	s.Expire(now)
	return slices.Clone(s.leases)
}

// Restore takes back what Answer changed since Leases returned these.
func (s *Server) Restore(leases []gateway.Lease) { s.leases = leases }

// Expire ends leases whose time has passed, and reports whether there were some.
func (s *Server) Expire(now time.Time) bool {
	had := len(s.leases)
	s.leases = slices.DeleteFunc(s.leases, func(l gateway.Lease) bool { return !l.Expires.After(now) })
	return len(s.leases) < had
}

// epoch is the time of the server in seconds.
func (s *Server) epoch(now time.Time) uint32 { return seconds(now.Sub(s.began)) }

func seconds(d time.Duration) uint32 {
	return uint32(min(max(d/time.Second, 0), math.MaxUint32))
}

// Answer answers a datagram from a host; nil is no answer. It reports whether leases have changed: the answer may be sent
// once they are in force and kept, otherwise Refuse is what to send.
func (s *Server) Answer(now time.Time, from netip.Addr, asked []byte) (answer []byte, changed bool) {
	r, result, silent := parse(asked)
	from = from.Unmap().WithZone("")
	if silent || from.Is4() && !s.serves(from) {
		return nil, false
	}
	epoch := s.epoch(now)
	switch {
	case r.natpmp && from.Is6():
		return refuse(asked, unsupportedVersion, epoch), false // RFC 6886 is about IPv4
	case result == unsupportedVersion:
		return refuse(asked[:min(len(asked), headerSize)], result, epoch), false
	case result == success && !r.natpmp && r.client != from:
		result = addressMismatch
	case result == success && r.opcode == opMap && from.Is6():
		result = unsupportedOpcode // nothing of IPv6 has to be opened: natkit does not filter
	}
	if result == success {
		switch {
		case r.address && !s.plan.PCP.External.IsValid():
			result = networkFailure
		case r.address:
			return addressAnswer(s.plan.PCP.External, epoch), false
		case r.opcode == opAnnounce:
			return answerHeader(opAnnounce, success, 0, epoch), false
		case r.lifetime == 0:
			changed, result = s.end(&r, from)
			if result == success {
				return r.granted(asked, netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 0, epoch), changed
			}
		default:
			var l *gateway.Lease
			if l, result = s.open(&r, from, now); result == success {
				return r.granted(asked, l.External, seconds(l.Expires.Sub(now)), epoch), true
			}
		}
	}
	if r.natpmp {
		return refuseNATPMP(asked, result, epoch), false
	}
	return refuse(asked, result, epoch), false
}

// Refuse answers a request that cannot be carried out now.
func (s *Server) Refuse(now time.Time, asked []byte) []byte {
	if asked[0] == versionNATPMP {
		return refuseNATPMP(asked, networkFailure, s.epoch(now))
	}
	return refuse(asked, networkFailure, s.epoch(now))
}

// known is the lease of a port inside; nil where there is none.
func (s *Server) known(protocol uint8, internal netip.AddrPort) *gateway.Lease {
	for i := range s.leases {
		if l := &s.leases[i]; l.Internal == internal && l.Protocol == protocol {
			return l
		}
	}
	return nil
}

// proves reports whether a request may change a lease of its host. What NAT-PMP opened, which has no nonce, PCP may take
// over; not the other way round.
func (r *request) proves(l *gateway.Lease) bool { return l.Nonce == "" || r.nonce == l.Nonce }

// open gives a host a port outside for one of its own, or goes on with the one that it has (section 11.3).
func (s *Server) open(r *request, host netip.Addr, now time.Time) (*gateway.Lease, code) {
	g := s.plan.PCP
	switch {
	case r.protocol == 0 && r.internal != 0:
		return nil, malformedRequest
	case s.claimed[r.protocol] == nil, r.internal == 0:
		return nil, unsupportedProtocol
	case !g.External.IsValid():
		return nil, networkFailure
	}
	s.Expire(now)
	expires := now.Add(min(max(time.Duration(r.lifetime)*time.Second, g.Min), g.Max))
	internal := netip.AddrPortFrom(host, r.internal)
	if l := s.known(r.protocol, internal); l != nil {
		switch {
		case !r.proves(l):
			return nil, notAuthorized
		case r.preferFailure && (l.External.Port() != r.suggested || !r.isSuggestion(g.External)):
			return nil, cannotProvideExternal
		case s.busy(l.Protocol, l.External.Port()):
			return nil, noResources // a program that has begun since gets it when the lease has ended
		}
		l.Expires, l.Nonce = expires, r.nonce
		return l, success
	}
	port, result := s.choose(r, host)
	if result != success {
		return nil, result
	}
	s.leases = append(s.leases, gateway.Lease{Protocol: r.protocol, External: netip.AddrPortFrom(g.External, port), Internal: internal, Expires: expires, Nonce: r.nonce})
	return &s.leases[len(s.leases)-1], success
}

// mostBusy is how many ports in turn programs of the gateway may have before there is none to give.
const mostBusy = 64

// choose finds a port for a new lease: the one that the client suggests, or the one that it has itself, or the next one
// that is free.
func (s *Server) choose(r *request, host netip.Addr) (uint16, code) {
	g, has, taken := s.plan.PCP, 0, *s.claimed[r.protocol]
	for i := range s.leases {
		l := &s.leases[i]
		if l.Internal.Addr() == host {
			has++
		}
		if l.Protocol == r.protocol {
			taken.Add(nat.Ports{First: l.External.Port(), Last: l.External.Port()})
		}
	}
	switch {
	case has >= g.Limit:
		return 0, quotaExceeded
	case len(s.leases) >= gateway.MostLeases:
		return 0, noResources
	}
	free := func(port uint16) bool {
		return g.Ports.Contains(port) && !taken.Has(port) && !s.busy(r.protocol, port)
	}
	if r.preferFailure {
		if !r.isSuggestion(g.External) || !free(r.suggested) {
			return 0, cannotProvideExternal
		}
		return r.suggested, success
	}
	for _, port := range []uint16{r.suggested, r.internal} {
		if port != 0 && free(port) {
			return port, success
		}
	}
	n, busy := g.Ports.Len(), 0
	start := int(r.internal) * 31 // some place, not the first: neighbours are often asked for as well
	for i := range n {
		port := g.Ports.First + uint16((start+i)%n)
		switch {
		case taken.Has(port):
		case !s.busy(r.protocol, port):
			return port, success
		default:
			if busy++; busy == mostBusy {
				return 0, noResources
			}
		}
	}
	return 0, noResources
}

// end ends the leases of a host that a request is about: of one port, or of all of a protocol, or of all protocols
// (section 15.1; RFC 6886, section 3.4). One that it cannot prove to be its own stays.
func (s *Server) end(r *request, host netip.Addr) (changed bool, result code) {
	if r.protocol == 0 && r.internal != 0 {
		return false, malformedRequest
	}
	had, others := len(s.leases), false
	s.leases = slices.DeleteFunc(s.leases, func(l gateway.Lease) bool {
		about := l.Internal.Addr() == host && (r.protocol == 0 || l.Protocol == r.protocol) && (r.internal == 0 || l.Internal.Port() == r.internal)
		others = others || about && !r.proves(&l)
		return about && r.proves(&l)
	})
	if changed = len(s.leases) < had; !changed && others {
		return false, notAuthorized
	}
	return changed, success
}

// Announcements are what clients should hear when the epoch has begun anew: that the address and the leases may be
// others now (section 14.1; RFC 6886, section 3.2.1).
func (s *Server) Announcements(now time.Time) [][]byte {
	all := [][]byte{answerHeader(opAnnounce, success, 0, s.epoch(now))}
	if s.plan.PCP.External.IsValid() {
		all = append(all, addressAnswer(s.plan.PCP.External, s.epoch(now)))
	}
	return all
}
