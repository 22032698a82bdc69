package diagnose

import (
	"cmp"
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// nearlyAllOwn is the share of the ports towards one destination from which the next burst of
// own connections uses them up.
const nearlyAllOwn = 0.9

// checkOwnPorts: this host's own connections, a proxy's above all, have no port left for one
// destination: connect(2) fails with EADDRNOTAVAIL, which looks as if NAT refused them.
func checkOwnPorts(rec *snapshot.Recording) (*Finding, Check) {
	last := rec.Last()
	own := last.OwnPorts
	switch why := last.PartError(snapshot.PartOwnPorts); {
	case own == nil && why != "":
		return unknown(why)
	case own == nil && (last.TCP == nil || last.TCP.Sockets == nil):
		return unknown(cmp.Or(last.PartError(snapshot.PartTCP), "the number of sockets was not read"))
	case own == nil:
		return passed("fewer sockets than it takes to use up the ports of own connections")
	case own.Ports <= 0 || len(own.Uses) == 0:
		return passed("no own connection has a port of ip_local_port_range")
	}
	worst := own.Uses[0]
	for _, u := range own.Uses[1:] {
		if heldPorts(last, u) > heldPorts(last, worst) {
			worst = u
		}
	}
	held := heldPorts(last, worst)
	share := float64(held) / float64(own.Ports)
	seen := fmt.Sprintf("%s of %s ports of %s towards %s (%s)", units.Count(held), units.Count(own.Ports), worst.Local, worst.Destination, units.Percent(share))
	if share < nearlyAllOwn {
		return passed("most pressed: " + seen)
	}
	f := worded("own-ports-exhausted", []Evidence{
		{What: "ports in use", Value: worst.Used, Unit: "of " + units.Count(own.Ports), Source: "sock_diag"},
		{What: "of them in TIME_WAIT", Value: worst.TimeWait, Unit: "ports", Source: "sock_diag"},
		{What: "range of ports", Value: last.Sysctls[localPortRange], Source: localPortRange},
	}, ownPortRemedies(rec, worst), seen, worst.Destination)
	if held >= own.Ports {
		f.Severity, f.Confidence = Critical, "certain"
		f.Title = fmt.Sprintf("this host has no port left for connections to %s", worst.Destination)
	}
	return f, Check{Why: seen}
}

const localPortRange = "net.ipv4.ip_local_port_range"

// heldPorts are those that a new connection cannot have: with tcp_tw_reuse it takes one in
// TIME_WAIT after a second (tcp_twsk_unique, net/ipv4/tcp_ipv4.c), by default on loopback only.
func heldPorts(s *snapshot.Snapshot, u snapshot.OwnPortUse) int64 {
	reuse, _ := s.Sysctls.Int(snapshot.TCPTWReuse)
	stamps, known := s.Sysctls.Int(snapshot.TCPTimestamps)
	if (reuse == 1 || reuse == 2 && u.Destination.Addr().IsLoopback()) && (stamps != 0 || !known) {
		return u.Used - u.TimeWait
	}
	return u.Used
}

func ownPortRemedies(rec *snapshot.Recording, u snapshot.OwnPortUse) []Remedy {
	r := []Remedy{advice("own-ports-who", u.Destination.Addr(), u.Destination.Port()), advice("own-ports-keep")}
	if 2*u.TimeWait >= u.Used {
		r = append(r, advice("own-ports-reuse", snapshot.TCPTWReuse, where(rec)))
	}
	return append(r, advice("own-ports-range", localPortRange, where(rec)), advice("own-ports-addresses"))
}
