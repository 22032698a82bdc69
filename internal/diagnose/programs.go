package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const programsSource = "links and maps that are pinned in the bpf file system"

// programs is what a recording has of the eBPF programs of a gateway.
type programs struct {
	rec *snapshot.Recording
	*snapshot.Programs
}

// readPrograms gives the check that ends a rule where there are none.
func readPrograms(rec *snapshot.Recording) (*programs, Check) {
	last := rec.Last()
	switch p := last.Programs; {
	case p == nil:
		return nil, Check{State: NotChecked, Why: cmp.Or(last.PartError(snapshot.PartPrograms), "the programs of a gateway were not looked for: a bundle of an older natkit")}
	case len(p.Interfaces) == 0:
		return nil, Check{State: OK, Why: "no eBPF programs of a gateway here", Absent: true}
	}
	p := &programs{rec, last.Programs}
	known := func(i *snapshot.ProgramInterface) bool { return i.Known }
	if attached := p.with(func(i *snapshot.ProgramInterface) bool { return i.Mode != "" }); len(attached) > 0 && len(p.with(known)) == 0 {
		return nil, Check{State: NotChecked, Why: "what the programs at " + firstOf(attached) + " know is not pinned, or of another version of natkit: apply the gateway's file again"}
	}
	return p, Check{}
}

// with are the names of interfaces that are such.
func (p *programs) with(such func(*snapshot.ProgramInterface) bool) (names []string) {
	for i := range p.Interfaces {
		if such(&p.Interfaces[i]) {
			names = append(names, p.Interfaces[i].Name)
		}
	}
	return names
}

// attached is how programs are attached to an interface, as evidence.
func (p *programs) attached(name string) Evidence {
	i, is := p.Of(name), []string{"attached at nothing"}
	if strings.HasPrefix(i.Mode, "xdp") || i.Mode != "" && !(slices.Contains(i.Missing, "in") && slices.Contains(i.Missing, "out")) {
		is[0] = "attached at " + i.Mode
	}
	for _, hook := range i.Missing {
		is = append(is, "not at "+map[string]string{"in": "tc ingress", "out": "tc egress", "xdp": "XDP"}[hook])
	}
	if i.OtherXDP != 0 {
		is = append(is, fmt.Sprintf("at XDP program %d of another", i.OtherXDP))
	}
	return Evidence{What: "programs at " + name, Value: strings.Join(is, "; "), Source: programsSource}
}

func (p *programs) evidence(names []string) (all []Evidence) {
	for _, name := range names[:min(len(names), mostListed)] {
		all = append(all, p.attached(name))
	}
	return all
}

// checkDetached: an interface has no programs (any more). Where they know it, those at other interfaces send packets out by it
// that netfilter has seen in one direction alone; one that came later is netfilter's in both.
func (p *programs) checkDetached() (*Finding, Check) {
	detached := p.with(func(i *snapshot.ProgramInterface) bool { return i.Known && !i.Translates() })
	late := p.with(func(i *snapshot.ProgramInterface) bool { return !i.Known && i.Mode == "" })
	of := slices.Concat(detached, late)
	all := units.Plural(int64(len(p.Interfaces)), "interface", "interfaces")
	if len(of) == 0 {
		return passed("the gateway's eBPF programs are attached to " + all)
	}
	remedies := []Remedy{advice("ebpf-attach", where(p.rec)), advice("ebpf-netfilter", where(p.rec))}
	f := worded("ebpf-detached late", p.evidence(of), remedies, firstOf(late))
	takes := func(i *snapshot.ProgramInterface) bool { return i.Mode != "" && !slices.Contains(i.Missing, "in") }
	switch {
	case len(detached) > 0 && len(p.with(takes)) == 0: // netfilter has both directions
		f = worded("ebpf-detached everywhere", p.evidence(of), remedies)
	case len(detached) > 0:
		f = worded("ebpf-detached", p.evidence(of), remedies, firstOf(detached))
	}
	return f, Check{Why: fmt.Sprintf("%d of %s have no eBPF programs of the gateway", len(of), all)}
}

// checkNoXDP: the file asks for XDP at an interface, and its packets meet the programs at tc alone.
func (p *programs) checkNoXDP() (*Finding, Check) {
	wanted := p.with(func(i *snapshot.ProgramInterface) bool { return i.WantsXDP })
	slow := p.with(func(i *snapshot.ProgramInterface) bool { return i.WantsXDP && i.Mode == "tc" && i.Translates() })
	switch {
	case len(wanted) == 0:
		return passed("no interface is to have an eBPF program of the gateway at XDP")
	case len(slow) == 0:
		return passed("at XDP where they are to be: " + firstOf(wanted))
	}
	why, remedy := p.atTC(slow[0])
	f := worded("ebpf-no-xdp", p.evidence(slow), []Remedy{advice("ebpf-xdp-off", where(p.rec)), remedy}, firstOf(slow), why)
	return f, Check{Why: fmt.Sprintf("%d of %s are at tc alone: %s", len(slow), units.Plural(int64(len(wanted)), "interface", "interfaces"), why)}
}

// atTC is why an interface has no program at XDP, and the remedy.
func (p *programs) atTC(name string) (why string, r Remedy) {
	switch i := p.Of(name); {
	case i.OtherXDP != 0:
		return fmt.Sprintf("%s: another XDP program is attached to it, number %d", name, i.OtherXDP), advice("ebpf-xdp-again", where(p.rec))
	case slices.Contains(i.Missing, "xdp"):
		return name + ": the program at XDP was detached", advice("ebpf-attach", where(p.rec))
	case !i.NativeXDP:
		return name + ": its driver runs no XDP programs", advice("ebpf-xdp-generic", where(p.rec))
	default:
		return fmt.Sprintf("%s: its driver refuses XDP programs as it is configured: by its MTU (%s bytes), that of its peer, or its queues",
			name, units.Count(int64(i.MTU))), advice("ebpf-xdp-again", where(p.rec))
	}
}

// bypassing is traffic that programs send on past a filter that would drop it.
type bypassing struct {
	what, in, out string
	filter        *snapshot.Filter
	rule          *snapshot.NATRule
	// target is where it leads; nil of what hosts inside send.
	target *snapshot.DNATTarget
}

// checkBypassed: filters would drop what the programs send on.
func (p *programs) checkBypassed() (*Finding, Check) {
	last := p.rec.Last()
	if last.NATRules == nil || last.DNATTargets == nil || last.Ways == nil {
		return unknown(cmp.Or(last.PartError("nat_rules"), last.PartError(snapshot.PartDNATTargets), last.PartError(snapshot.PartWays), "the filters were not asked about what the programs forward"))
	}
	asked, bad := p.bypassing(last)
	kinds := units.Plural(int64(asked), "kind", "kinds") + " of traffic that eBPF programs forward"
	switch {
	case len(bad) > 0:
		return p.bypassedFinding(bad), Check{Why: fmt.Sprintf("filters would drop %d of %s", len(bad), kinds)}
	case last.DNATTargets.TooMany || last.Ways.TooMany:
		return unknown("there are too many rules to ask about all; of what was asked, filters would drop nothing of " + kinds)
	}
	if asked == 0 {
		return unknown("the filters were asked about nothing that the programs forward")
	}
	return passed("filters would drop nothing of " + kinds)
}

// bypassing returns how many kinds of traffic the filters were asked about, and those that they would drop.
func (p *programs) bypassing(last *snapshot.Snapshot) (asked int, bad []bypassing) {
	add := func(b bypassing, rule int) {
		if asked++; b.filter != nil && len(b.filter.Drops) > 0 && rule >= 0 && rule < len(last.NATRules.Rules) {
			b.rule = &last.NATRules.Rules[rule]
			bad = append(bad, b)
		}
	}
	for i := range last.DNATTargets.Targets {
		if t := &last.DNATTargets.Targets[i]; t.Programs {
			add(bypassing{what: "what leads to " + (filtered{t, nil, false}).name(), out: t.Interface, filter: t.Bypassed, target: t}, t.Rule)
		}
	}
	for i := range last.Ways.All {
		if w := &last.Ways.All[i]; w.Programs {
			port := ""
			if w.Port != 0 {
				port = fmt.Sprintf(" port %d", w.Port)
			}
			add(bypassing{what: fmt.Sprintf("%s%s from %s (%s)", w.Protocol, port, w.Network, w.In), in: w.In, out: w.Out, filter: w.Bypassed}, w.Rule)
		}
	}
	return asked, bad
}

func (p *programs) bypassedFinding(bad []bypassing) *Finding {
	f := worded("ebpf-bypassed-filter", nil, []Remedy{advice("ebpf-netfilter", where(p.rec))})
	var names, places, at []string
	meant := false
	for i, b := range bad {
		for _, d := range b.filter.Drops {
			places = once(places, d.Text)
			meant = meant || !isPolicy(d)
			if i < mostListed {
				f.Evidence = append(f.Evidence, placeOf("what would drop "+b.what, d))
			}
		}
		for _, name := range []string{b.in, b.out, b.rule.InInterface} {
			if p.Of(name) != nil {
				at = once(at, name)
			}
		}
		names = append(names, b.what)
		if i < mostShown {
			f.Evidence = append(f.Evidence, Evidence{What: "the rule that translates " + b.what, Value: b.rule.Place() + ": " + b.rule.Text, Source: "NAT rules by netlink"})
			f.Remedies = append(f.Remedies, b.accept(p.rec)...)
		}
		if b.target != nil {
			f.About = append(f.About, netip.AddrPortFrom(b.target.Address, b.target.Port))
		}
	}
	f.Evidence = append(f.Evidence, p.evidence(at)...)
	if !meant {
		f.Severity = Notice // a policy is for all that no rule knows
	}
	f.Title += ": " + firstOf(names)
	f.Cause += ": " + strings.Join(places[:min(len(places), mostShown)], "; ")
	return f
}

// accept is how the filter comes to agree with the programs, of what leads to a target.
func (b *bypassing) accept(rec *snapshot.Recording) []Remedy {
	if b.target == nil || isEarly(b.filter.Drops[0]) {
		return nil
	}
	place := b.filter.Drops[0]
	how := accepted{protocol: cmp.Or(b.target.Protocol, "tcp"), to: netip.AddrPortFrom(b.target.Address, b.target.Port), chain: "FORWARD"}.how(place, place.Owner)
	return []Remedy{advice("ebpf-bypass-accept", (filtered{b.target, nil, false}).name(), how, where(rec))}
}
