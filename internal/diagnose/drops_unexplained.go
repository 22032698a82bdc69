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

// needsTrace is why this rule is not checked without being asked for.
const needsTrace = "needs --trace"

// checkDrops: the kernel drops packets that should have passed, and no other
// rule says why.
//
// Every host drops packets all the time; which reasons count, and from which rate
// on, is in texts.yaml and below.
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
		return passed(seen)
	}
	return t.finding(found), Check{Why: seen}
}

// explained reports whether another rule explains why these packets are dropped.
func explained(rec *snapshot.Recording, g dropGroup) bool {
	switch g.name {
	case snapshot.CauseNotInserted:
		return finds(rec, "ct-chain-cap", "snat-ports-exhausted", "snat-race")
	case "IP_INADDRERRORS", reasonByFunction["ip_error"]:
		return finds(rec, "forwarding-off")
	case "IP_RPFILTER":
		return finds(rec, "rp-filter") || dropsForged(rec)
	case "PKT_TOO_BIG":
		return finds(rec, "pmtu-blackhole")
	case "UDP_CSUM", "TCP_CSUM":
		return finds(rec, "udp-checksum")
	case "CPU_BACKLOG":
		return finds(rec, "softnet-dropped")
	case "QDISC_DROP", "TC_INGRESS", "TC_EGRESS":
		return finds(rec, "qdisc-drops")
	case "XFRM_POLICY":
		return finds(rec, "ipsec-drops")
	case "IP_INHDR":
		return finds(rec, "ttl-expired")
	case "SOCKET_RCVBUFF", "SOCKET_BACKLOG", "PROTO_MEM":
		return finds(rec, "socket-overflow")
	case "NEIGH_CREATEFAIL":
		return finds(rec, "neighbour-table-full")
	case "TCP_RFC7323_TW_PAWS":
		return finds(rec, "tw-paws-reject")
	case noReasonIn + "tcp_v4_rcv", noReasonIn + "tcp_v6_rcv": // what TIME_WAIT rejects, among others
		return finds(rec, "tw-paws-reject", "tw-seq-reject")
	}
	return false
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
	// flows are those of its packets that were sampled.
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

func (t trace) netfilterGroups() []dropGroup {
	var groups []dropGroup
	rest := uint64(0)
	for _, n := range t.places(byNetfilter) {
		rest += n
	}
	for _, cause := range []string{snapshot.CauseTableFull, snapshot.CauseNotInserted, snapshot.CauseNATFailed, snapshot.CauseInvalid, snapshot.CauseRule} {
		n, _ := t.caused(cause)
		rest -= min(rest, n)
		if n > 0 && cause != snapshot.CauseTableFull {
			groups = append(groups, dropGroup{name: cause, dropReason: reasonOf(cause), packets: n, want: byNetfilter})
		}
	}
	if rest > 0 {
		r := reasonOf(snapshot.CauseRule)
		if t.NAT == "" {
			r.Means = "a rule, conntrack or NAT: which one is unknown"
		}
		groups = append(groups, dropGroup{name: netfilterDrop, dropReason: r, packets: rest, want: byNetfilter})
	}
	return groups
}

// untranslated names answers to connections of NAT that no entry translates back: they come
// to the address that NAT gave, where no socket listens on that port.
const untranslated = "answers not translated back"

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
	g.name, g.dropReason = untranslated, reasonOf(untranslated)
	if t.perSecond(g.packets) <= lateAnswers*t.opened {
		g.Kind = dropNormal
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
	n, sampled := uint64(0), uint64(0)
	for _, f := range g.flows {
		sampled += f.Packets
		if is(f) {
			n += f.Packets
			of.flows = append(of.flows, f)
		} else {
			rest.flows = append(rest.flows, f)
		}
	}
	of.packets = uint64(float64(g.packets) * float64(n) / float64(max(1, sampled)))
	rest.packets -= of.packets
	return of, rest
}

// withoutScans leaves out what scans of a prefix cause: many destinations, each once or
// twice.
func withoutScans(g dropGroup) dropGroup {
	if g.Kind != dropNoise || g.BySource {
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
	switch g.Kind {
	case dropLoss:
		return rate >= lossRate
	case dropNoise:
		return rate >= noiseRate || rate >= concentratedRate && g.concentrated()
	case dropQueue:
		return rate >= queueRate
	case dropUnspecified:
		return rate >= unspecifiedRate
	}
	return false
}

// concentrated reports whether most of the group comes from, or goes to, one address.
func (g dropGroup) concentrated() bool {
	byAddress, largest, sampled := map[string]uint64{}, uint64(0), uint64(0)
	for _, f := range g.flows {
		address := f.DestinationAddress()
		if g.BySource {
			address = f.SourceAddress()
		}
		byAddress[address] += f.Packets
		largest = max(largest, byAddress[address])
		sampled += f.Packets
	}
	return sampled >= fewestFlows && 2*largest > sampled
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
	if g.Means == "" || g.Hint != "" {
		return g.name
	}
	return fmt.Sprintf("%s (%s)", g.name, g.Means)
}

// advice returns where to search for the cause of a group, for the families of its packets.
func (g dropGroup) advice() []Remedy {
	v4, v6 := false, false
	for _, f := range g.flows {
		to, err := netip.ParseAddr(f.DestinationAddress())
		isV6 := err == nil && !to.Is4()
		v4, v6 = v4 || !isV6, v6 || isV6
	}
	var r []Remedy
	if v4 || !v6 || g.HintIPv6 == "" {
		r = append(r, advice("drop-hint", g.name, g.Hint, g.Risk))
	}
	if v6 && g.HintIPv6 != "" {
		r = append(r, advice("drop-hint-ipv6", g.name, g.HintIPv6, g.Risk))
	}
	return r
}

func (t trace) finding(found []dropGroup) *Finding {
	f := worded("drops-unexplained", nil, nil)
	var names, causes []string
	for i, g := range found {
		if i < mostShown {
			names = append(names, fmt.Sprintf("%s %s/s", g.name, units.Rate(t.perSecond(g.packets))))
		}
		if g.Kind != dropUnspecified {
			f.Severity, f.Confidence = Warning, "certain"
		}
		causes = append(causes, fmt.Sprintf("%s: %s", g.name, g.Means))
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

// dropKind is how many drops of a reason a healthy host has, and with that from
// which rate on they are worth a word.
type dropKind string

const (
	// dropUnspecified: the kernel gives no reason, or one that is not listed.
	dropUnspecified dropKind = "unspecified"
	// dropNormal: protocols at work, scanners, packets for others. Never a finding, as are
	// "wanted" (an administrator's rule or program) and "local" (a process of this host reads
	// too slowly).
	dropNormal dropKind = "normal"
	// dropLoss: packets that should have passed; a healthy host has next to none.
	dropLoss dropKind = "loss"
	// dropNoise: what scans of unused addresses, spoofed and strayed packets cause at
	// every host on a network, and a fault too.
	dropNoise dropKind = "noise"
	// dropQueue: full queues, by which TCP learns how fast it may send.
	dropQueue dropKind = "queue"
)

// Rates in packets per second from which drops are noteworthy, by their kind.
const (
	lossRate  = 5
	noiseRate = 100
	// concentratedRate is for noise that is not spread as noise is: most of it
	// comes from, or goes to, one address.
	concentratedRate = 5
	queueRate        = 1000
	unspecifiedRate  = 1000
	// fewestDrops keeps a burst within a short trace from counting as a rate. Packets
	// that wait for a next hop which is dead are dropped by the bunch, every three
	// seconds or so: a rate of 12/s must be far above in every trace of five seconds.
	fewestDrops = 20
	// fewestFlows is how many drops must have been sampled before a share of them
	// says anything.
	fewestFlows = 10
	// A prefix of which fewestScanned addresses or more had scannedOften packets each, or
	// fewer, was scanned.
	fewestScanned = 20
	scannedOften  = 2
)

// dropReason is what the name of a reason or cause means, and where to search.
type dropReason struct {
	Kind  dropKind
	Means string
	Hint  string
	// HintIPv6 is where to search for packets of IPv6, where that is elsewhere.
	HintIPv6 string `yaml:"hint_ipv6"`
	// Risk is what the hints risk.
	Risk string
	// BySource is true where the packets' source is what is wrong with them.
	BySource bool `yaml:"by_source"`
}

// reasonOf knows the kind of a reason by its name. TCP's own (TCP_…) are usual where they
// are not listed.
func reasonOf(name string) dropReason {
	if r, ok := texts().Drops[name]; ok {
		return r
	}
	for _, prefix := range []string{"TCP_", "IPV6_NDISC_", "CAN"} {
		if strings.HasPrefix(name, prefix) {
			return dropReason{Kind: dropNormal}
		}
	}
	return texts().Drops[notSpecified]
}

// notSpecified is the reason of places in the kernel that have not been given one.
const notSpecified = "NOT_SPECIFIED"

// netfilterDrop is what conntrack, NAT and rules drop.
const netfilterDrop = "NETFILTER_DROP"

// reasonByFunction is for kernels without reasons (before 5.17), and for places that
// had none at first: functions that drop for one reason only.
var reasonByFunction = map[string]string{
	"nf_hook_slow":       netfilterDrop,
	"enqueue_to_backlog": "CPU_BACKLOG",
	"ip_error":           "IP_INNOROUTES", // or IP_INADDRERRORS: no route, or an interface that does not forward
	"neigh_invalidate":   "NEIGH_FAILED",
	"arp_error_report":   "NEIGH_FAILED",
	"ndisc_error_report": "NEIGH_FAILED",
}

// siteReason is the reason of a place, by the kernel or by the function; "" where
// neither is conclusive.
func siteReason(function, reason string) string {
	if reason == "" || reason == notSpecified {
		return reasonByFunction[function]
	}
	return reason
}
