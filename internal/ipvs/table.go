package ipvs

import (
	"net/netip"

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
