package lab

import (
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// seen is the part's status, or what such connections usually have.
func (p *Part) seen() string {
	switch {
	case p.Status != "":
		return p.Status
	case p.Protocol.Number != unix.IPPROTO_TCP, p.State.TCPState == conntrack.TCPSynRecv:
		return Replied
	case p.State.TCPState == conntrack.TCPSynSent, p.State.TCPState == conntrack.TCPSynSent2:
		return Unreplied
	}
	return Assured
}

func statusBits(seen string) conntrack.Status {
	switch seen {
	case Unreplied:
		return conntrack.Confirmed
	case Replied:
		return conntrack.Confirmed | conntrack.SeenReply
	}
	return conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured
}

// tcpTimeouts are the kernel's defaults, in seconds (tcp_timeouts,
// net/netfilter/nf_conntrack_proto_tcp.c).
var tcpTimeouts = map[conntrack.TCPState]uint32{
	conntrack.TCPSynSent: 120, conntrack.TCPSynRecv: 60, conntrack.TCPEstablished: 432000,
	conntrack.TCPFinWait: 120, conntrack.TCPCloseWait: 60, conntrack.TCPLastAck: 30,
	conntrack.TCPTimeWait: 120, conntrack.TCPClose: 10, conntrack.TCPSynSent2: 120,
}

// usualTimeout is what the kernel gives to such connections by default
// (nf_conntrack_proto_udp.c, _gre.c, _icmp.c, _sctp.c).
func (p *Part) usualTimeout() Span {
	seconds := uint32(30) // ICMP; UDP and GRE before they are assured
	switch assured := p.seen() == Assured; {
	case p.Protocol.Number == unix.IPPROTO_TCP:
		seconds = tcpTimeouts[p.State.TCPState]
	case p.Protocol.Number == unix.IPPROTO_SCTP:
		seconds = 210
	case p.Protocol.Number == unix.IPPROTO_UDP && assured:
		seconds = 120
	case p.Protocol.Number == unix.IPPROTO_GRE && assured:
		seconds = 180
	}
	return Span{seconds, seconds}
}

// Kind says in a few words what the part's entries are, as conntrack(8) shows
// them.
func (p *Part) Kind() string {
	kind := p.Protocol.String()
	if p.State.TCPState != conntrack.TCPNone {
		kind += " " + p.State.String()
	}
	switch p.seen() {
	case Unreplied:
		kind += " [UNREPLIED]"
	case Assured:
		kind += " [ASSURED]"
	}
	if p.NAT != nil && len(p.NAT.DNAT) > 0 {
		kind += " DNAT"
	}
	if p.NAT != nil && p.NAT.SNAT != nil {
		kind += " SNAT"
	}
	return kind
}
