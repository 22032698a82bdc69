//go:build linux

package collect

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// public is an address that only a default route leads to.
func public(v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 15: 1})
	}
	return netip.AddrFrom4([4]byte{1, 0, 0, 1})
}

// example is what is asked about a target of which no connection is known: a neighbour on the network that
// the rule is for, and where that gets through, one of any other network.
func (k *router) example(a *host, r *snapshot.NATRule, t *snapshot.DNATTarget) *snapshot.Routes {
	in := a.comesIn(r)
	if in == "" || r.Hook != "prerouting" || !t.Address.IsValid() {
		return nil
	}
	clients := []netip.Addr{k.neighbourOn(in, t.Address.Is6()), public(t.Address.Is6())}
	if r.FromSource.IsValid() {
		clients = []netip.Addr{r.FromSource.Addr()}
	}
	for _, client := range clients {
		q, known := k.ask(flow{protocol: number(t.Protocol), from: netip.AddrPortFrom(client, 0), to: netip.AddrPortFrom(t.Address, t.Port), in: in})
		if client.IsValid() && known && q.Error != "" {
			return &snapshot.Routes{In: in, Client: client, Question: &q}
		}
	}
	return nil
}

// comesIn is the interface that a rule is for: by its name, or by the address; empty where it may be several.
func (h *host) comesIn(r *snapshot.NATRule) string {
	if i := slices.IndexFunc(h.all, func(l snapshot.Interface) bool { return l.Name == r.InInterface }); i >= 0 {
		return r.InInterface
	}
	if r.InInterface != "" || !r.ToDestination.IsSingleIP() {
		return ""
	}
	for _, l := range h.all {
		if l.Name != loopback && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == r.ToDestination.Addr() }) {
			return l.Name
		}
	}
	return ""
}

// reachable are the states of entries of neighbours that answered once.
const reachable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT

// neighbourOn is a neighbour on an interface, the first one by its address; not valid where none is known.
func (k *router) neighbourOn(in string, v6 bool) (first netip.Addr) {
	for at, n := range k.neighbours {
		if l := k.links[at.link]; l != nil && l.name == in && at.address.Is6() == v6 && !at.address.IsLinkLocalUnicast() && !at.address.IsMulticast() && n.State&reachable != 0 &&
			(!first.IsValid() || at.address.Less(first)) {
			first = at.address
		}
	}
	return first
}

// mostStranded bounds the hosts that are asked about, as mostJudged does the rules that are compared
// with hosts; mostReported bounds those that are kept.
const (
	mostStranded = 512
	mostReported = 20
)

// stranded are the neighbours on inner networks whose packets to elsewhere a rule would translate,
// and that the kernel does not send on.
func (h *host) stranded(rules *snapshot.NATRules) (all []snapshot.StrandedHost) {
	asked, compared := 0, 0
	uplinks := map[bool]string{}
	for _, v6 := range []bool{false, true} {
		route, _ := h.router.ask(flow{to: netip.AddrPortFrom(public(v6), 0)})
		uplinks[v6] = route.Out
	}
	for at, n := range h.router.sortedNeighbours() {
		l, inner := h.router.links[at.link], at.address.IsPrivate() || at.address.Is6() && at.address.IsGlobalUnicast()
		if l == nil || l.name == uplinks[at.address.Is6()] || !inner || n.State&reachable == 0 {
			continue
		}
		if compared += len(rules.Rules) + len(h.all); compared > mostJudged {
			break
		}
		rule, to := leaves(rules, at.address, l.name)
		if rule < 0 || h.holder(at.address) != "" {
			continue
		}
		if asked++; asked > mostStranded || len(all) >= mostReported {
			break
		}
		route, known := h.router.ask(flow{from: netip.AddrPortFrom(at.address, 0), to: netip.AddrPortFrom(to, 0), in: l.name})
		through := slices.ContainsFunc(route.Marked, func(m snapshot.MarkedRoute) bool { return route.Doubtful && m.Error == "" })
		if known && route.Error != "" && !through {
			all = append(all, snapshot.StrandedHost{Rule: rule, Host: at.address, In: l.name, To: to, Route: route})
		}
	}
	return all
}

// leaves is the first rule that may translate the source of what a host on an interface sends elsewhere,
// with a destination of it; -1 where there is none.
func leaves(rules *snapshot.NATRules, from netip.Addr, in string) (rule int, to netip.Addr) {
	for i := range rules.Rules {
		r := &rules.Rules[i]
		of := r.Family == "inet" || (r.Family == "ip") == from.Is4()
		if !r.TranslatesSource() || r.Hook != "postrouting" || !of || r.FromSource.IsValid() && !r.FromSource.Contains(from) ||
			nat.InName(r.OutInterface, in) || r.OriginalDestination || slices.ContainsFunc(r.Unless, func(c snapshot.NATCondition) bool { return c.FromSource.IsValid() && c.FromSource.Contains(from) }) {
			continue
		}
		if to = public(from.Is6()); r.ToDestination.IsValid() && r.ToDestination.Bits() > 0 {
			to = r.ToDestination.Addr()
		}
		return i, to
	}
	return -1, to
}
