package diagnose

import (
	"fmt"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"golang.org/x/sys/unix"
)

// inNoRoutes counts packets to forward for which there is no route (ip_error).
const inNoRoutes = "IpExtInNoRoutes"

// fewestUnrouted is how many packets without a route make a fault: every host has one now and then.
const fewestUnrouted = 3

// checkNoWayOut: hosts whose packets a rule would translate do not get as far as that rule, as the kernel
// does not route them. A host without a default route is no fault until somebody needs it, and a rule or
// route that refuses may be meant to.
func (a *audit) checkNoWayOut() (*Finding, Check) {
	f := worded("no-way-out", nil, nil)
	f.Severity, f.Confidence = Notice, "possible"
	var names, causes []string
	missing, _ := hostDelta(a.rec, inNoRoutes)
	for i := range a.Stranded {
		s := &a.Stranded[i]
		d := a.strands(s, missing)
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
	for _, name := range []string{inNoRoutes, "IpInAddrErrors"} {
		if n, _ := hostDelta(a.rec, name); n > 0 {
			f.Evidence = append(f.Evidence, Evidence{What: "packets not forwarded, among others", Value: int64(min(n, math.MaxInt64)), Unit: "packets", Source: name})
		}
	}
	f.Title = fmt.Sprintf("packets of %s to elsewhere are not routed, and so do not come to the rules of NAT", firstOf(names))
	f.Cause = strings.Join(causes[:min(len(causes), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("packets of %s are not routed", units.Plural(int64(len(names)), "neighbour", "neighbours"))}
}

// strands says why packets of a host are not routed; it has no cause where that is no fault, or another rule's,
// and is not certain where it may be meant. missing is how many packets had no route.
func (a *audit) strands(s *snapshot.StrandedHost, missing uint64) detour {
	in := a.Interface(s.In)
	switch {
	case s.Rule < 0 || s.Rule >= len(a.rules.Rules) || s.Error == unix.EXDEV.Error() || a.forwardsNothing(s):
		return detour{}
	case in != nil && in.ForwardingOff && s.Host.Is4():
		if refusedToForward(a.rec) < fewestUnrouted {
			return detour{}
		}
		name := "net.ipv4.conf." + s.In + ".forwarding"
		return misled(fmt.Sprintf("this host does not forward what comes in by %s: %s is 0", s.In, name), true, advice("forward", name, where(a.rec)))
	}
	deliberate := refusingRoutes[s.Error] != ""
	if !deliberate && missing < fewestUnrouted {
		return detour{}
	}
	cause := fmt.Sprintf("the kernel does not lead what comes in by %s to %s: %s", s.In, s.To, refusal(&s.Route, s.In))
	return misled(cause, !deliberate, (&routing{rec: a.rec}).refused(&s.Route, s.To))
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
