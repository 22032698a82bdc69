package loose

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
)

// kind is a sort of text.
type kind struct {
	// name is the command that prints it, or the file.
	name string
	// marks are of which one must be in it: they are cheaper to look for than what it is recognised by, is; hint
	// is what the name of the file or the command must have, where the content does not say.
	marks []string
	is    *regexp.Regexp
	hint  *regexp.Regexp
	// streamed is true of lists of connections, which are not held, log of logs, of which lines are left out.
	streamed, log bool
	// counts is true of what grows: one text of it says nothing about what happened lately.
	counts bool
	// cuttable is true where what can be read of a text that is cut short is of use: each line stands alone, or its
	// reader knows what is missing.
	cuttable bool
	// unused is why a text that is recognised decides nothing, with what does; empty of all others.
	unused string
	// path is that of a file of the kernel that is handed on as it is; else read brings it into its form.
	path string
	read func(*Sample, *Text) error
}

const (
	kindDate  = "date"
	kindTable = "conntrack -L"
	kindUname = "uname -a"
)

// Logs as dmesg, journalctl -k and syslog have them: how long after the start, or when, a line was logged.
const (
	monotonic  = `(?:<\d+>|\w+ *:\w+ *: *)?\[ *\d+\.\d{3,9}\] `
	ctime      = `(?:\w+ *:\w+ *: *)?\[\S{2,9} \S{2,9} +\d+ \d\d:\d\d:\d\d \d{4}\] `
	syslogTime = `[^\s\d]\S{1,9} +\d{1,2} \d\d:\d\d:\d\d \S+ kernel(?:\[\d+\])?: `
	isoTime    = `\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* (?:\S+ )?kernel(?:\[\d+\])?: `
	shortMono  = `\[ *\d+\.\d{3,9}\] \S+ kernel: `
)

// entryLine begins a line about a connection.
const entryLine = `(?m)^\s*(?:ipv[46] +\d+ +)?[a-z0-9]+ +\d+ .*\bsrc=\S+ dst=`

// kinds are all there are. The first whose content fits is taken.
var kinds = sync.OnceValue(allKinds) // their patterns take 10 ms, of each start of natkit

func allKinds() []kind {
	line := func(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?m)^` + pattern) }
	file := func(path, mark, pattern string, counts bool) kind {
		return kind{name: path, path: path, marks: []string{mark}, is: line(pattern), counts: counts}
	}
	return []kind{
		{name: kindTable, cuttable: true, marks: []string{"src="}, is: regexp.MustCompile(entryLine), streamed: true},
		{name: "conntrack -S", marks: []string{"insert_failed="}, is: line(`\s*cpu=\d+\s.*\binsert_failed=\d+`), counts: true, read: readStats},
		{name: "conntrack -S", marks: []string{"insert_failed"}, is: line(`insert_failed\s+\d+\s*$`), counts: true, read: readStatsSum},
		file("/proc/net/stat/nf_conntrack", "insert_failed", `entries\s+\S+\s+.*\binsert_failed\b`, true),
		{name: "/proc/net/stat/ndisc_cache", path: "/proc/net/stat/ndisc_cache", marks: []string{"unresolved_discards"}, is: line(`entries\s+allocs\s`), hint: regexp.MustCompile(`ndisc`), counts: true},
		{name: "/proc/net/stat/arp_cache", path: "/proc/net/stat/arp_cache", marks: []string{"unresolved_discards"}, is: line(`entries\s+allocs\s`), hint: regexp.MustCompile(`arp`), counts: true},
		{name: "iptables-save", cuttable: true, marks: []string{"*nat", "*filter", "*mangle", "*raw", "*security"}, is: line(`\s*\*(?:nat|filter|mangle|raw|security)\s*$`), read: readSaved},
		{name: "iptables -S", cuttable: true, marks: []string{"-P ", "-N "}, is: line(`(?:-P [A-Z]+ (?:ACCEPT|DROP)|-N \S+)(?: -c \d+ \d+)?\s*$`), read: readListed},
		{name: "nft list ruleset", cuttable: true, marks: []string{"table "}, is: line(`table (?:ip|ip6|inet|arp|bridge|netdev) \S+ \{`), read: readNft},
		file("/proc/net/snmp", "RtoAlgorithm", `Tcp: RtoAlgorithm `, true),
		file("/proc/net/netstat", "TcpExt: Sync", `TcpExt: SyncookiesSent `, true),
		// Files of dev_snmp6, which begin with ifIndex, are of one interface.
		{name: "/proc/net/snmp6", path: "/proc/net/snmp6", marks: []string{"Ip6InReceives"}, is: regexp.MustCompile(`\AIp6InReceives\s+\d+\s`), counts: true},
		file("/proc/net/sockstat6", "TCP6: inuse", `TCP6: inuse \d+`, false),
		file("/proc/net/sockstat", "sockets: used", `sockets: used \d+`, false),
		file("/proc/net/xfrm_stat", "XfrmInError", `XfrmInError\s+\d+`, true),
		file("/proc/net/softnet_stat", "00000000 ", `[0-9a-f]{8}(?: [0-9a-f]{8}){8,}\s*$`, true),
		file("/proc/net/netlink", "Groups", `sk\s+Eth\s+Pid\s+Groups`, true),
		file("/proc/slabinfo", "slabinfo - version", `slabinfo - version: 2`, false),
		file("/proc/meminfo", "MemTotal:", `MemTotal:\s+\d+ kB`, false),
		file("/proc/net/ip_vs_stats_percpu", "Incoming", `CPU\s+Conns\s+Packets`, true),
		file("/proc/net/ip_vs_conn", "FromIP", `Pro FromIP`, false),
		file("/proc/net/ip_vs", "RemoteAddress:Port", `(?:TCP|UDP|SCTP)  (?:[0-9A-F]{8}|\[[0-9A-Fa-f:.]+\]):[0-9A-F]{4} `, false),
		{name: "iptables -L", marks: []string{"Chain "}, is: line(`Chain \S+ \((?:policy [A-Z]+|\d+ references)`), unused: "it leaves out what rules match; 'iptables-save -c' prints it"},
		{name: "ipvsadm -Ln --stats", marks: []string{"LocalAddress:Port"}, is: line(`Prot LocalAddress:Port +(?:Conns|CPS) `), unused: "natkit has no check of these counters; 'ipvsadm -Ln' prints weights and connections"},
		{name: "tc filter", marks: []string{"filter "}, is: line(`filter (?:parent \S+ |block \S+ |dev \S+ )*(?:ingress |egress )?protocol \S+ pref \d+ `), unused: "no text has the state of eBPF programs; it takes 'natkit snapshot' on that host"},
		{name: "ipvsadm -Ln", marks: []string{"RemoteAddress:Port"}, is: line(`(?:TCP|UDP|SCTP|FWM)  \S+ `), read: readIPVS},
		{name: "ipvsadm -Lnc", marks: []string{"pro expire state"}, is: line(`pro expire state`), read: readIPVSConnections},
		{name: "nstat", marks: []string{"#kernel", `"kernel"`, "0.0", "0,0"}, is: regexp.MustCompile(`(?m)^#kernel|^\s*\{"kernel":|^(?:Ip|Icmp|Tcp|Udp|TcpExt|IpExt|Ip6|Udp6)[A-Z]\w+\s+\d+\s+[\d.,]+\s*$`), counts: true, read: readNstat},
		{name: "ss -s", marks: []string{"(estab "}, is: line(`\s*TCP:\s+\d+ \(estab `), read: readSocketSums},
		{name: "ss -tan", marks: []string{"Recv-Q", "ESTAB", "LISTEN", "UNCONN", "TIME-WAIT", "TIME_WAIT"}, is: regexp.MustCompile(`(?m)^\s*(?:Netid\s+)?State\s+Recv-Q\s+Send-Q|^\s*(?:(?:tcp|udp)6?\s+)?(?:LISTEN|ESTAB|UNCONN|TIME-WAIT|SYN-SENT)\s+\d+\s+\d+\s+\S+:\S+\s+\S+|^(?:tcp|udp)6?\s+\d+\s+\d+\s+\S+:\S+\s+\S+:\S+`), read: readSockets},
		{name: "netstat -s", marks: netstatMarks(), is: netstatLine(), counts: true, read: readNetstat},
		{name: "tc -s qdisc", marks: []string{"qdisc "}, is: line(`qdisc \S+ [0-9a-f]+: (?:dev \S+|root)`), counts: true, read: readQdiscs},
		{name: "ip -s link", marks: []string{"RX: "}, is: line(` +RX: +bytes +packets `), counts: true, read: readLinks},
		{name: "ip addr", marks: []string{" mtu ", "inet"}, is: line(`\d+: \S+(?:: <[A-Z0-9,_-]*> .*mtu \d+|\s+inet6? \S+)`), read: readLinks},
		{name: "ip rule", marks: []string{"from "}, is: line(`\d+:\s+(?:not )?from \S+ .*(?:lookup|unreachable|blackhole|prohibit)`), read: readRoutingRules},
		{name: "ip neigh", marks: []string{"REACHABLE", "STALE", "FAILED", "PERMANENT", "DELAY", "INCOMPLETE", "NOARP"}, is: line(`[0-9a-f:.]+ dev \S+ .*\b(?:REACHABLE|STALE|FAILED|PERMANENT|DELAY|PROBE|INCOMPLETE|NOARP)\s*$`), read: readNeighbours},
		{name: "bridge fdb", marks: []string{" dev "}, is: line(`(?:[0-9a-f]{2}:){5}[0-9a-f]{2} dev \S+ `), read: func(*Sample, *Text) error { return nil }},
		{name: "ip route", marks: []string{" dev ", "unreachable ", "blackhole ", "prohibit "}, is: line(`(?:(?:unicast|local|broadcast|multicast|anycast|unreachable|blackhole|prohibit|throw) )?(?:default|[0-9a-f:.]+(?:/\d+)?)(?: .*)? (?:dev \S+|proto \S+|metric \d+|table \S+)|\s*default via `), read: readRoutes},
		{name: "dmesg", cuttable: true, marks: []string{"] "}, is: line(`(?:` + shortMono + `|` + monotonic + `|` + ctime + `)`), log: true, read: readLog},
		{name: "journalctl -k", cuttable: true, marks: []string{" kernel"}, is: line(`(?:` + syslogTime + `|` + isoTime + `)`), log: true, read: readLog},
		{name: "sysctl -a", cuttable: true, marks: []string{"net.", "kernel.", "vm.", "fs."}, is: line(`\s*(?:net|kernel|vm|fs)\.[\w./:@*-]+ ?= ?\S*`), read: readSysctls},
		{name: "/proc/sys", marks: []string{"\n"}, is: regexp.MustCompile(`^[^\n]*\n+$`), hint: regexp.MustCompile(procSys), read: readSysctlFile},
		{name: "conntrack -C", marks: []string{"\n"}, is: regexp.MustCompile(`^\s*\d+\s*$`), hint: regexp.MustCompile(`conntrack.*(?:-C|count)`), read: readCount},
		{name: "/proc/version", marks: []string{"Linux version "}, is: line(`Linux version \d+\.\d+\S* `), read: readVersion},
		{name: kindUname, marks: []string{"Linux "}, is: line(`Linux \S+ \d+\.\d+\S* #`), read: readUname},
		{name: "/proc/uptime", marks: []string{"."}, is: regexp.MustCompile(`^\d+\.\d\d \d+\.\d\d\s*$`), read: readUptime},
		{name: "uptime", marks: []string{"load average"}, is: line(`.* up .*load average`), read: readUptimeWords},
		{name: "readlink /proc/self/ns/net", marks: []string{"net:["}, is: line(`(?:.* )?net:\[\d+\]\s*$`), read: readNetns},
		{name: "os-release", marks: []string{"PRETTY_NAME="}, is: line(`PRETTY_NAME=`), read: func(*Sample, *Text) error { return nil }},
		{name: kindDate, marks: []string{":"}, is: regexp.MustCompile(`^\s*[^\n]*\d\d:\d\d:\d\d[^\n]*\n?$`), hint: regexp.MustCompile(`(?:^|/| )date\b`), read: func(*Sample, *Text) error { return nil }},
	}
}

func kindNamed(name string) *kind {
	all := kinds()
	for i := range all {
		if all[i].name == name {
			return &all[i]
		}
	}
	return nil
}

// kindOf recognises a text by its head; nil where it is none.
func kindOf(t *Text) *kind {
	head := t.Data[:min(len(t.Data), headBytes)]
	all := kinds()
	for i := range all {
		k := &all[i]
		if k.fits(t, head) {
			return k
		}
	}
	return nil
}

func (k *kind) fits(t *Text, head []byte) bool {
	if k.hint != nil && !k.hint.MatchString(t.hints()) {
		return false
	}
	for _, m := range k.marks {
		if bytes.Contains(head, []byte(m)) {
			return k.is.Match(head)
		}
	}
	return false
}

// fieldsOf are the words of each line.
func fieldsOf(data []byte) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 0 && !yield(f) {
				return
			}
		}
	}
}
