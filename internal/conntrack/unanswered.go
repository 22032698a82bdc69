package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

// asker is an address that opens connections of one protocol.
type asker struct {
	addr  netip.Addr
	proto uint8
}

func (a asker) String() string { return ProtocolName(a.proto) + " " + a.addr.String() }

// isUnanswered reports whether nobody has answered the first packet of a TCP or UDP
// connection. A TCP entry that was taken up in the middle of a connection is
// ESTABLISHED from its first packet on (nf_conntrack_tcp_loose) and does not count, nor
// does UDP of services that never answer.
func isUnanswered(e *Entry) bool {
	if e.Status.Has(SeenReply) {
		return false
	}
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return e.TCPState == TCPSynSent
	case unix.IPPROTO_UDP:
		return !isOneWay(e.Orig.DstPort)
	}
	return false
}

// isOneWay reports whether UDP to a port is not meant to be answered on the same ports:
// tunnels, whose source port is a hash of the flow inside and whose packets back go to
// the same destination port, and what only reports, often from a new port each time.
func isOneWay(port uint16) bool {
	switch port {
	case 4789, 8472, 6081, 4754, 6635: // VXLAN (RFC 7348, and Linux' own), Geneve, GRE and MPLS in UDP
		return true
	case 162, 514, 8125, 12201, 25826: // SNMP traps, syslog, StatsD, GELF, collectd
		return true
	case 2055, 4739, 6343, 9995, 9996: // NetFlow, IPFIX, sFlow
		return true
	}
	return false
}

// unanswered counts connections without an answer by source and by service.
type unanswered struct {
	tcp, udp int64
	askers   *top[asker]
	services *top[service]
}

func newUnanswered() unanswered {
	return unanswered{askers: newTop(askerForm), services: newTop(serviceForm)}
}

func (u *unanswered) add(e *Entry) {
	if !isUnanswered(e) {
		return
	}
	if e.Orig.Proto == unix.IPPROTO_TCP {
		u.tcp++
	} else {
		u.udp++
	}
	u.askers.add(asker{e.Orig.Src, e.Orig.Proto})
	u.services.add(serviceOf(e))
}

// summary compares with all entries of each source.
func (u *unanswered) summary(sources *top[netip.Addr]) *snapshot.Unanswered {
	s := &snapshot.Unanswered{
		TCP: u.tcp, UDP: u.udp,
		Sources: []snapshot.UnansweredSource{}, Services: u.services.talkers(shown, service.String),
	}
	for _, c := range u.askers.largest(shown, asker.String) {
		s.Sources = append(s.Sources, snapshot.UnansweredSource{
			Who: c.key.addr.String(), Protocol: ProtocolName(c.key.proto),
			Entries: c.n, OfEntries: max(c.n, sources.count(c.key.addr)),
		})
	}
	return s
}

// idleBands are where the bands of idle times begin, in seconds.
var idleBands = [...]uint32{0, 60, 600, snapshot.IdleLong, 86400}

// idle counts TCP connections in ESTABLISHED by how long no packet came.
type idle struct {
	timeout  uint32
	entries  int64
	bands    [len(idleBands)]int64
	sources  *top[netip.Addr]
	services *top[service]
}

func newIdle() idle {
	return idle{sources: newTop(addrForm), services: newTop(serviceForm)}
}

// unackedTimeout is what a TCP entry has in place of its state's timeout while data is
// not acknowledged, or after many retransmissions, by default, in seconds
// (nf_conntrack_tcp_timeout_unacknowledged, _max_retrans).
const unackedTimeout = 300

// add leaves out offloaded entries, whose timeout is a day, and those whose time was
// fixed (IPS_FIXED_TIMEOUT). One with little left is in use and waits for an
// acknowledgement, which is much more likely than that its days end now. A timeout that
// a rule sets (nft ct timeout) is not told by the kernel.
func (i *idle) add(e *Entry) {
	if i.timeout > unackedTimeout && e.Timeout <= unackedTimeout {
		return
	}
	if i.timeout == 0 || stateOf(e) != TCPEstablished || e.Status&(Offload|HWOffload|FixedTimeout) != 0 {
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
		i.sources.add(e.Orig.Src)
		i.services.add(serviceOf(e))
	}
}

func (i *idle) summary() *snapshot.IdleEstablished {
	if i.timeout == 0 {
		return nil
	}
	s := &snapshot.IdleEstablished{
		TimeoutSeconds: int64(i.timeout), Entries: i.entries,
		Sources: i.sources.talkers(shown, netip.Addr.String), Services: i.services.talkers(shown, service.String),
	}
	for b, n := range i.bands {
		s.Bands = append(s.Bands, snapshot.IdleBand{FromSeconds: int64(idleBands[b]), Entries: n})
	}
	return s
}
