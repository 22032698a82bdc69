package collect

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// readPrograms finds out which eBPF programs of a gateway are attached here.
func (o *observation) readPrograms(context.Context) (err error) {
	o.Programs, err = answer(o, question{"programs of a gateway", "gateway_programs.json"}, askPrograms)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// between reports whether programs translate what comes in by one interface and goes out by another one; empty is any.
func (k *lookups) between(in, out string) bool {
	return k.mappings != nil && (in == "" || k.programs.Of(in).Translates()) && k.programs.Of(out).Translates()
}

// index is the number of an interface; 0 of one that is not there.
func (k *lookups) index(name string) int {
	if l := k.router.named[name]; l != nil {
		return l.index
	}
	return 0
}

// mostMapped bounds the mappings of programs that filters are asked about, of services and of addresses.
const mostMapped = 64

// addMapped adds targets of rules whose destinations stand in a map, as far as programs have them: these know each. It leaves
// half of what filters may be asked to others.
func (k *lookups) addMapped(all *snapshot.DNATTargets) error {
	if k.mappings == nil {
		return nil
	}
	mapped, err := k.mappings.Destinations(mostMapped)
	if err != nil {
		return err
	}
	for _, m := range mapped {
		i := slices.IndexFunc(k.rules.Rules, func(r snapshot.NATRule) bool {
			return isOfMap(&r) && (!r.ToDestination.IsValid() || r.ToDestination.Contains(m.On.Addr()))
		})
		route, known := k.router.ask(flow{to: netip.AddrPortFrom(m.To.Addr(), 0)})
		if i < 0 || !known || route.Error != "" || route.Local || len(all.Targets) >= mostTargets || k.judged < mostJudged/2 {
			continue
		}
		r := k.rules.Rules[i]
		r.ToDestination, r.DestinationPort, r.Protocol, r.SeveralPorts = nat.Host(m.On.Addr()), m.On.Port(), "", nil
		t := snapshot.DNATTarget{Rule: i, Address: m.To.Addr(), Port: m.To.Port(), NextHop: route.NextHop, Interface: route.Out}
		if m.Protocol != 0 {
			r.Protocol, t.Protocol = nat.ProtocolName(m.Protocol), nat.ProtocolName(m.Protocol)
		}
		if err := k.passBy(&t, &r); err != nil {
			return err
		}
		same := func(o snapshot.DNATTarget) bool {
			return o.Protocol == t.Protocol && o.Address == t.Address && o.Port == t.Port
		}
		if t.NotForwarded = ""; t.Programs && !slices.ContainsFunc(all.Targets, same) {
			all.Targets = append(all.Targets, t)
		}
	}
	return nil
}

// isOfMap reports whether the destination that a rule gives is not a constant.
func isOfMap(r *snapshot.NATRule) bool {
	return !r.TranslatesSource() && r.Kind != snapshot.NATRedirect && r.Hook == "prerouting" && !r.First.IsValid() && !r.Chance
}

// divert notes of a target that programs send connections on to it, p being the first packet of one: what filters would do
// to them they do not do.
func (k *lookups) divert(t *snapshot.DNATTarget, r *snapshot.NATRule, p *ruleset.Packet) {
	on := r.ToDestination
	if t.Local || !on.IsValid() || !k.between(p.In, t.Interface) {
		return
	}
	port := p.First.DstPort
	if port == 0 && len(r.SeveralPorts) > 0 {
		port = r.SeveralPorts[0].First // each has a mapping of its own
	}
	to, found := k.mappings.Destination(k.index(p.In), p.Protocol, netip.AddrPortFrom(on.Addr(), port))
	if !found || on.IsSingleIP() && (to.Addr() != t.Address || t.Port != 0 && to.Port() != t.Port) {
		return
	}
	t.Programs, t.Bypassed = true, firstDrop(t.Filter, t.AnswerFilter, t.LaterFilter)
	t.Filter, t.AnswerFilter, t.LaterFilter = nil, nil, nil
}

// divertWay does so with what a host of a network sends.
func (k *lookups) divertWay(w *snapshot.Way, protocol uint8, host netip.Addr) {
	if !k.sends(w.In, w.Out, protocol, host) {
		return
	}
	w.Programs, w.Bypassed = true, firstDrop(w.Filter, w.AnswerFilter, w.LaterFilter)
	w.Filter, w.AnswerFilter, w.LaterFilter = nil, nil, nil
}

// translated is a host of a network, or one that a rule is for, where none is for the other.
func (k *lookups) translated(rule int, host netip.Addr) netip.Addr {
	from := k.rules.Rules[rule].FromSource
	if !from.IsValid() || slices.ContainsFunc(k.rules.Rules, func(r snapshot.NATRule) bool {
		return r.TranslatesSource() && (!r.FromSource.IsValid() || r.FromSource.Contains(host))
	}) {
		return host
	}
	return from.Addr()
}

// sends reports whether programs translate the source of all that a host sends.
func (k *lookups) sends(in, out string, protocol uint8, host netip.Addr) bool {
	if !k.between(in, out) {
		return false
	}
	_, found := k.mappings.Source(k.index(out), protocol, netip.AddrPortFrom(host, 0))
	return found
}

// firstDrop is the first of filters that lets nothing pass.
func firstDrop(all ...*snapshot.Filter) *snapshot.Filter {
	for _, f := range all {
		if f != nil && !f.Passes && len(f.Drops) > 0 {
			return f
		}
	}
	return nil
}
