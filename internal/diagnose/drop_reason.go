package diagnose

import (
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// dropKind says how many drops of a reason a healthy host has, and with that from
// which rate on they are worth a word.
type dropKind int

const (
	// dropUntold: the kernel gives no reason, or one that is not in dropReasons.
	dropUntold dropKind = iota
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
	untoldRate       = 1000
	// fewestDrops keeps a burst within a short trace from counting as a rate. Packets
	// that wait for a next hop which is dead are dropped by the bunch, every three
	// seconds or so: a rate of 12/s must be far above in every trace of five seconds.
	fewestDrops = 20
	// fewestFlows is how many drops must have been looked at before a share of them
	// says anything.
	fewestFlows = 10
	// A prefix of which fewestScanned addresses or more had scannedOften packets each, or
	// fewer, was scanned.
	fewestScanned = 20
	scannedOften  = 2
)

// dropReason is what a name of enum skb_drop_reason means
// (include/net/dropreason-core.h), and where to look.
type dropReason struct {
	kind  dropKind
	means string
	look  string
}

// wrongSource are the reasons for which the packets' source is what is wrong with
// them; with others it is where they go.
var wrongSource = map[string]bool{"IP_RPFILTER": true, "IP_INVALID_SOURCE": true, "IP_LOCAL_SOURCE": true, "IP_INVALID_DEST": true}

// dropReasons are those that say something about forwarding and NAT, and those
// that are usual. TCP's own (TCP_…) are usual where they are not listed.
var dropReasons = map[string]dropReason{
	"IP_RPFILTER":        {dropNoise, "the reverse path filter: the way back to the sender leads through another interface", "where the way back differs on purpose (asymmetric routing, policy routing, several uplinks), set net.ipv4.conf.IFACE.rp_filter to 2 (loose); otherwise correct the route to these senders ('ip route get ADDRESS')"},
	"IP_INNOROUTES":      {dropNoise, "there is no route to the destination, or the interface does not forward", "compare 'ip route get DESTINATION from SOURCE iif IFACE' and net.ipv4.conf.IFACE.forwarding with what should be; add the route"},
	"IP_OUTNOROUTES":     {dropNoise, "packets of this host have no route to their destination", "'ip route get DESTINATION': add the route, or tell the sender another destination"},
	"IP_INADDRERRORS":    {dropNoise, "the destination is none of this host's addresses, and it does not forward there", "net.ipv4.ip_forward must be 1 on a NAT gateway, and net.ipv4.conf.IFACE.forwarding too; where it is, the packets were sent to the wrong host"},
	"IP_INVALID_SOURCE":  {dropNoise, "the source address is none that a packet may have (multicast, broadcast, 0.0.0.0/8)", "find the sender by its MAC address and correct it"},
	"IP_LOCAL_SOURCE":    {dropNoise, "the source address is this host's own", "an address that two hosts have, or packets that came back untranslated: hairpin NAT needs SNAT as well as DNAT"},
	"IP_LOCALNET":        {dropNoise, "an address of 127.0.0.0/8 came in from a network", "where a DNAT leads to 127.0.0.1, let it lead to an address of this host on which the service listens; or set net.ipv4.conf.IFACE.route_localnet=1; otherwise correct the sender"},
	"IP_INVALID_DEST":    {dropNoise, "the destination address is none that a packet may have", "find the sender and correct it"},
	"IP_INHDR":           {dropNoise, "the IP header is wrong, or the TTL ran out", "'ip route get' on each router of the way: a routing loop uses up TTLs"},
	"NEIGH_FAILED":       {dropNoise, "the next hop does not answer ARP or neighbour discovery", "'ip neigh show nud failed': is the next hop, or the backend of a DNAT, up and on this link? Does a route lead to an interface where nobody has the address?"},
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

	"NO_SOCKET":                {dropNormal, "nobody listens there", ""},
	"SOCKET_CLOSE":             {dropNormal, "the socket was closed meanwhile", ""},
	"OTHERHOST":                {dropNormal, "frames for another host", ""},
	"LOCAL_MAC":                {dropNormal, "frames with an own address as source", ""},
	"UNHANDLED_PROTO":          {dropNormal, "protocols that nobody here handles", ""},
	"INVALID_PROTO":            {dropNormal, "protocols that nobody here handles", ""},
	"IP_NOPROTO":               {dropNormal, "protocols that nobody here handles", ""},
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

// lookV6 is where to look for packets of IPv6, where that is elsewhere.
var lookV6 = map[string]string{
	"IP_RPFILTER":           "IPv6 has no rp_filter: a rule does it ('ip6tables -m rpfilter', nft 'fib saddr . iif'), which has to let in what comes back another way on purpose",
	"IP_INNOROUTES":         "compare 'ip -6 route get DESTINATION from SOURCE iif IFACE' with what should be; add the route",
	"IP_OUTNOROUTES":        "'ip -6 route get DESTINATION': add the route, or tell the sender another destination",
	"IP_INADDRERRORS":       "net.ipv6.conf.all.forwarding must be 1 on a gateway (and net.ipv6.conf.IFACE.accept_ra 2 where it takes its own route from advertisements); where it is, the packets were sent to the wrong host",
	"IP_INHDR":              "'ip -6 route get' on each router of the way: a routing loop uses up hop limits",
	"NEIGH_FAILED":          "'ip -6 neigh show nud failed': is the next hop, or the backend of a DNAT, up and on this link? Does a route lead to an interface where nobody has the address?",
	"NEIGH_QUEUEFULL":       "'ip -6 neigh': why does the next hop answer late; net.ipv6.neigh.IFACE.unres_qlen_bytes",
	"NEIGH_CREATEFAIL":      "net.ipv6.neigh.default.gc_thresh3 must exceed the number of neighbours; it is one for the whole host",
	"FRAG_REASM_TIMEOUT":    "lower the MTU at the sender, or look for a device on the way that drops fragments; net.ipv6.ip6frag_high_thresh",
	"PKT_TOO_BIG":           "clamp the MSS to the path MTU (nft 'tcp option maxseg size set rt mtu', ip6tables TCPMSS --clamp-mss-to-pmtu), and let ICMPv6 'packet too big' pass",
	snapshot.CauseNATFailed: "'ip -6 address show' of the outgoing interface, the addresses in the NAT rule",
}

// lookRisk is what advice risks.
var lookRisk = map[string]string{
	"IP_RPFILTER":     "a loose or switched off filter lets in packets with forged sources",
	"IP_INADDRERRORS": "a host that forwards routes for whoever sends to it: let the FORWARD rules say for whom",
	"IP_LOCALNET":     "with route_localnet whoever is on that network reaches services that listen on 127.0.0.1 only: drop what comes with such a destination before NAT, nft 'table ip localnet { chain c { type filter hook prerouting priority raw; iifname IFACE ip daddr 127.0.0.0/8 drop; }; }'",
}

// untold is for drops that the kernel does not explain.
var untold = dropReason{kind: dropUntold, means: "the kernel does not say why", look: "'natkit drops' shows these packets and the stacks that they are dropped in"}

// reasonOf knows the kind of a reason by its name.
func reasonOf(name string) dropReason {
	if r, ok := dropReasons[name]; ok {
		return r
	}
	switch {
	case strings.HasPrefix(name, "TCP_"), strings.HasPrefix(name, "IPV6_NDISC_"), strings.HasPrefix(name, "CAN"):
		return dropReason{kind: dropNormal}
	}
	return untold
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
// neither tells.
func siteReason(function, reason string) string {
	if reason == "" || reason == notSpecified {
		return reasonByFunction[function]
	}
	return reason
}
