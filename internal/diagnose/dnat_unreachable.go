package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/internal/unix"
)

// checkDNATUnreachable: a rule leads connections to an address that this machine cannot reach:
// no route, a neighbour that does not answer, or no socket that listens on this machine.
//
// A server elsewhere that refuses is not seen: the connection tracker removes an entry that
// is answered by a RST at once (nf_conntrack_tcp_packet).
func checkDNATUnreachable(rec *snapshot.Recording) (*Finding, Check) {
	last := rec.Last()
	why := cmp.Or(last.PartError(snapshot.PartDNATTargets), last.PartError("nat_rules"))
	switch {
	case last.DNATTargets == nil || last.NATRules == nil:
		return unknown(cmp.Or(why, "the targets of DNAT were not looked up: a bundle of an older natkit"))
	case len(last.DNATTargets.Targets) == 0:
		return passed("no rule leads to a constant address")
	}
	var bad []unreachable
	silent := silentBefore(rec)
	for _, t := range last.DNATTargets.Targets {
		if u := unreachableOf(rec, t, silent); !t.Beside && u.problem != "" && t.Rule >= 0 && t.Rule < len(last.NATRules.Rules) {
			bad = append(bad, u)
		}
	}
	targets := units.Plural(len(last.DNATTargets.Targets), "target", "targets")
	if len(bad) == 0 {
		return passed("nothing speaks against " + targets)
	}
	return unreachableFinding(rec, bad), Check{Why: fmt.Sprintf("%d of %s cannot be reached", len(bad), targets)}
}

// unreachable is a target with what is wrong; its source and the advice go with that.
type unreachable struct {
	snapshot.DNATTarget
	problem, source, advice string
	// now is whether packets wait for it at this moment.
	now bool
	// refusing is the type of the route where that is meant to refuse; idle is whether nothing is wrong
	// as long as nobody asks.
	refusing string
	idle     bool
}

// isOnLink reports whether the client of an example is a neighbour, for whom no other way is meant.
func isOnLink(a *snapshot.Audit, w *snapshot.Routes) bool {
	if a == nil {
		return false
	}
	at, own := a.Near(w.Client)
	return at != nil && !own && at.Name == w.In
}

// refusingRoutes are types of routes by the error of what is sent there (fib_props,
// net/ipv4/fib_semantics.c; ip6_rt_type_to_error, net/ipv6/route.c).
var refusingRoutes = map[string]string{
	unix.EINVAL.Error(): "blackhole", unix.EHOSTUNREACH.Error(): "unreachable", unix.EACCES.Error(): "prohibit",
}

// unreachableOf has no problem where none is certain. A neighbour must be without an answer
// in both snapshots: a healthy one is being asked for, too, when its first packet comes.
func unreachableOf(rec *snapshot.Recording, t snapshot.DNATTarget, silent map[hop]bool) unreachable {
	u := unreachable{DNATTarget: t}
	last := rec.Last()
	switch {
	case t.NoRoute != "" && !last.DNATTargets.PolicyRouting:
		u.problem, u.source, u.refusing = "no route: "+t.NoRoute, "route lookup", refusingRoutes[t.NoRoute]
		if u.refusing != "" {
			u.problem = "a route of type " + u.refusing + " refuses what goes there"
		}
		u.advice = fmt.Sprintf("'ip route get %s'%s: add the route, or correct the rule", t.Address, where(rec))
	case t.Broken != "":
		u.problem, u.source = fmt.Sprintf("the way there is by %s, which %s", t.Interface, t.Broken), "interface"
		u.advice = advice("way-link", t.Interface, where(rec)).Title
		u.idle = true
	case t.Refused != nil && t.NotForwarded == "" && isOnLink(last.Audit, t.Refused) && t.Refused.Question.Error != unix.EXDEV.Error():
		u.problem, u.source = fmt.Sprintf("what comes in by %s, from %s for one, is not led there: %s", t.Refused.In, t.Refused.Client, refusal(t.Refused.Question, t.Refused.In)), "route lookup"
		u.advice = fmt.Sprintf("'ip route get %s from %s iif %s'%s, 'ip rule': add the route, or take back the rule", t.Address, t.Refused.Client, t.Refused.In, where(rec))
	case noAnswer(t) && silent[hopOf(t)]:
		u.problem, u.source = fmt.Sprintf("%s on %s does not answer (%s)", t.NextHop, t.Interface, t.Neighbour), "neighbour entry, twice"
		u.problem += closed(t.Interface, t.Ports) + hidesNeighbours(rec, t.Interface, t.NextHop.Is6())
		u.advice = fmt.Sprintf("'ip neigh show %s'%s: is that host up and on this link, and is %s its address", t.NextHop, where(rec), t.NextHop)
		if at := bridgeOf(last.Audit, t.Interface); at != nil && t.NextHop == t.Address {
			u.advice = advice("way-hop-bridge", t.NextHop, t.Interface, where(rec), fmt.Sprintf("ip neigh show %s", t.NextHop), networkOn(at, t.NextHop)).Title
		}
		if t.Sublink != "" && t.NextHop == t.Address {
			u.problem += fmt.Sprintf("; %s takes frames for %s as well, a macvlan in another network namespace (a container, a VM): what is behind one this host does not reach by %[1]s, other hosts do", t.Interface, t.Sublink)
			u.advice = fmt.Sprintf("if %[1]s is a container on a macvlan of %[2]s, reach it by a macvlan of this host: 'ip link add shim0 link %[2]s type macvlan mode bridge', 'ip link set shim0 up', 'ip route add %[1]s/%[3]d dev shim0'%[4]s, and keep it; else see 'ip neigh show %[1]s': is that host up and on this link", t.Address, t.Interface, t.Address.BitLen(), where(rec))
		}
		u.now = t.Neighbour == snapshot.NeighbourIncomplete
	case t.Martian:
		u.problem, u.source = "what comes in for a loopback address is dropped: route_localnet is 0", "net.ipv4.conf.*.route_localnet"
		u.advice = fmt.Sprintf("let the server listen on an address of this machine that is not loopback, and the rule lead there; 'sysctl -w net.ipv4.conf.INTERFACE.route_localnet=1'%s lets packets in, for every service on 127.0.0.1 that a host on that link asks for", where(rec))
	case t.Listening != nil && !*t.Listening && (last.IPVS == nil || len(last.IPVS.Services) == 0):
		u.problem, u.source = fmt.Sprintf("refused: no %s socket listens on port %d here", t.Protocol, t.Port), "sock_diag"
		if t.Loopback {
			u.problem = fmt.Sprintf("refused: the %s socket that listens on port %d here does so on a loopback address alone (127.0.0.1)", t.Protocol, t.Port)
			u.advice = fmt.Sprintf("let the server listen on the address that the rule leads to, or on all, in place of 127.0.0.1%s ('ss -ln')", where(rec))
			return u
		}
		u.advice = fmt.Sprintf("start the server that should listen on %s port %d%s ('ss -ln'), or correct the rule", t.Protocol, t.Port, where(rec))
	}
	return u
}

// bridgeOf is the interface of a name where that is a bridge.
func bridgeOf(a *snapshot.Audit, name string) *snapshot.Interface {
	if a == nil {
		return nil
	}
	if at := a.Interface(name); at != nil && at.Bridge {
		return at
	}
	return nil
}

func noAnswer(t snapshot.DNATTarget) bool {
	return t.Neighbour == snapshot.NeighbourFailed || t.Neighbour == snapshot.NeighbourIncomplete
}

// hop is a next hop on an interface.
type hop struct {
	address netip.Addr
	device  string
}

func hopOf(t snapshot.DNATTarget) hop { return hop{t.NextHop, t.Interface} }

// silentBefore returns the next hops without an answer in the first snapshot.
func silentBefore(rec *snapshot.Recording) map[hop]bool {
	silent := map[hop]bool{}
	if first := rec.First().DNATTargets; first != nil {
		for _, t := range first.Targets {
			if noAnswer(t) {
				silent[hopOf(t)] = true
			}
		}
	}
	return silent
}

func (u *unreachable) String() string {
	switch {
	case !u.Address.IsValid():
		return fmt.Sprintf("port %d", u.Port)
	case u.Port == 0:
		return u.Address.String()
	}
	return fmt.Sprintf("%s port %d", u.Address, u.Port)
}

func unreachableFinding(rec *snapshot.Recording, bad []unreachable) *Finding {
	f := worded("dnat-unreachable", nil, nil)
	var names, places []string
	grown, unused := rec.Last().NATRules.Grown(rec.First().NATRules), rec.First().NATRules != nil
	for i, u := range bad {
		rule := &rec.Last().NATRules.Rules[u.Rule]
		unused = unused && (u.refusing != "" || u.idle) && rule.Counted && grown[u.Rule] == 0
		places = once(places, rule.Place())
		if u.now {
			f.Severity = Critical
		}
		if i < mostListed {
			f.Evidence = append(f.Evidence, Evidence{What: fmt.Sprintf("%s (%s)", u.String(), rule.Text), Value: u.problem, Source: u.source})
		}
		if i < mostShown {
			names, f.About = append(names, u.String()), append(f.About, netip.AddrPortFrom(u.Address, u.Port))
			f.Remedies = append(f.Remedies, Remedy{Title: u.advice})
		}
	}
	if unused { // the route is deliberate, and no client asks
		f.Severity = Notice
	}
	f.Title = "DNAT leads to what cannot be reached: " + strings.Join(names, ", ")
	if more := len(bad) - len(names); more > 0 {
		f.Title += fmt.Sprintf(" and %d more", more)
	}
	f.Cause = fmt.Sprintf("the rules in %s lead there, and the server is down, has another address, or its network is missing here", firstOf(places))
	if local := func(u unreachable) bool { return u.Martian || u.Listening != nil }; !slices.ContainsFunc(bad, func(u unreachable) bool { return !local(u) }) {
		f.Cause = fmt.Sprintf("the rules in %s lead to this host itself: %s", firstOf(places), bad[0].problem)
	}
	if strings.Contains(f.Cause, "iptables-legacy") {
		f.Cause += "; 'nft list ruleset' and iptables-nft do not show rules of iptables-legacy: 'iptables-legacy-save' does"
	}
	return f
}
