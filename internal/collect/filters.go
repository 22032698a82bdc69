package collect

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// TCP's flags as in the header.
const (
	synOnly = 0x02
	synACK  = 0x12
	ackOnly = 0x10
	pshACK  = 0x18
)

// The hooks on the way of what is forwarded, comes in for this host, and leaves from it.
var (
	throughHooks = []string{"prerouting", "forward", "postrouting", ruleset.HookEgress}
	inHooks      = []string{"prerouting", "input"}
	outHooks     = []string{"output", "postrouting", ruleset.HookEgress}
)

// pass finds out whether the first packet of a connection to a target is forwarded, and passes
// the filters on its way.
func (k *lookups) pass(t *snapshot.DNATTarget) error { return k.passBy(t, &k.rules.Rules[t.Rule]) }

// passBy is pass by a rule that is narrower than the target's.
func (k *lookups) passBy(t *snapshot.DNATTarget, r *snapshot.NATRule) (err error) {
	there, back, in := throughHooks, throughHooks, exactName(r.InInterface)
	redirects := !t.Address.IsValid()
	switch {
	case redirects && r.Hook == "output":
		return nil
	case t.Local && r.Hook == "output":
		there, back, in, t.Interface = []string{"output", "postrouting", "input"}, outHooks, loopback, loopback
	case t.Local:
		there, back = inHooks, outHooks
	case r.Hook == "output":
		there = outHooks
	default:
		t.NotForwarded, err = k.router.notForwarded(t.Address.Is6(), in)
	}
	if err != nil {
		return err
	}
	p, known := firstPacket(t, r, in)
	if !known {
		return nil
	}
	if t.Filter = k.filter(p, there...); t.Filter != nil && !t.Filter.Passes && !p.OriginalDst.IsValid() {
		k.asOwn(t.Filter, p, there)
	}
	if t.Filter != nil && t.Filter.Passes && r.Hook == "prerouting" {
		k.atInterface(t, p, there)
	}
	if p.DstPort != 0 && r.Hook != "output" {
		answer := *p
		answer.Conn, answer.First = ruleset.ConnEstablished|ruleset.ConnDNAT, nil
		answer.Packet = nat.Packet{Protocol: p.Protocol, Src: t.Address, SrcPort: t.Port, In: t.Interface, OriginalDst: p.OriginalDst, OriginalPort: p.OriginalPort}
		if p.Flags != 0 {
			answer.Flags = synACK
		}
		t.AnswerFilter = k.filter(p.Answer(answer), back...)
		t.LaterFilter = k.later(p, p.Answer(answer), there, back)
	}
	if r.Hook == "prerouting" {
		k.divert(t, r, p)
	}
	return nil
}

// mostOwn bounds the addresses of this host that a packet may have been for.
const mostOwn = 8

// asOwn looks for a rule that would accept a packet if it still were for an address of this host, where the rule that
// translates it names none.
func (k *lookups) asOwn(f *snapshot.Filter, p *ruleset.Packet, hooks []string) {
	asked := 0
	for _, l := range k.host.all {
		for _, own := range l.Addresses {
			if p.In != "" && l.Name != p.In || own.Addr().Is6() != p.Dst.Is6() || f.AcceptsBefore != nil || asked >= mostOwn {
				continue
			}
			asked++
			was := *p
			was.OriginalDst = own.Addr()
			if g := k.filter(&was, hooks...); g != nil && !g.Passes {
				f.AcceptsBefore = g.AcceptsBefore
			}
		}
	}
}

// firstPacket is the first one of a connection that a rule leads to a target; false where its protocol has no
// name here.
func firstPacket(t *snapshot.DNATTarget, r *snapshot.NATRule, in string) (p *ruleset.Packet, known bool) {
	protocol := uint8(unix.IPPROTO_TCP)
	if t.Protocol != "" {
		var err error
		if protocol, err = nat.ParseProtocol(t.Protocol); err != nil {
			return nil, false
		}
	}
	original := nat.Packet{Protocol: protocol, DstPort: r.DestinationPort, In: in}
	if r.ToDestination.IsSingleIP() {
		original.Dst = r.ToDestination.Addr()
	}
	if r.LastDestinationPort > r.DestinationPort {
		original.DstPort = 0
	}
	if t.OfSeveral {
		original.DstPort = t.Port
	}
	p = &ruleset.Packet{Conn: ruleset.ConnNew | ruleset.ConnDNAT, V6: r.Family == "ip6" || t.Address.Is6(), First: &original, Packet: nat.Packet{
		Protocol: protocol, Dst: t.Address, DstPort: t.Port, In: in, Out: t.Interface, ToLocal: t.Local, OriginalDst: original.Dst, OriginalPort: original.DstPort,
	}}
	if t.Local && t.Interface != loopback {
		p.Out = ""
	}
	if protocol == unix.IPPROTO_TCP {
		p.Flags = synOnly
	}
	return p, true
}

// exactName is a name without a pattern; empty where any may be meant.
func exactName(device string) string {
	if strings.HasSuffix(device, "*") {
		return ""
	}
	return device
}

// atInterface asks the chains of the interface by which clients come in. Where
// the rule does not name one it is that which has the address that they ask for, or the one of the default
// route, and all filters on the way are asked about what comes in there.
func (k *lookups) atInterface(t *snapshot.DNATTarget, p *ruleset.Packet, there []string) {
	at, hooks, guessed := *p, []string{ruleset.HookIngress}, ""
	if at.In == "" {
		at.In = k.outer(p.V6)
		if i, own := k.host.near(p.First.Dst); own {
			at.In = i.Name
		}
		guessed, hooks = at.In, slices.Concat(hooks, there)
	}
	first := *p.First
	first.In = at.In
	at.First = &first
	if f := k.filter(&at, hooks...); at.In != "" && f != nil && !f.Passes {
		t.Filter, f.At = f, guessed
	}
}

// near returns the interface that has an address.
func (h *host) near(address netip.Addr) (*snapshot.Interface, bool) {
	for i := range h.all {
		if slices.ContainsFunc(h.all[i].Addresses, func(p netip.Prefix) bool { return p.Addr() == address }) {
			return &h.all[i], true
		}
	}
	return nil, false
}

// loopback is the interface over which a machine sends to itself.
const loopback = "lo"

// filter asks the filters of hooks about a packet; nil where too many rules were asked before.
func (k *lookups) filter(p *ruleset.Packet, hooks ...string) *snapshot.Filter {
	for _, hook := range hooks {
		k.judged -= k.filters[hook]
	}
	if k.judged < 0 {
		return nil
	}
	return ruleset.Filter(k.tables, p, hooks...)
}

// later asks the filters about packets that follow the first ones of a connection, both ways. Its drops
// are those that do not depend on what is not known of them.
func (k *lookups) later(first, answer *ruleset.Packet, there, back []string) *snapshot.Filter {
	all := &snapshot.Filter{Passes: true}
	flags := []byte{0}
	if first.Flags != 0 {
		flags = []byte{ackOnly, pshACK}
	}
	for _, way := range []struct {
		packet *ruleset.Packet
		hooks  []string
	}{{first, there}, {answer, back}} {
		for _, set := range flags {
			f := k.filter(way.packet.Next(set), way.hooks...)
			if f == nil {
				return nil
			}
			all.Passes = all.Passes && f.Passes
			for _, d := range f.Drops {
				same := func(o snapshot.RulePlace) bool { return o.Text == d.Text && o.Handle == d.Handle }
				if !d.Unsure && len(all.Drops) < mostDrops && !slices.ContainsFunc(all.Drops, same) {
					all.Drops = append(all.Drops, d)
				}
			}
		}
	}
	return all
}
