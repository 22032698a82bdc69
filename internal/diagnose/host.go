package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// hostFault is a fault of the host or of the path that is mistaken for one of NAT. Its signs
// are counters that grew between the snapshots, or new lines of the kernel log.
type hostFault struct {
	id, title string
	signs     []sign
	// each, where set, makes the signs of each interface or queue; the one with the largest share
	// is reported.
	each func(*snapshot.Recording) []sign
	// variants end the names of the texts of each and also.
	variants []string
	// also, where set, finds the fault where no counter shows it, and sets the sign.
	also func(*hostGrowth) bool
	// log matches the lines that show the fault without a counter, too.
	log *regexp.Regexp
	// part is the part of the snapshot that the counters come from.
	part string
	// settings are sysctls for the evidence.
	settings []string
	// advice names remedies in texts.yaml.
	advice []string
	// refine, where set, adds what else is known, or returns why it is no fault.
	refine func(*hostGrowth) (why string)
}

// sign is a counter that grew by fewest or more, and by a share of it and of the counters of
// what went well.
type sign struct {
	counter string
	of      []string
	fewest  uint64
	share   float64
	// within is true where what of counts has what was lost in it.
	within bool
	// critical is the share from which the finding is Critical; 0 for never.
	critical float64
	// variant ends the name of the texts.
	variant string
	// raised is the limit of the whole machine that natkit may double; empty for none.
	raised string
	// place is the interface or queue of a sign that there is one of for each.
	place string
}

// Names of what is counted elsewhere than in the files of /proc/net that nstat reads.
const (
	arpFulls   = "arp_cache table_fulls"
	ndiscFulls = "ndisc_cache table_fulls"
	softnetIn  = "softnet_stat processed"
	softnetOut = "softnet_stat dropped"
	eventDrops = "netlink drops"

	listenOverflows = "TcpExtListenOverflows"
	queueDrops      = "TcpExtTCPReqQFullDrop"
	queueCookies    = "TcpExtTCPReqQFullDoCookies"
	reversePath     = "TcpExtIPReversePathFilter"
	fragFails       = "IpFragFails"
	outDiscards     = "IpOutDiscards"
	outUnreachable  = "IcmpOutDestUnreachs"
	udpChecksums    = "UdpInCsumErrors"
	tcpChecksums    = "TcpInCsumErrors"
	timeWaitFull    = "TcpExtTCPTimeWaitOverflow"
)

// hostFaults returns all there are. The shares leave out what healthy hosts count: a scan, a burst,
// a damaged packet now and then.
func hostFaults() []hostFault {
	return append(lossFaults(), []hostFault{
		{
			id: "listen-overflow", title: "programs of this host accept connections too slowly", part: snapshot.PartTCP,
			signs: []sign{
				// tcp_conn_request and tcp_v4_syn_recv_sock
				{counter: listenOverflows, of: []string{passiveOpens}, fewest: 3, share: lossShare, critical: 0.1},
				// tcp_syn_flood_action
				{counter: queueDrops, of: []string{passiveOpens}, fewest: 3, share: lossShare, critical: 0.1, variant: " requests"},
				{counter: queueCookies, of: []string{passiveOpens}, fewest: 100, share: 0.5, variant: " cookies"},
			},
			also: (*hostGrowth).queueFull, variants: []string{" full"},
			settings: []string{snapshot.SoMaxConn, snapshot.SynCookies}, refine: (*hostGrowth).listeners,
		},
		{
			id: "neighbour-table-full", title: "the neighbour table is full", part: "neighbours",
			signs:    []sign{{counter: arpFulls, fewest: 3, raised: snapshot.ARPMax}, {counter: ndiscFulls, fewest: 3, variant: " ipv6", raised: snapshot.NDiscMax}}, // neigh_alloc
			log:      tableOverflow,
			settings: []string{snapshot.ARPMax, snapshot.NDiscMax}, advice: []string{"neighbours-who"}, refine: (*hostGrowth).neighbours,
		},
		{
			id: "rp-filter", title: "the reverse path filter drops packets of connections", part: snapshot.PartTCP,
			signs:  []sign{{counter: reversePath, of: []string{"IpInDelivers", "IpForwDatagrams"}, fewest: 3}}, // ip_rcv_finish_core
			refine: (*hostGrowth).reversePaths,
		},
		{
			id: "pmtu-blackhole", title: "packets too large to forward, and no ICMP error reaches their senders", part: snapshot.PartTCP,
			signs: []sign{{counter: fragFails, of: []string{"IpForwDatagrams"}, fewest: 3}}, // ip_forward
			also:  (*hostGrowth).unclamped, variants: []string{"", inward},
			advice: []string{"pmtu-clamp"}, refine: (*hostGrowth).blackhole,
		},
		{
			id: "udp-checksum", title: "packets dropped for their checksum", part: snapshot.PartTCP,
			signs: []sign{
				{counter: udpChecksums, of: []string{"UdpInDatagrams"}, fewest: 5, share: lossShare, critical: 0.1}, // udp_queue_rcv_one_skb
				{counter: tcpChecksums, of: []string{"TcpInSegs"}, fewest: 5, share: lossShare, critical: 0.1, variant: " tcp"},
			},
			log:    wrongChecksum,
			advice: []string{"checksum-offload", "checksum-kernel"}, refine: (*hostGrowth).damaged,
		},
		{
			id: "softnet-dropped", title: "packets dropped before they are processed", part: "softnet",
			signs:    []sign{{counter: softnetOut, of: []string{softnetIn}, fewest: 1000, share: lossShare, critical: 0.1, raised: snapshot.MaxBacklog}}, // enqueue_to_backlog
			settings: []string{snapshot.MaxBacklog}, advice: []string{"softnet-spread"},
		},
		{
			id: "tw-overflow", title: "no room for TIME_WAIT", part: snapshot.PartTCP,
			signs:    []sign{{counter: timeWaitFull, of: []string{passiveOpens, "TcpActiveOpens"}, fewest: 10, share: lossShare}}, // tcp_time_wait
			settings: []string{snapshot.TCPMaxTWBuckets}, refine: (*hostGrowth).timeWait,
			advice: []string{"tw-overflow-close"},
		},
		{
			id: "event-loss", title: "programs that follow conntrack's events lose some", part: "event_listeners",
			signs:  []sign{{counter: eventDrops, fewest: 10}}, // netlink_overrun, netlink_broadcast_deliver
			advice: []string{"events-buffer", "events-fewer"}, refine: (*hostGrowth).listenersOfEvents,
		},
		{
			id: "masquerade-no-address", title: "masquerade without an address", part: "kernel_log",
			log:    ateAddress,
			advice: []string{"masquerade-address"}, refine: (*hostGrowth).masquerade,
		},
		{
			id: "soft-lockup", title: "a CPU stuck in connection tracking", part: "kernel_log",
			log:    stuckCPU,
			advice: []string{"lockup-kernel", "lockup-buckets"}, refine: (*hostGrowth).lockup,
		},
	}...)
}

// Lines of the kernel log, with the functions that write them.
var (
	tableOverflow = regexp.MustCompile(`neighbou?r table overflow`)                            // neigh_alloc
	wrongChecksum = regexp.MustCompile(`UDP: bad checksum\. From (\S+):\d+ to (\S+:\d+) ulen`) // __udp4_lib_rcv, a debugging message
	ateAddress    = regexp.MustCompile(`(\S+) ate my IP address`)                              // nf_nat_masquerade_ipv4
	martian       = regexp.MustCompile(`martian source .*, on dev`)                            // ip_handle_martian_source
	stuckCPU      = regexp.MustCompile(`soft lockup - CPU`)                                    // watchdog_timer_fn
	stuckIn       = regexp.MustCompile(`\b_*nf_(?:nat|ct|conntrack)_\w+\+0x`)                  // its line of the instruction pointer
)

// hostRules are the rules of the table.
func hostRules() []Rule {
	var rules []Rule
	for _, h := range hostFaults() {
		rules = append(rules, Rule{h.id, h.title, h.check})
	}
	return rules
}

// hostGrowth is what a recording has of a fault.
type hostGrowth struct {
	*hostFault
	rec *snapshot.Recording
	// sign is the one that shows it, n how much its counter grew and share of what.
	sign  sign
	n     uint64
	share float64
	lines []snapshot.LogLine
	// known are the signs that could be read; unsure is true where one that grew says nothing by itself.
	known  []string
	unsure bool
	// undecided is true where refine lacks what would tell whether it is a fault.
	undecided bool
	found     *Finding
}

// check finds the first sign of the fault.
func (h *hostFault) check(rec *snapshot.Recording) (*Finding, Check) {
	g := &hostGrowth{hostFault: h, rec: rec}
	shown := slices.ContainsFunc(h.signs, g.shows) || h.each != nil && g.showsWorst(h.each(rec)) || h.also != nil && h.also(g)
	if !shown && h.log != nil && logRead(rec) {
		g.known = append(g.known, "the kernel log")
		if g.lines = newLines(rec, h.log); len(g.lines) > 0 {
			g.sign, shown = sign{variant: " log"}, true
		}
	}
	switch {
	case len(g.known) == 0:
		return unknown(g.missing())
	case !shown && g.unsure:
		return unknown(strings.Join(g.known, ", "))
	case !shown:
		return passed(strings.Join(g.known, ", ") + map[bool]string{true: " has no line of it"}[h.each == nil && len(h.signs) == 0])
	}
	share := "all"
	if len(g.sign.of) > 0 {
		share = units.Percent(g.share)
	}
	g.found = worded(h.id+g.sign.variant, g.evidence(), nil, units.Count(g.n), share, g.sign.place)
	if g.sign.critical > 0 && g.share >= g.sign.critical {
		g.found.Severity = Critical
	}
	if h.refine != nil {
		switch why := h.refine(g); {
		case why != "" && g.undecided:
			return unknown(strings.Join(g.known, ", ") + ": " + why)
		case why != "":
			return passed(strings.Join(g.known, ", ") + ": " + why)
		}
	}
	if rec.SinceStart && g.sign.counter != "" { // it may be long ago
		g.found.Severity, g.found.Confidence = min(g.found.Severity, Warning), "possible"
	}
	g.raise()
	for _, name := range h.advice {
		g.found.Remedies = append(g.found.Remedies, advice(name, where(rec)))
	}
	return g.found, Check{Why: strings.Join(g.known, ", ")}
}

// shows reports whether a sign is there, and keeps what its counter says.
func (g *hostGrowth) shows(s sign) bool {
	n, ok := hostDelta(g.rec, s.counter)
	if !ok {
		return false
	}
	all, compared := n, len(s.of) == 0
	for _, name := range s.of {
		well, ok := hostDelta(g.rec, name)
		all, compared = all+well, compared || ok
	}
	if s.within {
		all -= n
	}
	text := fmt.Sprintf("%s grew by %s", s.counter, units.Count(n))
	share := float64(n) / float64(max(1, all))
	switch {
	case n < s.fewest:
	case !compared: // of texts that leave counters out
		text, compared = text+", of how many is not known: there is no "+s.of[0], false
	case g.rec.SinceStart && len(s.of) == 0: // a number without a share says nothing about today
		text, compared = text+" "+g.span(s.counter)+", how much of it lately is not known", false
	}
	if n > 0 && compared && len(s.of) > 0 {
		text += fmt.Sprintf(" (%s)", units.Percent(share))
	}
	g.known = append(g.known, text)
	g.sign, g.n, g.share = s, n, share
	g.unsure = g.unsure || n >= s.fewest && !compared
	return n >= s.fewest && share >= s.share && compared
}

// span is the time in which a counter grew.
func (g *hostGrowth) span(counter string) string {
	for _, protocol := range []string{"Tcp", "Udp", "Ip", "Icmp", "Xfrm"} {
		if strings.HasPrefix(counter, protocol) {
			return g.rec.ProtocolSpan()
		}
	}
	return g.rec.Span()
}

// showsWorst keeps what the sign with the largest share says, of those that are shown.
func (g *hostGrowth) showsWorst(signs []sign) (shown bool) {
	worst := *g
	for _, s := range signs {
		one := hostGrowth{hostFault: g.hostFault, rec: g.rec}
		if is := one.shows(s); is && (!shown || one.share > worst.share) {
			worst.sign, worst.n, worst.share, shown = one.sign, one.n, one.share, true
			worst.known = append(one.known, worst.known...)
		} else if len(worst.known) < mostShown {
			worst.known = append(worst.known, one.known...)
		}
	}
	*g = worst
	if len(g.known) == 0 && g.rec.First().Links != nil && g.rec.Last().Links != nil {
		g.known = []string{"none of the interfaces and queues lost a packet"}
	}
	return shown
}

// hostDelta returns how much a counter grew; false where the kernel does not have it, or it was
// not read.
func hostDelta(rec *snapshot.Recording, name string) (uint64, bool) {
	first, last := rec.First(), rec.Last()
	switch name {
	case eventDrops:
		lost, known := lostEvents(rec)
		n := uint64(0)
		for _, l := range lost {
			n += l.Drops
		}
		return n, known
	case softnetIn, softnetOut:
		if first.Softnet == nil || last.Softnet == nil {
			return 0, false
		}
		if name == softnetIn {
			return uint64(last.Softnet.Processed - first.Softnet.Processed), true
		}
		return uint64(last.Softnet.Dropped - first.Softnet.Dropped), true
	case arpFulls, ndiscFulls:
		now, before := neighbourTable(last, name), neighbourTable(first, name)
		if now == nil || before == nil || now.TableFulls < before.TableFulls {
			return 0, false
		}
		return now.TableFulls - before.TableFulls, true
	}
	switch kind, counter, _ := strings.Cut(name, " "); kind {
	case "conntrack":
		return last.ConntrackStat.Delta(first.ConntrackStat, counter)
	case "dev", "qdisc":
		if first.Links == nil || last.Links == nil {
			return 0, false
		}
		now, known := last.Links.Counter(name)
		before, knownBefore := first.Links.Counter(name)
		return now - before, known && knownBefore && now >= before
	}
	if first.TCP == nil || last.TCP == nil {
		return 0, false
	}
	return last.TCP.Counters.Delta(first.TCP.Counters, name)
}

func neighbourTable(s *snapshot.Snapshot, counter string) *snapshot.NeighbourTable {
	switch {
	case s.Neighbours == nil:
		return nil
	case counter == arpFulls:
		return s.Neighbours.ARP
	}
	return s.Neighbours.NDisc
}

// lostEvents returns the listeners of both snapshots, with what each lost between them.
func lostEvents(rec *snapshot.Recording) (lost []snapshot.EventListener, known bool) {
	first, last := rec.First().EventListeners, rec.Last().EventListeners
	for _, now := range last {
		for _, before := range first {
			if before.PortID == now.PortID && before.Inode == now.Inode && now.Drops > before.Drops {
				now.Drops -= before.Drops
				lost = append(lost, now)
			}
		}
	}
	return lost, first != nil && last != nil
}

// logRead reports whether the kernel log was read both times.
func logRead(rec *snapshot.Recording) bool {
	return rec.First().KernelLogNext > 0 && rec.Last().KernelLogNext > 0
}

// newLines are the lines of this namespace, or of none, that were logged meanwhile.
func newLines(rec *snapshot.Recording, pattern *regexp.Regexp) (lines []snapshot.LogLine) {
	for _, l := range rec.NewLogLines() {
		if pattern.MatchString(l.Text) && (l.Netns == 0 || l.Netns == rec.Last().Netns.Inode) {
			lines = append(lines, l)
		}
	}
	return lines
}

// missing is why nothing is known.
func (g *hostGrowth) missing() string {
	first, last := g.rec.First(), g.rec.Last()
	why := cmp.Or(last.PartError(g.part), first.PartError(g.part))
	if g.log != nil && why == "" {
		why = cmp.Or(last.PartError("kernel_log"), first.PartError("kernel_log"), "the kernel log was not read")
	}
	if why == "" && g.each != nil {
		why = "interfaces and their queues were not recorded twice: a bundle of an older natkit"
	}
	if why == "" && len(g.signs) > 0 {
		why = "this kernel does not count " + g.signs[0].counter + ", or it was not recorded"
	}
	return why
}

// evidence is what the sign is, and the settings.
func (g *hostGrowth) evidence() (all []Evidence) {
	for _, name := range append([]string{g.sign.counter}, g.sign.of...) {
		if n, ok := hostDelta(g.rec, name); ok {
			all = append(all, Evidence{What: "counter " + name, Value: int64(min(n, math.MaxInt64)), Unit: g.span(name), Source: sourceOf(name)})
		}
	}
	for i, l := range g.lines {
		if i < mostShown {
			all = append(all, Evidence{What: "logged", Value: l.Text, Source: "kernel log"})
		}
	}
	for _, name := range g.settings {
		if v, ok := g.rec.Last().Sysctls.Int(name); ok {
			all = append(all, Evidence{What: name, Value: v, Source: "sysctl"})
		}
	}
	return all
}

// sourceOf is where a counter is read.
func sourceOf(counter string) string {
	file, _, other := strings.Cut(counter, " ")
	switch {
	case other && strings.HasSuffix(file, "_cache"):
		return "/proc/net/stat/" + file
	case file == "dev":
		return "ip -s link"
	case file == "qdisc":
		return "tc -s qdisc"
	case file == "conntrack":
		return "conntrack -S"
	case other:
		return "/proc/net/" + file
	case strings.HasPrefix(counter, "Xfrm"):
		return "/proc/net/xfrm_stat"
	case strings.HasPrefix(counter, "Ip6"), strings.HasPrefix(counter, "Udp6"):
		return "/proc/net/snmp6"
	case strings.HasPrefix(counter, "TcpExt"), strings.HasPrefix(counter, "IpExt"):
		return netstatSource
	}
	return snmpSource
}

// raise doubles the limit, if it is known.
func (g *hostGrowth) raise() {
	name := g.sign.raised
	now, ok := g.rec.Last().Sysctls.Int(name)
	if !ok || now <= 0 || now > math.MaxInt32/2 {
		return
	}
	r := advice("raise "+name, now, 2*now, where(g.rec))
	r.Automatic = true
	r.Changes = []tune.Change{{Kind: tune.Sysctl, Target: name, Before: g.rec.Last().Sysctls[name], After: strconv.FormatInt(2*now, 10),
		Why: g.found.Title, Cost: r.Cost, Risk: r.Risk}}
	g.found.Remedies = append(g.found.Remedies, r)
}

func (g *hostGrowth) add(what string, value any, unit, source string) {
	g.found.Evidence = append(g.found.Evidence, Evidence{What: what, Value: value, Unit: unit, Source: source})
}

func (g *hostGrowth) advise(name string, args ...any) {
	g.found.Remedies = append(g.found.Remedies, advice(name, args...))
}

// listeners names the sockets whose queue is full (sk_acceptq_is_full).
func (g *hostGrowth) listeners() string {
	cookies, _ := g.rec.Last().Sysctls.Int(snapshot.SynCookies)
	if g.sign.counter == queueCookies && cookies == 2 {
		return snapshot.SynCookies + " is 2, which answers every SYN by a cookie"
	}
	most, _ := g.rec.Last().Sysctls.Int(snapshot.SoMaxConn)
	var full *snapshot.AcceptQueue
	for i, q := range g.rec.Last().AcceptQueues {
		if q.Waiting < q.Limit || i >= mostShown {
			break
		}
		full = cmp.Or(full, &g.rec.Last().AcceptQueues[i])
		g.add("accept queue of "+q.Socket.String(), fmt.Sprintf("%s wait, the limit is %s", units.Count(int64(q.Waiting)), units.Count(int64(q.Limit))), "connections", "sock_diag")
	}
	if g.sign.counter == queueDrops || g.sign.counter == queueCookies {
		g.advise("listen-flood", where(g.rec))
		return ""
	}
	if n, ok := hostDelta(g.rec, listenOverflows); ok && g.sign.counter == "" {
		g.add("counter "+listenOverflows, int64(min(n, math.MaxInt64)), g.rec.Span(), netstatSource)
	}
	if full == nil {
		g.advise("listen-which", where(g.rec))
		return ""
	}
	g.found.Title = fmt.Sprintf("%s (%s)", g.found.Title, full.Socket)
	g.advise("listen-program", full.Socket.Port(), where(g.rec))
	if int64(full.Limit) >= most && most > 0 {
		g.advise("listen-somaxconn", snapshot.SoMaxConn, most, where(g.rec))
	} else {
		g.advise("listen-backlog", full.Limit, where(g.rec))
	}
	return ""
}

// queueFull reports whether a listener's queue has more than it takes (sk_acceptq_is_full, include/net/sock.h), so
// that the next connection is dropped, where it is not known how many were lately: the counter was read once at most.
func (g *hostGrowth) queueFull() bool {
	last := g.rec.Last()
	if _, known := hostDelta(g.rec, listenOverflows); known && !g.unsure && !g.rec.SinceStart || len(last.AcceptQueues) == 0 || last.AcceptQueues[0].Waiting <= last.AcceptQueues[0].Limit {
		return false
	}
	g.sign = sign{variant: " full", place: last.AcceptQueues[0].Socket.String()}
	g.known = append(g.known, "the accept queue of "+g.sign.place+" is full")
	return true
}

// neighbours names the limit where natkit cannot raise it: outside the initial namespace. There the counters are
// not to be seen, and the log is of all namespaces, so that something has to fail here. The initial one, which alone
// has the limit (arp_init, net/ipv4/arp.c; ndisc_init), is concerned by each line: the table is one for all.
func (g *hostGrowth) neighbours() string {
	_, initial := g.rec.Last().Sysctls.Int(snapshot.ARPMax)
	if len(g.lines) > 0 && !initial && g.rec.SomeSysctls && !g.refusesNeighbours() {
		g.undecided = true
		return "a table was full; of which network namespace, and at what limit, is not known: " + snapshot.ARPMax + " is not among the sysctls that were read"
	}
	if len(g.lines) > 0 && !(initial && g.rec.Last().Neighbours == nil) && !g.refusesNeighbours() {
		return "a table was full, of which nothing is felt in this network namespace"
	}
	if len(g.lines) > 0 {
		g.found.Severity, g.found.Confidence = Warning, "possible"
	}
	name, counter := cmp.Or(g.sign.raised, snapshot.ARPMax), cmp.Or(g.sign.counter, arpFulls)
	if len(g.lines) > 0 && strings.Contains(g.lines[0].Text, "ndisc_cache") {
		name, counter = snapshot.NDiscMax, ndiscFulls
	}
	if table := neighbourTable(g.rec.Last(), counter); table != nil {
		g.add("neighbours", int64(table.Entries), "entries", sourceOf(counter))
	}
	if _, ok := g.rec.Last().Sysctls.Int(g.sign.raised); !ok {
		g.advise("neighbours-raise", name)
	}
	return ""
}

// refusesNeighbours reports whether connections of this namespace fail, or a trace has packets for which there
// was no room for the neighbour.
func (g *hostGrowth) refusesNeighbours() bool {
	t, traced := traceOf(g.rec)
	return traced && len(t.wanted(wants("NEIGH_CREATEFAIL", ""))) > 0 || finds(g.rec, "service-unanswered")
}

// reversePaths: hosts on a network always drop some packets with forged sources, and broadcasts
// of other subnets. It is a fault where translated services get no answers, or where several
// uplinks make the way back another one and what is dropped is much of what comes, where about as
// many translated packets became no connection, or where a trace saw clients try again.
func (g *hostGrowth) reversePaths() string {
	const much = 0.1
	var strict, uplinks []string
	back, kept := g.keptBack(), (*keptOut)(nil)
	for _, p := range g.rec.Last().ReversePaths {
		strict = append(strict, p.Interface)
		if p.Default {
			uplinks = append(uplinks, p.Interface)
		}
	}
	switch {
	case dropsForged(g.rec):
		return "what it drops has a source that is forged, or of another network than its sender's link"
	case finds(g.rec, "service-unanswered") && (g.share >= lossShare || g.mayHaveVanished()):
		g.found.Severity = Critical
	case back != "" || g.triedAgain() || g.missed():
	case len(uplinks) < 2 || g.share < much:
		return "forged sources and broadcasts of other subnets count there, and nothing else fails"
	}
	if len(strict) > 0 {
		g.add("interfaces with a strict filter", strings.Join(strict[:min(len(strict), mostListed)], ", "), "", "net.ipv4.conf.*.rp_filter")
	}
	if len(uplinks) > 1 {
		g.add("of them with a default route", strings.Join(uplinks[:min(len(uplinks), mostListed)], ", "), "", "route to a public address")
	}
	for i, l := range newLines(g.rec, martian) {
		if i < mostShown {
			g.add("logged", l.Text, "", "kernel log")
		}
	}
	device := "IFACE"
	if len(strict) == 1 {
		device = strict[0]
	}
	if back == "" {
		kept = g.keptOut()
	}
	switch {
	case back != "": // the ways differ, and answers alone are wanted there
		g.advise("rp-loose", slashed(back), where(g.rec))
	case kept != nil:
		g.names(kept)
		if g.advise("rp-service", kept.in, slashed(kept.in), where(g.rec)); kept.selected != "" {
			g.found.Remedies[len(g.found.Remedies)-1] = advice("rp-service-led", kept.in, slashed(kept.in), where(g.rec), kept.selected)
		}
	}
	g.advise("rp-route", where(g.rec))
	g.advise("rp-log", where(g.rec))
	if back == "" && kept == nil {
		g.advise("rp-loose", slashed(device), where(g.rec))
	}
	return ""
}

// keptOut is a service of which a strict filter lets in nothing by an interface.
type keptOut struct {
	in       string
	rule     *snapshot.NATRule
	address  netip.Addr
	packets  int64
	selected string
}

func (k *keptOut) String() string {
	if !k.address.IsValid() || k.rule.DestinationPort == 0 {
		return ruleName(k.rule)
	}
	return strings.TrimSpace(k.rule.Protocol + " " + netip.AddrPortFrom(k.address, k.rule.DestinationPort).String())
}

// names says which service it is, and by which interface it is asked for.
func (g *hostGrowth) names(k *keptOut) {
	g.found.Title += fmt.Sprintf("; %s, which is asked for by %s", k, k.in)
	g.found.Cause = fmt.Sprintf("these packets came in by %s, rp_filter is 1 (strict) there, and the way back to their senders is by another interface: marks, and rules for the address that a destination had before its translation, do not count for that filter", k.in)
	g.found.Severity, g.found.Place = Critical, "the reverse path filter of "+k.in
	g.add("first packets to "+k.String()+" that came in by "+k.in+", as far as is known, and became no connection", k.packets, "packets", "counter of the rule "+k.rule.Place()+": "+k.rule.Text)
	if k.selected != "" {
		g.add("rule that leads answers back by it", k.selected, "", "routing rules by netlink")
	}
	if k.address.IsValid() {
		g.found.About = append(g.found.About, netip.AddrPortFrom(k.address, k.rule.DestinationPort))
	}
}

// keptOut returns nil where no interface is known to be the one, or several may be.
func (g *hostGrowth) keptOut() (found *keptOut) {
	last, flows := g.rec.Last(), g.rec.Flows
	if last.Audit == nil || last.NATRules == nil || last.NATRules.TooMany || flows == nil || flows.Services == nil || !flows.Services.NewKnown {
		return nil
	}
	grown := last.NATRules.Grown(g.rec.First().NATRules)
	for _, p := range last.ReversePaths {
		for i := range grown {
			k := &keptOut{in: p.Interface, rule: &last.NATRules.Rules[i], selected: p.Selected}
			if !k.takes(last.Audit, p) || k.answers(flows.Services, last.Audit, grown[i]) {
				continue
			}
			if found != nil && found.in != k.in {
				return nil
			}
			if found == nil || k.packets > found.packets {
				found = k
			}
		}
	}
	return found
}

// takes reports whether the rule may be for what comes in by the interface, an uplink or the one that it names,
// and notes the address that is asked for there.
func (k *keptOut) takes(a *snapshot.Audit, p snapshot.ReversePath) bool {
	r := k.rule
	if r.TranslatesSource() || r.Hook != "prerouting" || r.Family == "ip6" || r.InInterface != "" && !nat.InName(r.InInterface, k.in) {
		return false
	}
	if !p.Default && p.Selected == "" && r.InInterface != k.in {
		return false
	}
	at := a.Interface(k.in)
	if at == nil {
		return !r.ToDestination.IsValid()
	}
	for _, own := range at.Addresses {
		if own.Addr().Is4() && (!r.ToDestination.IsValid() || r.ToDestination.Contains(own.Addr())) {
			k.address = own.Addr()
			return true
		}
	}
	return false
}

// answers reports whether connections come about by the interface, or too few packets are missed to say.
func (k *keptOut) answers(all *snapshot.Services, a *snapshot.Audit, grown uint64) bool {
	k.packets = int64(min(grown, math.MaxInt64))
	for i := range all.All {
		s := &all.All[i]
		if !mayBe(k.rule, s) {
			continue
		}
		at, own := a.Near(s.Service.Addr())
		here := own && at.Name == k.in
		if here && s.New+s.Answered+s.Open > 0 {
			return true
		}
		if k.rule.InInterface != k.in {
			k.packets -= s.New
		}
	}
	return k.packets < fewestVanished
}

// keptBack is an interface with a strict filter to which a mark, or the interface that packets come in by, leads
// connections: the filter asks for the way back without these, so that it drops all answers from beyond. The tracker
// has seen them before: a datagram counts as answered, TCP never gets beyond the answer to its SYN.
func (g *hostGrowth) keptBack() string {
	last, flows := g.rec.Last(), g.rec.Flows
	if last.Audit == nil || flows == nil || flows.Services == nil {
		return ""
	}
	for _, p := range last.ReversePaths {
		if p.Default || p.Selected == "" {
			continue
		}
		var led int64
		works, names := false, []string(nil)
		for i := range flows.Services.All {
			s := &flows.Services.All[i]
			if at, own := last.Audit.Near(s.Given); s.Kind != snapshot.ServiceSNAT || !own || at.Name != p.Interface {
				continue
			}
			led, names = led+s.Answered+s.Failed(), once(names, s.String())
			works = works || s.Protocol == "tcp" && s.Answered+s.Open > 0
		}
		if works || led < fewestFailing {
			continue
		}
		g.add("connections that leave by "+p.Interface, led, "connections", "connection table")
		g.add("rule that leads them there", p.Selected, "", "routing rules by netlink")
		g.found.Title += fmt.Sprintf("; answers that come in by %s to %s", p.Interface, firstOf(names))
		g.found.Severity = Critical
		return p.Interface
	}
	return ""
}

// triedAgain reports whether a trace has several TCP connections that were dropped more than
// once: forged packets do not come again.
func (g *hostGrowth) triedAgain() bool {
	t, ok := traceOf(g.rec)
	if !ok {
		return false
	}
	again := slices.DeleteFunc(t.wanted(wants("IP_RPFILTER", "")), func(f snapshot.DropFlow) bool { return f.Protocol != "tcp" || f.Packets < 2 })
	for _, f := range again[:min(len(again), mostShown)] {
		g.add(fmt.Sprintf("dropped again and again: tcp %s -> %s, in by %s", f.Source, f.Destination, cmp.Or(f.Interface, "?")), int64(f.Packets), "packets", t.source())
	}
	return len(again) >= fewestFailing
}

// dropsForged reports whether all that was seen of what the filter drops is forged or stray.
func dropsForged(rec *snapshot.Recording) bool {
	if rec.Followed == nil {
		return false
	}
	dropped := slices.DeleteFunc(rows(rec), func(r row) bool { return !r.isReversed() })
	return len(dropped) > 0 && !slices.ContainsFunc(dropped, func(r row) bool { return !r.isForged() })
}

// mayHaveVanished reports whether the drops are enough for the first packets that a rule
// translated and of which none became a connection: the filter comes after the translation.
func (g *hostGrowth) mayHaveVanished() bool {
	return slices.ContainsFunc(vanishedOnes(g.rec), func(f failing) bool {
		packets, _ := f.evidence[0].Value.(int64)
		return 2*int64(g.n) >= packets
	})
}

// onlyUplink reports whether an interface is the only way to the internet, as far as the strict filters and the rules
// that translate sources show: what the filter drops there has a source of a network inside, which is forged.
func onlyUplink(rec *snapshot.Recording, name string) bool {
	last := rec.Last()
	is := false
	for _, p := range last.ReversePaths {
		if is = is || p.Default && p.Interface == name; p.Interface != name && (p.Default || p.Selected != "") {
			return false
		}
	}
	return is && last.NATRules != nil && !slices.ContainsFunc(last.NATRules.Rules, func(r snapshot.NATRule) bool { return r.TranslatesSource() && r.OutInterface != name })
}

// missed reports whether first packets that rules of DNAT counted never became connections, about as
// many as were dropped: the filter comes after the translation, and the table has the others.
func (g *hostGrowth) missed() bool {
	now, before := g.rec.Last().NATRules, g.rec.First().NATRules
	if now == nil || before == nil || now.TooMany || g.rec.Flows == nil || g.rec.Flows.Services == nil || !g.rec.Flows.Services.NewKnown {
		return false
	}
	var packets, births uint64
	for i, n := range now.Grown(before) {
		if r := &now.Rules[i]; !r.TranslatesSource() && r.Hook == "prerouting" && !onlyUplink(g.rec, r.InInterface) {
			packets += n
		}
	}
	for _, s := range g.rec.Flows.Services.All {
		births += uint64(s.New)
	}
	if packets <= births {
		return false
	}
	missing := packets - births
	if missing < fewestVanished || float64(missing) < failedPart*float64(packets) || 2*g.n < missing || g.n > 2*missing {
		return false
	}
	g.add("first packets that rules of DNAT translated, and that became no connection", int64(min(missing, math.MaxInt64)), fmt.Sprintf("of %s", units.Count(packets)), "counters of the rules, connection table")
	return true
}

// blackhole: a packet that is too large is answered by an ICMP error, which the kernel does not
// limit (icmpv4_mask_allow), and its sender then makes smaller ones. Every new client behind a
// smaller MTU begins so. It is a fault where the errors do not leave this host: ip_send_skb
// counts what the hooks of netfilter drop.
func (g *hostGrowth) blackhole() string {
	if g.sign.variant == inward {
		g.add("entries of TCP in CLOSE_WAIT", int64(g.n), fmt.Sprintf("of %d", entriesOfTCP(g.rec.Last().Table)), "connection table")
		return ""
	}
	discarded, _ := hostDelta(g.rec, outDiscards)
	sent, counts := hostDelta(g.rec, outUnreachable)
	rules := g.rec.Last().ICMPErrors
	silent := false
	switch {
	case 2*discarded >= g.n && (rules == nil || len(rules.Drops) > 0):
		if rules != nil && !rules.Passes {
			g.found.Confidence = "certain"
		}
	case counts && 2*sent < g.n:
		g.found.Cause = "this host sends no ICMP errors for them, as it has no route to the senders"
		silent = true
	default:
		return "each was answered by an ICMP error, from which its sender learns the MTU"
	}
	g.found.Evidence = append(g.found.Evidence, (&hostGrowth{hostFault: g.hostFault, rec: g.rec, sign: sign{counter: outUnreachable, of: []string{outDiscards}}}).evidence()...)
	if rules != nil {
		for _, d := range rules.Drops {
			g.add("drops ICMP errors", d.Text, d.Owner, "rules by netlink")
		}
	}
	if silent {
		g.advise("pmtu-route", where(g.rec))
	} else {
		g.advise("pmtu-accept", where(g.rec))
	}
	return ""
}

// damaged leaves alone what the Internet sends to anybody: it is a fault where one sender's packets to one port are
// logged again and again.
func (g *hostGrowth) damaged() string {
	if len(g.lines) == 0 {
		return ""
	}
	if _, counted := hostDelta(g.rec, udpChecksums); counted {
		return "they are few of all that came"
	}
	const fewest, within = 3, 60.0
	at := map[string][]float64{}
	for _, l := range g.lines {
		m := g.log.FindStringSubmatch(l.Text)
		path := m[1] + " to " + m[2]
		times := append(at[path], l.UptimeSeconds)
		if at[path] = times; len(times) >= fewest && times[len(times)-1]-times[len(times)-fewest] <= within {
			g.found.Title += ": " + path
			return ""
		}
	}
	return "so few of one sender may be damaged packets"
}

// timeWait leaves alone who wants none.
func (g *hostGrowth) timeWait() string {
	n, ok := g.rec.Last().Sysctls.Int(snapshot.TCPMaxTWBuckets)
	if ok && n == 0 {
		return snapshot.TCPMaxTWBuckets + " is 0, which is on purpose"
	}
	g.advise("tw-overflow-raise", snapshot.TCPMaxTWBuckets, max(2*n, 65536), where(g.rec))
	return ""
}

// listenersOfEvents names the sockets.
func (g *hostGrowth) listenersOfEvents() string {
	lost, _ := lostEvents(g.rec)
	for i, l := range lost {
		if i < mostShown {
			g.add(fmt.Sprintf("lost by the socket with port %d (often the PID of its process)", l.PortID), int64(l.Drops), "messages", procNetlinkSource)
		}
	}
	return ""
}

const procNetlinkSource = "/proc/net/netlink"

// masquerade: the line does not name the namespace, so a rule here has to be for the interface.
func (g *hostGrowth) masquerade() string {
	rules := g.rec.Last().NATRules
	if rules == nil {
		return "the NAT rules were not read"
	}
	for _, l := range g.lines {
		device := g.log.FindStringSubmatch(l.Text)[1]
		for i := range rules.Rules {
			r := &rules.Rules[i]
			if r.Kind == snapshot.NATMasquerade && r.Family != "ip6" && (r.OutInterface == device || r.OutInterface == "" && g.rec.Last().Netns.Name == "") {
				g.found.Title = fmt.Sprintf("%s: %s", g.found.Title, device)
				g.add("rule", r.Place()+": "+r.Text, "", "NAT rules by netlink")
				return ""
			}
		}
	}
	return "the lines are of another network namespace"
}

// lockup: the lines behind name the function.
func (g *hostGrowth) lockup() string {
	stuck := newLines(g.rec, stuckIn)
	if len(stuck) == 0 {
		return "a soft lockup was logged, in none of conntrack's functions"
	}
	for i, l := range stuck {
		if i < mostShown {
			g.add("the CPU was in", l.Text, "", "kernel log")
		}
	}
	return ""
}
