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
// on, is in drop_reason.go.
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

// explained reports whether another rule says why these packets are dropped.
func explained(rec *snapshot.Recording, g dropGroup) bool {
	switch g.name {
	case snapshot.CauseNotInserted:
		return finds(rec, "ct-chain-cap", "snat-ports-exhausted", "snat-race")
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
			r.means = "a rule, conntrack or NAT: which one is unknown"
		}
		groups = append(groups, dropGroup{name: netfilterDrop, dropReason: r, packets: rest, want: byNetfilter})
	}
	return groups
}

// untranslated are answers to connections of NAT that no entry translates back: they come
// to the address that NAT gave, where no socket listens on that port.
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
		if wrongSource[g.name] {
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
	if g.means == "" || g.hint != "" {
		return g.name
	}
	return fmt.Sprintf("%s (%s)", g.name, g.means)
}

// advice is where to search for the cause of a group, for the families that its packets are of.
func (g dropGroup) advice() []Remedy {
	v4, v6 := false, false
	for _, f := range g.flows {
		to, err := netip.ParseAddr(f.DestinationAddress())
		isV6 := err == nil && !to.Is4()
		v4, v6 = v4 || !isV6, v6 || isV6
	}
	hint, differs := hintV6[g.name]
	var r []Remedy
	if v4 || !v6 || !differs {
		r = append(r, Remedy{Title: fmt.Sprintf("%s: %s", g.name, g.hint), Risk: hintRisk[g.name]})
	}
	if v6 && differs {
		r = append(r, Remedy{Title: fmt.Sprintf("%s (IPv6): %s", g.name, hint), Risk: hintRisk[g.name]})
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
		if g.kind != dropUnspecified {
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

// dropKind says how many drops of a reason a healthy host has, and with that from
// which rate on they are worth a word.
type dropKind int

const (
	// dropUnspecified: the kernel gives no reason, or one that is not in dropReasons.
	dropUnspecified dropKind = iota
	// dropNormal: protocols at work, scanners, packets for others. Never a finding.
	dropNormal
	// dropWanted: an administrator's rule or program. Never a finding.
	dropWanted
	// dropLocal: a process of this host reads too slowly. It is no matter of
	// forwarding or NAT, and never a finding of this rule.
	dropLocal
	// dropLoss: packets that should have passed; a healthy host has next to none.
	dropLoss
	// dropNoise: what scans of unused addresses, spoofed and strayed packets cause at
	// every host on a network, and a fault too.
	dropNoise
	// dropQueue: full queues, by which TCP learns how fast it may send.
	dropQueue
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

// dropReason is what a name of enum skb_drop_reason means
// (include/net/dropreason-core.h), and where to search.
type dropReason struct {
	kind  dropKind
	means string
	hint  string
}

// wrongSource are the reasons for which the packets' source is what is wrong with
// them; with others it is where they go.
var wrongSource = map[string]bool{"IP_RPFILTER": true, "IP_INVALID_SOURCE": true, "IP_LOCAL_SOURCE": true, "IP_INVALID_DEST": true}

// dropReasons are those that say something about forwarding and NAT, and those
// that are usual. TCP's own (TCP_…) are usual where they are not listed.
var dropReasons = map[string]dropReason{
	"IP_RPFILTER":        {dropNoise, "the reverse path filter: the way back to the sender leads through another interface", "where the way back differs on purpose (asymmetric routing, policy routing, several uplinks), set net.ipv4.conf.IFACE.rp_filter to 2 (loose); otherwise correct the route to these senders ('ip route get ADDRESS')"},
	"IP_INNOROUTES":      {dropNoise, "there is no route to the destination, or the interface does not forward", "compare 'ip route get DESTINATION from SOURCE iif IFACE' and net.ipv4.conf.IFACE.forwarding with what should be; add the route"},
	"IP_OUTNOROUTES":     {dropNoise, "packets of this host have no route to their destination", "'ip route get DESTINATION': add the route, or correct the destination at the sender"},
	"IP_INADDRERRORS":    {dropNoise, "the destination is none of this host's addresses, and it does not forward there", "net.ipv4.ip_forward must be 1 on a NAT gateway, and net.ipv4.conf.IFACE.forwarding too; where it is, the packets were sent to the wrong host"},
	"IP_INVALID_SOURCE":  {dropNoise, "the source address is none that a packet may have (multicast, broadcast, 0.0.0.0/8)", "find the sender by its MAC address and correct it"},
	"IP_LOCAL_SOURCE":    {dropNoise, "the source address is this host's own", "an address that two hosts have, or packets that came back untranslated: hairpin NAT needs SNAT as well as DNAT"},
	"IP_LOCALNET":        {dropNoise, "an address of 127.0.0.0/8 came in from a network", "where a DNAT leads to 127.0.0.1, let it lead to an address of this host on which the service listens; or set net.ipv4.conf.IFACE.route_localnet=1; otherwise correct the sender"},
	"IP_INVALID_DEST":    {dropNoise, "the destination address is none that a packet may have", "find the sender and correct it"},
	"IP_INHDR":           {dropNoise, "the IP header is wrong, or the TTL ran out", "'ip route get' on each router of the way: a routing loop uses up TTLs"},
	"NEIGH_FAILED":       {dropNoise, "the next hop does not answer ARP or neighbour discovery", "'ip neigh show nud failed': is the next hop, or the backend of a DNAT, up and on this link? Does a route lead to an interface on which no host has the address?"},
	"NEIGH_QUEUEFULL":    {dropNoise, "more packets wait for ARP or neighbour discovery of one next hop than may", "'ip neigh': why does the next hop answer late; net.ipv4.neigh.IFACE.unres_qlen_bytes"},
	"XFRM_POLICY":        {dropNoise, "an IPsec policy does not allow the packet", "'ip xfrm policy': traffic that is to go through IPsec must be left out of NAT, or the policy must name the translated addresses"},
	"DEV_READY":          {dropNoise, "the outgoing interface is down or has no one who reads from it", "'ip link': is the interface, and the program behind a tunnel, up"},
	"FRAG_REASM_TIMEOUT": {dropNoise, "fragments waited in vain for the rest of their packet (conntrack puts packets together)", "lower the MTU at the sender, or look for a device on the way that drops fragments; net.ipv4.ipfrag_high_thresh"},
	"TCP_RFC7323_PAWS":   {dropNoise, "the TCP timestamp is older than the last one of the connection", "clients behind one NAT address whose ports are used again: give the NAT more addresses or ports"},

	"TCP_RFC7323_TW_PAWS": {dropLoss, "a new connection's TCP timestamp is older than that of the closed one on the same addresses and ports", "the NAT in front uses ports again within 60 s: give it more addresses or ports (fully-random makes it worse with clients whose timestamps have an offset for each connection)"},
	"TCP_LISTEN_OVERFLOW": {dropLoss, "the listening socket's queue of new connections is full", "'ss -ltn' (Recv-Q above Send-Q): a larger backlog and net.core.somaxconn, or a faster server"},
	"NEIGH_CREATEFAIL":    {dropLoss, "the neighbour table has no room for a next hop", "net.ipv4.neigh.default.gc_thresh3 (and net.ipv6…) must exceed the number of neighbours; it is one for the whole host"},
	"NEIGH_HH_FILLFAIL":   {dropLoss, "the link-layer header could not be made", "'ip -d link' of the outgoing interface"},
	"CPU_BACKLOG":         {dropLoss, "a CPU's queue of received packets is full", "net.core.netdev_max_backlog; spread the load over CPUs (RPS, more queues); /proc/net/softnet_stat has the CPU"},
	"PKT_TOO_BIG":         {dropLoss, "the packet is larger than the outgoing interface's MTU and must not be cut", "clamp the MSS to the path MTU (nft 'tcp option maxseg size set rt mtu', iptables TCPMSS --clamp-mss-to-pmtu), and let ICMP 'fragmentation needed' pass"},
	"IP_CSUM":             {dropLoss, "the IP header's checksum is wrong", "'ethtool -S' of the receiving interface, a cable or a card; something that rewrites headers"},
	"TCP_CSUM":            {dropLoss, "the TCP checksum is wrong", "switch checksum offload off on the way to see whether it is that ('ethtool -K IFACE tx off'; tunnels, virtual interfaces); 'ethtool -S'"},
	"UDP_CSUM":            {dropLoss, "the UDP checksum is wrong", "switch checksum offload off on the way to see whether it is that ('ethtool -K IFACE tx off'; VXLAN with NAT before Linux 5.7); 'ethtool -S'"},
	"ICMP_CSUM":           {dropLoss, "the ICMP checksum is wrong", "something on the way rewrites packets and leaves the checksum"},
	"SKB_CSUM":            {dropLoss, "the checksum could not be completed or is wrong", "checksum offload of the interfaces on the way ('ethtool -k')"},
	"SKB_GSO_SEG":         {dropLoss, "a large packet could not be cut into segments", "segmentation offload of the outgoing interface ('ethtool -K IFACE gso off tso off' to see whether it is that)"},
	"NOMEM":               {dropLoss, "the kernel had no memory for the packet", "free memory, vm.min_free_kbytes"},
	"PFMEMALLOC":          {dropLoss, "the kernel was short of memory when the packet came", "free memory, vm.min_free_kbytes"},
	"RECURSION_LIMIT":     {dropLoss, "virtual interfaces send to each other in a circle", "'ip -d link': tunnels and redirects that lead back to themselves"},

	"QDISC_DROP":        {dropQueue, "the outgoing interface's queue is full", "'tc -s qdisc show dev IFACE': more bandwidth, or a queue that shares it fairly (fq_codel)"},
	"QDISC_OVERLIMIT":   {dropQueue, "the outgoing interface's queue is at its limit", "'tc -s qdisc show dev IFACE': the limit of the qdisc"},
	"QDISC_CONGESTED":   {dropQueue, "the outgoing interface's queue keeps packets too long", "'tc -s qdisc show dev IFACE': more bandwidth"},
	"CAKE_FLOOD":        {dropQueue, "one flow floods the outgoing interface's queue", "'tc -s qdisc show dev IFACE'"},
	"FQ_BAND_LIMIT":     {dropQueue, "a band of the outgoing interface's queue is full", "'tc -s qdisc show dev IFACE': limit of fq"},
	"FQ_FLOW_LIMIT":     {dropQueue, "one flow has too many packets in the outgoing interface's queue", "'tc -s qdisc show dev IFACE': flow_limit of fq"},
	"FQ_HORIZON_LIMIT":  {dropQueue, "packets are to be sent too far in the future", "'tc -s qdisc show dev IFACE': horizon of fq"},
	"DUALPI2_STEP_DROP": {dropQueue, "the outgoing interface's queue keeps packets too long", "'tc -s qdisc show dev IFACE'"},
	"FULL_RING":         {dropQueue, "the reader of a tunnel or virtual interface is too slow", "the CPU use of the program behind the tunnel; its queue length ('ip link set IFACE txqueuelen N')"},

	"SOCKET_RCVBUFF": {dropLocal, "a socket's receive buffer is full: its process reads too slowly", ""},
	"SOCKET_BACKLOG": {dropLocal, "a socket is busy and its backlog full", ""},
	"PROTO_MEM":      {dropLocal, "the memory for sockets is used up (net.ipv4.tcp_mem, udp_mem)", ""},

	"SOCKET_FILTER":     {dropWanted, "a process's filter", ""},
	"BPF_CGROUP_EGRESS": {dropWanted, "a BPF program of a cgroup", ""},
	"TC_INGRESS":        {dropWanted, "a tc filter or BPF program", ""},
	"TC_EGRESS":         {dropWanted, "a tc filter or BPF program", ""},
	"XDP":               {dropWanted, "an XDP program", ""},
	"SECURITY_HOOK":     {dropWanted, "a security module", ""},
	"TAP_FILTER":        {dropWanted, "a tap interface's filter", ""},
	"TAP_TXFILTER":      {dropWanted, "a tap interface's filter", ""},

	"NO_SOCKET":                {dropNormal, "no socket listens there", ""},
	"SOCKET_CLOSE":             {dropNormal, "the socket was closed meanwhile", ""},
	"OTHERHOST":                {dropNormal, "frames for another host", ""},
	"LOCAL_MAC":                {dropNormal, "frames with an own address as source", ""},
	"UNHANDLED_PROTO":          {dropNormal, "protocols that this host does not handle", ""},
	"INVALID_PROTO":            {dropNormal, "protocols that this host does not handle", ""},
	"IP_NOPROTO":               {dropNormal, "protocols that this host does not handle", ""},
	"IPV6DISABLED":             {dropNormal, "IPv6 is off", ""},
	"UNICAST_IN_L2_MULTICAST":  {dropNormal, "frames sent to a group for one host", ""},
	"PKT_TOO_SMALL":            {dropNormal, "packets that are cut short", ""},
	"HDR_TRUNC":                {dropNormal, "packets that are cut short", ""},
	"DUP_FRAG":                 {dropNormal, "fragments that came twice", ""},
	"FRAG_TOO_FAR":             {dropNormal, "fragments that came late", ""},
	"NEIGH_DEAD":               {dropNormal, "a neighbour that was just removed", ""},
	"QUEUE_PURGE":              {dropNormal, "an interface or socket was shut", ""},
	"PACKET_SOCK_ERROR":        {dropNormal, "a packet socket was not ready", ""},
	"BRIDGE_INGRESS_STP_STATE": {dropNormal, "a bridge port that does not forward yet", ""},
	"MAC_IEEE_MAC_CONTROL":     {dropNormal, "frames of the link itself", ""},
	"UNIX_DISCONNECT":          {dropNormal, "local sockets that were closed", ""},
	"UNIX_SKIP_OOB":            {dropNormal, "local sockets", ""},
}

// hintV6 is where to search for packets of IPv6, where that is elsewhere.
var hintV6 = map[string]string{
	"IP_RPFILTER":           "IPv6 has no rp_filter: a rule does it ('ip6tables -m rpfilter', nft 'fib saddr . iif'), which has to let in what comes back another way on purpose",
	"IP_INNOROUTES":         "compare 'ip -6 route get DESTINATION from SOURCE iif IFACE' with what should be; add the route",
	"IP_OUTNOROUTES":        "'ip -6 route get DESTINATION': add the route, or correct the destination at the sender",
	"IP_INADDRERRORS":       "net.ipv6.conf.all.forwarding must be 1 on a gateway (and net.ipv6.conf.IFACE.accept_ra 2 where it takes its own route from advertisements); where it is, the packets were sent to the wrong host",
	"IP_INHDR":              "'ip -6 route get' on each router of the way: a routing loop uses up hop limits",
	"NEIGH_FAILED":          "'ip -6 neigh show nud failed': is the next hop, or the backend of a DNAT, up and on this link? Does a route lead to an interface on which no host has the address?",
	"NEIGH_QUEUEFULL":       "'ip -6 neigh': why does the next hop answer late; net.ipv6.neigh.IFACE.unres_qlen_bytes",
	"NEIGH_CREATEFAIL":      "net.ipv6.neigh.default.gc_thresh3 must exceed the number of neighbours; it is one for the whole host",
	"FRAG_REASM_TIMEOUT":    "lower the MTU at the sender, or look for a device on the way that drops fragments; net.ipv6.ip6frag_high_thresh",
	"PKT_TOO_BIG":           "clamp the MSS to the path MTU (nft 'tcp option maxseg size set rt mtu', ip6tables TCPMSS --clamp-mss-to-pmtu), and let ICMPv6 'packet too big' pass",
	snapshot.CauseNATFailed: "'ip -6 address show' of the outgoing interface, the addresses in the NAT rule",
}

// hintRisk is what advice risks.
var hintRisk = map[string]string{
	"IP_RPFILTER":     "a loose or switched off filter lets in packets with forged sources",
	"IP_INADDRERRORS": "a host that forwards routes for whoever sends to it: let the FORWARD rules say for whom",
	"IP_LOCALNET":     "with route_localnet whoever is on that network reaches services that listen on 127.0.0.1 only: drop what comes with such a destination before NAT, nft 'table ip localnet { chain c { type filter hook prerouting priority raw; iifname IFACE ip daddr 127.0.0.0/8 drop; }; }'",
}

// unspecified is for drops that the kernel does not explain.
var unspecified = dropReason{kind: dropUnspecified, means: "the kernel does not say why", hint: "'natkit drops' shows these packets and the stacks that they are dropped in"}

// reasonOf knows the kind of a reason by its name.
func reasonOf(name string) dropReason {
	if r, ok := dropReasons[name]; ok {
		return r
	}
	switch {
	case strings.HasPrefix(name, "TCP_"), strings.HasPrefix(name, "IPV6_NDISC_"), strings.HasPrefix(name, "CAN"):
		return dropReason{kind: dropNormal}
	}
	return unspecified
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
