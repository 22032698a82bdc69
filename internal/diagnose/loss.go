package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// longPause is the time in seconds without a packet from which data is said to come after a pause.
const longPause = 1

func pauseText(f *snapshot.FailedConnection) string {
	if f.PauseSeconds < longPause {
		return ""
	}
	return fmt.Sprintf(", after a pause of %.1f s,", f.PauseSeconds)
}

// stepCause says what is known of why a service's connections come no further.
func stepCause(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	f := s.Failed
	left := fmt.Sprintf("it left by %s as %s -> %s", s.Out, f.LeftFrom, f.LeftTo)
	if f.Step.Later() {
		return laterCause(rec, s, left)
	}
	switch f.Step {
	case snapshot.StepLostHere:
		if s.In == "" {
			return "programs of this host open it, and nothing leaves" + lostBy(rec, s)
		}
		return fmt.Sprintf("it came in by %s and did not leave this host", s.In) + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepRefusedHere:
		return "this host refuses it (RST): nothing listens there, or a rule rejects it" + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepUnreachableHere:
		return "this host answers with an ICMP error, " + icmpText(f) + fewErrors(s, snapshot.StepLostHere) + lostBy(rec, s)
	case snapshot.StepNoAnswer:
		return left + noAnswerCause(rec, s)
	case snapshot.StepRefused:
		return left + fmt.Sprintf(", and %s refused it (RST)", f.By)
	case snapshot.StepUnreachable:
		return left + fmt.Sprintf(", and %s answered with an ICMP error, %s: %s", f.By, icmpText(f), beyondText(s)) + fewErrors(s, snapshot.StepNoAnswer)
	case snapshot.StepOtherSource:
		return left + fmt.Sprintf(", and %s answered in its place, which is no answer to the client: the server has several addresses, or something between translates", f.By)
	case snapshot.StepAnswerLost:
		if f.OneSided {
			return fmt.Sprintf("SYN-ACKs of %s come in by %s again and again, and none of their SYNs passes this host: clients reach the server by another way (asymmetric routing), so that connection tracking takes the answers for INVALID, which do not leave this host", s.Service, f.AnswerIn) + lostBy(rec, s)
		}
		return left + fmt.Sprintf(", the answer came in by %s and did not leave this host", cmp.Or(f.AnswerIn, s.Out)) + lostBy(rec, s)
	case snapshot.StepAnswerUntranslated:
		if f.AnswerBridged {
			return left + fmt.Sprintf(", and %s answered the client directly by the bridge, not by this host, which would translate the answer back", f.By) + callsText(rec, s.Target.Addr())
		}
		if timeout := float64(rec.Last().Sysctls.ClassTimeout(s.Protocol + "/unreplied")); s.Protocol == "udp" && timeout > 0 && f.AnswerSeconds >= timeout {
			return fmt.Sprintf("the answer came after %.1f s, when the entry that translates it back was gone: net.netfilter.nf_conntrack_udp_timeout is %.0f s; it left with the address %s", f.AnswerSeconds, timeout, f.By)
		}
		return fmt.Sprintf("the answer left with the address %s, not translated back: the tracker does not see one of both directions (NOTRACK, a zone), or another program answered", f.By)
	case snapshot.StepClientSilent:
		if f.AnswerOut != "" {
			return fmt.Sprintf("the answer left by %s, the question came by %s, and the client asked again: answers follow this host's routes to the client, not the way that the connection came", f.AnswerOut, s.In)
		}
		return fmt.Sprintf("the answer left by %s, and the client asked again: the answer does not reach it", s.In)
	}
	return ""
}

// laterCause is that of connections that were opened.
func laterCause(rec *snapshot.Recording, s *snapshot.FollowedService, left string) string {
	f := s.Failed
	switch f.Step {
	case snapshot.StepDataLost:
		side, in := "the client", s.In
		if f.Answer {
			side, in = "the server", cmp.Or(f.AnswerIn, s.Out)
		}
		if f.OneSided {
			return fmt.Sprintf("the SYN left by %s, and the client went on without an answer by this host: the answers take another way (asymmetric routing), so that connection tracking takes what follows for INVALID, which comes in by %s again and again and does not leave this host", s.Out, cmp.Or(f.DataIn, in)) + lostBy(rec, s)
		}
		return fmt.Sprintf("connections are opened; then%s data of %s comes in by %s again and again and does not leave this host", pauseText(f), side, cmp.Or(f.DataIn, in)) + lostBy(rec, s)
	case snapshot.StepPartLost:
		side := map[bool]string{false: "the client", true: "the server"}[f.Answer]
		return fmt.Sprintf("of the datagrams of %s in one flow %d came in and %d left this host", side, f.DatagramsIn, f.DatagramsOut) + lostBy(rec, s)
	case snapshot.StepDataUnanswered:
		side, out := "the client", s.Out
		if f.Answer {
			side, out = "the server", cmp.Or(f.AnswerOut, s.In)
		}
		return fmt.Sprintf("connections are opened; then data of %s leaves by %s again and again, and is not acknowledged", side, out) + sizeText(s)
	case snapshot.StepDataMissing:
		return left + fmt.Sprintf(", was opened, and what the client sent was not sent again, so that the server has it; the client gave up as nothing more of the answer came to it%s", missingText(s))
	case snapshot.StepResetHere:
		return "connections are opened; then" + pauseText(f) + " this host resets them (RST, in the name of " + f.By.String() + ")" + lostBy(rec, s)
	case snapshot.StepReset:
		return left + fmt.Sprintf(", was opened, and a RST in the name of %s came in place of an answer: the server, or something between, ends it", f.By)
	}
	return ""
}

// missingText says why the server's data may have been lost on its way here.
func missingText(s *snapshot.FollowedService) (text string) {
	f := s.Failed
	if isWithoutData(f) {
		text += " (which a server that is slow, or hangs, does as well)"
	}
	if f.GapBytes > 0 {
		text += fmt.Sprintf(": later bytes of it came in by %s, and the %d before them did not", s.Out, f.GapBytes)
	}
	if isAboveMTU(f) {
		text += fmt.Sprintf("; the SYN and its answer allow an MSS of %d, so that the server sends packets of up to %d bytes, and the MTU of %s is %d: such are lost before they come here where the ICMP errors about their size are", f.MSSBytes, f.MSSBytes+headersOf(f), s.Out, f.LinkMTUBytes)
	} else {
		text += "; large packets are lost beyond this host where a link of the way has a smaller MTU and the ICMP errors about that are lost"
	}
	return text
}

// headersOf are the bytes of IP and TCP that an MSS does not count.
func headersOf(f *snapshot.FailedConnection) int {
	if f.Client.Addr().Is6() {
		return 60
	}
	return 40
}

// isWithoutData reports whether nothing of the server's answer came, as where it is a slow or hanging program.
func isWithoutData(f *snapshot.FailedConnection) bool { return f.GapBytes == 0 && f.PassedBytes == 0 }

// isAboveMTU reports whether the MSS lets the server send larger packets than the link of this host takes.
func isAboveMTU(f *snapshot.FailedConnection) bool {
	return f.LinkMTUBytes > 0 && f.MSSBytes+headersOf(f) > f.LinkMTUBytes
}

// noAnswerCause says what is known of why nothing came back.
func noAnswerCause(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	f := s.Failed
	if f.AstrayIn != "" {
		return fmt.Sprintf("; answers to %s come in by %s, in frames for another hardware address than %[2]s has, and are dropped: the next router there has a wrong neighbour entry for %[1]s, static or of a machine that had the address before, or another machine has the address as well", f.LeftFrom.Addr(), f.AstrayIn)
	}
	if s.In != "" && !s.Target.IsValid() && !s.Given.IsValid() && f.Client.Addr().IsPrivate() {
		if f.Place != nil && len(f.Place.Exempts) > 0 {
			return fmt.Sprintf(", its own private address: it is not tracked, and so not translated (%s), and no answer comes back", f.Place.Exempts[0].Text)
		}
		if r := olderThan(rec, s); r != nil {
			return fmt.Sprintf(", its own private address, though a rule is for it: the entry of its connection is older than the rule, %s: %s, and kept by its packets ('%s' lets it begin anew); no answer comes back", r.Place(), r.Text,
				deleteCommand(rec, entryFilter(s.Protocol, f.Client.Addr(), s.Service)))
		}
		text := ", its own private address: no rule translates it"
		if f.Place != nil && f.Place.NextHop == f.LeftTo.Addr() && s.Service.Addr().IsPrivate() { // nor has to
			text = ", untranslated, as what stays inside mostly is"
		}
		if f.Place != nil && f.Place.Spares != nil {
			text = ", its own private address, which this rule keeps from a translation: " + f.Place.Spares.Text
		}
		return text + ", and no answer comes back"
	}
	if r := forOthersOnly(rec, s); r != nil {
		return fmt.Sprintf(", and nothing came back: the rule for it, %s: %s, is run for what comes in alone, and none of the hook output for what this host sends", r.Place(), r.Text)
	}
	if p := f.Place; p != nil && s.Service.Addr().IsPrivate() && p.Uplink && !s.Target.IsValid() {
		return fmt.Sprintf(", the way to the internet, where no private address is: a route to %s is missing, and nothing came back", s.Service.Addr())
	}
	if (&row{FollowedService: s, rec: rec, all: rec.Followed.Services}).hasDeadLine() {
		return ", and nothing came back"
	}
	return ", and nothing came back: the server is down or drops it, or its answers take another way" + wayOut(rec, s)
}

// forOthersOnly is the rule that translates the destination of what other hosts send, where this host asks for it
// itself and is not translated; nil where there is none.
func forOthersOnly(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.NATRule {
	rules := rec.Last().NATRules
	if rules == nil || rules.TooMany || s.In != "" || s.Target.IsValid() {
		return nil
	}
	for i := range rules.Rules {
		if r := &rules.Rules[i]; r.Hook == "prerouting" && r.ToDestination.IsSingleIP() && r.DestinationPort != 0 && mayMatch(r, s.Protocol, s.Service) {
			return r
		}
	}
	return nil
}

// olderThan is the rule that would translate the source of a flow that goes on untranslated; nil where
// there is none.
func olderThan(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.NATRule {
	rules := rec.Last().NATRules
	if rules == nil || s.Protocol == "tcp" {
		return nil
	}
	for i := range rules.Rules {
		if r := &rules.Rules[i]; mayTranslate(r, s.Failed.Client.Addr(), s.Service.Addr(), s.Out) && (r.Protocol == "" || r.Protocol == s.Protocol) && r.OutInterface == s.Out {
			return r
		}
	}
	return nil
}

// wayOut is what is known of the way by which a connection left that got no answer.
func wayOut(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	if s.In != "" && s.In == s.Out {
		text = "; it left by the interface it came in by"
	}
	if at := strayed(rec, s); at != nil {
		text += fmt.Sprintf("; %s is the address of %s, so that answers come by that network, and that of %s may drop what has a foreign source", leavesAs(s), at.Name, s.Out)
	}
	t := followedTarget(rec, s)
	if t == nil {
		return text
	}
	if t.Interface != "" && t.Interface != s.Out && s.In == s.Out {
		text += fmt.Sprintf(", while the main route to it is by %s: a rule of policy routing or a mark takes another table", t.Interface)
	}
	if t.Neighbour == "PERMANENT" {
		text += fmt.Sprintf("; the neighbour entry of %s is permanent, and may have the hardware address of a card that is gone: 'ip neigh show %[1]s'", t.NextHop)
	}
	return text
}

// followedTarget is what is known of the address that a service became; nil where nothing is.
func followedTarget(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.DNATTarget {
	if rec.Last().DNATTargets == nil || !s.Target.IsValid() {
		return nil
	}
	all := rec.Last().DNATTargets.Targets
	if i := slices.IndexFunc(all, func(t snapshot.DNATTarget) bool { return t.Address == s.Target.Addr() }); i >= 0 {
		return &all[i]
	}
	return nil
}

// otherInterface names the rule for a service that is for what comes in by another interface. A
// bridge's port is left out: the rule may be for the bridge.
func otherInterface(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	last := rec.Last()
	if last.NATRules == nil || last.Audit == nil || last.Audit.Interface(s.In) == nil || s.Failed.Place != nil && !s.Failed.Place.Local {
		return ""
	}
	text := ""
	for i := range last.NATRules.Rules {
		r := &last.NATRules.Rules[i]
		if r.Hook != "prerouting" || r.DestinationPort == 0 || !mayMatch(r, s.Protocol, s.Service) {
			continue
		}
		if r.InInterface == "" || r.InInterface == s.In || strings.ContainsAny(r.InInterface, "*+") {
			return ""
		}
		text = fmt.Sprintf("; the rule for it, %s: %s, is for what comes in by %s", r.Place(), r.Text, r.InInterface)
	}
	return text
}

// droppedIn are the functions that dropped packets of a service, with their reasons, where that was traced:
// those of the example or, of what did not leave, of any of its clients.
func droppedIn(rec *snapshot.Recording, s *snapshot.FollowedService) (by []string) {
	if rec.Drops == nil {
		return nil
	}
	for _, same := range []func(snapshot.DropFlow) bool{
		func(d snapshot.DropFlow) bool { return isOf(d, s.Failed) },
		func(d snapshot.DropFlow) bool { return s.Out == "" && d.Destination == endString(s.Service) },
		func(d snapshot.DropFlow) bool {
			return s.Failed.Step.Here() && s.Out != "" && slices.ContainsFunc([]netip.AddrPort{s.Service, s.Target}, func(e netip.AddrPort) bool {
				return e.IsValid() && (d.Source == endString(e) || d.Destination == endString(e))
			})
		},
	} {
		for _, d := range rec.Drops.Flows {
			if same(d) && isProtocol(d, s.Protocol) {
				by = once(by, strings.TrimSpace(d.Function+" "+d.Reason))
			}
		}
		if len(by) > 0 {
			break
		}
	}
	return by[:min(len(by), mostShown)]
}

// endString is an end as flows of drops have it.
func endString(e netip.AddrPort) string {
	if e.Port() == 0 {
		return e.Addr().String()
	}
	return e.String()
}

// isProtocol reports whether a dropped flow may be of a protocol.
func isProtocol(d snapshot.DropFlow, protocol string) bool {
	ports := func(name string) bool { return name == "tcp" || name == "udp" }
	return d.Protocol == protocol || !ports(d.Protocol) && !ports(protocol)
}

const (
	untranslatedHere = "not translated back, it was taken for this host's own: the tracker has no entry for it, as where it does not see one direction, or in another zone"
	entryGone        = "no entry of the connection was left that translates it, and it was taken for this host's own: net.netfilter.nf_conntrack_tcp_timeout_established is shorter than its pauses, or entries were deleted"
)

// placeMeanings are what drops in a place of the kernel mean at a step, by function and reason.
var placeMeanings = []struct {
	place, meaning string
	steps          []snapshot.Step
}{
	{"ip_forward IP_INHDR", "its TTL was 1 or less: a rule of this host sets it, table mangle, or routers send it in a loop", []snapshot.Step{snapshot.StepLostHere, snapshot.StepAnswerLost}},
	{"tcp_v4_rcv NO_SOCKET", entryGone, []snapshot.Step{snapshot.StepResetHere, snapshot.StepDataLost}},
	{"tcp_v4_rcv NO_SOCKET", untranslatedHere, []snapshot.Step{snapshot.StepAnswerLost}},
	{"tcp_v6_rcv NO_SOCKET", untranslatedHere, []snapshot.Step{snapshot.StepAnswerLost}},
	{"tcp_v6_rcv NO_SOCKET", entryGone, []snapshot.Step{snapshot.StepResetHere, snapshot.StepDataLost}},
	{"ip_defrag NOT_SPECIFIED", "fragments cannot be put together: there is no room for them, net.ipv4.ipfrag_high_thresh, or a part is missing", []snapshot.Step{snapshot.StepLostHere, snapshot.StepAnswerLost}},
	{"__udp4_lib_rcv NO_SOCKET", "not translated back, it was taken for this host's own: the entry was gone as the answer came, as where net.netfilter.nf_conntrack_udp_timeout is shorter than the server takes", []snapshot.Step{snapshot.StepAnswerLost}},
	// br_handle_frame_finish (net/bridge/br_input.c) and should_deliver (net/bridge/br_forward.c)
	{"br_handle_frame_finish NOT_SPECIFIED", "the bridge forwards nothing to the port it came from where hairpin mode is off: 'bridge -d link show'", []snapshot.Step{snapshot.StepLostHere}},
}

// lostBy names what dropped packets of a connection, and the rule, the route or the neighbour where it is
// known.
func lostBy(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	by := droppedIn(rec, s)
	if len(by) > 0 {
		text = ": dropped in " + strings.Join(by, ", ") + onTheWay(rec, s)
		for _, place := range by {
			text += placeMeaning(place, s.Failed.Step)
		}
	}
	if filter := filterOf(rec, s); filter != nil && len(filter.Drops) > 0 {
		text += ", by " + placesOf(culprits(s, filter))
		if filter.Accepts != nil {
			text += ", which comes before the rule that would accept it: " + filter.Accepts.Text
		} else if filter.AcceptsBefore != nil {
			text += "; " + namesOld(filter.AcceptsBefore)
		}
	} else if none := noEntry(s); none != "" && (len(by) == 0 || slices.ContainsFunc(by, isRule)) {
		text += none
	} else if text += routeText(rec, s); s.Failed.Place != nil && s.Failed.Place.Filter != nil && slices.ContainsFunc(by, isRule) {
		text += ", by a rule that was not found: 'nft list ruleset', tables of the families netdev and bridge as well"
	}
	return text + sizeText(s)
}

// noEntry names the rules that drop what is of no known connection; empty where there are none.
func noEntry(s *snapshot.FollowedService) string {
	if p := s.Failed.Place; p != nil && p.NoEntryFilter != nil {
		return ", by " + placesOf(p.NoEntryFilter.Drops) + ", as it is of no connection that the tracker knows: the entry was gone (net.netfilter.nf_conntrack_*_timeout, deleted) or one direction passes by another way"
	}
	return ""
}

// placeMeaning is what a drop in a place of the kernel means, in brackets.
func placeMeaning(place string, step snapshot.Step) string {
	for _, m := range placeMeanings {
		if m.place == place && slices.Contains(m.steps, step) {
			return " (" + m.meaning + ")"
		}
	}
	function, reason, _ := strings.Cut(place, " ")
	if r := reasonOf(siteReason(function, reason)); r.Means != "" && !isRule(place) && reason != netfilterDrop && siteReason(function, reason) != "" {
		return " (" + r.Means + ")"
	}
	return ""
}

// routeText is what speaks against the route of what was lost here.
func routeText(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	p := s.Failed.Place
	switch {
	case p == nil || s.Out != "" && s.Failed.Step == snapshot.StepNoAnswer:
		return ""
	case p.ReversePath && s.Failed.Step == snapshot.StepAnswerLost:
		return fmt.Sprintf(", by rp_filter: the route back to %s, which answers, is not by %s, by which the answer came", s.Failed.LeftTo.Addr(), cmp.Or(s.Failed.AnswerIn, s.Out))
	case p.ReversePath:
		return fmt.Sprintf(", by rp_filter: the route back to %s is not by %s, by which it came", s.Failed.Client.Addr(), s.In)
	case p.NoRoute != "" && (s.In == "" || p.To.Addr().IsLoopback()):
		return ": " + p.NoRoute
	case notForwarding(rec, s.In, p.NoRoute, s.Failed.Client.Addr().Is6()) != "":
		return "" // a route may lead there
	case p.NoRoute != "":
		return ": no route leads there: " + p.NoRoute
	case p.OutDown:
		return fmt.Sprintf(": it is to leave by %s, which is down", p.Out)
	case (p.Neighbour == snapshot.NeighbourFailed || p.Neighbour == snapshot.NeighbourIncomplete) && s.Failed.Step != snapshot.StepDataLost:
		return fmt.Sprintf(": %s on %s does not answer ARP or neighbour discovery", p.NextHop, p.Out) + neighbourText(p)
	case p.Encrypted:
		return " in the clear: a policy of IPsec takes it ('ip xfrm policy')"
	}
	return ""
}

// neighbourText names the rule that drops the answers of neighbour discovery.
func neighbourText(p *snapshot.FailedPlace) string {
	if p.NeighbourFilter == nil {
		return ""
	}
	return ", as its answers are dropped by " + placesOf(p.NeighbourFilter.Drops)
}

// sizeText is what is known of the size of data that was lost.
func sizeText(s *snapshot.FollowedService) (text string) {
	f := s.Failed
	if f.Bytes == 0 {
		return ""
	}
	p := cmp.Or(f.Place, &snapshot.FailedPlace{})
	large := f.PassedBytes > 0 && f.Bytes > f.PassedBytes
	if large {
		text = fmt.Sprintf("; it had %d bytes, and packets of up to %d pass", f.Bytes, f.PassedBytes)
	}
	if p.OutMTUBytes > 0 && f.Bytes > p.OutMTUBytes && f.Step == snapshot.StepDataLost {
		text += fmt.Sprintf("; the MTU of %s is %d", p.Out, p.OutMTUBytes)
	}
	switch b := f.TooBig; {
	case b != nil && b.Here:
		text += fmt.Sprintf("; this host says that packets are too large (MTU %d), and the sender does not heed it", b.MTUBytes)
	case b != nil && !b.Passed:
		text += fmt.Sprintf("; %s says by ICMP that packets are too large (MTU %d), which came in and did not leave for the sender", b.By, b.MTUBytes)
	case b != nil:
		text += fmt.Sprintf("; %s says by ICMP that packets are too large (MTU %d), and the sender does not heed it", b.By, b.MTUBytes)
	case large && f.Step == snapshot.StepDataUnanswered:
		text += ", as where the MTU of the way is smaller and the ICMP errors that say so are lost"
	}
	if tooLarge := large || f.TooBig != nil || p.OutMTUBytes > 0 && f.Bytes > p.OutMTUBytes; tooLarge && p.ErrorFilter != nil && len(p.ErrorFilter.Drops) > 0 {
		text += "; such ICMP errors are dropped by " + placesOf(p.ErrorFilter.Drops)
	}
	return text
}

// onTheWay names what a connection that was dropped had become already.
func onTheWay(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	if to := droppedTo(rec, s); to.IsValid() {
		return " on its way to " + to.String()
	}
	return ""
}

// droppedTo is what the destination of a connection that was dropped had become already; not valid where it is not known.
func droppedTo(rec *snapshot.Recording, s *snapshot.FollowedService) netip.AddrPort {
	if rec.Drops == nil {
		return netip.AddrPort{}
	}
	for _, d := range rec.Drops.Flows {
		to, err := netip.ParseAddrPort(d.Destination)
		if err == nil && d.Source == s.Failed.Client.String() && to != s.Service && to != s.Target {
			return to
		}
	}
	return netip.AddrPort{}
}

// isOf reports whether a dropped flow is one way of a connection, before or after a translation.
func isOf(d snapshot.DropFlow, f *snapshot.FailedConnection) bool {
	ends := []string{f.Client.String(), f.Client.Addr().String()}
	if f.LeftFrom.IsValid() {
		ends = append(ends, f.LeftFrom.String())
	}
	return slices.Contains(ends, d.Source) || slices.Contains(ends, d.Destination)
}

// fewErrors says why others of the same service got no ICMP error; empty where all did.
func fewErrors(s *snapshot.FollowedService, others snapshot.Step) string {
	if s.Steps[others] == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d others got no error: hosts send few a second)", s.Steps[others])
}

// isProhibited reports whether an ICMP error is one of a filter (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1). For
// an ICMP error about a port that is closed a SYN is answered by a RST: that is of a filter as well, the default of
// REJECT.
func isProhibited(s *snapshot.FollowedService) bool {
	f := s.Failed
	closed := s.Protocol == "tcp"
	if f.By.Is6() {
		return f.ICMPType == 1 && (f.ICMPCode == 1 || f.ICMPCode == 5 || closed && f.ICMPCode == 4)
	}
	return f.ICMPType == 3 && (slices.Contains([]uint8{9, 10, 13}, f.ICMPCode) || closed && f.ICMPCode == 3)
}

// beyondText is who refuses beyond this host, and why.
func beyondText(s *snapshot.FollowedService) string {
	f := s.Failed
	switch own := f.By == f.LeftTo.Addr(); {
	case isProhibited(s) && own:
		return fmt.Sprintf("the server %s rejects it by a filter of its own", f.By)
	case isProhibited(s):
		return fmt.Sprintf("a filter beyond this host, at %s, rejects it", f.By)
	case own:
		return fmt.Sprintf("%s refuses it (ICMP: %s)", f.By, icmpText(f))
	}
	return fmt.Sprintf("%s, beyond this host, does not lead it on (ICMP: %s)", f.By, icmpText(f))
}

// icmpText is the meaning of an ICMP error (RFC 792, RFC 1812, RFC 4443).
func icmpText(f *snapshot.FailedConnection) string {
	texts := map[[2]uint8]string{
		{3, 0}: "network unreachable: no route", {3, 1}: "host unreachable: its neighbour does not answer", {3, 3}: "port unreachable",
		{3, 4}: "fragmentation needed", {3, 9}: "prohibited by a rule", {3, 10}: "prohibited by a rule", {3, 13}: "prohibited by a rule", {11, 0}: "time to live exceeded: a loop",
	}
	if f.By.Is6() {
		texts = map[[2]uint8]string{
			{1, 0}: "no route", {1, 1}: "prohibited by a rule", {1, 3}: "address unreachable: its neighbour does not answer", {1, 4}: "port unreachable",
			{1, 5}: "prohibited by a rule", {1, 6}: "a route rejects it", {2, 0}: "packet too big", {3, 0}: "hop limit exceeded: a loop",
		}
	}
	return cmp.Or(texts[[2]uint8{f.ICMPType, f.ICMPCode}], fmt.Sprintf("type %d code %d", f.ICMPType, f.ICMPCode))
}
