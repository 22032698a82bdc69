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

// dropsUnexplained: the kernel drops packets that should have passed, and no other
// rule says why.
//
// Every host drops packets all the time; which reasons count, and from which rate
// on, is in drop_reason.go.
var dropsUnexplained = Rule{
	ID:    "drops-unexplained",
	Title: "packets dropped on their way",
	Check: checkDrops,
}

// needsTrace is why this rule is not checked without being asked for.
const needsTrace = "needs --trace"

func checkDrops(rec *snapshot.Recording) (*Finding, Check) {
	t, ok := traceOf(rec)
	if !ok {
		why := needsTrace
		if tried, failed := rec.Last().Traced(snapshot.PartDrops); tried {
			why = cmp.Or(failed, "the drops were traced for no time")
		}
		return nil, Check{State: NotChecked, Why: why, NotAsked: why == needsTrace}
	}
	groups := t.groups()
	var found []dropGroup
	for _, g := range groups {
		if g = withoutScans(g); t.noteworthy(g) && !explained(rec, g) {
			found = append(found, g)
		}
	}
	seen := t.seen(groups)
	if len(found) == 0 {
		return nil, Check{State: OK, Why: seen}
	}
	return t.finding(found), Check{Why: seen}
}

// explained reports whether another rule says why these packets are dropped.
func explained(rec *snapshot.Recording, g dropGroup) bool {
	switch g.name {
	case snapshot.CauseNotInserted:
		return anyFinds(rec, ctChainCap, snatPortsExhausted, snatRace)
	case "TCP_RFC7323_TW_PAWS":
		return anyFinds(rec, twPAWSReject)
	case noReasonIn + "tcp_v4_rcv", noReasonIn + "tcp_v6_rcv": // what TIME_WAIT rejects, among others
		return anyFinds(rec, twPAWSReject, twSeqReject)
	}
	return false
}

func anyFinds(rec *snapshot.Recording, rules ...Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { f, _ := r.Check(rec); return f != nil })
}

// noReasonIn names a group of drops of one function that the kernel gives no reason for.
const noReasonIn = "no reason in "

// dropGroup is the namespace's drops of one reason, or of one cause within
// netfilter.
type dropGroup struct {
	// name is the reason's or the cause's.
	name string
	dropReason
	packets uint64
	// want picks the group's sites and flows.
	want func(function, reason string) bool
	// flows are those of its packets that were looked at.
	flows []snapshot.DropFlow
}

// groups sorts the drops by what is to be thought of them, most first. What a full
// table drops is left to ct-table-full.
func (t trace) groups() []dropGroup {
	groups := t.netfilterGroups()
	at := map[string]int{}
	for _, s := range t.Sites {
		name := siteReason(s.Function, s.Reason)
		if s.Netns != t.netns || name == netfilterDrop {
			continue
		}
		key := cmp.Or(name, s.Function)
		i, known := at[key]
		if !known {
			i = len(groups)
			at[key] = i
			groups = append(groups, dropGroup{name: cmp.Or(name, noReasonIn+s.Function), dropReason: reasonOf(name), want: wants(name, s.Function)})
		}
		groups[i].packets += s.Packets
	}
	for i := range groups {
		groups[i].flows = t.wanted(groups[i].want)
	}
	groups = t.apartUntranslated(groups)
	slices.SortStableFunc(groups, func(a, b dropGroup) int { return cmp.Compare(b.packets, a.packets) })
	return groups
}

// wants picks the drops of a reason or, where there is none, of a function.
func wants(name, function string) func(string, string) bool {
	return func(f, r string) bool {
		got := siteReason(f, r)
		return got == name && (name != "" || f == function)
	}
}

// natCauses are what netfilter drops for other reasons than a full table.
var natCauses = map[string]dropReason{
	snapshot.CauseRule: {dropWanted, "an iptables or nftables rule", ""},
	snapshot.CauseNotInserted: {dropLoss, "a new connection could not be entered into the connection table: its address and port are taken (NAT that finds no free ones shows here), or its hash chain is too long",
		"'conntrack -S': insert_failed without chaintoolong: more addresses or ports to translate to, fully-random against clashes; chaintoolong: net.netfilter.nf_conntrack_buckets"},
	snapshot.CauseNATFailed: {dropLoss, "NAT could not translate the packet, such as masquerading by an interface that has no address",
		"'ip address show' of the outgoing interface, the addresses in the NAT rule, 'dmesg' (ate my IP address)"},
	snapshot.CauseInvalid: {dropNoise, "conntrack refuses packets that do not belong to the state of their connection",
		"asymmetric routing (conntrack must see both directions), net.netfilter.nf_conntrack_log_invalid=255 logs them"},
}

func (t trace) netfilterGroups() []dropGroup {
	var groups []dropGroup
	rest := uint64(0)
	for _, n := range t.places(byNetfilter) {
		rest += n
	}
	for _, cause := range []string{snapshot.CauseTableFull, snapshot.CauseNotInserted, snapshot.CauseNATFailed, snapshot.CauseInvalid, snapshot.CauseRule} {
		n, _ := t.caused(cause)
		rest -= min(rest, n)
		if r, ok := natCauses[cause]; ok && n > 0 {
			groups = append(groups, dropGroup{name: cause, dropReason: r, packets: n, want: byNetfilter})
		}
	}
	if rest > 0 {
		r := natCauses[snapshot.CauseRule]
		if t.NAT == "" {
			r.means = "a rule, conntrack or NAT: which could not be told"
		}
		groups = append(groups, dropGroup{name: netfilterDrop, dropReason: r, packets: rest, want: byNetfilter})
	}
	return groups
}

// untranslated are answers to connections of NAT that no entry translates back: they come
// to the address that NAT gave, where nobody listens on that port.
var untranslated = dropReason{dropLoss, "answers to connections that NAT translated find no entry that translates them back",
	"conntrack must see both directions in one zone: look for NOTRACK, 'ct zone' and timeouts shorter than the connections ('nft list ruleset', 'iptables-save -t raw', net.netfilter.nf_conntrack_*_timeout*)"}

// lateAnswers is the share of the new connections up to which such answers are late ones,
// of connections that have ended.
const lateAnswers = 0.10

// apartUntranslated takes the answers that should have been translated out of the
// packets for which there is no socket.
func (t trace) apartUntranslated(groups []dropGroup) []dropGroup {
	i := slices.IndexFunc(groups, func(g dropGroup) bool { return g.name == "NO_SOCKET" })
	if i < 0 || t.ports == nil {
		return groups
	}
	type end struct{ protocol, from, to string }
	translated := map[end]bool{}
	for _, p := range t.ports.Pools {
		translated[end{p.Protocol, p.Destination, p.Address}] = true
	}
	g, rest := groups[i].split(func(f snapshot.DropFlow) bool {
		return translated[end{f.Protocol, f.Source, f.DestinationAddress()}]
	})
	if len(g.flows) == 0 {
		return groups
	}
	groups[i] = rest
	g.name, g.dropReason = "answers not translated back", untranslated
	if t.perSecond(g.packets) <= lateAnswers*t.opened {
		g.kind = dropNormal
	}
	if rest.packets == 0 {
		groups = slices.Delete(groups, i, i+1)
	}
	return append(groups, g)
}

// split parts a group by its flows, and its packets by their share.
func (g dropGroup) split(is func(snapshot.DropFlow) bool) (of, rest dropGroup) {
	of, rest = g, g
	of.flows, rest.flows = nil, nil
	n, looked := uint64(0), uint64(0)
	for _, f := range g.flows {
		looked += f.Packets
		if is(f) {
			n += f.Packets
			of.flows = append(of.flows, f)
		} else {
			rest.flows = append(rest.flows, f)
		}
	}
	of.packets = uint64(float64(g.packets) * float64(n) / float64(max(1, looked)))
	rest.packets -= of.packets
	return of, rest
}

// withoutScans leaves out what scans of a prefix cause: many destinations, each once or
// twice.
func withoutScans(g dropGroup) dropGroup {
	if g.kind != dropNoise || wrongSource[g.name] {
		return g
	}
	often := map[string]uint64{}
	for _, f := range g.flows {
		often[f.DestinationAddress()] += f.Packets
	}
	addresses := map[netip.Prefix]int{}
	for to, n := range often {
		if n <= scannedOften {
			addresses[prefixOf(to)]++
		}
	}
	_, rest := g.split(func(f snapshot.DropFlow) bool {
		to := f.DestinationAddress()
		return often[to] <= scannedOften && addresses[prefixOf(to)] >= fewestScanned
	})
	return rest
}

// prefixOf is the network that an address is scanned with.
func prefixOf(address string) netip.Prefix {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	bits := 48
	if a.Is4() {
		bits = 16
	}
	p, _ := a.Prefix(bits) // fails for more bits than there are only
	return p
}

// noteworthy reports whether drops are more than a healthy host has.
func (t trace) noteworthy(g dropGroup) bool {
	rate := t.perSecond(g.packets)
	if g.packets < fewestDrops {
		return false
	}
	switch g.kind {
	case dropLoss:
		return rate >= lossRate
	case dropNoise:
		return rate >= noiseRate || rate >= concentratedRate && g.concentrated()
	case dropQueue:
		return rate >= queueRate
	case dropUntold:
		return rate >= untoldRate
	}
	return false
}

// concentrated reports whether most of the group comes from, or goes to, one address.
func (g dropGroup) concentrated() bool {
	byAddress, largest, looked := map[string]uint64{}, uint64(0), uint64(0)
	for _, f := range g.flows {
		address := f.DestinationAddress()
		if wrongSource[g.name] {
			address = f.SourceAddress()
		}
		byAddress[address] += f.Packets
		largest = max(largest, byAddress[address])
		looked += f.Packets
	}
	return looked >= fewestFlows && 2*largest > looked
}

// seen is the check's line: how much was dropped, and mostly why.
func (t trace) seen(groups []dropGroup) string {
	all := uint64(0)
	for _, s := range t.Sites {
		if s.Netns == t.netns {
			all += s.Packets
		}
	}
	if all == 0 {
		return fmt.Sprintf("nothing was dropped in %.1f s", t.Seconds)
	}
	text := fmt.Sprintf("%s in %.1f s", units.Plural(all, "packet", "packets"), t.Seconds)
	if full, _ := t.caused(snapshot.CauseTableFull); full > 0 {
		text += fmt.Sprintf("; %s (see ct-table-full) %s/s", snapshot.CauseTableFull, units.Rate(t.perSecond(full)))
	}
	for _, g := range groups[:min(len(groups), mostShown)] {
		text += fmt.Sprintf("; %s %s/s", g.described(), units.Rate(t.perSecond(g.packets)))
	}
	return text
}

// described is the group's name with what it means, where that is short.
func (g dropGroup) described() string {
	if g.means == "" || g.look != "" {
		return g.name
	}
	return fmt.Sprintf("%s (%s)", g.name, g.means)
}

// advice is where to look for a group, for the families that its packets are of.
func (g dropGroup) advice() []Remedy {
	v4, v6 := false, false
	for _, f := range g.flows {
		to, err := netip.ParseAddr(f.DestinationAddress())
		isV6 := err == nil && !to.Is4()
		v4, v6 = v4 || !isV6, v6 || isV6
	}
	look, differs := lookV6[g.name]
	var r []Remedy
	if v4 || !v6 || !differs {
		r = append(r, Remedy{Title: fmt.Sprintf("%s: %s", g.name, g.look), Risk: lookRisk[g.name]})
	}
	if v6 && differs {
		r = append(r, Remedy{Title: fmt.Sprintf("%s (IPv6): %s", g.name, look), Risk: lookRisk[g.name]})
	}
	return r
}

func (t trace) finding(found []dropGroup) *Finding {
	f := &Finding{
		Severity:   Notice,
		Confidence: "possible",
		Consequence: "these packets do not arrive: TCP sends them again after 0.2 s or more, a connection whose SYN is dropped waits " +
			"1 s, 3 s, 7 s, and UDP loses them",
	}
	var names, causes []string
	for i, g := range found {
		if i < mostShown {
			names = append(names, fmt.Sprintf("%s %s/s", g.name, units.Rate(t.perSecond(g.packets))))
		}
		if g.kind != dropUntold {
			f.Severity, f.Confidence = Warning, "certain"
		}
		causes = append(causes, fmt.Sprintf("%s: %s", g.name, g.means))
		for _, e := range t.evidence(g.want, g.flows) { // causes within netfilter share their places
			if !slices.Contains(f.Evidence, e) {
				f.Evidence = append(f.Evidence, e)
			}
		}
		f.Remedies = append(f.Remedies, g.advice()...)
	}
	f.Title = "packets are dropped on their way: " + strings.Join(names, ", ")
	f.Cause = strings.Join(causes, "; ")
	if t.Lost > 0 {
		f.Evidence = append(f.Evidence, Evidence{What: "dropped, and not placed", Value: int64(t.Lost), Unit: "packets", Source: "natkit's own tables were full"})
	}
	return f
}
