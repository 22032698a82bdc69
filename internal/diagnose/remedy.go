package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// advised says for each place in which connections end what to do first, of the places that are known best to
// those that are not. What has no remedy is left to the server: it is asked.
var advised = []struct {
	is     func(*row) bool
	remedy func(*row) Remedy
	// ask is true where the server is worth a look all the same.
	ask bool
}{
	{is: (*row).loops, remedy: func(r *row) Remedy {
		return advice("service-loop", r.Target.Addr(), r.ruleText(), where(r.rec), deleteCommand(r.rec, entryFilter(r.Protocol, r.Target.Addr(), r.Service)))
	}},
	{is: (*row).isBridged, remedy: (*row).byRules},
	{is: (*row).comesByOtherUplink, remedy: func(r *row) Remedy { return advice("rp-uplink", r.In, slashed(r.In), where(r.rec)) }},
	{is: (*row).isReversed, remedy: func(r *row) Remedy { return advice("rp-loose", slashed(r.reversedAt()), where(r.rec)) }},
	{is: (*row).misses, remedy: (*row).clamp},
	{is: (*row).isTooLarge, remedy: (*row).acceptErrors},
	{is: func(r *row) bool { return r.Failed.OneSided && r.culprit() != nil }, remedy: (*row).acceptOneSide},
	{is: func(r *row) bool { return r.culprit() != nil }, remedy: (*row).accept},
	{is: func(r *row) bool { return r.tunnelLoss() != "" }, remedy: (*row).compareEnds},
	{is: (*row).pausesShort, remedy: func(r *row) Remedy {
		return advice("timeout-established", establishedTimeout, where(r.rec))
	}},
	{is: (*row).lacksEntry, remedy: func(r *row) Remedy {
		return advice("service-no-entry", r.Protocol, r.Service.Addr(), r.place.NoEntryFilter.Drops[0].Text, where(r.rec))
	}},
	{is: func(r *row) bool { return !r.isBeyondHere() && r.Failed.Step == snapshot.StepClientSilent }, remedy: (*row).toClient},
	{is: func(r *row) bool { return !r.isBeyondHere() }, remedy: func(r *row) Remedy {
		return advice("service-path", NamespaceFlag(r.rec.Last().Netns.Name), r.Protocol, r.Failed.Client.Addr())
	}},
	{is: func(r *row) bool { return forOthersOnly(r.rec, r.FollowedService) != nil }, remedy: func(r *row) Remedy {
		return advice("service-own", forOthersOnly(r.rec, r.FollowedService).Table, where(r.rec))
	}},
	{is: (*row).isRejectedBeyond, remedy: func(r *row) Remedy {
		f := r.Failed
		return advice("service-rejected", f.By, r.Protocol, f.LeftTo.Port(), f.LeftFrom.Addr(), f.LeftTo.Addr())
	}},
	{is: (*row).isExempt, remedy: (*row).track},
	{is: (*row).isAstray, remedy: func(r *row) Remedy {
		return advice("service-astray", r.Failed.LeftFrom.Addr(), r.Failed.AstrayIn, where(r.rec))
	}},
	{is: (*row).isSpared, remedy: func(r *row) Remedy {
		return advice("service-spared", r.place.Spares.Text, r.Service.Addr(), r.Out, where(r.rec))
	}},
	{is: (*row).isUnrouted, remedy: func(r *row) Remedy { return unrouted(r.rec, r.Given, r.Out) }},
	{is: (*row).isPrivateBeyond, remedy: func(r *row) Remedy { return advice("service-route", r.Service.Addr(), r.Out, where(r.rec)) }},
	{is: func(r *row) bool { return r.keepsSource() != nil }, remedy: func(r *row) Remedy {
		return forgetSource(r.rec, r.Protocol, r.Service.Addr(), r.Given, r.Target.IsValid())
	}},
	{is: func(r *row) bool {
		return !r.isRefused() && (strayed(r.rec, r.FollowedService) != nil || r.goesOutBare())
	}, remedy: (*row).giveSource},
	{is: (*row).hasDeadLine, remedy: func(r *row) Remedy {
		return deadLineAdvice(r.rec, r.Out, r.answersBy(), r.Service.Addr())
	}},
	{is: func(r *row) bool { return r.movesPort() != nil }, ask: true, remedy: func(r *row) Remedy {
		return advice("service-port", r.Failed.Client.Port(), r.Protocol, r.Service.Port(), r.Out, where(r.rec), deleteCommand(r.rec, entryFilter(r.Protocol, r.Failed.Client.Addr(), r.Service)))
	}},
	{is: func(r *row) bool {
		return r.Protocol == "udp" && r.Failed.Step == snapshot.StepOtherSource && r.Target.IsValid()
	}, remedy: func(r *row) Remedy {
		return advice("service-other-source", r.Target, r.Failed.By, where(r.rec))
	}},
	{is: (*row).isMasqueradedInside, ask: true, remedy: func(r *row) Remedy {
		return advice("service-inside", r.Out, r.place.Translates.Text, r.Given, where(r.rec))
	}},
	{is: (*row).isRefused, remedy: func(r *row) Remedy {
		return advice("service-listener", r.Failed.LeftTo.Addr(), r.Failed.LeftTo.Port())
	}},
	{is: (*row).isElsewhere, ask: true, remedy: func(r *row) Remedy {
		return advice("service-elsewhere", r.Given, r.Out, where(r.rec), r.place.Translates.Text)
	}},
	{is: (*row).isSilentAmong, ask: true, remedy: func(r *row) Remedy {
		return advice("service-silent-among", r.Service.Addr(), snapshot.NetworkOf(r.Failed.Client.Addr()), r.Failed.Client.Addr(), r.Out, where(r.rec))
	}},
	{is: (*row).isSilentNear, ask: true, remedy: func(r *row) Remedy {
		return advice("service-silent", r.Failed.LeftTo.Addr(), r.Out, r.Failed.LeftTo.Port(), where(r.rec))
	}},
}

// advise adds what to do next.
func (r *row) advise(f *failing) {
	for _, a := range advised {
		if a.is(r) {
			f.advice = new(a.remedy(r))
			if a.ask {
				f.target = r.Failed.LeftTo
			}
			return
		}
	}
	f.target = r.Failed.LeftTo
}

// decided reports whether the place itself says what to do, and no finding about the host says it better.
func (r *row) decided() bool {
	return r.loops() || r.isAstray() || r.hasDeadLine() || r.isBridged() || r.isReversed() || r.isTooLarge() || r.misses() || r.isUnrouted() || r.isSpared() || r.isExempt() || r.isRejectedBeyond() || r.tunnelLoss() != "" || r.lacksEntry() ||
		(!r.Failed.Step.Later() || r.Failed.OneSided) && r.culprit() != nil
}

// isAstray reports whether answers come in for another hardware address.
func (r *row) isAstray() bool { return r.Failed.AstrayIn != "" }

// misses reports whether large packets of the server do not come here.
func (r *row) misses() bool { return r.Failed.Step == snapshot.StepDataMissing }

// clamp has servers send smaller packets: as the link takes, or fewer bytes where it is not the link of this host.
func (r *row) clamp() Remedy {
	if isAboveMTU(r.Failed) {
		return advice("pmtu-clamp", where(r.rec))
	}
	return advice("pmtu-set", r.Out, where(r.rec), r.Service.Addr())
}

// isTooLarge reports whether data is lost for its size, and filters drop the ICMP errors that say so.
func (r *row) isTooLarge() bool {
	return r.Failed.Step.Later() && r.Failed.TooBig != nil && !r.Failed.TooBig.Passed && r.place.ErrorFilter != nil && len(r.place.ErrorFilter.Drops) > 0
}

// acceptErrors is the rule that lets ICMP errors about connections pass, before the one that drops them.
func (r *row) acceptErrors() Remedy {
	return acceptAnswers(r.place.ErrorFilter.Drops[0], "FORWARD", r.rec)
}

// isBeyondHere reports whether connections left this host and came to nothing there.
func (r *row) isBeyondHere() bool {
	switch r.Failed.Step {
	case snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable, snapshot.StepOtherSource, snapshot.StepReset, snapshot.StepDataUnanswered, snapshot.StepDataMissing:
		return true
	}
	return false
}

// isUnrouted reports whether the source that is given is no address of this host, no answer to it comes in, and
// with other ones the same server answers.
func (r *row) isUnrouted() bool {
	audit := r.rec.Last().Audit
	if r.Failed.Step != snapshot.StepNoAnswer || !r.Given.IsValid() || audit == nil || !deadSources(r.all)[r.Given] {
		return false
	}
	_, own := audit.Near(r.Given)
	return !own && slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.Service == r.Service && o.Protocol == r.Protocol && o.Out == r.Out && o.Given.IsValid() && o.Given != r.Given && o.Steps[snapshot.StepAnswered] > 0
	})
}

// isElsewhere reports whether a rule gives a source that no interface of this host has, and nothing shows that the
// network beyond leads it here: nothing is answered that left the same way with an address beside it.
func (r *row) isElsewhere() bool {
	audit := r.rec.Last().Audit
	if r.Failed.Step != snapshot.StepNoAnswer || !r.Given.IsValid() || r.Target.IsValid() || r.place.Translates == nil || audit == nil {
		return false
	}
	bits := 24
	if r.Given.Is6() {
		bits = 64
	}
	beside, err := r.Given.Prefix(bits)
	if _, own := audit.Near(r.Given); own || err != nil {
		return false
	}
	return !slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.Out == r.Out && o.Given.IsValid() && beside.Contains(o.Given) && o.Steps[snapshot.StepAnswered] > 0
	})
}

// giveSource is how the network of the client gets the address of the interface that it leaves by: where a rule
// gives it another one, a rule after that is not reached.
func (r *row) giveSource() Remedy {
	client, bits := r.Failed.Client.Addr(), 24
	switch {
	case r.In == "":
		client, bits = leavesAs(r.FollowedService), client.BitLen()
	case client.Is6():
		bits = 64
	}
	network, err := client.Prefix(bits)
	if err != nil {
		network = netip.PrefixFrom(client, client.BitLen())
	}
	source := advice("service-source", r.Out, where(r.rec), network)
	if r.Given.IsValid() {
		source = advice("service-source-given", r.Out, where(r.rec), network)
	}
	if client.Is6() {
		source.Title = strings.NewReplacer("iptables", "ip6tables", "ip saddr", "ip6 saddr").Replace(source.Title)
	}
	return source
}

// keepsSource is the rule that new connections get another source by than that of another uplink, which these keep;
// nil where that is not certain.
func (r *row) keepsSource() *snapshot.NATRule {
	if r.isRefused() || !r.Given.IsValid() || strayed(r.rec, r.FollowedService) == nil {
		return nil
	}
	return newSource(r.rec, r.Protocol, r.Failed.Client.Addr(), r.Service.Addr(), r.Given, r.Out)
}

// nobodyHas is a source of rules that is of a network of this host, where it is asked for and not answered; nil of
// others, which a router may lead here.
func nobodyHas(rec *snapshot.Recording, given netip.Addr) *snapshot.GivenElsewhere {
	a, _ := readAudit(rec)
	if a == nil {
		return nil
	}
	if e := a.elsewhere(given); e != nil && e.OnLink != "" {
		return e
	}
	return nil
}

// unrouted is the advice for a source of rules to which answers do not come back.
func unrouted(rec *snapshot.Recording, given netip.Addr, out string) Remedy {
	if e := nobodyHas(rec, given); e != nil {
		a, _ := readAudit(rec)
		return advice("snat-correct", a.rules.Rules[e.Rule].Place(), a.ownOf(e.OnLink, given), where(rec))
	}
	return advice("service-unrouted", given, cmp.Or(out, "any"), where(rec))
}

// sourceText is what is known of why the source with which it left, or the rule that led it, gets no answer.
func (r *row) sourceText() string {
	switch {
	case r.loops():
		return fmt.Sprintf("; the rule leads what %s itself asks for back to it as well, so that it gets no answer to pass on: %s", r.Target.Addr(), r.ruleText())
	case r.isSilentAmong():
		return fmt.Sprintf("; the hardware address of %[1]s is known on %[2]s, and others on its network answer clients of %[3]s, so that it is not this host: the default route of %[1]s leads elsewhere, or its own firewall drops what is from %[3]s", r.Service.Addr(), r.Out, snapshot.NetworkOf(r.Failed.Client.Addr()))
	case r.isUnrouted() && nobodyHas(r.rec, r.Given) != nil:
		return fmt.Sprintf("; with other addresses of this host's rules others are answered there, and no interface of this host has %s, which hosts on the network of %s ask for (ARP, neighbour discovery)", r.Given, nobodyHas(r.rec, r.Given).OnLink)
	case r.isUnrouted():
		return fmt.Sprintf("; with other addresses of this host's rules others are answered there, and %s is no address of this host: answers come only if the network beyond leads it here", r.Given)
	case r.hasDeadLine():
		return fmt.Sprintf("; the same destination answers what leaves by %s, and nothing at all that leaves by %s is answered: that line is dead beyond this host, though its next hop may still answer", r.answersBy(), r.Out)
	case r.movesPort() != nil:
		n := r.movesPort()
		return fmt.Sprintf("; a rule changes its source port from %d to %d, %s: %s, and a peer that speaks from port %d itself may take no other one", r.Failed.Client.Port(), r.Failed.LeftFrom.Port(), n.Place(), n.Text, r.Failed.Client.Port())
	case r.isElsewhere():
		return fmt.Sprintf("; no interface of this host has %s, which is given by %s: answers come only if the network beyond leads it here", r.Given, r.place.Translates.Text)
	case r.isMasqueradedInside():
		return fmt.Sprintf("; %s is given to what leaves by %s, a way to a private network, by %s: the far end may not take that address, or have no way back to it", r.Given, r.Out, r.place.Translates.Text)
	}
	return ""
}

// movesPort is the rule that gives another source port to what has the same port at both ends, as peers of IKE
// and L2TP have, and gets no answer; nil where there is none, or others that got another port are answered. The
// kernel keeps the port where no rule asks for another one and it is free.
func (r *row) movesPort() *snapshot.NATRule {
	f, rules := r.Failed, r.rec.Last().NATRules
	if r.Protocol != "udp" || f.Step != snapshot.StepNoAnswer || r.Target.IsValid() || rules == nil ||
		f.Client.Port() != r.Service.Port() || f.LeftTo.Port() != r.Service.Port() || f.LeftFrom.Port() == f.Client.Port() || r.answered > 0 {
		return nil
	}
	for i := range rules.Rules {
		n := &rules.Rules[i]
		if (n.Protocol == "" || n.Protocol == r.Protocol) && mayTranslate(n, f.Client.Addr(), r.Service.Addr(), r.Out) {
			if n.Random || n.FullyRandom || n.PortsFromMap || n.FirstPort != 0 {
				return n
			}
			return nil
		}
	}
	return nil
}

func (r *row) toClient() Remedy {
	if r.Failed.AnswerOut != "" {
		return advice("service-uplinks", r.In, where(r.rec))
	}
	return advice("service-client", r.Failed.Client.Addr(), r.In, where(r.rec))
}

// loops reports whether a rule leads what the target itself asks for back to it: such as its own questions to
// the servers that it takes its answers from. A server that asks for the address by which it is published does
// not mean another host.
func (r *row) loops() bool {
	target, audit := r.Target.Addr(), r.rec.Last().Audit
	if r.Failed.Step != snapshot.StepNoAnswer || !target.IsValid() || r.In != r.Out || audit == nil {
		return false
	}
	if _, own := audit.Near(r.Service.Addr()); own {
		return false
	}
	if r.Failed.Client.Addr() == target {
		return true
	}
	flows := r.rec.Flows
	return flows != nil && flows.Services != nil && slices.ContainsFunc(flows.Services.All, func(s snapshot.Service) bool {
		return s.Protocol == r.Protocol && s.Service == r.Service && s.Target == r.Target && slices.Contains(s.Clients, target)
	})
}

// ruleText is the rule that leads to the target.
func (r *row) ruleText() string {
	if rules := r.rec.Last().NATRules; rules != nil {
		for i := range rules.Rules {
			if n := &rules.Rules[i]; n.Hook == "prerouting" && mayMatch(n, r.Protocol, r.Service) && mayLead(n, r.Target) {
				return n.Place() + ": " + n.Text
			}
		}
	}
	return "the rule that leads there"
}

// isReversed reports whether rp_filter drops it, and reversedAt is the interface where.
func (r *row) isReversed() bool { return r.place.ReversePath && !r.isBeyondHere() }

// comesByOtherUplink reports whether rp_filter drops what comes in by an uplink whose senders' answers would leave by
// another one: a loose filter alone lets it in, and its answers out by the wrong uplink.
func (r *row) comesByOtherUplink() bool {
	last := r.rec.Last()
	if !r.isReversed() || r.Failed.Step != snapshot.StepLostHere || last.Audit == nil {
		return false
	}
	if at, _ := last.Audit.Near(r.Failed.Client.Addr()); at != nil {
		return false // the sender is on a network of this host
	}
	return slices.ContainsFunc(last.ReversePaths, func(p snapshot.ReversePath) bool { return p.Default && p.Interface == r.In })
}

func (r *row) reversedAt() string {
	if r.Failed.Step == snapshot.StepAnswerLost {
		return cmp.Or(r.Failed.AnswerIn, r.Out)
	}
	return r.In
}

// isSpared reports whether a rule keeps its source from a translation without which no answer comes back.
func (r *row) isSpared() bool {
	return r.Failed.Step == snapshot.StepNoAnswer && r.place.Spares != nil && !r.Given.IsValid() && r.Failed.Client.Addr().IsPrivate() && !r.answeredAlike()
}

// isExempt reports whether it is not tracked, and so left untranslated.
func (r *row) isExempt() bool {
	return r.Failed.Step == snapshot.StepNoAnswer && len(r.place.Exempts) > 0 && !r.Given.IsValid() && r.Failed.Client.Addr().IsPrivate() && !r.answeredAlike()
}

// track takes back what keeps the tracker from it, and from its answers.
func (r *row) track() Remedy {
	var how []string
	for _, by := range r.place.Exempts {
		how = once(how, deletes(by)+keeper(by))
	}
	return advice("notrack-delete", strings.Join(how, "; and for the answers "), where(r.rec))
}

// answeredAlike reports whether others that leave by the same interface with the same source, or with their own
// one, are answered: it is not the source then.
func (r *row) answeredAlike() bool {
	return slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.Out == r.Out && o.In == r.In && o.Given == r.Given && !o.Target.IsValid() && o.Service.Addr().IsPrivate() == r.Service.Addr().IsPrivate() && o.Steps[snapshot.StepAnswered] > 0
	})
}

// isMasqueradedInside reports whether the source is translated on its way to a private network that is not
// beyond a default route, such as one behind a tunnel, whose far end may not take the address.
func (r *row) isMasqueradedInside() bool {
	return r.Failed.Step == snapshot.StepNoAnswer && r.place.Translates != nil && r.Given.IsValid() && !r.Target.IsValid() && r.In != r.Out &&
		r.Service.Addr().IsPrivate() && r.Failed.Client.Addr().IsPrivate() && !r.place.Uplink && r.place.NextHop != r.Service.Addr() && !r.answeredAlike()
}

// isRefused reports whether the server refused it: its answer came back, so that the source is not at fault.
func (r *row) isRefused() bool {
	return r.Failed.Step == snapshot.StepRefused && r.Failed.LeftTo.Port() != 0
}

// isRejectedBeyond reports whether an ICMP error of a filter on the server, or of one before it, came back.
func (r *row) isRejectedBeyond() bool {
	return r.Failed.Step == snapshot.StepUnreachable && isProhibited(r.FollowedService) && r.Failed.LeftTo.Port() != 0
}

// isSilentNear reports whether the server is on a network of this host, which learned its hardware address.
func (r *row) isSilentNear() bool {
	return r.Failed.Step == snapshot.StepNoAnswer && r.place.Neighbour == "" && r.place.NextHop.IsValid() && r.place.NextHop == r.Failed.LeftTo.Addr() && r.Failed.LeftTo.Port() != 0
}

// isSilentAmong reports whether one server of a network inside answers none of what another network asks it, while
// others beside it answer the same source.
func (r *row) isSilentAmong() bool {
	return r.In != "" && r.In != r.Out && r.isSilentNear() && r.isAmongInside() && !r.Given.IsValid() && r.answered == 0 &&
		r.attempts() >= fewestBlocked && !r.goesOn() && r.answersNear()
}

// culprits are the places that drop it, or may: where this host answers, those that do, of these the one that
// surely does, or those of which no counter says that they dropped nothing.
func culprits(s *snapshot.FollowedService, f *snapshot.Filter) []snapshot.RulePlace {
	if f == nil {
		return nil
	}
	all := f.Drops
	narrow := func(is func(snapshot.RulePlace) bool) {
		if some := slices.DeleteFunc(slices.Clone(all), func(p snapshot.RulePlace) bool { return !is(p) }); len(some) > 0 {
			all = some
		}
	}
	if s.Steps[snapshot.StepRefusedHere]+s.Steps[snapshot.StepUnreachableHere] > 0 {
		narrow(func(p snapshot.RulePlace) bool { return p.Rejects })
	}
	narrow(func(p snapshot.RulePlace) bool { return !p.Counted || p.Packets > 0 })
	if !f.Passes && s.Mixed == 0 && s.Failed.Step != snapshot.StepPartLost {
		narrow(func(p snapshot.RulePlace) bool { return !p.Unsure && !p.Part })
		all = all[:min(len(all), 1)]
	}
	return all
}

// culprit is the first of them; nil where none is known.
func (r *row) culprit() *snapshot.RulePlace {
	if all := culprits(r.FollowedService, r.filter); len(all) > 0 && r.Failed.Step.Here() {
		return &all[0]
	}
	return nil
}

// accept is how the program that keeps the rule lets pass what it drops.
func (r *row) accept() Remedy {
	p := *r.culprit()
	if p.Limits {
		return limited(p, r.rec)
	}
	if list := r.allowList(); list != "" {
		return advice("source-allow", r.Failed.Client.Addr(), list, where(r.rec))
	}
	if r.Failed.Step.Later() || isEarly(p) {
		return restrict(p, r.rec)
	}
	if bridge := r.closedBridge(p); bridge != "" {
		return acceptBridged(p, bridge, r.rec)
	}
	answers := r.Failed.Step == snapshot.StepAnswerLost
	a := accepted{protocol: r.Protocol, to: r.becomes(), chain: "FORWARD"}
	if !r.Bridged {
		a.seen = r.In
	}
	switch {
	case r.place.Local:
		a.chain = "INPUT"
	case r.In == "":
		a.chain = "OUTPUT"
	case !r.isPublished() && !r.Bridged:
		a.in = r.In
	}
	switch {
	case answers:
		return acceptAnswers(p, a.chain, r.rec)
	case r.isPublished():
		return advice("filter-accept", followedName(r.FollowedService), bothWays(a.how(p, p.Owner), p, r.place.AnswerFilter, ""), where(r.rec))
	default:
		return advice("filter-accept-way", followedName(r.FollowedService), bothWays(a.how(p, p.Owner), p, r.place.AnswerFilter, ""), where(r.rec))
	}
}

// closedBridge is the bridge whose ports send each other nothing that the place lets pass; empty where that is not so,
// or of several. A rule for one destination does not help there: its answers are dropped as well.
func (r *row) closedBridge(p snapshot.RulePlace) (bridge string) {
	ways := r.rec.Last().Ways
	if !r.Bridged || ways == nil || !hasBridgeRule(p) {
		return ""
	}
	for _, way := range ways.All {
		f := way.Filter
		if way.Kind != snapshot.WayBridge || way.Out == "" || f == nil || f.Passes || len(f.Drops) == 0 || f.Drops[0].Text != p.Text {
			continue
		}
		if bridge != "" && bridge != way.In {
			return ""
		}
		bridge = way.In
	}
	return bridge
}

// hasBridgeRule reports whether a rule before the place can accept all that a bridge passes on.
func hasBridgeRule(p snapshot.RulePlace) bool {
	return !strings.HasPrefix(p.Text, "bridge ") && !isEarly(p) && p.Owner != "firewalld"
}

// acceptBridged is the rule that accepts all that a bridge passes on, in both directions.
func acceptBridged(p snapshot.RulePlace, bridge string, rec *snapshot.Recording) Remedy {
	return advice("bridge-accept", acceptRule(p, "FORWARD", fmt.Sprintf("-i %[1]s -o %[1]s", bridge), fmt.Sprintf("iifname %[1]s oifname %[1]s", bridge)), where(rec))
}

// lacksEntry reports whether data of a connection is dropped by a rule for what is of none, as no other rule would drop it.
func (r *row) lacksEntry() bool {
	p := r.place
	return r.Failed.Step == snapshot.StepDataLost && p.NoEntryFilter != nil && len(p.NoEntryFilter.Drops) > 0 && p.Filter != nil && len(p.Filter.Drops) == 0 && slices.ContainsFunc(droppedIn(r.rec, r.FollowedService), isRule)
}

// pausesShort reports whether this host was seen to forget connections to the service that are open, for a timeout
// that is short: to accept what is INVALID would not mend them.
func (r *row) pausesShort() bool {
	seconds, known := r.rec.Last().Sysctls.Int(establishedTimeout)
	flows := r.rec.Flows
	return r.lacksEntry() && r.Protocol == "tcp" && known && seconds < shortPause && flows != nil && flows.Services != nil &&
		slices.ContainsFunc(flows.Services.All, func(s snapshot.Service) bool {
			return s.Protocol == r.Protocol && s.Expired >= fewestFailing && (s.Service == r.Service || s.Kind == snapshot.ServiceSNAT && s.Given == r.Given)
		})
}

// isOfOneSided reports whether others to the same service show that answers do not pass this host: it is said of those.
func (r *row) isOfOneSided() bool {
	return !r.Failed.OneSided && r.place.NoEntryFilter != nil && r.Failed.Step == snapshot.StepDataLost && slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.Service == r.Service && o.In == r.In && o.Failed != nil && o.Failed.OneSided && o.Failing() >= fewestFailing
	})
}

// acceptOneSide is how connections of which this host sees one direction alone can pass.
func (r *row) acceptOneSide() Remedy {
	p := *r.culprit()
	a := accepted{protocol: r.Protocol, in: r.In, to: netip.AddrPortFrom(r.Service.Addr(), 0), chain: "FORWARD"}
	sender := "the clients"
	if r.Failed.Step == snapshot.StepAnswerLost {
		a.in, a.to = r.Failed.AnswerIn, netip.AddrPort{}
		a.from = netip.PrefixFrom(r.Service.Addr(), r.Service.Addr().BitLen())
		sender = r.Service.Addr().String()
	}
	how := a.how(p, p.Owner)
	if isEarly(p) {
		how = p.Text + keeper(p)
	}
	if r.place.Out != a.in || !r.place.NextHop.IsValid() {
		return advice("service-one-sided-far", r.Service.Addr(), how, where(r.rec))
	}
	to := r.Service.Addr()
	if r.Failed.Step == snapshot.StepAnswerLost {
		to = r.Failed.Client.Addr()
	}
	return advice("service-one-sided", to, r.place.NextHop, how, where(r.rec), sender)
}

// limited is the advice for a limit: what is accepted before it has none.
func limited(p snapshot.RulePlace, rec *snapshot.Recording) Remedy {
	limit := cmp.Or(p.Limit, p.Text)
	text := limit + keeper(p)
	if isFor(limit, "(quota)") {
		text += "; a quota that is used up drops all until its rule is loaded anew, or it is reset"
	}
	return advice("limit-raise", text+shared(limit), where(rec))
}

// shared says so where a limit has one count for all clients of a destination, which is often meant to be for each.
func shared(rule string) string {
	switch {
	case isFor(rule, "(hashlimit per destination"):
		return "; it has one count for each destination, which all of its clients share: '--hashlimit-mode srcip' counts those of each client"
	case strings.HasPrefix(rule, "iptables") && isFor(rule, "(limit)"):
		return "; it has one count for all clients together: '-m hashlimit --hashlimit-mode srcip' counts those of each client"
	case isFor(rule, "(connlimit per destination"):
		return "; it counts the connections of each destination, of all its clients together: '--connlimit-saddr' counts those of each client"
	}
	return ""
}

// isLimited reports whether a limit that is not for one port drops all that clients behind this host send, as far as
// it was seen: none is meant to.
func (r *row) isLimited() bool {
	p := r.culprit()
	return p != nil && p.Limits && r.answered == 0 && r.attempts() >= fewestBlocked && !r.fromOutside() && r.In != "" && !isFor(p.Text, "dport")
}

// becomes is the destination that filters see: what rules make of it, where that is known.
func (r *row) becomes() netip.AddrPort {
	last := r.rec.Last()
	switch {
	case r.place.To.IsValid():
		return r.place.To
	case r.Target.IsValid():
		return r.Target
	case droppedTo(r.rec, r.FollowedService).IsValid():
		return droppedTo(r.rec, r.FollowedService)
	case r.Failed.Place != nil || last.DNATTargets == nil || last.NATRules == nil:
		return r.Service
	}
	for i := range last.DNATTargets.Targets {
		t := &last.DNATTargets.Targets[i]
		if t.Address.IsValid() && t.Rule >= 0 && t.Rule < len(last.NATRules.Rules) && mayMatch(&last.NATRules.Rules[t.Rule], r.Protocol, r.Service) {
			return netip.AddrPortFrom(t.Address, cmp.Or(t.Port, r.Service.Port()))
		}
	}
	return r.Service
}

// accepted is what a rule is to let pass: what comes from a network and goes to an end, each of any address where
// that is not valid, by interfaces where they are set. It was seen to come in by seen, which is for programs that
// open a port on all interfaces otherwise.
type accepted struct {
	protocol      string
	from          netip.Prefix
	to            netip.AddrPort
	in, out, seen string
	chain         string
	// answers is true where it is all that belongs to connections.
	answers bool
}

// how is the rule in the words of the program that keeps the place that drops it.
func (a accepted) how(p snapshot.RulePlace, owner string) string {
	p.Owner = owner
	switch {
	case isEarly(p) || a.answers && owner == "firewalld":
		return "restrict what the rule drops there: " + p.Text + keeper(p)
	case a.answers:
		return acceptRule(p, a.chain, "-m conntrack --ctstate RELATED,ESTABLISHED", "ct state related,established")
	}
	to, port := a.to.Addr(), a.to.Port()
	v6 := to.Is6() || a.from.Addr().Is6()
	family := map[bool]string{true: "ip6", false: "ip"}[v6]
	var iptables, nft []string
	add := func(is bool, one, other string) {
		if is {
			iptables, nft = append(iptables, one), append(nft, other)
		}
	}
	add(a.in != "", "-i "+a.in, "iifname "+a.in)
	add(a.from.IsValid(), "-s "+a.from.String(), family+" saddr "+a.from.String())
	add(a.out != "", "-o "+a.out, "oifname "+a.out)
	if a.protocol != "" {
		iptables = append(iptables, "-p "+a.protocol)
	}
	add(to.IsValid(), "-d "+to.String(), family+" daddr "+to.String())
	if port != 0 {
		add(true, fmt.Sprintf("--dport %d", port), fmt.Sprintf("%s dport %d", a.protocol, port))
	} else if a.protocol != "" {
		nft = append(nft, "meta l4proto "+a.protocol)
	}
	switch {
	case owner == "ufw" && a.protocol != "icmp" && a.protocol != "icmpv6":
		return a.ufw()
	case owner == "firewalld":
		return a.firewalld(v6)
	}
	return acceptRule(p, a.chain, strings.Join(iptables, " "), strings.Join(nft, " "))
}

func (a accepted) ufw() string {
	words := "ufw prepend allow"
	if a.chain == "FORWARD" {
		words = "ufw route prepend allow"
	}
	in := cmp.Or(a.in, a.seen)
	if in != "" && a.chain != "OUTPUT" {
		words += " in on " + in
	}
	switch {
	case a.out != "":
		words += " out on " + a.out
	case a.chain == "OUTPUT":
		words += " out"
	}
	if a.protocol != "" {
		words += " proto " + a.protocol
	}
	if a.from.IsValid() {
		words += " from " + a.from.String()
	}
	words += " to any"
	if a.to.Addr().IsValid() {
		words = strings.TrimSuffix(words, "any") + a.to.Addr().String()
	}
	if a.to.Port() != 0 {
		words += fmt.Sprintf(" port %d", a.to.Port())
	}
	if in == "" && a.chain != "OUTPUT" {
		words += " (on all interfaces)"
	}
	return words
}

func (a accepted) firewalld(v6 bool) string {
	rule := "rule"
	if a.from.IsValid() || a.to.Addr().IsValid() {
		rule += " family=" + map[bool]string{true: "ipv6", false: "ipv4"}[v6]
	}
	if a.from.IsValid() {
		rule += " source address=" + a.from.String()
	}
	if a.to.Addr().IsValid() {
		rule += " destination address=" + a.to.Addr().String()
	}
	switch {
	case a.to.Port() != 0:
		rule += fmt.Sprintf(" port port=%d protocol=%s", a.to.Port(), a.protocol)
	case a.protocol != "":
		rule += " protocol value=" + a.protocol
	}
	rule = "--add-rich-rule '" + rule + " accept'"
	if a.chain == "INPUT" {
		return "firewall-cmd --permanent --zone ZONE " + rule + "; firewall-cmd --reload"
	}
	from := "ZONE"
	if a.chain == "OUTPUT" {
		from = "HOST"
	}
	const policy = "; firewall-cmd --permanent --policy NAME "
	return "firewall-cmd --permanent --new-policy NAME" + policy + "--add-ingress-zone " + from + policy + "--add-egress-zone ZONE" + policy + rule + "; firewall-cmd --reload"
}
