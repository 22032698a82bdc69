package tune

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
)

// maxSysctlValue is the most that the kernel takes in one write for the string
// sysctls that NAT needs; a longer one is a mistake (proc_sys_call_handler
// refuses more than KMALLOC_MAX_SIZE).
const maxSysctlValue = 4096

// SysctlName gives the canonical form of a sysctl's name as sysctl(8) takes it:
// the first separator decides. "net.ipv4.conf.eth0/100.rp_filter" and
// "net/ipv4/conf/eth0.100/rp_filter" both are the former, where '/' stands for a
// dot inside a part.
func SysctlName(s string) (string, error) {
	name := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '/' {
		name = swapSeparators(s)
	}
	if _, err := SysctlPath(name); err != nil {
		return "", err
	}
	return name, nil
}

// SysctlPath returns the path of a canonical name under /proc/sys. The path is
// relative, has at least two parts and never leaves that folder.
func SysctlPath(name string) (string, error) {
	path := swapSeparators(name)
	parts := strings.Split(path, "/")
	if len(parts) < 2 {
		return "", fmt.Errorf("sysctl name %q: too short; expected a dotted name such as net.netfilter.nf_conntrack_max", name)
	}
	if name[0] == '-' { // in sysctl.d(5) it is no part of the name
		return "", fmt.Errorf("sysctl name %q: begins with a hyphen", name)
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("sysctl name %q: has an empty or relative part", name)
		}
		if i := strings.IndexFunc(part, notInSysctlName); i >= 0 {
			return "", fmt.Errorf("sysctl name %q: character %q is not allowed", name, part[i])
		}
	}
	return path, nil
}

// startsPrograms reports whether the kernel starts a program as root that a sysctl names:
// with a forged journal an undo would then give root on the host.
func startsPrograms(name string) bool {
	switch name {
	case "kernel.core_pattern", "kernel.modprobe", "kernel.hotplug", "kernel.poweroff_cmd":
		return true
	}
	return strings.HasPrefix(name, "fs.binfmt_misc.")
}

func swapSeparators(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, s)
}

// notInSysctlName allows what the kernel's own names and the usual interface
// names (eth0.100, veth-a, br@0, wg+1) are made of.
func notInSysctlName(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("_-.:@+", r)
}

// ParseAssignment reads "net.netfilter.nf_conntrack_max=524288" into the
// canonical name and the normalised value.
func ParseAssignment(s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return "", "", fmt.Errorf("setting %q: expected NAME=VALUE, for instance net.netfilter.nf_conntrack_max=524288", s)
	}
	if name, err = SysctlName(strings.TrimSpace(name)); err != nil {
		return "", "", err
	}
	if strings.ContainsAny(value, "\n\r\v\f") {
		return "", "", fmt.Errorf("setting %s: value %q has more than one line; a sysctl takes one", name, value)
	}
	value = NormalValue(value)
	if err := checkValue(value); err != nil {
		return "", "", fmt.Errorf("setting %s: %w", name, err)
	}
	return name, value, nil
}

func checkValue(v string) error {
	switch {
	case v == "":
		return errors.New("value is empty")
	case len(v) > maxSysctlValue:
		return fmt.Errorf("value has %d bytes, at most %d are allowed", len(v), maxSysctlValue)
	case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("value contains a control character")
	}
	return nil
}

// NormalValue joins a value's fields with single blanks; the kernel prints lists
// with tabs and ends every value with a newline.
func NormalValue(v string) string { return strings.Join(strings.Fields(v), " ") }

// SameValue compares two values as the kernel would read them: white space does
// not count, and numbers may be decimal, octal (017) or hexadecimal (0x1f), as
// proc_get_long takes them.
func SameValue(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] != y[i] && !sameNumber(x[i], y[i]) {
			return false
		}
	}
	return true
}

func sameNumber(a, b string) bool {
	if x, err := strconv.ParseInt(a, 0, 64); err == nil {
		y, err := strconv.ParseInt(b, 0, 64)
		return err == nil && x == y
	}
	x, err := strconv.ParseUint(a, 0, 64)
	if err != nil {
		return false
	}
	y, err := strconv.ParseUint(b, 0, 64)
	return err == nil && x == y
}

// Known is what is known of a sysctl that matters to NAT.
type Known struct {
	// Name may have a * for the name of an interface.
	Name string `json:"name"`
	// Unit of the value; empty for switches.
	Unit string `json:"unit,omitempty"`
	// Default is the kernel's own from Linux 5.4 on, or "1 to 5.10; 2 since 6.1": what lies
	// between was not looked at. Where the kernel computes it, how.
	Default string `json:"default_rule"`
	Means   string `json:"means"`

	compute func(*snapshot.Snapshot) (string, bool)
}

const (
	seconds = "s"
	entries = "entries"
	ct      = "net.netfilter.nf_conntrack_"
)

// KnownSysctls has every sysctl of connection tracking and those that NAT depends on.
// The defaults are those of new namespaces of Linux 5.4, 5.10, 6.1, 6.12 and 6.18, which
// TestSysctlOfNewNamespace compares again on every kernel that it runs on.
var KnownSysctls = []Known{
	{Name: ct + "max", Unit: entries, Default: "4 for each bucket to 5.10; as many as buckets since 6.1; 8 for each where hashsize= is given", compute: defaultMax,
		Means: "limit of tracked connections of each network namespace; beyond it packets of new ones are dropped. One value for all namespaces"},
	{Name: ct + "count", Unit: entries, Means: "connections tracked now, in this namespace; read only"},
	{Name: ct + "buckets", Unit: "buckets", Default: "1/16384 of memory in pointers, from 32 to 65,536 to 5.10, from 1,024 to 262,144 since 6.1", compute: defaultBuckets,
		Means: "size of the hash table; also the option hashsize of the module. Much fewer than entries make each packet's lookup slow"},
	{Name: ct + "expect_max", Unit: entries, Default: "4 for each 256 buckets", compute: defaultExpect, Means: "limit of expected connections (FTP, SIP and other helpers)"},
	{Name: ct + "acct", Default: "0", Means: "1 counts packets and bytes of each connection"},
	{Name: ct + "timestamp", Default: "0", Means: "1 keeps when each connection began: rates of new ones are then exact"},
	{Name: ct + "events", Default: "1 to 5.10; 2 since 6.1", Means: "1 reports changes of connections to listeners, 2 only while there is a listener, 0 never"},
	{Name: ct + "checksum", Default: "1", Means: "1 checks checksums of what comes in; packets with wrong ones are invalid and get no NAT"},
	{Name: ct + "log_invalid", Default: "0", Means: "protocol number whose invalid packets are logged, 255 for all, 0 for none"},
	{Name: ct + "helper", Default: "0", Means: "1 gives helpers to connections by their port; gone in 6.1"},
	{Name: ct + "frag6_high_thresh", Unit: "bytes", Default: "4194304", Means: "most memory for fragments of IPv6 that are put together before NAT"},
	{Name: ct + "frag6_low_thresh", Unit: "bytes", Default: "3145728", Means: "down to which old fragments of IPv6 are dropped then"},
	{Name: ct + "frag6_timeout", Unit: seconds, Default: "60", Means: "how long fragments of IPv6 wait for the rest"},
	{Name: ct + "tcp_be_liberal", Default: "0", Means: "1 takes segments outside of the window for valid; 0 leaves them untranslated, which ends in resets"},
	{Name: ct + "tcp_loose", Default: "1", Means: "1 takes up connections whose beginning was not seen, such as after a reboot; without NAT for them"},
	{Name: ct + "tcp_ignore_invalid_rst", Default: "0", Means: "1 does not mark resets outside of the window as invalid"},
	{Name: ct + "tcp_max_retrans", Unit: "packets", Default: "3", Means: "retransmissions without an answer after which the timeout max_retrans holds"},
	{Name: ct + "tcp_timeout_syn_sent", Unit: seconds, Default: "120", Means: "how long an unanswered SYN holds an entry and its port"},
	{Name: ct + "tcp_timeout_syn_recv", Unit: seconds, Default: "60", Means: "how long a handshake whose last packet is missing holds an entry"},
	{Name: ct + "tcp_timeout_established", Unit: seconds, Default: "432000", Means: "how long a silent open connection is remembered; less than the application's keepalive breaks it"},
	{Name: ct + "tcp_timeout_fin_wait", Unit: seconds, Default: "120", Means: "after the first FIN"},
	{Name: ct + "tcp_timeout_close_wait", Unit: seconds, Default: "60", Means: "after a FIN that was acknowledged, until the other side's"},
	{Name: ct + "tcp_timeout_last_ack", Unit: seconds, Default: "30", Means: "after both FINs, until the last acknowledgement"},
	{Name: ct + "tcp_timeout_time_wait", Unit: seconds, Default: "120", Means: "how long a closed connection holds its entry and its translated port"},
	{Name: ct + "tcp_timeout_close", Unit: seconds, Default: "10", Means: "after a reset"},
	{Name: ct + "tcp_timeout_max_retrans", Unit: seconds, Default: "300", Means: "after tcp_max_retrans retransmissions without an answer"},
	{Name: ct + "tcp_timeout_unacknowledged", Unit: seconds, Default: "300", Means: "while data waits for its acknowledgement"},
	{Name: ct + "udp_timeout", Unit: seconds, Default: "30", Means: "UDP that was not answered, or whose answers began less than 2 s ago"},
	{Name: ct + "udp_timeout_stream", Unit: seconds, Default: "120", Means: "UDP in both directions for longer than 2 s"},
	{Name: ct + "icmp_timeout", Unit: seconds, Default: "30", Means: "ICMP queries (ping)"},
	{Name: ct + "icmpv6_timeout", Unit: seconds, Default: "30", Means: "ICMPv6 queries"},
	{Name: ct + "generic_timeout", Unit: seconds, Default: "600", Means: "protocols that the kernel does not know"},
	{Name: ct + "gre_timeout", Unit: seconds, Default: "30", Means: "GRE (PPTP) without an answer"},
	{Name: ct + "gre_timeout_stream", Unit: seconds, Default: "180", Means: "GRE in both directions"},
	{Name: ct + "sctp_timeout_closed", Unit: seconds, Default: "10", Means: "SCTP, closed"},
	{Name: ct + "sctp_timeout_cookie_wait", Unit: seconds, Default: "3", Means: "SCTP, INIT sent"},
	{Name: ct + "sctp_timeout_cookie_echoed", Unit: seconds, Default: "3", Means: "SCTP, cookie sent back"},
	{Name: ct + "sctp_timeout_established", Unit: seconds, Default: "210 since 6.12", Means: "SCTP, open"},
	{Name: ct + "sctp_timeout_shutdown_sent", Unit: seconds, Default: "3 since 6.12", Means: "SCTP, SHUTDOWN of the client seen"},
	{Name: ct + "sctp_timeout_shutdown_recd", Unit: seconds, Default: "3 since 6.12", Means: "SCTP, SHUTDOWN of the server seen"},
	{Name: ct + "sctp_timeout_shutdown_ack_sent", Unit: seconds, Default: "3", Means: "SCTP, SHUTDOWN acknowledged"},
	{Name: ct + "sctp_timeout_heartbeat_sent", Unit: seconds, Default: "30", Means: "SCTP, first HEARTBEAT of another path"},
	{Name: ct + "dccp_loose", Default: "1", Means: "as tcp_loose, for DCCP"},
	{Name: ct + "dccp_timeout_request", Unit: seconds, Default: "240", Means: "DCCP, as syn_sent"},
	{Name: ct + "dccp_timeout_respond", Unit: seconds, Default: "480", Means: "DCCP, as syn_recv"},
	{Name: ct + "dccp_timeout_partopen", Unit: seconds, Default: "480", Means: "DCCP, partly open"},
	{Name: ct + "dccp_timeout_open", Unit: seconds, Default: "43200", Means: "DCCP, open"},
	{Name: ct + "dccp_timeout_closereq", Unit: seconds, Default: "64", Means: "DCCP, close requested"},
	{Name: ct + "dccp_timeout_closing", Unit: seconds, Default: "64", Means: "DCCP, closing"},
	{Name: ct + "dccp_timeout_timewait", Unit: seconds, Default: "240", Means: "DCCP, closed"},
	{Name: "net.netfilter.nf_flowtable_tcp_timeout", Unit: seconds, Default: "30", Means: "how long silent TCP stays offloaded in a flowtable"},
	{Name: "net.netfilter.nf_flowtable_udp_timeout", Unit: seconds, Default: "30", Means: "the same of UDP"},

	{Name: "net.ipv4.ip_forward", Default: "0", Means: "1 forwards between interfaces; without it a NAT gateway passes nothing on. Sets conf.*.forwarding"},
	{Name: "net.ipv4.conf.*.forwarding", Default: "0", Means: "forwards what comes in by this interface"},
	{Name: "net.ipv6.conf.*.forwarding", Default: "0", Means: "the same of IPv6; only all counts, and with 1 router advertisements are ignored"},
	{Name: "net.ipv4.conf.*.rp_filter", Default: "0", Means: "drops what would not be answered by the interface it came in by: 1 by it, 2 by any; the larger of all and the interface counts. systemd sets 2"},
	{Name: "net.ipv4.conf.*.route_localnet", Default: "0", Means: "1 routes 127.0.0.0/8, which a dnat to loopback needs; others can then reach services on loopback"},
	{Name: "net.ipv4.conf.*.accept_local", Default: "0", Means: "1 takes packets from outside that come from an own address"},
	{Name: "net.bridge.bridge-nf-call-iptables", Default: "1", Means: "1 sends bridged IPv4 through iptables and nftables rules, NAT included"},
	{Name: "net.bridge.bridge-nf-call-ip6tables", Default: "1", Means: "the same of IPv6"},
	{Name: "net.bridge.bridge-nf-call-arptables", Default: "1", Means: "the same of ARP"},
	{Name: "net.ipv4.ip_local_port_range", Unit: "ports", Default: "32768 60999", Means: "ports for connections of this host; masquerade of others does not use it"},
	{Name: "net.ipv4.ip_local_reserved_ports", Unit: "ports", Default: "", Means: "ports that connections of this host leave free"},
	{Name: snapshot.TCPTimestamps, Default: "1", Means: "1 sends timestamps, by which TIME_WAIT knows old segments (PAWS); behind NAT they can go back"},
	{Name: snapshot.TCPTWReuse, Default: "2", Means: "1 lets a new connection of this host take a port in TIME_WAIT, 2 on loopback only"},
	{Name: snapshot.TCPTWRecycle, Default: "0", Means: "1 drops clients behind one NAT address; gone since 4.12"},
	{Name: snapshot.TCPMaxTWBuckets, Unit: "sockets", Default: "half of TCP's hash table of connections", compute: ofTCPHash(2, 0), Means: "limit of sockets in TIME_WAIT; beyond it they end at once"},
	{Name: snapshot.TCPRFC1337, Default: "0", Means: "1 ignores resets in TIME_WAIT"},
	{Name: "net.ipv4.tcp_fin_timeout", Unit: seconds, Default: "60", Means: "how long this host's sockets wait for the other side's FIN"},
	{Name: "net.ipv4.tcp_syncookies", Default: "1", Means: "1 answers with cookies when a listener's queue is full, 2 always"},
	{Name: "net.ipv4.tcp_max_syn_backlog", Unit: "connections", Default: "1/128 of TCP's hash table of connections, 128 at least", compute: ofTCPHash(128, 128), Means: "handshakes that a listener keeps"},
	{Name: "net.ipv4.tcp_ehash_entries", Unit: "buckets", Means: "TCP's hash table of connections; negative: shared with the host; read only"},
	{Name: "net.core.somaxconn", Unit: "connections", Default: "4096", Means: "most connections that wait for a listener's accept"},
	{Name: "net.core.netdev_max_backlog", Unit: "packets", Default: "1000", Means: "packets that wait for a CPU between interrupt and protocol; beyond it they are dropped (softnet_stat)"},
	{Name: "net.ipv4.neigh.default.gc_thresh1", Unit: "neighbours", Default: "128", Means: "below it no neighbour is forgotten"},
	{Name: "net.ipv4.neigh.default.gc_thresh2", Unit: "neighbours", Default: "512", Means: "above it neighbours are forgotten after 5 s"},
	{Name: "net.ipv4.neigh.default.gc_thresh3", Unit: "neighbours", Default: "1024", Means: "most neighbours (ARP); beyond it new ones are not reached: \"neighbour table overflow\""},
	{Name: "net.ipv6.neigh.default.gc_thresh1", Unit: "neighbours", Default: "128", Means: "the same of IPv6"},
	{Name: "net.ipv6.neigh.default.gc_thresh2", Unit: "neighbours", Default: "512", Means: "the same of IPv6"},
	{Name: "net.ipv6.neigh.default.gc_thresh3", Unit: "neighbours", Default: "1024", Means: "the same of IPv6"},
}

// FindKnown returns the description of a sysctl.
func FindKnown(name string) (Known, bool) {
	for _, k := range KnownSysctls {
		// A name in which '/' stands for a dot: eth0/100.
		if ok, _ := path.Match(swapSeparators(k.Name), swapSeparators(name)); ok {
			return k, true
		}
	}
	return Known{Name: name}, false
}

// DefaultFor returns the kernel's default on the machine of a snapshot; not known if
// there is none, if a value it depends on could not be read, and for kernels whose default
// has not been checked.
func (k Known) DefaultFor(s *snapshot.Snapshot) (value string, known bool) {
	switch {
	case k.compute != nil:
		return k.compute(s)
	case k.Means == "" || strings.HasSuffix(k.Means, "read only"):
		return "", false
	case s.Kernel.Before(5, 4):
		return "", false
	}
	for step := range strings.SplitSeq(k.Default, "; ") {
		value, last, ends := strings.Cut(step, " to ")
		value, first, begins := strings.Cut(value, " since ")
		if (!ends || before(s.Kernel, last, 1)) && (!begins || !before(s.Kernel, first, 0)) {
			return value, true
		}
	}
	return "", false
}

// before reports whether a kernel is older than release with after added to its minor number.
func before(k snapshot.Kernel, release string, after int) bool {
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return err == nil && k.Before(major, minor+after)
}

func defaultBuckets(s *snapshot.Snapshot) (string, bool) {
	n, _, ok := capacity.DefaultTable(s.Kernel, s.Memory)
	return strconv.FormatInt(n, 10), ok
}

func defaultMax(s *snapshot.Snapshot) (string, bool) {
	_, n, ok := capacity.DefaultTable(s.Kernel, s.Memory)
	return strconv.FormatInt(n, 10), ok
}

func defaultExpect(s *snapshot.Snapshot) (string, bool) {
	n, _, ok := capacity.DefaultTable(s.Kernel, s.Memory)
	return strconv.FormatInt(max(n/256, 1)*4, 10), ok
}

// ofTCPHash is a part of TCP's hash table, whose size is readable since Linux 6.1.
func ofTCPHash(part, least int64) func(*snapshot.Snapshot) (string, bool) {
	return func(s *snapshot.Snapshot) (string, bool) {
		n, ok := s.Sysctls.Int("net.ipv4.tcp_ehash_entries")
		return strconv.FormatInt(max(max(n, -n)/part, least), 10), ok
	}
}
