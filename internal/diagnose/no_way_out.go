package diagnose

import (
	"fmt"
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
	missing, counted := hostDelta(a.rec, inNoRoutes)
	for i := range a.Stranded {
		s := &a.Stranded[i]
		in := a.Interface(s.In)
		deliberate := refusingRoutes[s.Error] != ""
		if s.Rule < 0 || s.Rule >= len(a.rules.Rules) || in != nil && in.ForwardingOff || !deliberate && missing < fewestUnrouted || s.Error == unix.EXDEV.Error() || a.forwardsNothing(s) {
			continue
		}
		if !deliberate {
			f.Severity, f.Confidence = Warning, "likely"
		}
		r := &a.rules.Rules[s.Rule]
		names = once(names, fmt.Sprintf("%s (%s)", s.Host, s.In))
		causes = once(causes, fmt.Sprintf("the kernel does not lead what comes in by %s to %s: %s", s.In, s.To, refusal(&s.Route, s.In)))
		f.Evidence = append(f.Evidence, Evidence{What: fmt.Sprintf("route from %s by %s to %s", s.Host, s.In, s.To), Value: s.Error, Source: "route lookup"},
			Evidence{What: "rule that would translate it", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
		if len(f.Remedies) == 0 {
			f.Remedies = append(f.Remedies, (&routing{rec: a.rec}).refused(&s.Route, s.To))
		}
	}
	if len(names) == 0 {
		return passed("neighbours for whose packets there is a rule have a way out, or did not ask for one")
	}
	if counted && missing > 0 {
		f.Evidence = append(f.Evidence, Evidence{What: "packets to forward without a route", Value: int64(min(missing, 1<<62)), Unit: "packets", Source: sourceOf(inNoRoutes)})
	}
	f.Evidence = head(f.Evidence)
	f.Title = fmt.Sprintf("packets of %s to elsewhere are not routed, and so do not come to the rules of NAT", firstOf(names))
	f.Cause = strings.Join(causes[:min(len(causes), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("packets of %s are not routed", units.Plural(int64(len(names)), "neighbour", "neighbours"))}
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
