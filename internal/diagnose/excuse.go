package diagnose

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// excuseListed is no fault; sources-listed reports it.
const excuseListed = "a list of the sources that are let in, or kept out"

// excuses are when a service that fails is no fault of this host, and nothing that users feel. What has
// none is reported.
var excuses = []struct {
	why string
	is  func(*row) bool
}{
	{"another namespace sends by an interface of this one", (*row).isForeign},
	{"datagrams that are not meant to be answered", (*row).isOneWay},
	{"one client tries many addresses or ports", (*row).isScan},
	{"frames for another host that a bridge has no port for", (*row).isFlooded},
	{"it leaves encrypted, and is not seen any more", (*row).isEncrypted},
	{"answers to what did not pass this host, and what loses them is not known", (*row).isUnaskedAnswer},
	{"a closed port of this host", (*row).isClosedPort},
	{"unknown place of a service that no rule is for", (*row).isUnknown},
	{"a firewall keeps out what is not published", (*row).isKeptOut},
	{excuseListed, (*row).isListed},
	{"sources that come in where their network is not are forged, or stray", (*row).isForged},
	{"a firewall limits access to this host", (*row).isKeptFromHost},
	{"a firewall limits what may leave", (*row).isNotLetOut},
	{"a firewall keeps networks apart", (*row).isKeptApart},
	{"a firewall drops this port where nothing is translated", (*row).isDroppedPort},
	{"a server beyond that is dead among others, or refuses", (*row).isBeyond},
	{"a route that refuses, which is for what few ask", (*row).isRefusedByRoute},
	{"a host outside, on this host's own link, that is dead", (*row).isDeadNeighbour},
	{"this host has no route of that family to anywhere", (*row).hasNoUplink},
}

// excuse is empty where a row is to be reported.
func (r *row) excuse() string {
	for _, e := range excuses {
		if e.is(r) {
			return e.why
		}
	}
	return ""
}

// isOneWay: also what arrives at a socket of this host does not leave.
func (r *row) isOneWay() bool {
	if r.Protocol == "tcp" || r.Protocol == "icmp" || r.Protocol == "icmpv6" {
		return false
	}
	local := r.place.Local && len(droppedIn(r.rec, r.FollowedService)) == 0 && !r.dropsCertainly()
	published := r.Target.IsValid() || r.Given.IsValid()
	return r.Protocol == "udp" && nat.IsOneWay(r.Service.Port()) && !r.Failed.Step.Here() ||
		r.Failed.Step == snapshot.StepLostHere && local ||
		r.Failed.Step == snapshot.StepNoAnswer && !published && !(r.Protocol == "udp" && nat.AnswersAlways(r.Service.Port()))
}

// manyAsked is how many services without an answer of one client are a scan.
const manyAsked = 5

// isScan: what all goes to one uplink that is dead is none.
func (r *row) isScan() bool {
	if r.isPublished() || r.Given.IsValid() || !r.fromOutside() && r.Failed.Step.Here() && r.place.Neighbour == "" {
		return false
	}
	asked := map[netip.AddrPort]bool{}
	for i := range r.all {
		if o := &r.all[i]; o.Failed != nil && o.Failed.Client.Addr() == r.Failed.Client.Addr() && o.Steps[snapshot.StepAnswered] == 0 {
			asked[o.Service] = true
		}
	}
	return len(asked) >= manyAsked
}

func (r *row) isForeign() bool { return r.place.Foreign }

// isFlooded: a switch sends frames to all where it does not know the port of a host.
func (r *row) isFlooded() bool { return r.Bridged && (!r.Failed.Step.Here() || !r.byRule()) }

func (r *row) isEncrypted() bool {
	return r.place.Encrypted && r.Failed.Step == snapshot.StepLostHere && !r.byRule() && len(droppedIn(r.rec, r.FollowedService)) == 0 && !r.isPublished()
}

// isUnaskedAnswer: such as those to forged sources, where no rule is known that drops them.
func (r *row) isUnaskedAnswer() bool {
	return r.Failed.OneSided && r.Failed.Step == snapshot.StepAnswerLost && (r.culprit() == nil || r.place.Local)
}

// isClosedPort: what a program of this host ends is its own affair.
func (r *row) isClosedPort() bool {
	if r.place.Local && r.Failed.Step.Later() && !r.isPublished() {
		return true
	}
	return r.place.Local && isRefusal(r.Failed.Step) && !r.isPublished() && !r.byRule()
}

func (r *row) isUnknown() bool {
	return r.Failed.Place == nil && !r.isPublished() && !r.Given.IsValid() && !r.goesOutBare()
}

// fromOutside reports whether it came in by an uplink: that of a default route, or one by which sources are
// translated.
func (r *row) fromOutside() bool { return r.place.InUplink || r.isUplink(r.In) }

func (r *row) isUplink(name string) bool {
	rules := r.rec.Last().NATRules
	return name != "" && rules != nil && slices.ContainsFunc(rules.Rules, func(n snapshot.NATRule) bool { return n.TranslatesSource() && n.OutInterface == name })
}

// byRule reports whether rules drop or reject it here, as far as is known.
func (r *row) byRule() bool {
	return r.Failed.Step.Here() && r.filter != nil && len(r.filter.Drops) > 0 || slices.ContainsFunc(droppedIn(r.rec, r.FollowedService), isRule)
}

// refusedByRule reports whether a refusal may be one of a rule: it is none of a closed port.
func (r *row) refusedByRule() bool { return r.byRule() || r.Failed.Place == nil }

func (r *row) dropsCertainly() bool { return r.filter != nil && !r.filter.Passes }

// dropsSurely is the rule that surely drops it; empty where none does.
func (r *row) dropsSurely() string {
	if !r.dropsCertainly() || len(r.filter.Drops) == 0 {
		return ""
	}
	return r.filter.Drops[len(r.filter.Drops)-1].Text
}

// accepts is the rule that would let it pass, below the one that drops it, or with the destination that it had.
func (r *row) accepts() *snapshot.RulePlace {
	if r.filter == nil {
		return nil
	}
	return cmp.Or(r.filter.Accepts, r.filter.AcceptsBefore)
}

// isFor reports whether a rule has one of these words, such as of a condition.
func isFor(rule string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(rule, w) })
}

func (r *row) isKeptOut() bool {
	return !r.isPublished() && !r.Failed.Step.Later() && r.Failed.Step.Here() && r.fromOutside() && r.byRule() && r.accepts() == nil
}

// isForged: the reverse path filter is there to drop these.
func (r *row) isForged() bool {
	audit := r.rec.Last().Audit
	if audit == nil || r.Failed.Step != snapshot.StepLostHere || !r.place.ReversePath {
		return false
	}
	at, _ := audit.Near(r.Failed.Client.Addr())
	if !r.place.InUplink {
		return (at == nil || at.Name != r.In) && r.isStray(audit.Interface(r.In))
	}
	return at != nil && at.Name != r.In
}

// firstTTLs are those with which systems send: 64 (RFC 1700), 128 (Windows) and 255.
var firstTTLs = []uint8{64, 128, 255}

// isStray reports whether a host on the link itself, from which no router took the packet, sends with an address of
// another one of its interfaces, such as that of a VPN, while the hosts that have one of the link's are answered. What
// a router sends on has a TTL of one less or lower: there a route may be missing. On a link of two ends, such as a
// tunnel, it may be so without a router.
func (r *row) isStray(in *snapshot.Interface) bool {
	if in == nil || !slices.Contains(firstTTLs, r.Failed.TTL) {
		return false
	}
	onLink := func(address netip.Addr) bool {
		return slices.ContainsFunc(in.Addresses, func(p netip.Prefix) bool { return p.Addr() != address && p.Bits() < 31 && p.Contains(address) })
	}
	return slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.In == r.In && o.Steps[snapshot.StepAnswered] > 0 && (o.Failed == nil || onLink(o.Failed.Client.Addr()))
	}) && !onLink(r.Failed.Client.Addr()) && slices.ContainsFunc(in.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() < 31 })
}

// sourceList matches a rule with a list of sources, of nftables, ipset or xt_recent. A list of ports or destinations
// alone does not match.
var sourceList = regexp.MustCompile(`saddr( \. [a-z0-9]+ [a-z0-9]+)*( !=)? (@|\{ …)|match-set src|\(recent\)`)

// guessedPorts are those of logins that strangers try without end: SSH, Telnet, RDP and VNC.
var guessedPorts = []uint16{22, 23, 3389, 5900}

// keepsList reports whether what drops it here, or may, is a list of sources.
func (r *row) keepsList() bool {
	isList := func(p snapshot.RulePlace) bool {
		if isFor(p.Text, "(recent --hitcount") { // it counts what asks too often, which is an attack where passwords are guessed
			return slices.Contains(guessedPorts, r.Service.Port())
		}
		return sourceList.MatchString(p.Text) && !isFor(p.Text, "of most addresses")
	}
	switch {
	case r.filter == nil || len(r.filter.Drops) == 0 || r.Failed.Step.Later() || !r.Failed.Step.Here() || r.accepts() != nil:
		return false
	case r.dropsCertainly():
		return isList(r.filter.Drops[len(r.filter.Drops)-1])
	}
	return !slices.ContainsFunc(r.filter.Drops, func(p snapshot.RulePlace) bool { return !isList(p) })
}

// Rules that let in the sources of a list, or one, and those that drop all but such.
var (
	letsSources   = regexp.MustCompile(` -s |saddr|match-set src|\(recent\)`)
	dropsAllOther = regexp.MustCompile(`! -s |saddr( \. [a-z0-9]+ [a-z0-9]+)* !=|! match-set`)
)

// allowList is the rule of which a source that is kept out is no part, while others are let in; empty where none is
// known.
func (r *row) allowList() string {
	p := r.culprit()
	switch {
	case p == nil || r.answered == 0 || r.Mixed > 0 || r.Failed.Step.Later() || r.Failed.Step == snapshot.StepAnswerLost:
		return ""
	case dropsAllOther.MatchString(p.Text):
		return p.Text + keeper(*p)
	}
	if a := r.filter.AcceptsOthers; a != nil && letsSources.MatchString(a.Text) && !isFor(p.Text, " -s ", "saddr", "match-set") {
		return a.Text + keeper(*a)
	}
	return ""
}

// isListed: others are answered, and of the same source none; a rule for one source alone is no list.
func (r *row) isListed() bool {
	if r.keepsList() && r.Mixed == 0 {
		return true
	}
	if !r.bySource() {
		return false
	}
	rule := r.dropsSurely()
	lets := isFor(rule, "! -s ", "saddr !=") || !isFor(rule, " -s ", "saddr", "match-set")
	return lets || r.Failing() < fewestBlocked // few of those that a list keeps out
}

// bySource reports whether a rule drops all connections of some sources from outside, and others pass.
func (r *row) bySource() bool {
	// A list of recent addresses (xt_recent) cannot be read by netlink: what it does to one is not sure.
	recent := r.filter != nil && len(r.filter.Drops) > 0 && isFor(r.filter.Drops[0].Text, "(recent")
	return (r.dropsSurely() != "" || recent) && r.answered > 0 && r.Mixed == 0 && !r.Failed.Step.Later() && r.accepts() == nil && r.Failed.Step.Here() && (r.fromOutside() || r.servesBeside())
}

// servesBeside reports whether public clients behind the same interface are answered by the same service: they differ
// from one that is not by their source only.
func (r *row) servesBeside() bool {
	return !r.Failed.Client.Addr().IsPrivate() && slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return o.Service == r.Service && o.Protocol == r.Protocol && o.In == r.In && o.Steps[snapshot.StepAnswered] > 0
	})
}

// isRefusedByRoute: routes of type blackhole, prohibit and unreachable are there for what strangers ask, for
// private networks that are nowhere, and for addresses that sources are given, which would go round in circles
// between this host and the next router.
func (r *row) isRefusedByRoute() bool {
	if r.isPublished() || !r.Failed.Step.Here() || r.Failed.Step == snapshot.StepAnswerLost || r.Failed.Routes == nil || r.Failed.Routes.Question == nil {
		return false
	}
	refused := refusingRoutes[r.Failed.Routes.Question.Error] != ""
	return refused && (r.fromOutside() || r.attempts() < fewestBlocked || r.isGiven())
}

// isGiven reports whether a rule gives sources the address that is asked for.
func (r *row) isGiven() bool {
	rules, asked := r.rec.Last().NATRules, r.Service.Addr()
	return rules != nil && slices.ContainsFunc(rules.Rules, func(n snapshot.NATRule) bool {
		return n.Kind == snapshot.NATSource && n.First.IsValid() && n.First.Compare(asked) <= 0 && asked.Compare(n.Last) <= 0
	})
}

// isForNetwork reports whether it is what this host does for networks that it serves: DNS, DHCP, NTP.
func (r *row) isForNetwork() bool {
	return slices.Contains([]uint16{53, 67, 123, 547}, r.Service.Port())
}

func (r *row) isKeptFromHost() bool {
	return r.place.Local && !r.isPublished() && !r.Failed.Step.Later() && r.byRule() && r.accepts() == nil && (!r.isForNetwork() || r.fromOutside())
}

// seldomLetOut are ports that firewalls keep from leaving: mail of hosts that are no mail servers, and
// services of local networks.
var seldomLetOut = []uint16{19, 23, 25, 69, 111, 135, 137, 138, 139, 161, 389, 445, 465, 514, 515, 631, 853, 1433, 1900, 2049, 3389, 5353, 5355, 5357, 6881, 9100}

func (r *row) isNotLetOut() bool {
	let := r.answered > 0 || r.Failed.Step == snapshot.StepAnswerLost // out, and what comes back is lost
	if let || r.isPublished() || !r.Failed.Step.Here() || r.Failed.Step.Later() || r.fromOutside() || !r.byRule() || r.place.Local {
		return false
	}
	rule, port := r.dropsSurely(), r.Service.Port()
	if rule != "" && !isFor(rule, "dport", "th dport") {
		return false
	}
	// The others are asked elsewhere, or by TCP in place of QUIC, whatever a rule below would accept.
	quic := r.Protocol == "udp" && port == 443
	elsewhere := slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		same := o.Service.Port() == port && o.In == r.In && o.Steps[snapshot.StepAnswered] > 0
		return same && (port == 53 || quic && o.Protocol == "tcp")
	})
	if r.accepts() != nil {
		return quic && elsewhere
	}
	return slices.Contains(seldomLetOut, port) || elsewhere
}

// isKeptApart: a rule for two networks, or for their addresses, not for a port, or a policy that few meet.
func (r *row) isKeptApart() bool {
	rule := r.dropsSurely()
	if rule == "" || !r.isAmongInside() || r.Failed.Step != snapshot.StepLostHere && !isRefusal(r.Failed.Step) || r.accepts() != nil {
		return false
	}
	apart := isFor(rule, " -i ", " -o ", " -s ", " -d ", "iif", "oif", "saddr", "daddr", "ISOLATION") && !isFor(rule, "dport")
	return apart || !isFor(rule, "dport") && !r.Bridged && r.Failing() < fewestBlocked
}

// isDroppedPort: a rule for the port itself is meant to drop what a router without NAT for it passes on.
func (r *row) isDroppedPort() bool {
	return r.Failed.Step == snapshot.StepLostHere && !r.isPublished() && !r.place.Local && !translatesSources(r.rec, r.place.Out) && isFor(r.dropsSurely(), "dport") && r.accepts() == nil
}

// isAmongInside reports whether it goes from one network inside to another one, and is not translated.
func (r *row) isAmongInside() bool {
	return !r.isPublished() && !r.place.Local && r.Failed.Client.Addr().IsPrivate() && r.Service.Addr().IsPrivate() && !r.place.Uplink && !r.isUplink(r.place.Out)
}

// goesOutBare reports whether private clients ask outside untranslated where others are translated, and
// get no answers.
func (r *row) goesOutBare() bool {
	return r.In != "" && !r.Given.IsValid() && r.rec.Last().NATRules != nil && r.Failed.Client.Addr().IsPrivate() && !r.Service.Addr().IsPrivate() && (translatesSources(r.rec, r.Out) || r.place.Uplink && translatesSources(r.rec, "")) && !r.goesOn()
}

// goesOn reports whether clients that get no answer by this host do not ask again, which TCP does
// after 1 s (RFC 6298, section 2.1): the answer took another way.
func (r *row) goesOn() bool {
	return r.Protocol == "tcp" && r.Failed.Step == snapshot.StepNoAnswer && 2*r.Repeated < r.Steps[snapshot.StepNoAnswer]
}

// isPrivateBeyond reports whether a private destination left by an uplink, where no such address is.
func (r *row) isPrivateBeyond() bool {
	return r.leavesPrivately() && !r.answersNear() && r.attempts() >= fewestFailed
}

// leavesPrivately reports whether a private destination left by an uplink.
func (r *row) leavesPrivately() bool {
	return !r.Target.IsValid() && r.Service.Addr().IsPrivate() && (r.place.Uplink || r.isUplink(r.Out))
}

// answersNear reports whether another host of the destination's network answers the same source, so that both
// networks know each other.
func (r *row) answersNear() bool {
	network := snapshot.NetworkOf(r.Service.Addr())
	return slices.ContainsFunc(r.all, func(o snapshot.FollowedService) bool {
		return network.Contains(o.Service.Addr()) && !o.Target.IsValid() && o.Given == r.Given && o.Steps[snapshot.StepAnswered] > 0
	})
}

// isBeyond: the server of a rule for it is never excused.
func (r *row) isBeyond() bool {
	step := r.Failed.Step
	switch {
	case step.Here() || r.isPublished() || r.isAstray():
		return false
	case step == snapshot.StepDataUnanswered:
		return r.Failed.TooBig == nil && (r.place.ErrorFilter == nil || len(r.place.ErrorFilter.Drops) == 0)
	case step == snapshot.StepReset, step == snapshot.StepDataMissing, step == snapshot.StepClientSilent && r.Given.IsValid():
		return false
	case r.In == "" && strayed(r.rec, r.FollowedService) != nil:
		return false
	case r.Given.IsValid():
		return !deadSources(r.all)[r.Given] && strayed(r.rec, r.FollowedService) == nil && !r.isPrivateBeyond()
	case r.In == "" && !r.isPrivateBeyond(), r.goesOn(), r.leavesPrivately() && r.answersNear():
		return true
	case r.goesOutBare():
		return false
	}
	silent := step == snapshot.StepNoAnswer || step == snapshot.StepUnreachable && r.Steps[snapshot.StepNoAnswer] > 0
	return !silent && step != snapshot.StepOtherSource || r.fromOutside() || r.attempts() < fewestBlocked
}

// hasNoUplink: clients try IPv6 first, and go on with IPv4.
func (r *row) hasNoUplink() bool {
	return r.place.NoRoute != "" && r.Service.Addr().Is6() && !r.isPublished() && isRefusal(r.Failed.Step)
}
