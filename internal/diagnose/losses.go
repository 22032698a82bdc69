package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Shares from which losses are a fault: shaping drops some packets under load to tell senders, and
// interfaces drop what no protocol takes (LLDP, a VLAN that is not there).
const (
	shapingShare   = 0.2
	interfaceShare = 0.05
	// filterShare is for filters of which it is not known what they are meant for.
	filterShare = 0.5
	// ttlShare is more than a traceroute through this host makes of the packets that go on.
	ttlShare = 0.34
	// longestWait is how many seconds a queue may hold packets back: TCP sends a SYN again after one.
	longestWait = 1.0
)

// lossFaults are those that interfaces, queues, IPsec and the IP layer count.
func lossFaults() []hostFault {
	forwarded := []string{"IpForwDatagrams", "IpInDelivers"}
	return []hostFault{
		{
			id: "qdisc-drops", title: "queues or filters of tc drop packets", part: snapshot.PartLinks,
			each: queueSigns, also: (*hostGrowth).waits, variants: []string{"", " queue", " filter", " waits"}, refine: (*hostGrowth).queue,
		},
		{
			id: "interface-drops", title: "an interface loses packets", part: snapshot.PartLinks,
			each: interfaceSigns, variants: []string{"", " errors", " sent", " unsent"}, refine: (*hostGrowth).device,
		},
		{
			id: "ipsec-drops", title: "IPsec policies drop packets", part: snapshot.PartTCP,
			signs: []sign{ // xfrm_lookup_with_ifid, __xfrm_policy_check, __xfrm_route_forward
				{counter: "XfrmOutPolBlock", of: forwarded, fewest: 3, share: lossShare, critical: 0.1},
				{counter: "XfrmInPolBlock", of: forwarded, fewest: 3, share: lossShare, critical: 0.1},
				{counter: "XfrmOutNoStates", of: forwarded, fewest: 3, share: lossShare, critical: 0.1, variant: " state"},
				{counter: "XfrmInTmplMismatch", of: forwarded, fewest: 3, share: lossShare, critical: 0.1, variant: " clear"},
				{counter: "XfrmInNoPols", of: forwarded, fewest: 3, share: lossShare, critical: 0.1, variant: " clear"},
				{counter: "XfrmFwdHdrError", of: forwarded, fewest: 3, share: lossShare, critical: 0.1},
			},
			advice: []string{"ipsec-policies"}, refine: (*hostGrowth).policies,
		},
		{
			id: "ttl-expired", title: "packets end here as their TTL is used up", part: snapshot.PartTCP,
			signs: []sign{
				{counter: "IpInHdrErrors", of: []string{"IpForwDatagrams"}, fewest: 5, share: lossShare}, // ip_forward
				{counter: "Ip6InHdrErrors", of: []string{"Ip6OutForwDatagrams"}, fewest: 5, share: lossShare},
			},
			advice: []string{"ttl-rule", "ttl-loop"}, refine: (*hostGrowth).ttl,
		},
		{
			id: "fragments-dropped", title: "fragments that are not put together again", part: snapshot.PartTCP,
			signs: []sign{ // ip_defrag, ipv6_frag_rcv
				{counter: "IpReasmFails", of: []string{"IpReasmOKs"}, fewest: 3, share: 0.1, critical: 0.5},
				{counter: "Ip6ReasmFails", of: []string{"Ip6ReasmOKs"}, fewest: 3, share: 0.1, critical: 0.5},
			},
			settings: []string{snapshot.FragmentsMax, snapshot.FragmentsTime}, advice: []string{"fragments-mtu", "fragments-raise"},
			refine: func(g *hostGrowth) string { g.passing(); return "" },
		},
		{
			id: "socket-overflow", title: "programs of this host read too slowly", part: snapshot.PartTCP,
			signs: []sign{ // __udp_enqueue_schedule_skb, tcp_add_backlog, tcp_data_queue
				{counter: "UdpRcvbufErrors", of: []string{"UdpInDatagrams"}, fewest: 5, share: lossShare, critical: 0.5},
				{counter: "Udp6RcvbufErrors", of: []string{"Udp6InDatagrams"}, fewest: 5, share: lossShare, critical: 0.5},
				{counter: "UdpMemErrors", of: []string{"UdpInDatagrams"}, fewest: 5, share: lossShare, critical: 0.5, variant: " memory"},
				{counter: "TcpExtTCPBacklogDrop", of: []string{"TcpInSegs"}, fewest: 5, share: lossShare, variant: " tcp"},
				{counter: "TcpExtTCPRcvQDrop", of: []string{"TcpInSegs"}, fewest: 5, share: lossShare, variant: " tcp"},
			},
			settings: []string{"net.core.rmem_max"}, advice: []string{"socket-which", "socket-buffer"},
		},
		{
			id: "ct-invalid", title: "packets that connection tracking takes for INVALID", part: snapshot.PartStat,
			signs:    []sign{{counter: "conntrack invalid", of: forwarded, fewest: 10, share: 0.03}}, // nf_conntrack_in
			settings: []string{snapshot.BeLiberal, snapshot.Loose, snapshot.Checksum, snapshot.LogInvalid},
			advice:   []string{"invalid-log"}, refine: (*hostGrowth).invalid,
		},
	}
}

// queueSigns are those of the queues that dropped anything between the snapshots.
func queueSigns(rec *snapshot.Recording) (signs []sign) {
	first, last := rec.First().Links, rec.Last().Links
	if first == nil || last == nil {
		return nil
	}
	failing := sync.OnceValue(func() bool { return servicesFail(rec) })
	for i := range last.Queues {
		q := &last.Queues[i]
		s := sign{counter: "qdisc " + q.String() + " dropped", of: []string{"qdisc " + q.String() + " packets"}, place: q.String(), fewest: 3, share: lossShare, critical: 0.5}
		if n, known := hostDelta(rec, s.counter); !known || n == 0 {
			continue
		}
		switch {
		case q.Filtering():
			s.variant, s.share, s.within = " filter", filtersHarm(rec, q, failing()), true
		case q.Kind == "netem" || q.Kind == "blackhole" || q.Kind == "plug":
			s.critical = 0.1
		case !failing():
			s.fewest, s.share, s.variant = 10, shapingShare, " queue"
		default:
			s.variant = " queue"
		}
		if signs = append(signs, s); len(signs) == mostListed {
			break
		}
	}
	return signs
}

// servicesFail reports whether translated connections are known to come to nothing.
func servicesFail(rec *snapshot.Recording) bool {
	f, _ := checkServices(rec)
	return f != nil && f.Severity >= Warning
}

// queue adds what is known of the queue, and names the filters.
func (g *hostGrowth) queue() string {
	q := g.queueOf(g.rec.Last().Links)
	if g.sign.counter == "" {
		g.add("waits in "+q.String(), int64(q.Waiting), "bytes", "tc -s qdisc")
		g.add("went through it", int64(q.Bytes-g.queueOf(g.rec.First().Links).Bytes), "bytes "+g.rec.Span(), "tc -s qdisc")
	}
	g.passing()
	if !q.Filtering() {
		g.advise("qdisc-see", q.Interface, where(g.rec))
		g.advise("qdisc-change", q.Interface, where(g.rec))
		return ""
	}
	for i := range q.Filters {
		f := &q.Filters[i]
		if r := publishedBy(g.rec, f); r != nil {
			g.found.Title += ": " + ruleName(r)
			g.found.Severity = Critical
		}
		e := Evidence{What: "filter on " + q.Interface, Value: f.Text, Source: "tc -s filter"}
		if f.Counted {
			e.Unit = fmt.Sprintf("(%s dropped so far)", units.Count(int64(f.Dropped)))
		}
		g.found.Evidence = append(g.found.Evidence, e)
	}
	g.advise("tc-filter-see", q.Interface, where(g.rec))
	g.advise("tc-filter-delete", q.Interface, where(g.rec))
	return ""
}

// filtersHarm returns the share from which what filters drop is a fault: they may be meant to, as a block list
// or against noise, and then no share is.
func filtersHarm(rec *snapshot.Recording, q *snapshot.Queue, failing bool) float64 {
	const never = 2
	share := map[bool]float64{true: lossShare, false: never}[failing]
	if len(q.Filters) == 0 {
		share = min(share, filterShare)
	}
	for i := range q.Filters {
		switch f := &q.Filters[i]; {
		case publishedBy(rec, f) != nil:
			return 0
		case !f.Known:
			share = min(share, filterShare)
		}
	}
	return share
}

// waits reports whether a queue holds packets back for so long that they come too late: what is in it is
// more than goes out in that time.
func (g *hostGrowth) waits() bool {
	last := g.rec.Last().Links
	if last == nil || g.rec.First().Links == nil || g.rec.Seconds() <= 0 {
		return false
	}
	for i := range last.Queues {
		q := &last.Queues[i]
		g.sign = sign{variant: " waits", place: q.String()}
		before := g.queueOf(g.rec.First().Links)
		if before == nil || before.Waiting == 0 || q.Waiting == 0 || q.Bytes < before.Bytes {
			continue
		}
		rate := float64(q.Bytes-before.Bytes) / g.rec.Seconds()
		if float64(q.Waiting) > rate*longestWait {
			g.known = []string{fmt.Sprintf("%s wait in %s", units.Bytes(q.Waiting), q)}
			return true
		}
	}
	g.sign = sign{}
	return false
}

// queueOf is the queue of the sign.
func (g *hostGrowth) queueOf(l *snapshot.Links) *snapshot.Queue {
	i := slices.IndexFunc(l.Queues, func(q snapshot.Queue) bool { return q.String() == g.sign.place })
	if i < 0 {
		return nil
	}
	return &l.Queues[i]
}

// publishedBy is a rule that translates what a filter drops: packets to its port, or the answers to them;
// nil where the filter is not known to drop such ones, or dropped none.
func publishedBy(rec *snapshot.Recording, f *snapshot.QueueFilter) *snapshot.NATRule {
	rules := rec.Last().NATRules
	if rules == nil || !f.Known || f.Counted && f.Dropped == 0 {
		return nil
	}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.TranslatesSource() || f.Protocol != "" && r.Protocol != "" && f.Protocol != r.Protocol {
			continue
		}
		if f.DestinationPort != 0 && (f.DestinationPort == r.DestinationPort || f.DestinationPort == r.FirstPort) ||
			f.SourcePort != 0 && (f.SourcePort == r.FirstPort || f.SourcePort == r.DestinationPort) ||
			f.DestinationPort == 0 && f.SourcePort == 0 && !narrow(f) {
			return r
		}
	}
	return nil
}

// narrow reports whether a filter is for single hosts or networks, as a block list is.
func narrow(f *snapshot.QueueFilter) bool {
	return f.From.IsValid() && f.From.Bits() > 0 || f.To.IsValid() && f.To.Bits() > 0 || f.Protocol != ""
}

// interfaceSigns are those of the interfaces that lost anything between the snapshots.
func interfaceSigns(rec *snapshot.Recording) (signs []sign) {
	first, last := rec.First().Links, rec.Last().Links
	if first == nil || last == nil {
		return nil
	}
	failing := sync.OnceValue(func() bool { return servicesFail(rec) })
	for i := range last.All {
		l := &last.All[i]
		for _, c := range []struct {
			lost uint64
			name string
			side string
		}{{l.RXDropped, "rx_dropped", "rx"}, {l.RXErrors, "rx_errors", "rx"}, {l.RXMissed, "rx_missed", "rx"}, {l.TXDropped, "tx_dropped", "tx"}, {l.TXErrors, "tx_errors", "tx"}} {
			if c.lost == 0 {
				continue
			}
			s := sign{counter: "dev " + l.Name + " " + c.name, of: []string{"dev " + l.Name + " " + c.side + "_packets"}, place: l.Name, fewest: 10, share: lossShare, critical: 0.5}
			if n, known := hostDelta(rec, s.counter); !known || n == 0 {
				continue
			}
			switch {
			case c.name == "rx_dropped" && !failing():
				s.share = interfaceShare
			case failing():
				s.fewest = 3
			}
			s.variant = map[string]string{"rx_errors": " errors", "tx_errors": " unsent", "tx_dropped": " sent"}[c.name]
			if signs = append(signs, s); len(signs) == mostListed {
				return signs
			}
		}
	}
	return signs
}

// device adds the program that may drop before anything else sees the packets.
func (g *hostGrowth) device() string {
	g.addLink(g.sign.place)
	g.passing()
	g.advise("interface-see", g.sign.place, where(g.rec))
	g.advise("interface-mtu", g.sign.place, where(g.rec))
	return ""
}

// passing names translated services of which packets come by, as those are what users miss.
func (g *hostGrowth) passing() {
	if g.rec.Flows == nil || g.rec.Flows.Services == nil {
		return
	}
	var names []string
	for i := range g.rec.Flows.Services.All {
		if s := &g.rec.Flows.Services.All[i]; s.Kind != snapshot.ServiceDestination && s.Kind != snapshot.ServiceUntranslated {
			names = append(names, s.String())
		}
	}
	if len(names) > 0 {
		g.add("translated here, and hit by it as far as they pass there", firstOf(names), "", "connection table")
	}
}

// addLink adds what of an interface may explain it: a program that may drop, and its MTU.
func (g *hostGrowth) addLink(name string) {
	for _, l := range g.rec.Last().Links.All {
		if l.Name != name {
			continue
		}
		g.add("MTU of "+name, int64(l.MTU), "bytes", "ip link")
		if l.XDPProgram != 0 {
			g.add("XDP program on "+name+", which may drop", int64(l.XDPProgram), "(bpftool prog show id)", "ip link")
		}
	}
}

// policies names what blocks.
func (g *hostGrowth) policies() string {
	g.passing()
	for i, p := range g.rec.Last().IPsecPolicies {
		if i < mostListed && (p.Blocks || !strings.Contains(g.sign.counter, "Block")) {
			g.add("policy", p.Text, "", "ip xfrm policy")
		}
	}
	return ""
}

// ttl leaves alone a traceroute.
func (g *hostGrowth) ttl() string {
	if g.share < ttlShare && !servicesFail(g.rec) {
		return "a traceroute or mtr through this host makes as many"
	}
	if servicesFail(g.rec) {
		g.found.Severity = Critical
	}
	g.passing()
	return ""
}

// invalid: packets that are INVALID pass without translation unless rules drop them. Where each is part of a
// connection that works all the same, as with routes that differ, nothing is wrong.
func (g *hostGrowth) invalid() string {
	if finds(g.rec, "idle-killed") {
		return "they are of connections that idle-killed reports"
	}
	if passesOneSide(g.rec) {
		return "they are of connections that service-unanswered reports"
	}
	a, _ := readAudit(g.rec)
	var dropped refusals
	if a != nil && g.rec.First().Audit != nil {
		dropped, _ = a.refusals(snapshot.RefusalInvalid)
	}
	resets, _ := hostDelta(g.rec, "TcpOutRsts")
	switch {
	case 2*uint64(dropped.packets) >= g.n:
		g.found.Evidence = append(g.found.Evidence, dropped.evidence("dropped as INVALID by ")...)
		g.found.Cause += "; " + firstOf(dropped.texts()) + " drops them"
		g.fromBeyond(a)
	case 2*resets >= g.n && (takesNoneUp(g.rec) || g.share >= shapingShare):
		g.add("counter TcpOutRsts", int64(resets), g.rec.ProtocolSpan(), snmpSource)
		g.found.Cause += "; without translation they come to this host itself, which resets them"
	default:
		return "no rule drops them, and this host resets no connections for them"
	}
	g.passing()
	g.found.Severity = cmp.Or(map[bool]Severity{true: Critical}[servicesFail(g.rec)], g.found.Severity)
	return ""
}

// fromBeyond names the likeliest of several causes on a host with a route to a network by a router beside the hosts
// that its clients ask: it reaches these itself, and their answers come here.
func (g *hostGrowth) fromBeyond(a *audit) {
	if len(a.Beyond) == 0 {
		return
	}
	b := &a.Beyond[0]
	var routes []string
	for _, o := range a.Beyond {
		routes = append(routes, fmt.Sprintf("%s by %s", o.Network, o.Router))
	}
	g.found.Place = fmt.Sprintf("likely answers of hosts on %s to %s, from where %s leads packets to them past this host", b.Interface, b.Network, b.Router)
	g.found.Cause += fmt.Sprintf("; likeliest is the other way: a route of this host leads to %s, a router on the network of %s, so that it hands to hosts there what comes from there, and these give their answers to this host, which has seen no SYN", firstOf(routes), b.Interface)
	g.found.Remedies = slices.Insert(g.found.Remedies, 0, advice("invalid-beyond", b.Network, b.Interface, b.Router, where(g.rec)))
}

// passesOneSide reports whether connections of which one direction passes this host alone are seen to fail here.
func passesOneSide(rec *snapshot.Recording) bool {
	if all, _ := tableServices(rec); all != nil && slices.ContainsFunc(all.All, func(s snapshot.Service) bool {
		return s.Kind == snapshot.ServiceUntranslated && s.Service.IsValid() && failing{}.judgeOneSided(rec, &s).how != ""
	}) {
		return true
	}
	return rec.Followed != nil && slices.ContainsFunc(rows(rec), func(r row) bool { return r.Failed.OneSided && r.culprit() != nil && r.excuse() == "" })
}

// takesNoneUp reports whether the tracker takes up no connection in its middle, so that what goes on after its entry
// is gone is INVALID. Where it does, above all SYN-ACKs to forged SYNs are.
func takesNoneUp(rec *snapshot.Recording) bool {
	loose, known := rec.Last().Sysctls.Int(snapshot.Loose)
	return known && loose == 0
}
