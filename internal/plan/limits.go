package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Role is what a machine does with the connections.
type Role string

// The roles: it translates them, accepts them, or opens them.
const (
	Gateway Role = "gateway"
	Server  Role = "server"
	Client  Role = "client"
)

// AllRoles are in the order in which they are reported.
var AllRoles = []Role{Gateway, Server, Client}

// Answer is yes, no, or unknown.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Limit is what a role needs of one setting or property of the machine.
type Limit struct {
	Role Role `json:"role"`
	// Name is the sysctl, or what else it is.
	Name string `json:"name"`
	// Need is the least value, Now the machine's; empty where it is not known. Both as they stand in the setting.
	Need   string `json:"need"`
	Now    string `json:"now,omitempty"`
	Enough Answer `json:"enough"`
	Why    string `json:"why"`
	// Set is what the files set it to; empty where it is no sysctl, where it is enough, and where the machine's own value is
	// not known and may be more.
	Set string `json:"set,omitempty"`
}

// Names of limits that are no sysctls.
const (
	memoryName    = "memory"
	openFilesName = "RLIMIT_NOFILE"
	addressesName = "SNAT addresses"
	sourcesName   = "source addresses"
)

// The sysctls that limit sockets and files.
const (
	nrOpen     = "fs.nr_open"
	fileMax    = "fs.file-max"
	fileNr     = "fs.file-nr"
	synBacklog = "net.ipv4.tcp_max_syn_backlog"
	portRange  = "net.ipv4.ip_local_port_range"
	reserved   = "net.ipv4.ip_local_reserved_ports"
	tcpMem     = "net.ipv4.tcp_mem"
	forward    = "net.ipv4.ip_forward"
)

// Sysctls are the names that a plan reads besides those of the connection table, on the machine that it is for.
var Sysctls = []string{nrOpen, fileMax, fileNr, synBacklog, portRange, reserved, tcpMem, forward, snapshot.SoMaxConn, snapshot.TCPMaxTWBuckets}

// limits are those of all roles.
func (m *maker) limits() {
	m.gatewayLimits()
	if m.load.Protocol == TCP {
		m.endLimits(Server)
		m.endLimits(Client)
	}
}

func (m *maker) add(l Limit) { m.p.Limits = append(m.p.Limits, l) }

// atLeast adds a sysctl that is one number.
func (m *maker) atLeast(role Role, name string, need int64, why string) {
	m.add(m.sysctl(role, name, need, need, why))
}

// sysctl is a limit of a sysctl that is one number, which files set to set.
func (m *maker) sysctl(role Role, name string, need, set int64, why string) Limit {
	l := Limit{Role: role, Name: name, Need: strconv.FormatInt(need, 10), Now: m.r.On.Sysctls[name], Enough: Unknown, Why: why}
	now, known := m.r.On.Sysctls.Int(name)
	// fs.file-max may be more than an int64 (ULONG_MAX).
	if _, err := strconv.ParseUint(l.Now, 10, 64); err == nil && !known {
		l.Enough = Yes
	}
	if known { // nf_conntrack_max = 0 is no limit (__nf_conntrack_alloc)
		l.Enough = answer(now >= need || now == 0 && name == snapshot.ConntrackMax)
	}
	if l.Enough != Yes && set > now && (known || set > m.usual(name)) {
		l.Set = strconv.FormatInt(set, 10)
	}
	return l
}

// usual is the most that a kernel, or systemd, gives a sysctl at boot: a file that is for a machine whose value is not
// known sets what needs more, as it would lower others.
func (m *maker) usual(name string) int64 {
	hash := capacity.TCPHash(m.table.MemoryBytes)
	switch name {
	case snapshot.ConntrackMax, snapshot.ConntrackBuckets:
		if m.p.Table.NowIsDefault {
			return map[string]int64{snapshot.ConntrackMax: m.table.Max, snapshot.ConntrackBuckets: m.table.Buckets}[name]
		}
		return capacity.MostDefaultEntries
	case nrOpen: // sysctl_nr_open, fs/file.c; systemd may raise it
		return 1 << 20
	case fileMax: // systemd raises it to LONG_MAX since 240
		return math.MaxInt64
	case snapshot.SoMaxConn: // SOMAXCONN, include/linux/socket.h: 128 before 5.4
		return 4096
	case synBacklog: // tcp_sk_init, net/ipv4/tcp_ipv4.c
		return max(hash/128, 128)
	case snapshot.TCPMaxTWBuckets:
		return hash / 2
	case portRange: // 32768 to 60999 (inet_init_net, net/ipv4/af_inet.c)
		return 28_232
	case tcpMem: // the second of three (tcp_init_mem, net/ipv4/tcp.c)
		if m.table.MemoryBytes == 0 {
			return math.MaxInt64
		}
		return int64(m.table.MemoryBytes / capacity.PageBytes / 16)
	}
	return 0
}

func answer(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

func (m *maker) gatewayLimits() {
	t, p := m.p.Table, m.p.Ports
	// The memory may bound the table to less than the load needs.
	entries, bytes := t.Max, t.FullBytes
	if with := capacity.WithHeadroom(float64(t.Entries)); with > t.Max {
		entries, bytes = with, m.table.Cost.TableBytes(with, max(with, t.Buckets))
	}
	limit := m.sysctl(Gateway, snapshot.ConntrackMax, entries, t.Max, fmt.Sprintf("%s, with a quarter of headroom", units.Plural(t.Entries, "entry", "entries")))
	buckets := m.sysctl(Gateway, snapshot.ConntrackBuckets, t.Buckets, t.Buckets, fmt.Sprintf("hash chains of %s entries on average with a full table", units.Fixed(t.FullChainLength, 1)))
	if buckets.Set != "" && limit.Set == "" { // with hashsize= it would be 8 for each bucket after a boot
		limit.Set = cmp.Or(limit.Now, strconv.FormatInt(t.Max, 10))
	}
	m.add(limit)
	m.add(buckets)
	m.atLeast(Gateway, forward, 1, "it forwards between interfaces")
	m.memoryFor(Gateway, bytes, m.table.MemoryBytes/4, "a full table, in a quarter of the memory")
	addresses := Limit{Role: Gateway, Name: addressesName, Need: strconv.FormatInt(p.AddressesNeeded, 10), Now: strconv.FormatInt(p.Addresses, 10),
		Enough: answer(p.Addresses >= p.AddressesNeeded), Why: fmt.Sprintf("%s toward one destination, of %s on each address", units.Plural(p.Needed, "port", "ports"), units.Count(p.PerAddress))}
	if m.load.Observed && addresses.Enough == No { // it is not known which of them are translated, and to where they go
		addresses.Enough = Unknown
	}
	m.add(addresses)
}

// memoryFor adds what is taken of the memory that there is for it.
func (m *maker) memoryFor(role Role, need int64, there uint64, why string) {
	l := Limit{Role: role, Name: memoryName, Need: units.Bytes(need), Enough: Unknown, Why: why}
	if m.table.MemoryBytes > 0 {
		l.Now, l.Enough = units.Bytes(there), answer(uint64(need) <= there)
	}
	m.add(l)
}

// endLimits are those of a machine that has one end of all connections.
func (m *maker) endLimits(role Role) {
	l := m.load
	prefix := string(role) + ": "
	open := m.open()
	files := capacity.Files(l.Open)
	m.number(prefix+"open files", float64(files), "files", "ceil(open + spare)", open, Input{"spare", capacity.SpareFiles, "files", constant})
	all := files + capacity.OtherFiles
	m.number(prefix+"open files of the machine", float64(all), "files", "files + others", Input{"files", float64(files), "files", "above"}, Input{"others", capacity.OtherFiles, "files", constant})
	m.openFiles(role, files)
	m.atLeast(role, nrOpen, files, "RLIMIT_NOFILE cannot be more")
	m.atLeast(role, fileMax, all, "open files of all programs")
	if role == Server {
		m.backlogs(prefix)
	} else {
		m.localPorts(prefix)
	}
	m.timeWaits(role, prefix)
	m.tcpMemory(role, prefix)
}

func (m *maker) openFiles(role Role, files int64) {
	l := Limit{Role: role, Name: openFilesName, Need: strconv.FormatInt(files, 10), Enough: Unknown, Why: "a file for each connection of one program, and some more; a proxy has two"}
	if m.r.OpenFiles > 0 {
		l.Now, l.Enough = strconv.FormatInt(m.r.OpenFiles, 10), answer(m.r.OpenFiles >= files)
	}
	m.add(l)
}

// backlogs are the queues of a listener.
func (m *maker) backlogs(prefix string) {
	l := m.load
	queue := capacity.Backlog(l.Open, l.PerSecond)
	m.number(prefix+"connections that wait for accept", float64(queue), "connections", "min(max(pow2(ceil(max(rate, open / reconnect))), least), most)", m.rate(), m.open(),
		Input{"reconnect", capacity.ReturnSeconds, "s", "all come back within that time"}, Input{"least", capacity.LeastBacklog, "connections", "the default before Linux 5.4"}, Input{"most", capacity.MostBacklog, "connections", "what all kernels take"})
	m.atLeast(Server, snapshot.SoMaxConn, queue, "connections of one second; the program must ask for as many (listen)")
	m.atLeast(Server, synBacklog, queue, "handshakes of one second, where SYN cookies are off")
}

// wholeRange is the longest ip_local_port_range.
var wholeRange = nat.Ports{First: 1024, Last: 65535}

// localPorts are the ports of own connections: one holds its port in TIME_WAIT where it closes first.
func (m *maker) localPorts(prefix string) {
	l, r := m.load, m.r
	wait := Input{"time_wait", capacity.TimeWaitLength.Seconds(), "s", "TCP_TIMEWAIT_LEN"}
	needed := capacity.PortsFor(l.Open, l.PerSecond, wait.Value, r.Destinations)
	m.number(prefix+"ports toward one destination", float64(needed), "ports", "ceil((open + rate * time_wait) / destinations)", m.open(), m.rate(), wait, Input{"destinations", float64(r.Destinations), "", given})
	sources := capacity.AddressesFor(needed, int64(wholeRange.Len()))
	m.number(prefix+"source addresses", float64(sources), "addresses", "max(1, ceil(needed / ports))", Input{"needed", float64(needed), "ports", "above"}, Input{"ports", float64(wholeRange.Len()), "ports", "1024-65535"})
	each := capacity.AddressesFor(needed, r.Addresses)
	limit := Limit{Role: Client, Name: portRange, Need: units.Plural(min(each, int64(wholeRange.Len())), "port", "ports"), Now: r.On.Sysctls[portRange], Enough: Unknown,
		Why: "ports of one source address toward one destination; set ip_local_reserved_ports for what listens among them"}
	if n, known := rangeLen(limit.Now); known {
		limit.Enough = answer(n >= min(each, int64(wholeRange.Len())))
	}
	if limit.Enough == No || limit.Enough == Unknown && min(each, int64(wholeRange.Len())) > m.usual(portRange) {
		limit.Set = fmt.Sprintf("%d %d", wholeRange.First, wholeRange.Last)
	}
	m.add(limit)
	m.add(Limit{Role: Client, Name: sourcesName, Need: strconv.FormatInt(sources, 10), Now: strconv.FormatInt(r.Addresses, 10), Enough: answer(r.Addresses >= sources),
		Why: fmt.Sprintf("%s toward one destination, TIME_WAIT included", units.Plural(needed, "port", "ports"))})
}

// rangeLen reads "32768 60999".
func rangeLen(text string) (int64, bool) {
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0, false
	}
	p, err := nat.ParsePorts(f[0] + "-" + f[1])
	return int64(p.Len()), err == nil
}

// timeWaits: beyond tcp_max_tw_buckets TIME_WAIT ends at once, and its port may be used again too early.
func (m *maker) timeWaits(role Role, prefix string) {
	if m.load.PerSecond == 0 {
		return
	}
	wait := Input{"time_wait", capacity.TimeWaitLength.Seconds(), "s", "TCP_TIMEWAIT_LEN"}
	n := capacity.WithHeadroom(m.load.PerSecond * wait.Value)
	m.number(prefix+"sockets in TIME_WAIT", float64(n), "sockets", "ceil(rate * time_wait * headroom)", m.rate(), wait, Input{"headroom", 1.25, "", constant})
	m.atLeast(role, snapshot.TCPMaxTWBuckets, n, "where it closes first: beyond it TIME_WAIT ends at once")
}

// tcpMemory is the memory of sockets, which the kernel counts in pages.
func (m *maker) tcpMemory(role Role, prefix string) {
	pages, bytes := capacity.TCPPages(m.load.Open), capacity.SocketBytes(m.load.Open)
	open, buffers := m.open(), Input{"buffers", capacity.BufferPages, "pages", "tcp_rmem[0] and tcp_wmem[0]"}
	m.number(prefix+"pages of the least buffers", float64(pages), "pages", "ceil(open * buffers)", open, buffers)
	m.number(prefix+"memory of sockets", float64(bytes), "B", "ceil(open * (end + buffers * page))", open, Input{"end", capacity.EndBytes, "B", "measured, rounded up"}, buffers, Input{"page", capacity.PageBytes, "B", "the machine"})
	l := Limit{Role: role, Name: tcpMem, Need: units.Plural(pages, "page", "pages"), Now: m.r.On.Sysctls[tcpMem], Enough: Unknown, Why: "the second number: above it the kernel shrinks buffers"}
	var low, pressure, high int64
	if n, _ := fmt.Sscan(l.Now, &low, &pressure, &high); n == 3 {
		l.Enough = answer(pressure >= pages)
	}
	half := int64(m.table.MemoryBytes / capacity.PageBytes / 2)
	if half == 0 {
		half = math.MaxInt64
	}
	switch raise := l.Enough == No || l.Enough == Unknown && pages > m.usual(tcpMem); {
	case raise && pages > half:
		if roles := m.r.Roles; slices.Contains(roles, role) && (role == Server || !slices.Contains(roles, Server)) { // once for both
			m.note("%s is in no file: %s are more than half of the memory", tcpMem, l.Need)
		}
	case raise: // in the kernel's own proportions (tcp_init_mem)
		l.Set = fmt.Sprintf("%d %d %d", max(low, pages/4*3), pages, max(high, min(pages/4*6, half)))
	}
	m.add(l)
	m.memoryFor(role, bytes, m.table.MemoryBytes, "sockets with their least buffers; data in them takes more")
}

// readiness judges the machine for the roles that the plan is for.
func (p *Plan) readiness() Answer {
	all := Yes
	for _, l := range p.Limits {
		switch {
		case !slices.Contains(p.Roles, l.Role):
		case l.Enough == No:
			return No
		case l.Enough == Unknown:
			all = Unknown
		}
	}
	return all
}
