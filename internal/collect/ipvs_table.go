package collect

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// ipvsTable collects the connections of one reading.
type ipvsTable struct {
	// complete is whether that was the whole table; at is when it was read, in seconds.
	complete bool
	at       float64
	// finSeconds is the timeout of FIN_WAIT where it is known (ipvsadm --set), else 0.
	finSeconds int64

	entries   map[ipvsTuple]ipvsEntry
	templates int64
	longest   map[string]int64
}

// ipvsEntry is what an entry has beside its tuple.
type ipvsEntry struct {
	server  netip.AddrPort
	state   string
	expires int64
}

func newIPVSTable() *ipvsTable {
	return &ipvsTable{entries: map[ipvsTuple]ipvsEntry{}, longest: map[string]int64{}}
}

// add takes an entry. The kernel may list one twice where the table changes meanwhile.
func (t *ipvsTable) add(c *ipvsConnection) {
	if c.template() {
		t.templates++
		return
	}
	t.entries[c.ipvsTuple] = ipvsEntry{server: c.Server, state: c.State, expires: c.Expires}
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

// ipvsTimeouts are those of tcp_timeouts[] (net/netfilter/ipvs/ip_vs_proto_tcp.c), in seconds,
// that cannot be configured.
var ipvsTimeouts = map[string]int64{"TIME_WAIT": 120, "CLOSE": 10, "CLOSE_WAIT": 60, "LAST_ACK": 30}

// timeout is that of a state of TCP; where it is not known, the longest time left that
// was seen.
func (t *ipvsTable) timeout(state string) int64 {
	if state == "FIN_WAIT" && t.finSeconds > 0 {
		return t.finSeconds
	}
	return max(ipvsTimeouts[state], t.longest["tcp/"+state])
}

// usedAgain reports whether an entry that was in the first table has another connection
// in the second one.
func (t *ipvsTable) usedAgain(tuple ipvsTuple, before, now ipvsEntry, seconds float64) bool {
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

// summary is the table as snapshots have it; before is an earlier one to compare with,
// or nil. most bounds the services, and clients and servers of each.
func (t *ipvsTable) summary(before *ipvsTable, most int) *snapshot.IPVSConnections {
	s := &snapshot.IPVSConnections{
		Sampled: int64(len(t.entries)), Complete: t.complete, Templates: t.templates,
		ByState: map[string]int64{}, TimeoutSeconds: t.longest, Services: []snapshot.IPVSUse{},
	}
	if before != nil {
		s.Seconds = t.at - before.at
		s.NewKnown = t.complete && before.complete
	}
	services := map[ipvsService]*ipvsUse{}
	for tuple, now := range t.entries {
		s.ByState[tuple.Protocol+"/"+now.state]++
		key := ipvsService{tuple.Protocol, tuple.Service.String()}
		u := services[key]
		if u == nil {
			u = newIPVSUse(key)
			services[key] = u
		}
		c := ipvsChange{}
		if before != nil {
			c = before.change(tuple, now, s)
		}
		u.add(tuple, now, c)
	}
	s.ServicesTotal = int64(len(services))
	for _, u := range topIPVS(services, most, func(u *ipvsUse) int64 { return u.Entries }, func(u *ipvsUse) string { return u.Address + u.Protocol }) {
		s.Services = append(s.Services, u.result(most))
	}
	return s
}

// ipvsChange is what became of an entry between two readings.
type ipvsChange struct{ isNew, again, same bool }

func (t *ipvsTable) change(tuple ipvsTuple, now ipvsEntry, s *snapshot.IPVSConnections) ipvsChange {
	before, ok := t.entries[tuple]
	if !ok {
		return ipvsChange{isNew: s.NewKnown}
	}
	s.Compared++
	again := t.usedAgain(tuple, before, now, s.Seconds)
	return ipvsChange{again: again, same: again && before.server == now.server}
}

// ipvsService is what clients ask for.
type ipvsService struct{ protocol, address string }

// ipvsUse counts the entries of one service.
type ipvsUse struct {
	snapshot.IPVSUse
	clients map[netip.Addr]*snapshot.IPVSClient
	servers map[netip.AddrPort]*snapshot.IPVSServerUse
}

func newIPVSUse(k ipvsService) *ipvsUse {
	return &ipvsUse{snapshot.IPVSUse{Protocol: k.protocol, Address: k.address}, map[netip.Addr]*snapshot.IPVSClient{}, map[netip.AddrPort]*snapshot.IPVSServerUse{}}
}

func (u *ipvsUse) add(tuple ipvsTuple, now ipvsEntry, c ipvsChange) {
	u.Entries++
	if tuple.Protocol == "tcp" && ended[now.state] {
		u.Ended++
	}
	client, server := u.client(tuple.Client), u.servers[now.server]
	if server == nil {
		server = &snapshot.IPVSServerUse{Address: now.server.String()}
		u.servers[now.server] = server
	}
	client.Ports++
	server.Entries++
	if c.isNew {
		u.New, client.New, server.New = u.New+1, client.New+1, server.New+1
	}
	if c.again {
		u.UsedAgain, client.UsedAgain, server.UsedAgain = u.UsedAgain+1, client.UsedAgain+1, server.UsedAgain+1
	}
	if c.same {
		u.SameServer++
	}
}

func (u *ipvsUse) client(from netip.AddrPort) *snapshot.IPVSClient {
	c := u.clients[from.Addr()]
	if c == nil {
		c = &snapshot.IPVSClient{Address: from.Addr().String(), FirstPort: from.Port(), LastPort: from.Port()}
		u.clients[from.Addr()] = c
	}
	c.FirstPort, c.LastPort = min(c.FirstPort, from.Port()), max(c.LastPort, from.Port())
	return c
}

func (u *ipvsUse) result(most int) snapshot.IPVSUse {
	u.Clients = int64(len(u.clients))
	u.TopClients = topIPVS(u.clients, most, func(c *snapshot.IPVSClient) int64 { return c.Ports }, func(c *snapshot.IPVSClient) string { return c.Address })
	u.Servers = topIPVS(u.servers, most, func(s *snapshot.IPVSServerUse) int64 { return s.Entries }, func(s *snapshot.IPVSServerUse) string { return s.Address })
	return u.IPVSUse
}

// topIPVS returns the values with the greatest counts; equal ones by name.
func topIPVS[K comparable, V any](of map[K]*V, most int, count func(*V) int64, name func(*V) string) []V {
	all := slices.SortedFunc(maps.Values(of), func(a, b *V) int {
		return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(name(a), name(b)))
	})
	list := make([]V, min(most, len(all)))
	for i := range list {
		list[i] = *all[i]
	}
	return list
}
