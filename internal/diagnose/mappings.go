package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	// shortMapping is the time in seconds below which mappings of UDP do not outlive keepalives, which are sent
	// every 15 to 30 s (RFC 4787, REQ-5, wants two minutes).
	shortMapping = 30
	// fewestCalled is how many ports of one address must be called in vain: who knows several ports that rules
	// gave, and is itself called from inside, was told them.
	fewestCalled = 2
)

// call is a datagram that came to an address of this host and that rules dropped.
type call struct{ from, to netip.AddrPort }

// expiredMappings are calls of UDP that come to ports of an address that sources are given, from hosts that those
// inside call by UDP, and that rules drop: where UDP is kept for less than keepalives need, as phones send them, the
// entry that leads a call inside is gone when the other side calls.
func expiredMappings(rec *snapshot.Recording) []failing {
	timeout := rec.Last().Sysctls.ClassTimeout("udp/stream")
	if timeout == 0 || timeout >= shortMapping || rec.Drops == nil {
		return nil
	}
	var calls []call
	for _, d := range rec.Drops.Flows {
		from, err := netip.ParseAddrPort(d.Source)
		to, err2 := netip.ParseAddrPort(d.Destination)
		// From a well-known port these may be late answers.
		unled := err == nil && err2 == nil && d.Protocol == "udp" && isRule(d.Function) && from.Port() >= firstFree && to.Port() >= firstFree
		if unled && callsOut(rec, from.Addr(), to.Addr()) && (len(calls) == 0 || to.Addr() == calls[0].to.Addr()) && !slices.ContainsFunc(calls, func(c call) bool { return c.to == to }) {
			calls = append(calls, call{from, to})
		}
	}
	if len(calls) < fewestCalled {
		return nil
	}
	return []failing{expiredTo(rec, calls, timeout)}
}

// callsOut reports whether a client inside calls a host by UDP that calls an address which sources are given. What a
// call from there met on its way is followed as one connection with it, and its source is not known then.
func callsOut(rec *snapshot.Recording, host, given netip.Addr) bool {
	return slices.ContainsFunc(rec.Followed.Services, func(o snapshot.FollowedService) bool {
		inside := o.Protocol == "udp" && o.In != "" && !o.Target.IsValid() && o.Service.Addr() == host
		return inside && (o.Given == given || !o.Given.IsValid() && o.Out == "")
	})
}

func expiredTo(rec *snapshot.Recording, calls []call, timeout uint32) failing {
	from, to := calls[0].from, calls[0].to
	name := fmt.Sprintf("udp from %s to ports of %s", from.Addr(), to.Addr())
	f := failing{name: name, how: "does not reach the clients inside that call there", severity: Warning, confidence: "likely",
		key: serviceID{"udp", netip.AddrPortFrom(to.Addr(), 0), netip.AddrPort{}}, about: ends(to), decided: true,
		place: fmt.Sprintf("the table keeps UDP for %d s, less than keepalives need", timeout), advice: new(advice("udp-timeouts", NamespaceFlag(rec.Last().Netns.Name), timeout))}
	f.cause = fmt.Sprintf("no entry leads these calls inside, and rules drop them, though clients inside call %s by UDP: net.netfilter.nf_conntrack_udp_timeout_stream is %d s, and phones, games and tunnels send keepalives every 15 to 30 s, so that the entry may be gone when the other side calls", from.Addr(), timeout)
	f.evidence = []Evidence{
		{What: name + ": called in vain", Value: int64(len(calls)), Unit: "ports", Source: "skb:kfree_skb"},
		{What: "net.netfilter.nf_conntrack_udp_timeout_stream", Value: int64(timeout), Unit: "s", Source: "sysctl"},
	}
	return f
}
