package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// Table collects the connections of one reading.
type Table struct {
	// Complete is whether that was the whole table; At is when it was read, in seconds
	// on any clock that both readings share.
	Complete bool
	At       float64
	// FinSeconds is the timeout of FIN_WAIT where it is known (ipvsadm --set), else 0.
	FinSeconds int64

	entries   map[Tuple]entry
	templates int64
	longest   map[string]int64
}

// entry is what an entry has beside its tuple.
type entry struct {
	server  netip.AddrPort
	state   string
	expires int64
}

// NewTable is an empty one.
func NewTable() *Table {
	return &Table{entries: map[Tuple]entry{}, longest: map[string]int64{}}
}

// Add takes an entry. The kernel may list one twice where the table changes meanwhile.
func (t *Table) Add(c *Connection) {
	if c.template() {
		t.templates++
		return
	}
	t.entries[c.Tuple] = entry{server: c.Server, state: c.State, expires: c.Expires}
	name := c.Protocol + "/" + c.State
	t.longest[name] = max(t.longest[name], c.Expires)
}

// ended are the states of TCP connections that are closed or being closed
// (net/netfilter/ipvs/ip_vs_proto_tcp.c). Where answers do not pass the balancer
// (direct routing, tunnels), it is FIN_WAIT that a closed connection stays in.
var ended = map[string]bool{"FIN_WAIT": true, "TIME_WAIT": true, "CLOSE": true, "CLOSE_WAIT": true, "LAST_ACK": true}

// begun are those of connections that are set up or established.
var begun = map[string]bool{"SYN_RECV": true, "SYN_SENT": true, "SYNACK": true, "ESTABLISHED": true}

const (
	// idle is how long a closed connection must have been silent at the first reading,
	// in seconds: packets of its closing start the timer anew, too.
	idle = 2
	// rounding is what two times in whole seconds may be off.
	rounding = 2
)

// timeouts are those of tcp_timeouts[] (net/netfilter/ipvs/ip_vs_proto_tcp.c), in seconds,
// that nobody can change.
var timeouts = map[string]int64{"TIME_WAIT": 120, "CLOSE": 10, "CLOSE_WAIT": 60, "LAST_ACK": 30}

// timeout is that of a state of TCP; where it is not known, the longest time left that
// was seen.
func (t *Table) timeout(state string) int64 {
	if state == "FIN_WAIT" && t.FinSeconds > 0 {
		return t.FinSeconds
	}
	return max(timeouts[state], t.longest["tcp/"+state])
}

// usedAgain reports whether an entry that was in the first table has another connection
// in the second one.
func (t *Table) usedAgain(tuple Tuple, before, now entry, seconds float64) bool {
	if tuple.Protocol != "tcp" || !ended[before.state] {
		return false
	}
	if before.server != now.server || begun[now.state] {
		return true
	}
	silent := t.timeout(before.state) - before.expires
	// In the same state, or in another one with the same timeout, the timer would have
	// gone on.
	return silent >= idle && float64(now.expires) > max(0, float64(before.expires)-seconds)+rounding
}

// Summary is the table as snapshots have it; before is an earlier one to compare with,
// or nil. most bounds the services, and clients and servers of each.
func (t *Table) Summary(before *Table, most int) *snapshot.IPVSConnections {
	s := &snapshot.IPVSConnections{
		Sampled: int64(len(t.entries)), Complete: t.Complete, Templates: t.templates,
		ByState: map[string]int64{}, TimeoutSeconds: t.longest, Services: []snapshot.IPVSUse{},
	}
	if before != nil {
		s.Seconds = t.At - before.At
		s.NewKnown = t.Complete && before.Complete
	}
	services := map[service]*use{}
	for tuple, now := range t.entries {
		s.ByState[tuple.Protocol+"/"+now.state]++
		u := services[service{tuple.Protocol, tuple.Service}]
		if u == nil {
			u = newUse()
			services[service{tuple.Protocol, tuple.Service}] = u
		}
		c := change{}
		if before != nil {
			c = before.change(tuple, now, s)
		}
		u.add(tuple, now, c)
	}
	s.ServicesTotal = int64(len(services))
	for _, k := range mostUsed(services, most) {
		s.Services = append(s.Services, services[k].result(k, most))
	}
	return s
}

// change is what became of an entry between two readings.
type change struct{ isNew, again, same bool }

func (t *Table) change(tuple Tuple, now entry, s *snapshot.IPVSConnections) change {
	before, ok := t.entries[tuple]
	if !ok {
		return change{isNew: s.NewKnown}
	}
	s.Compared++
	again := t.usedAgain(tuple, before, now, s.Seconds)
	return change{again: again, same: again && before.server == now.server}
}

// connectionsFile is named in errors.
const connectionsFile = "/proc/net/ip_vs_conn"

// Tuple is what an entry is found by.
type Tuple struct {
	// Protocol is tcp, udp or sctp; ip for templates of a firewall mark.
	Protocol        string
	Client, Service netip.AddrPort
}

// Connection is one entry of the table.
type Connection struct {
	Tuple
	Server netip.AddrPort
	// State is the kernel's name, such as TIME_WAIT.
	State string
	// Expires is the time left in seconds, 0 where it is over.
	Expires int64
}

// template: persistence keeps entries without a client port, beside those of connections.
func (c *Connection) template() bool { return c.Client.Port() == 0 }

// ParseConnections calls fn with each entry of /proc/net/ip_vs_conn; fn must not keep
// the pointer. A last line without an end was cut off and is left out.
//
// Columns are separated by blanks in all kernels (ip_vs_conn_seq_show,
// net/netfilter/ipvs/ip_vs_conn.c): protocol, client, service and server with a port
// each, state, seconds left, and since 2.6.37 name and data of a persistence engine,
// which are not looked at.
func ParseConnections(r io.Reader, fn func(*Connection)) error {
	text := bufio.NewReaderSize(r, 64<<10)
	names := map[string]string{}
	for number := 1; ; number++ {
		line, err := text.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", connectionsFile, number, err)
		}
		if number == 1 {
			if !strings.HasPrefix(string(line), "Pro FromIP") {
				return fmt.Errorf("parse %s: header %.60q does not begin with Pro FromIP", connectionsFile, line)
			}
			continue
		}
		c, err := parseConnection(strings.Fields(string(line)), names)
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", connectionsFile, number, err)
		}
		fn(&c)
	}
}

// parseConnection shares the texts of protocols and states by way of names.
func parseConnection(f []string, names map[string]string) (c Connection, err error) {
	if len(f) < 9 {
		return c, fmt.Errorf("%d columns, fewer than 9", len(f))
	}
	c.Protocol, c.State = shared(names, strings.ToLower(f[0])), shared(names, f[7])
	for i, to := range []*netip.AddrPort{&c.Client, &c.Service, &c.Server} {
		if *to, err = parseAddrPort(f[1+2*i], f[2+2*i]); err != nil {
			return c, err
		}
	}
	left, err := strconv.ParseUint(f[8], 10, 64)
	if err != nil {
		return c, fmt.Errorf("seconds left %.30q: not a number", f[8])
	}
	c.Expires = secondsLeft(left)
	return c, nil
}

// secondsLeft: where a timer is late the kernel's unsigned difference wraps around.
func secondsLeft(n uint64) int64 {
	if n > math.MaxInt32/1000 {
		return 0
	}
	return int64(n)
}

// mostNames bounds the texts that are shared: the kernel has about 40.
const mostNames = 100

func shared(names map[string]string, text string) string {
	if known, ok := names[text]; ok || len(names) >= mostNames {
		if !ok {
			return text
		}
		return known
	}
	text = strings.Clone(text)
	names[text] = text
	return text
}

const (
	statsFile  = "/proc/net/ip_vs_stats"
	perCPUFile = "/proc/net/ip_vs_stats_percpu"
)

// ParsePerCPU sums the lines of /proc/net/ip_vs_stats_percpu (ip_vs_stats_percpu_show,
// Linux 2.6.39 and newer): the number of a CPU and five counters, in hexadecimal. Its
// total is left out: an estimator writes it every two seconds, or never.
func ParsePerCPU(r io.Reader) (*snapshot.IPVSStats, error) {
	sum := &snapshot.IPVSStats{}
	found := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 6 || f[0] == "CPU" || f[0] == "~" {
			continue
		}
		s, err := parseCounters(f[1:])
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", perCPUFile, err)
		}
		sum.Connections += s.Connections
		sum.InPackets += s.InPackets
		sum.OutPackets += s.OutPackets
		sum.InBytes += s.InBytes
		sum.OutBytes += s.OutBytes
		found = true
	}
	if err := lines.Err(); err != nil || !found {
		return nil, errors.Join(fmt.Errorf("parse %s: no CPU", perCPUFile), err)
	}
	return sum, nil
}

// ParseStats reads the first line of numbers of /proc/net/ip_vs_stats, the totals
// (ip_vs_stats_show). From 2.6.39 on they are as old as the estimator's last turn, two
// seconds.
func ParseStats(r io.Reader) (*snapshot.IPVSStats, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 5 || f[0] == "Total" || f[0] == "Conns" || f[0] == "Conns/s" {
			continue
		}
		s, err := parseCounters(f)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", statsFile, err)
		}
		return s, nil
	}
	return nil, errors.Join(fmt.Errorf("parse %s: no totals in it", statsFile), lines.Err())
}

func parseCounters(f []string) (*snapshot.IPVSStats, error) {
	s := &snapshot.IPVSStats{}
	for i, to := range []*uint64{&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes} {
		n, err := strconv.ParseUint(f[i], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("counter %d: %w", i+1, err)
		}
		*to = n
	}
	return s, nil
}
