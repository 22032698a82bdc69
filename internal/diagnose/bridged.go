package diagnose

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

// bridgeCalls is the sysctl that sends what bridges pass on through the rules.
func bridgeCalls(of netip.Addr) string {
	if of.Is6() {
		return snapshot.BridgeCalls6
	}
	return snapshot.BridgeCalls4
}

// bridgesPast reports whether bridges pass packets on past the rules of IP though br_netfilter is there.
func bridgesPast(rec *snapshot.Recording, of netip.Addr) bool {
	on, known := rec.Last().Sysctls.Int(bridgeCalls(of))
	return known && on == 0
}

func bridgeAdvice(rec *snapshot.Recording, of netip.Addr) Remedy {
	return advice("bridge-calls", bridgeCalls(of), where(rec))
}

// bridgePast is the bridge of this host that clients and the server of a service are both behind, where it passes the
// answers on past the rules; nil where that is not so.
func (a *audit) bridgePast(s *snapshot.Service) *snapshot.Interface {
	at, own := a.Near(s.Target.Addr())
	if at == nil || own || !at.Bridge || len(s.Clients) == 0 || !bridgesPast(a.rec, s.Target.Addr()) {
		return nil
	}
	for _, client := range s.Clients {
		if near, own := a.Near(client); near == nil || own || near.Name != at.Name {
			return nil
		}
	}
	return at
}

// isBridged reports whether the server answered the client directly, by a bridge that both are behind.
func (r *row) isBridged() bool {
	return r.Failed.Step == snapshot.StepAnswerUntranslated && r.Failed.AnswerBridged && r.Target.IsValid()
}

// byRules is how the answers come by the rules: the bridge's ones through them, or to an address of this host.
func (r *row) byRules() Remedy {
	server := r.Target.Addr()
	if audit := r.rec.Last().Audit; !bridgesPast(r.rec, server) && audit != nil && r.rec.Last().NATRules != nil {
		if at, _ := audit.Near(server); at != nil {
			for _, p := range at.Addresses {
				if p.Contains(server) {
					return *hairpinAdvice(r.rec, r.Protocol, r.Service, r.Target, p.Masked())
				}
			}
		}
	}
	return bridgeAdvice(r.rec, server)
}

// callsText says why the bridge's packets do not come by the rules, where the sysctl does.
func callsText(rec *snapshot.Recording, of netip.Addr) string {
	if !bridgesPast(rec, of) {
		return ""
	}
	return ": " + bridgeCalls(of) + " is 0"
}
