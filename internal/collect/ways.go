package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// mostWays bounds the networks, bridges and interfaces that filters are asked about.
	mostWays = 64
	// mostAsked bounds the rules that are asked about them, as mostJudged does for targets of DNAT.
	mostAsked = 1_000_000
)

// readWays asks the filters about what is translated, served and bridged here, beside what DNAT leads to.
func (o *observation) readWays(context.Context) (err error) {
	if o.NATRules == nil {
		return errNone
	}
	o.Ways, err = answer(o, question{"filters of other traffic", "ways.json"}, o.ways)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

func (o *observation) ways() (*snapshot.Ways, error) {
	bridges, err := o.bridgeFilters()
	if err != nil {
		return nil, err
	}
	all := &snapshot.Ways{All: []snapshot.Way{}}
	if len(o.NATRules.Rules) == 0 && !bridges {
		return all, nil
	}
	k, err := o.lookUp()
	if err != nil {
		return nil, fmt.Errorf("ask the filters about other traffic: %w", err)
	}
	w := &ways{lookups: k, out: all}
	k.judged = mostAsked
	w.sources()
	if err := w.served(); err != nil {
		all.NoSockets = err.Error()
	}
	w.discovery()
	if bridges || w.bridged() {
		w.bridges(bridges)
	}
	all.TooMany = k.judged < 0
	return all, nil
}

// bridgeFilters reports whether frames that a bridge passes on go through the rules of IP (br_netfilter).
func (o *observation) bridgeFilters() (bool, error) {
	w, err := o.src.world()
	if err != nil {
		return false, err
	}
	defer w.close()
	value, err := w.file("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return strings.TrimSpace(string(value)) == "1", ignoreAbsent(err)
}

// ways collects what filters do to traffic.
type ways struct {
	*lookups
	out *snapshot.Ways
	// inner are the networks whose sources are translated, outer the interfaces that they leave by.
	inner []inner
}

// inner is a network behind this host.
type inner struct {
	network netip.Prefix
	in, out string
	rule    int
	// explicit is true where the rule is for this network, hosts are some that were there lately.
	explicit bool
	hosts    []netip.Addr
}

// sources asks about what the networks send that rules translate the sources of.
func (w *ways) sources() {
	for i := range w.rules.Rules {
		r := &w.rules.Rules[i]
		if !r.TranslatesSource() || r.Hook != "postrouting" || r.Marked || r.InInterface != "" {
			continue
		}
		for _, v6 := range []bool{false, true} {
			if r.Family == "inet" || (r.Family == "ip6") == v6 {
				w.innerOf(i, v6)
			}
		}
	}
	for i := range w.inner {
		w.source(&w.inner[i])
		w.errors(&w.inner[i])
	}
	for _, v6 := range []bool{false, true} {
		w.own(v6)
	}
}

// errors asks about the message of a router outside that a packet is too large (ICMP_FRAG_NEEDED,
// ICMPV6_PKT_TOOBIG).
func (w *ways) errors(n *inner) {
	p := &ruleset.Packet{Conn: ruleset.ConnRelated, ICMP: true, Type: 3, Code: 4, Reply: true, V6: n.network.Addr().Is6()}
	p.Protocol, p.In, p.Out, p.Dst = unix.IPPROTO_ICMP, n.out, n.in, someHost(n.network)
	if len(n.hosts) > 0 {
		p.Dst = n.hosts[0]
	}
	if p.V6 {
		p.Protocol, p.Type, p.Code = unix.IPPROTO_ICMPV6, 2, 0
	}
	p.First = &nat.Packet{Protocol: p.Protocol, In: n.out}
	if w.sends(n.in, n.out, unix.IPPROTO_TCP, w.translated(n.rule, p.Dst)) { // the programs send errors on, too
		return
	}
	if f := w.filter(p, throughHooks...); f != nil && !f.Passes {
		w.out.All = append(w.out.All, snapshot.Way{Kind: snapshot.WayErrors, Rule: n.rule, Network: n.network, In: n.out, Out: n.in, Protocol: "icmp", Filter: f})
	}
}

// own asks about what programs of this host, such as a proxy, send to the outside.
func (w *ways) own(v6 bool) {
	out := w.outer(v6)
	rule := slices.IndexFunc(w.rules.Rules, func(r snapshot.NATRule) bool {
		return r.TranslatesSource() && !r.FromSource.IsValid() && !r.Marked && r.Hook == "postrouting" && (r.Family == "inet" || (r.Family == "ip6") == v6)
	})
	if out == "" || rule < 0 {
		return
	}
	for _, o := range outward {
		if o.port == 0 {
			continue
		}
		p := o.packet(netip.Addr{})
		p.V6, p.Out, p.Conn = v6, out, ruleset.ConnNew
		w.out.All = append(w.out.All, snapshot.Way{Kind: snapshot.WayOwn, Rule: rule, Out: out, V6: v6, Protocol: o.protocol, Port: o.port, Filter: w.filter(p, outHooks...)})
	}
}

// innerOf notes the networks that a rule is for, of a version of IP: those of its sources, or of all
// interfaces but the one that they leave by.
func (w *ways) innerOf(rule int, v6 bool) {
	r := &w.rules.Rules[rule]
	out := exactName(r.OutInterface)
	if r.OutInterface == "" {
		out = w.outer(v6)
	}
	if out == "" || r.FromSource.IsValid() && r.FromSource.Addr().Is6() != v6 || r.ToDestination.IsValid() && r.ToDestination.Bits() > 0 {
		return
	}
	from := r.FromSource
	var within []inner
	for i := range w.host.all {
		link := &w.host.all[i]
		for _, p := range link.Addresses {
			p = p.Masked()
			if link.Up && link.Name != out && link.Name != loopback && p.Addr().Is6() == v6 && !p.IsSingleIP() &&
				(!from.IsValid() || from.Overlaps(p)) && !w.isOuter(link.Name) {
				within = append(within, inner{network: p, in: link.Name, out: out, rule: rule, explicit: from.IsValid() && from.Bits() >= p.Bits()})
			}
		}
	}
	if len(within) == 0 && from.IsValid() && from.Bits() > 0 {
		if in := w.leadsTo(from.Addr().Next()); in != "" && in != out && in != loopback {
			within = append(within, inner{network: from, in: in, out: out, rule: rule, explicit: true})
		}
	}
	for _, n := range within {
		same := func(o inner) bool { return o.network == n.network && o.in == n.in && o.out == n.out }
		if len(w.inner) < mostWays && !slices.ContainsFunc(w.inner, same) {
			n.hosts = w.hostsOf(&n)
			w.inner = append(w.inner, n)
		} else if i := slices.IndexFunc(w.inner, same); i >= 0 && n.explicit {
			w.inner[i].explicit = true
		}
	}
}

// outer is the interface of the default route or, without one, that of a rule that translates sources, or the
// only one with a public address; empty without these.
func (k *lookups) outer(v6 bool) string {
	if k.outers == nil {
		i := slices.IndexFunc(k.rules.Rules, func(r snapshot.NATRule) bool { return r.TranslatesSource() && exactName(r.OutInterface) != "" })
		k.outers = map[bool]string{}
		for _, family := range []bool{false, true} {
			route, _ := k.router.ask(flow{to: netip.AddrPortFrom(public(family), 0)})
			if k.outers[family] = route.Out; route.Out == "" && i >= 0 {
				k.outers[family] = k.rules.Rules[i].OutInterface
			} else if route.Out == "" {
				k.outers[family] = k.host.public(family)
			}
		}
	}
	return k.outers[v6]
}

// public is the only interface with a public address; empty where there is none, or several.
func (h *host) public(v6 bool) (name string) {
	for i := range h.all {
		public := func(p netip.Prefix) bool {
			return p.Addr().Is6() == v6 && p.Addr().IsGlobalUnicast() && !p.Addr().IsPrivate()
		}
		switch {
		case !slices.ContainsFunc(h.all[i].Addresses, public):
		case name != "":
			return ""
		default:
			name = h.all[i].Name
		}
	}
	return name
}

func (k *lookups) isOuter(device string) bool {
	return device == k.outer(false) || device == k.outer(true)
}

// leadsTo is the interface of the route to an address; empty where there is none.
func (k *lookups) leadsTo(address netip.Addr) string {
	route, _ := k.router.ask(flow{to: netip.AddrPortFrom(address, 0)})
	return route.Out
}

// hostsOf are neighbours of a network, some of them, that have been heard of: who asks for this host's
// address is one from then on (arp_process, ndisc_recv_ns).
func (w *ways) hostsOf(n *inner) (hosts []netip.Addr) {
	const most = 2
	for at, e := range w.router.sortedNeighbours() {
		if len(hosts) == most {
			break
		}
		l, address := w.router.links[at.link], at.address
		if l == nil || l.name != n.in || e.State&reachable == 0 {
			continue
		}
		if n.network.Contains(address) {
			hosts = append(hosts, address)
		} else if address.Is6() && n.network.Addr().Is6() && address.IsLinkLocalUnicast() { // one of its hosts by another address
			hosts = append(hosts, someHost(n.network))
		}
	}
	return hosts
}

// someHost is an address of a network that rules for single hosts are unlikely to name.
func someHost(network netip.Prefix) netip.Addr {
	last := nat.LastAddr(network)
	for range 9 {
		if before := last.Prev(); network.Contains(before) {
			last = before
		}
	}
	return last
}

// probe is a first packet to the outside.
type probe struct {
	protocol string
	port     uint16
}

// outward are what hosts commonly send; port 0 is any other.
var outward = []probe{{"tcp", 443}, {"tcp", 80}, {"tcp", snapshot.PassivePort}, {"tcp", 0}, {"udp", 53}, {"udp", 0}, {"icmp", 0}}

// source asks about one network. What one of its hosts may send the network may.
func (w *ways) source(n *inner) {
	hooks := append([]string{ruleset.HookIngress}, throughHooks...)
	sockets, err := w.open("udp")
	resolver := func(n *inner) bool {
		return err != nil || slices.ContainsFunc(sockets, func(s netip.AddrPort) bool {
			return s.Port() == 53 && (takes(s.Addr(), n.network.Addr()) || socketOf(s, n.network))
		})
	}
	hosts := n.hosts
	if len(hosts) == 0 {
		hosts = []netip.Addr{someHost(n.network)}
	}
	for _, o := range outward {
		way := snapshot.Way{Kind: snapshot.WaySource, Rule: n.rule, Explicit: n.explicit, Network: n.network, In: n.in, Out: n.out, Protocol: o.protocol, Port: o.port, Resolver: resolver(n)}
		var p *ruleset.Packet
		host := hosts[0]
		for _, host = range hosts {
			p = n.first(o, host)
			if way.Filter = w.filter(p, hooks...); way.Filter == nil || way.Filter.Passes {
				break
			}
		}
		if len(n.hosts) > 0 {
			way.Host = host
		}
		if way.Filter != nil {
			back := *p
			back.Conn, back.First = ruleset.ConnEstablished|ruleset.ConnSNAT, nil
			back.Packet = nat.Packet{Protocol: p.Protocol, Dst: host, SrcPort: o.port, In: n.out, Out: n.in}
			back.First = &nat.Packet{Protocol: p.Protocol, SrcPort: o.port, In: n.out}
			back.V6 = host.Is6()
			if p.Flags != 0 {
				back.Flags = synACK
			}
			if p.ICMP {
				back.Type = map[bool]uint8{false: 0, true: 129}[host.Is6()]
			}
			answer := p.Answer(back)
			way.AnswerFilter = w.filter(answer, hooks...)
			if way.Filter.Passes && o.port == 0 && !p.ICMP {
				way.LaterFilter = w.later(p, answer, hooks, hooks)
			}
			w.divertWay(&way, p.Protocol, w.translated(n.rule, host))
		}
		w.out.All = append(w.out.All, way)
	}
}

// first is the first packet that a host of the network sends.
func (n *inner) first(o probe, host netip.Addr) *ruleset.Packet {
	p := o.packet(host)
	p.In, p.Out, p.Conn = n.in, n.out, ruleset.ConnNew
	return p
}

// packet is the first one that a host sends.
func (o probe) packet(host netip.Addr) *ruleset.Packet {
	p := &ruleset.Packet{V6: host.Is6(), Packet: nat.Packet{Src: host, DstPort: o.port}}
	switch o.protocol {
	case "tcp":
		p.Protocol, p.Flags = unix.IPPROTO_TCP, synOnly
	case "udp":
		p.Protocol = unix.IPPROTO_UDP
	default: // echo request
		p.Protocol, p.ICMP, p.Type = unix.IPPROTO_ICMP, true, 8
		if p.V6 {
			p.Protocol, p.Type = unix.IPPROTO_ICMPV6, 128
		}
	}
	return p
}

// ofNetworks are services that hosts of a network ask their gateway for.
var ofNetworks = []probe{{"udp", 53}, {"tcp", 53}, {"udp", 67}, {"udp", 123}}

// served asks about what the networks send to programs of this host that are there for them: DNS, DHCP,
// NTP, and what listens on an address of the network alone.
func (w *ways) served() error {
	for _, protocol := range []string{"udp", "tcp"} {
		if len(w.inner) == 0 {
			return nil
		}
		sockets, err := w.open(protocol)
		if err != nil {
			return err
		}
		for i := range w.inner {
			n := &w.inner[i]
			for _, s := range sockets {
				own := n.network.Contains(s.Addr())
				common := slices.Contains(ofNetworks, probe{protocol, s.Port()}) && takes(s.Addr(), n.network.Addr())
				if len(n.hosts) > 0 && (own || common) && len(w.out.All) < mostWays*(len(outward)+1) {
					w.serves(n, probe{protocol, s.Port()}, s)
				}
			}
		}
	}
	return nil
}

// serves asks about one socket.
func (w *ways) serves(n *inner, to probe, socket netip.AddrPort) {
	from := func(in string, host netip.Addr) *snapshot.Filter {
		p := to.packet(host)
		p.In, p.Conn, p.ToLocal = in, ruleset.ConnNew, true
		if to.port == 67 { // they have no address yet
			p.Src = netip.Addr{}
		} else if link := w.host.link(in); link != nil {
			for _, a := range link.Addresses {
				if a.Addr().Is6() == host.Is6() {
					p.Dst = a.Addr()
				}
			}
		}
		p.First = &p.Packet
		return w.filter(p, ruleset.HookIngress, "prerouting", "input")
	}
	way := snapshot.Way{Kind: snapshot.WayServed, Rule: n.rule, Network: n.network, Host: n.hosts[0], In: n.in, Protocol: to.protocol, Port: to.port, Socket: socket}
	if way.Filter = from(n.in, n.hosts[0]); way.Filter == nil || way.Filter.Passes {
		return
	}
	for _, link := range w.host.all {
		if link.Name != n.in && link.Name != loopback && !socketOf(socket, n.network) && !way.Elsewhere {
			f := from(link.Name, someHost(n.network))
			way.Elsewhere = f != nil && f.Passes
		}
	}
	w.out.All = append(w.out.All, way)
}

func socketOf(s netip.AddrPort, network netip.Prefix) bool { return network.Contains(s.Addr()) }

func (h *host) link(name string) *snapshot.Interface {
	i := slices.IndexFunc(h.all, func(l snapshot.Interface) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &h.all[i]
}

// discovery asks about the messages by which IPv6 finds hosts, on interfaces that forward it and that
// rules let other packets pass by.
func (w *ways) discovery() {
	if off, err := w.router.notForwarded(true, ""); err != nil || off != "" {
		return
	}
	for i := range w.host.all {
		link := &w.host.all[i]
		if !link.Up || !w.host.asks[link.Name] || !slices.ContainsFunc(link.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
			continue
		}
		other := &ruleset.Packet{V6: true, Conn: ruleset.ConnEstablished, Packet: nat.Packet{Protocol: unix.IPPROTO_TCP, In: link.Name}, Flags: ackOnly}
		if f := w.filter(other, "forward"); f == nil || !f.Passes {
			continue // IPv6 is not wanted there
		}
		const asks, answers = 135, 136
		for message, text := range map[uint8]string{asks: "neighbour solicitation", answers: "neighbour advertisement"} {
			for _, hook := range []string{"input", "output"} {
				p := &ruleset.Packet{V6: true, Conn: ruleset.ConnUntracked, Packet: nat.Packet{Protocol: unix.IPPROTO_ICMPV6}, ICMP: true, Type: message}
				way := snapshot.Way{Kind: snapshot.WayNeighbours, Protocol: text}
				hooks := inHooks
				if p.In, way.In = link.Name, link.Name; hook == "output" {
					p.In, way.In, p.Out, way.Out, hooks = "", "", link.Name, link.Name, outHooks
				}
				if way.Filter = w.filter(p, hooks...); way.Filter != nil && !way.Filter.Passes && len(w.out.All) < mostWays*(len(outward)+2) {
					w.out.All = append(w.out.All, way)
				}
			}
		}
	}
}

// bridged reports whether rules are for frames that bridges pass on.
func (w *ways) bridged() bool {
	return slices.ContainsFunc(w.tables, func(t *ruleset.Table) bool { return t.Family == "bridge" })
}

// bridges asks about what the ports of each bridge send to each other; ip is whether rules of IP see it.
func (w *ways) bridges(ip bool) {
	links := w.router.sorted()
	ports := map[int]int{}
	for _, l := range links {
		ports[l.master]++
	}
	for _, l := range links {
		const fewest = 2
		if l.kind != "bridge" || ports[l.index] < fewest || len(w.out.All) >= mostWays*(len(outward)+3) {
			continue
		}
		hooks := []string{ruleset.BridgeHook + "prerouting", ruleset.BridgeHook + "forward", ruleset.BridgeHook + "postrouting"}
		if ip {
			hooks = append(hooks, throughHooks...)
		}
		name := l.name
		for _, protocol := range []string{"tcp", "udp"} {
			p := probe{protocol, 0}.packet(netip.IPv4Unspecified())
			p.Src, p.In, p.Out, p.Conn = netip.Addr{}, name, name, ruleset.ConnNew
			way := snapshot.Way{Kind: snapshot.WayBridge, In: name, Out: name, Protocol: protocol, Filter: w.filter(p, hooks...)}
			w.out.All = append(w.out.All, way)
		}
		p := probe{"tcp", 0}.packet(netip.Addr{})
		p.In, p.Conn, p.ToLocal = name, ruleset.ConnNew, true
		if f := w.filter(p, ruleset.BridgeHook+"prerouting", ruleset.BridgeHook+"input"); f != nil && len(f.Drops) > 0 {
			w.out.All = append(w.out.All, snapshot.Way{Kind: snapshot.WayBridge, In: name, Filter: f})
		}
	}
}
