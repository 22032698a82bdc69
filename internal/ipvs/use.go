package ipvs

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// service is what clients ask for.
type service struct {
	protocol string
	address  netip.AddrPort
}

// use counts the entries of one service.
type use struct {
	entries, ended       int64
	isNew, again, onSame int64
	clients              map[netip.Addr]*snapshot.IPVSClient
	servers              map[netip.AddrPort]*snapshot.IPVSServerUse
}

func newUse() *use {
	return &use{clients: map[netip.Addr]*snapshot.IPVSClient{}, servers: map[netip.AddrPort]*snapshot.IPVSServerUse{}}
}

func (u *use) add(tuple Tuple, now entry, c change) {
	u.entries++
	if tuple.Protocol == "tcp" && ended[now.state] {
		u.ended++
	}
	client, server := u.client(tuple.Client), u.server(now.server)
	client.Ports++
	server.Entries++
	if c.isNew {
		u.isNew, client.New, server.New = u.isNew+1, client.New+1, server.New+1
	}
	if c.again {
		u.again, client.UsedAgain, server.UsedAgain = u.again+1, client.UsedAgain+1, server.UsedAgain+1
	}
	if c.same {
		u.onSame++
	}
}

func (u *use) client(from netip.AddrPort) *snapshot.IPVSClient {
	c := u.clients[from.Addr()]
	if c == nil {
		c = &snapshot.IPVSClient{Address: from.Addr().String(), FirstPort: from.Port(), LastPort: from.Port()}
		u.clients[from.Addr()] = c
	}
	c.FirstPort, c.LastPort = min(c.FirstPort, from.Port()), max(c.LastPort, from.Port())
	return c
}

func (u *use) server(address netip.AddrPort) *snapshot.IPVSServerUse {
	s := u.servers[address]
	if s == nil {
		s = &snapshot.IPVSServerUse{Address: address.String()}
		u.servers[address] = s
	}
	return s
}

func (u *use) result(k service, most int) snapshot.IPVSUse {
	return snapshot.IPVSUse{
		Protocol: k.protocol, Address: k.address.String(), Entries: u.entries, Ended: u.ended,
		Clients: int64(len(u.clients)), New: u.isNew, UsedAgain: u.again, SameServer: u.onSame,
		TopClients: top(u.clients, most, func(c *snapshot.IPVSClient) int64 { return c.Ports },
			func(c *snapshot.IPVSClient) string { return c.Address }),
		Servers: top(u.servers, most, func(s *snapshot.IPVSServerUse) int64 { return s.Entries },
			func(s *snapshot.IPVSServerUse) string { return s.Address }),
	}
}

// top are the values with the greatest counts; equal ones by name.
func top[K comparable, V any](of map[K]*V, most int, count func(*V) int64, name func(*V) string) []V {
	all := make([]*V, 0, len(of))
	for _, v := range of {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *V) int {
		return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(name(a), name(b)))
	})
	list := make([]V, 0, min(most, len(all)))
	for _, v := range all[:min(most, len(all))] {
		list = append(list, *v)
	}
	return list
}

func mostUsed(services map[service]*use, most int) []service {
	keys := make([]service, 0, len(services))
	for k := range services {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b service) int {
		return cmp.Or(cmp.Compare(services[b].entries, services[a].entries),
			a.address.Compare(b.address), cmp.Compare(a.protocol, b.protocol))
	})
	return keys[:min(most, len(keys))]
}
