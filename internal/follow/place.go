package follow

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
)

// mostJudged bounds the rules that are asked about packets that were lost, some 0.1 µs each.
const mostJudged = 2_000_000

// places asks what this host does to packets that were lost.
type places struct {
	// tables is nil where they cannot be read.
	tables     []*ruleset.Table
	rules      int
	judged     int
	links      map[int]netlink.Link
	neighbours map[neighbour]string
	uplinks    map[string]bool
	own        map[netip.Addr]bool
	addresses  []netlink.Addr
	tunnels    []netlink.XfrmPolicy
	hardware   map[neighbour]net.HardwareAddr
}

// neighbourStates are those without an address of the link, or with one that is never asked for.
var neighbourStates = map[int]string{unix.NUD_INCOMPLETE: snapshot.NeighbourIncomplete, unix.NUD_FAILED: snapshot.NeighbourFailed, unix.NUD_PERMANENT: "PERMANENT"}

type neighbour struct {
	address netip.Addr
	link    int
}

// addPlaces adds to services that fail what this host does to the packet that was lost. It has to be
// called in their namespace.
func addPlaces(r *snapshot.Followed) error {
	k := &places{judged: mostJudged, links: map[int]netlink.Link{}, neighbours: map[neighbour]string{}, hardware: map[neighbour]net.HardwareAddr{}, uplinks: map[string]bool{}, own: map[netip.Addr]bool{}}
	for i := range r.Services {
		s := &r.Services[i]
		if s.Failed == nil {
			continue
		}
		if k.rules == 0 {
			if err := k.read(); err != nil {
				return fmt.Errorf("ask where connections were lost: %w", err)
			}
		}
		s.Failed.Place = k.of(s)
		k.settleTunnel(s)
	}
	return nil
}

func (k *places) read() (err error) {
	k.rules = 1
	links, err := socket.Whole(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		k.links[l.Attrs().Index] = l
	}
	k.readUplinks()
	k.addresses, err = socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return err
	}
	for _, a := range k.addresses {
		if own, ok := netip.AddrFromSlice(a.IP); ok {
			k.own[own.Unmap()] = true
		}
	}
	neighbours, err := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_UNSPEC) })
	if err != nil {
		return err
	}
	for _, n := range neighbours {
		if a, ok := netip.AddrFromSlice(n.IP); ok {
			k.neighbours[neighbour{a.Unmap(), n.LinkIndex}] = neighbourStates[n.State]
			k.hardware[neighbour{a.Unmap(), n.LinkIndex}] = n.HardwareAddr
		}
	}
	k.tunnels, _ = netlink.XfrmPolicyList(unix.AF_UNSPEC) // none where the kernel has no IPsec
	if k.tables, err = read.Judged(nil); err != nil {
		k.tables = nil // such as without CAP_NET_ADMIN: routes are known all the same
	}
	for _, t := range k.tables {
		for _, c := range t.Chains {
			k.rules += len(c.Rules)
		}
	}
	return nil
}

// readUplinks notes the interfaces of default routes of all tables.
func (k *places) readUplinks() {
	for _, any := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		family := map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[any.Addr().Is6()]
		dst := &net.IPNet{IP: any.Addr().AsSlice(), Mask: net.CIDRMask(0, any.Addr().BitLen())}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: dst, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil {
			continue // no such family
		}
		for _, r := range routes {
			k.uplink(r.LinkIndex)
			for _, hop := range r.MultiPath {
				k.uplink(hop.LinkIndex)
			}
		}
	}
}

func (k *places) uplink(link int) {
	if l := k.links[link]; l != nil {
		k.uplinks[l.Attrs().Name] = true
	}
}

// of is the place of the example of a service.
func (k *places) of(s *snapshot.FollowedService) *snapshot.FailedPlace {
	protocol, err := nat.ParseProtocol(s.Protocol)
	f := s.Failed
	if err != nil {
		return nil
	}
	flags := func(set frame.TCPFlags) byte {
		if protocol != unix.IPPROTO_TCP {
			return 0
		}
		return byte(set)
	}
	p := &ruleset.Packet{Conn: ruleset.ConnNew, Flags: flags(frame.SYN), Packet: nat.Packet{Protocol: protocol, In: k.bridgeOf(s.In)}}
	place := &snapshot.FailedPlace{InUplink: k.uplinks[s.In], Foreign: s.In == "" && f.LeftFrom.IsValid() && !k.own[f.LeftFrom.Addr()]}
	ask := func(p *ruleset.Packet, from, to netip.AddrPort) {
		p.Src, p.SrcPort, p.Dst, p.DstPort, p.ToLocal = from.Addr(), from.Port(), to.Addr(), to.Port(), k.own[to.Addr()]
	}
	answers := func() {
		p.Flags, p.Conn, p.In = flags(frame.SYN|frame.ACK), ruleset.ConnEstablished|translated(s), f.AnswerIn
		if f.Step != snapshot.StepAnswerLost {
			p.Flags = flags(frame.ACK)
		}
		if p.In == "" {
			p.In = s.Out
		}
		p.In = k.bridgeOf(p.In)
	}
	switch {
	case f.OneSided && f.Step == snapshot.StepAnswerLost: // so is a SYN-ACK without a SYN
		p.Flags, p.Conn, p.In = flags(frame.SYN|frame.ACK), ruleset.ConnInvalid, k.bridgeOf(f.AnswerIn)
		place.InUplink = k.uplinks[f.AnswerIn]
		ask(p, s.Service, f.Client)
		if k.pass(place, p, netip.AddrPort{}); place.Out == "" && !place.Local && place.NoRoute == "" && !place.ReversePath {
			k.route(place, "", p.Src, p.Dst, p.In) // dropped before it is routed
		}
	case f.Step == snapshot.StepAnswerLost, f.Answer && (f.Step == snapshot.StepDataLost || f.Step == snapshot.StepPartLost):
		answers()
		ask(p, f.LeftTo, f.LeftFrom)
		k.pass(place, p, f.Client)
		k.withoutEntry(place, p, f.LeftTo, f.LeftFrom)
	case f.OneSided: // what follows a SYN without an answer is INVALID, and not translated
		p.Flags, p.Conn = flags(frame.ACK), ruleset.ConnInvalid
		ask(p, f.Client, s.Service)
		if k.pass(place, p, netip.AddrPort{}); place.Out == "" && !place.Local {
			k.route(place, s.Out, f.LeftFrom.Addr(), f.LeftTo.Addr(), "") // dropped before it is routed
		}
	case f.Step == snapshot.StepDataLost, f.Step == snapshot.StepResetHere, f.Step == snapshot.StepPartLost:
		p.Flags, p.Conn = flags(frame.ACK), ruleset.ConnEstablished|translated(s)
		ask(p, f.Client, s.Service)
		k.pass(place, p, f.LeftTo)
		k.withoutEntry(place, p, f.Client, s.Service)
		if f.Step == snapshot.StepResetHere && (place.Filter == nil || len(place.Filter.Drops) == 0) {
			answers()
			ask(p, f.LeftTo, f.LeftFrom)
			k.pass(place, p, f.Client)
		}
	case f.Step == snapshot.StepLostHere && s.In == "":
		ask(p, f.Client, s.Service)
		k.send(place, p)
	case f.Step.Here() && s.In != "":
		ask(p, f.Client, s.Service)
		if f.LeftTo.IsValid() { // of what left it was seen; rules may draw among several
			k.pass(place, p, f.LeftTo)
			break
		}
		k.pass(place, p, ruleset.Destination(k.tables, "prerouting", p, k.addressOf(p.In, p.Dst.Is6())))
	case s.Out != "":
		k.route(place, s.Out, f.LeftFrom.Addr(), f.LeftTo.Addr(), "")
		ask(p, f.Client, f.LeftTo)
		k.translates(place, p, s)
	}
	k.errors(place, s, protocol)
	return place
}

// translates finds the rule that gave the source of what left, or that kept it as it is.
func (k *places) translates(place *snapshot.FailedPlace, p *ruleset.Packet, s *snapshot.FollowedService) {
	if k.judged -= k.rules; k.judged < 0 || k.tables == nil || s.In == "" {
		return
	}
	p.Out = s.Out
	if s.Target.IsValid() {
		p.Conn |= ruleset.ConnDNAT
		p.OriginalDst, p.OriginalPort = s.Service.Addr(), s.Service.Port()
	}
	by, spares := ruleset.Source(k.tables, p)
	if s.Given.IsValid() {
		place.Translates = by
		return
	}
	place.Spares = spares
	question := *p
	question.Dst, question.DstPort = s.Service.Addr(), s.Service.Port()
	if by == nil || !k.exempt(place, &question) {
		return
	}
	answer := answerTo(p) // it would come to the address that this one should have left with
	answer.Dst = k.addressOf(s.Out, p.Dst.Is6())
	k.exempt(place, answer)
}

// exempt notes the rule that keeps the tracker from a packet that comes in, and reports whether there is one.
func (k *places) exempt(place *snapshot.FailedPlace, p *ruleset.Packet) bool {
	if k.judged -= k.rules; k.judged < 0 || k.tables == nil {
		return false
	}
	by := ruleset.Exempts(k.tables, p, "prerouting")
	if by != nil {
		place.Exempts = append(place.Exempts, *by)
	}
	return by != nil
}

// translated has the bits of a connection's translations.
func translated(s *snapshot.FollowedService) (bits ruleset.ConnBits) {
	if s.Target.IsValid() {
		bits |= ruleset.ConnDNAT
	}
	if s.Given.IsValid() {
		bits |= ruleset.ConnSNAT
	}
	return bits
}

// pass takes a packet through this host: to is its destination after translation, if that is another one.
func (k *places) pass(place *snapshot.FailedPlace, p *ruleset.Packet, to netip.AddrPort) {
	place.Filter = k.filter(p, "ingress", "prerouting")
	if place.Filter != nil && !place.Filter.Passes {
		k.acceptsLater(place, p)
		return
	}
	if to.IsValid() && to != netip.AddrPortFrom(p.Dst, p.DstPort) {
		place.To = to
		p.OriginalDst, p.OriginalPort = p.Dst, p.DstPort
		p.Dst, p.DstPort = to.Addr(), to.Port()
		if p.Conn&ruleset.ConnNew != 0 {
			p.Conn |= ruleset.ConnDNAT
		}
	}
	k.route(place, "", p.Src, p.Dst, p.In)
	if place.NoRoute != "" || place.ReversePath {
		return
	}
	p.Out, p.ToLocal, place.Encrypted = place.Out, place.Local, k.encrypts(p.Src, p.Dst)
	hooks := []string{"forward", "postrouting"}
	if place.Local {
		hooks = []string{"input"}
	}
	if f := k.filter(p, hooks...); f != nil && place.Filter != nil {
		place.Filter.Passes, place.Filter.Drops = f.Passes, append(place.Filter.Drops, f.Drops...)
		place.Filter.Accepts, place.Filter.AcceptsBefore = f.Accepts, f.AcceptsBefore
		place.Filter.AcceptsOthers = f.AcceptsOthers
		if !f.Passes && !place.Local && p.Out != "" && p.Conn&ruleset.ConnNew != 0 {
			place.AnswerFilter = k.filter(answerTo(p), "forward")
		}
	}
}

// acceptsLater notes the rule for its two networks that would accept a packet between networks inside, had it not been
// dropped before it was routed, as Docker does with what other interfaces send to containers.
func (k *places) acceptsLater(place *snapshot.FailedPlace, p *ruleset.Packet) {
	f := place.Filter
	if place.InUplink || f.Accepts != nil {
		return
	}
	var way snapshot.FailedPlace
	if k.route(&way, "", p.Src, p.Dst, p.In); way.Out == "" || way.Local || way.Uplink {
		return
	}
	if k.judged -= 3 * k.rules; k.judged < 0 { // the hooks below
		return
	}
	q := *p
	q.Out = way.Out
	f.Accepts = ruleset.Accepts(k.tables, &q, "forward", "ingress", "prerouting")
}

// answerTo is the answer to a first packet as it is forwarded, after its translation back.
func answerTo(p *ruleset.Packet) *ruleset.Packet {
	answer := *p
	answer.Conn = p.Conn&^ruleset.ConnNew | ruleset.ConnEstablished
	answer.Src, answer.SrcPort, answer.Dst, answer.DstPort, answer.In, answer.Out = p.Dst, p.DstPort, p.Src, p.SrcPort, p.Out, p.In
	if p.Flags != 0 {
		answer.Flags = byte(frame.SYN | frame.ACK)
	}
	return p.Answer(answer)
}

// send takes a packet of this host's out.
func (k *places) send(place *snapshot.FailedPlace, p *ruleset.Packet) {
	if to := ruleset.Destination(k.tables, "output", p, k.addressOf("lo", p.Dst.Is6())); to.IsValid() {
		place.To = to
		p.Dst, p.DstPort, p.Conn = to.Addr(), to.Port(), p.Conn|ruleset.ConnDNAT
	}
	k.route(place, "", netip.Addr{}, p.Dst, "")
	p.ToLocal = place.Local
	if p.Out = place.Out; p.Src.IsLoopback() && p.Out != "" && p.Src.Is4() {
		place.NoRoute = "a source of 127.0.0.0/8 leaves by " + p.Out + " only where net.ipv4.conf." + p.Out + ".route_localnet is 1"
	}
	place.Filter = k.filter(p, "output", "postrouting")
}

// withoutEntry judges a packet that the tracker knows no connection of: it is not translated, unless it is taken for the
// first one of another (nf_conntrack_tcp_loose).
func (k *places) withoutEntry(place *snapshot.FailedPlace, p *ruleset.Packet, from, to netip.AddrPort) {
	lost := *p
	lost.Src, lost.SrcPort, lost.Dst, lost.DstPort = from.Addr(), from.Port(), to.Addr(), to.Port()
	for _, lost.Conn = range []ruleset.ConnBits{ruleset.ConnInvalid, ruleset.ConnNew} {
		way, leads := &snapshot.FailedPlace{}, netip.AddrPort{}
		if lost.Conn == ruleset.ConnNew {
			leads = ruleset.Destination(k.tables, "prerouting", &lost, k.addressOf(lost.In, lost.Dst.Is6()))
		}
		if k.pass(way, &lost, leads); way.Filter != nil && len(way.Filter.Drops) > 0 {
			place.NoEntryFilter = way.Filter
			return
		}
	}
}

// bridgeOf is the bridge of a port, as which rules of IP see what comes in by it; the interface itself
// where it is none.
func (k *places) bridgeOf(device string) string {
	for _, l := range k.links {
		if m := k.links[l.Attrs().MasterIndex]; l.Attrs().Name == device && m != nil && m.Type() == "bridge" {
			return m.Attrs().Name
		}
	}
	return device
}

// addressOf is the address of an interface that rules redirect to what comes in by it; not valid where it
// has none.
func (k *places) addressOf(device string, v6 bool) netip.Addr {
	for _, a := range k.addresses {
		own, ok := netip.AddrFromSlice(a.IP)
		if l := k.links[a.LinkIndex]; ok && l != nil && l.Attrs().Name == device && own.Unmap().Is6() == v6 && !own.IsLinkLocalUnicast() {
			return own.Unmap()
		}
	}
	return netip.Addr{}
}

// encrypts reports whether a policy of IPsec takes what goes from one address to another one.
func (k *places) encrypts(from, to netip.Addr) bool {
	return slices.ContainsFunc(k.tunnels, func(p netlink.XfrmPolicy) bool {
		return p.Dir == netlink.XFRM_DIR_OUT && p.Action == netlink.XFRM_POLICY_ALLOW && len(p.Tmpls) > 0 &&
			p.Src != nil && p.Src.Contains(from.AsSlice()) && p.Dst != nil && p.Dst.Contains(to.AsSlice())
	})
}

// filter judges a packet; nil where the rules are not known, or too many were asked.
func (k *places) filter(p *ruleset.Packet, hooks ...string) *snapshot.Filter {
	if k.judged -= k.rules * len(hooks); k.judged < 0 || k.tables == nil {
		return nil
	}
	return ruleset.Filter(k.tables, p, hooks...)
}

// errors judges the ICMP errors that say that packets are too large: those of this host, where the packet
// that was lost is larger than the way out, and those from beyond.
func (k *places) errors(place *snapshot.FailedPlace, s *snapshot.FollowedService, protocol uint8) {
	f := s.Failed
	if protocol != unix.IPPROTO_TCP || f.Bytes == 0 {
		return
	}
	to, in := f.Client.Addr(), s.In
	if f.Answer {
		to, in = f.LeftTo.Addr(), s.Out
	}
	p := &ruleset.Packet{Conn: ruleset.ConnRelated | translated(s), Packet: nat.Packet{Protocol: unix.IPPROTO_ICMP, Dst: to}}
	if to.Is6() {
		p.Protocol = unix.IPPROTO_ICMPV6
	}
	switch {
	case f.Step == snapshot.StepDataLost && place.OutMTUBytes > 0 && f.Bytes > place.OutMTUBytes:
		p.Out = in
		place.ErrorFilter = k.filter(p, "output", "postrouting")
	case f.Step == snapshot.StepDataUnanswered:
		p.In, p.Out = s.Out, in
		if f.Answer {
			p.In = s.In
		}
		if f.TooBig != nil {
			p.Src = f.TooBig.By
		}
		place.ErrorFilter = k.filter(p, "prerouting", "forward", "postrouting")
	}
}

// route asks for the way of a packet that comes in by an interface, or leaves by out.
func (k *places) route(place *snapshot.FailedPlace, out string, from, to netip.Addr, in string) {
	o := &netlink.RouteGetOptions{Iif: in, Oif: out}
	if out == "" && from.IsValid() {
		o.SrcAddr = from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), o)
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && (errno == unix.EXDEV || errno == unix.EINVAL) && in != "" && k.reverses(from, in):
		place.ReversePath = true
		return
	case errors.As(err, &errno) && errno == unix.EINVAL && in != "" && isMartian(to):
		place.NoRoute = fmt.Sprintf("an address of 127.0.0.0/8 is let in by %s only where net.ipv4.conf.%[1]s.route_localnet is 1", in)
		return
	case errors.As(err, &errno) && errno == unix.EINVAL:
		place.NoRoute = "a route or a rule of type blackhole"
		return
	case errors.As(err, &errno):
		place.NoRoute = errno.Error()
		return
	case err != nil || len(routes) == 0:
		return
	}
	r := &routes[0]
	if place.Local = r.Type == unix.RTN_LOCAL; place.Local {
		return
	}
	l := k.links[r.LinkIndex]
	if l == nil {
		return
	}
	a := l.Attrs()
	place.Out, place.OutMTUBytes, place.OutDown, place.Uplink = a.Name, a.MTU, a.OperState == netlink.OperDown || a.Flags&net.FlagUp == 0, k.uplinks[a.Name] && r.Gw != nil
	if r.MTU != 0 {
		place.OutMTUBytes = min(place.OutMTUBytes, r.MTU)
	}
	place.NextHop = to
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		place.NextHop = gw.Unmap()
	}
	place.Tunnel = k.tunnelOf(l, place.NextHop)
	if place.Neighbour = k.neighbours[neighbour{place.NextHop, r.LinkIndex}]; to.Is6() && place.Neighbour != "" {
		p := &ruleset.Packet{Conn: ruleset.ConnUntracked, Packet: nat.Packet{Protocol: unix.IPPROTO_ICMPV6, In: place.Out, ToLocal: true, Src: place.NextHop}}
		if f := k.filter(p, "prerouting", "input"); f != nil && !f.Passes {
			place.NeighbourFilter = f
		}
	}
}

// isMartian reports whether an address is of 127.0.0.0/8, which a network has none of (ip_route_input_slow).
func isMartian(address netip.Addr) bool { return address.Is4() && address.IsLoopback() }

// reverses reports whether rp_filter drops what comes from an address by an interface. Linux 6.13 and
// later say EINVAL for it, as for a route of type blackhole, others EXDEV.
func (k *places) reverses(from netip.Addr, in string) bool {
	mode := 0
	for _, name := range []string{"all", in} {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if n, numErr := strconv.Atoi(strings.TrimSpace(string(value))); err == nil && numErr == nil {
			mode = max(mode, n)
		}
	}
	routes, err := netlink.RouteGet(from.AsSlice())
	switch {
	case from.Is6() || mode == 0:
		return false
	case err != nil || len(routes) == 0:
		return true
	}
	l := k.links[routes[0].LinkIndex]
	return mode == 1 && l != nil && l.Attrs().Name != in
}
