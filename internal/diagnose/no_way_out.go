package diagnose

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/internal/unix"
)

// inNoRoutes and inNoRoutes6 count packets to forward for which there is no route (ip_error, ip6_pkt_drop).
const inNoRoutes, inNoRoutes6 = "IpExtInNoRoutes", "Ip6InNoRoutes"

// fewestUnrouted is how many packets without a route make a fault: every host has one now and then, and programs
// try IPv6 first and go on with IPv4.
const fewestUnrouted, fewestUnrouted6 = 3, 10

// checkNoWayOut: hosts whose packets a rule would translate do not get as far as that rule, as the kernel
// does not route them. A host without a default route is no fault until somebody needs it, and a rule or
// route that refuses may be meant to.
func (a *audit) checkNoWayOut() (*Finding, Check) {
	f := worded("no-way-out", nil, nil)
	f.Severity, f.Confidence = Notice, "possible"
	var names, causes []string
	for i := range a.Stranded {
		s := &a.Stranded[i]
		d := a.strands(s)
		if d.cause == "" {
			continue
		}
		if d.certain {
			f.Severity, f.Confidence = Warning, "likely"
		}
		r := &a.rules.Rules[s.Rule]
		names, causes = once(names, fmt.Sprintf("%s (%s)", s.Host, s.In)), once(causes, d.cause)
		f.Evidence = append(f.Evidence, Evidence{What: fmt.Sprintf("route from %s by %s to %s", s.Host, s.In, s.To), Value: s.Error, Source: "route lookup"},
			Evidence{What: "rule that would translate it", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
		if len(f.Remedies) == 0 {
			f.Remedies = append(f.Remedies, d.remedy)
		}
	}
	if len(names) == 0 {
		return passed("neighbours for whose packets there is a rule have a way out, or did not ask for one")
	}
	f.Evidence = head(f.Evidence)
	for _, name := range []string{inNoRoutes, inNoRoutes6, "IpInAddrErrors"} {
		if n, _ := hostDelta(a.rec, name); n > 0 {
			f.Evidence = append(f.Evidence, Evidence{What: "packets not forwarded, among others", Value: int64(min(n, math.MaxInt64)), Unit: "packets", Source: name})
		}
	}
	f.Title = fmt.Sprintf("packets of %s to elsewhere are not routed, and so do not come to the rules of NAT", firstOf(names))
	f.Cause = strings.Join(causes[:min(len(causes), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("packets of %s are not routed", units.Plural(int64(len(names)), "neighbour", "neighbours"))}
}

// strands says why packets of a host are not routed; it has no cause where that is no fault, or another rule's,
// and is not certain where it may be meant.
func (a *audit) strands(s *snapshot.StrandedHost) detour {
	in := a.Interface(s.In)
	counter, fewest := inNoRoutes, uint64(fewestUnrouted)
	if s.Host.Is6() {
		counter, fewest = inNoRoutes6, fewestUnrouted6
	}
	missing, _ := hostDelta(a.rec, counter)
	switch {
	case s.Rule < 0 || s.Rule >= len(a.rules.Rules) || s.Error == unix.EXDEV.Error() || a.forwardsNothing(s):
		return detour{}
	case in != nil && in.ForwardingOff && s.Host.Is4():
		if refusedToForward(a.rec) < fewestUnrouted {
			return detour{}
		}
		name := "net.ipv4.conf." + slashed(s.In) + ".forwarding"
		return misled(fmt.Sprintf("this host does not forward what comes in by %s: %s is 0", s.In, name), true, advice("forward", name, where(a.rec)))
	}
	deliberate := refusingRoutes[s.Error] != ""
	r := &a.rules.Rules[s.Rule]
	if !deliberate && (missing < fewest || forOther(r, s.Host)) {
		return detour{}
	}
	if !deliberate && s.Policy == "" && (!r.ToDestination.IsValid() || r.ToDestination.Bits() == 0) {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[s.Host.Is6()]
		return misled(fmt.Sprintf("this host has no default route of %s: the kernel leads what comes in by %s nowhere", family, s.In), true, defaultRoute(a.rec, s.Host.Is6()))
	}
	cause := fmt.Sprintf("the kernel does not lead what comes in by %s to %s: %s", s.In, s.To, refusal(&s.Route, s.In))
	return misled(cause, !deliberate, (&routing{rec: a.rec}).refused(&s.Route, s.To))
}

// forOther reports whether a rule may be there for the other version of IP alone: the family inet has both.
func forOther(r *snapshot.NATRule, host netip.Addr) bool {
	return host.Is6() && r.Family == "inet" && !r.FromSource.IsValid()
}

// defaultRoute is how the route is added.
func defaultRoute(rec *snapshot.Recording, v6 bool) Remedy {
	if v6 {
		return advice("way-default-ipv6", where(rec))
	}
	return advice("way-default", where(rec))
}

// forwardsNothing reports whether forwarding is off for all.
func (a *audit) forwardsNothing(s *snapshot.StrandedHost) bool {
	name := ipForward
	if s.Host.Is6() {
		name = "net.ipv6.conf.all.forwarding"
	}
	v, known := a.rec.Last().Sysctls.Int(name)
	return known && v == 0
}
