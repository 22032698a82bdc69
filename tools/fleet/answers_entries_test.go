package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/table"
)

// between are the entries of readings in a time, without what was sent twice.
func (t Tables) between(from, to string) (all []table.Entry) {
	for _, e := range t.Entries {
		if e.Time >= moment(from) && e.Time < moment(to) {
			all = append(all, e)
		}
	}
	return all
}

func (t Tables) exhausted(from, to string, ports int64, share float64) (answer []row) {
	type pool struct {
		node, netns, protocol, address, server string
		port                                   int32
	}
	type use struct{ ports, waiting, clients map[any]bool }
	readings := map[pool]map[table.Time]*use{}
	for _, e := range t.between(from, to) {
		if !e.SNAT || e.NATPort == 0 {
			continue
		}
		p := pool{e.Node, e.Netns, e.Protocol, e.NATAddress, e.Server, e.ServerPort}
		if readings[p] == nil {
			readings[p] = map[table.Time]*use{}
		}
		u := readings[p][e.Time]
		if u == nil {
			u = &use{map[any]bool{}, map[any]bool{}, map[any]bool{}}
			readings[p][e.Time] = u
		}
		u.ports[e.NATPort], u.clients[e.Src] = true, true
		if e.State == "TIME_WAIT" {
			u.waiting[e.NATPort] = true
		}
	}
	peak := map[pool]table.Time{}
	for p, of := range readings {
		for at, u := range of {
			old := of[peak[p]]
			if old == nil || len(u.ports) > len(old.ports) || len(u.ports) == len(old.ports) && at < peak[p] {
				peak[p] = at
			}
		}
	}
	size := func(p pool) int { return len(readings[p][peak[p]].ports) }
	for _, p := range sortedKeys(peak, func(a, b pool) int {
		return cmp.Or(-cmp.Compare(size(a), size(b)), strings.Compare(a.node, b.node), strings.Compare(a.netns, b.netns), strings.Compare(a.protocol, b.protocol), strings.Compare(a.address, b.address), strings.Compare(a.server, b.server), cmp.Compare(a.port, b.port))
	}) {
		u := readings[p][peak[p]]
		if float64(len(u.ports)) < share*float64(ports) {
			continue
		}
		answer = append(answer, line("node", p.node, "netns", null(p.netns), "protocol", p.protocol, "nat_address", p.address, "server", p.server, "server_port", null(p.port), "time", peak[p], "ports", len(u.ports), "time_wait", len(u.waiting), "clients", len(u.clients), "share", thousandths(float64(len(u.ports))/float64(ports))))
	}
	return answer
}

func (t Tables) idle(from, to string, top int) (answer []row) {
	type place struct{ node, netns string }
	last := map[place]table.Time{}
	for _, e := range t.between(from, to) {
		last[place{e.Node, e.Netns}] = max(last[place{e.Node, e.Netns}], e.Time)
	}
	type entry struct {
		node, netns, protocol, state, src string
		zone, sport                       int32
		dst                               string
		dport                             int32
		nat                               string
		natPort                           int32
		started, time                     table.Time
		idle, timeout                     int64
	}
	var all []entry
	for _, e := range t.between(from, to) {
		if e.IdleS != nil && e.Time == last[place{e.Node, e.Netns}] {
			all = append(all, entry{e.Node, e.Netns, e.Protocol, e.State, e.Src, e.Zone, e.Sport, e.Dst, e.Dport, e.NATAddress, e.NATPort, e.Started, e.Time, *e.IdleS, *e.TimeoutS})
		}
	}
	all = unique(all)
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(-cmp.Compare(a.idle, b.idle), strings.Compare(a.node, b.node), strings.Compare(a.netns, b.netns), cmp.Compare(a.zone, b.zone), strings.Compare(a.protocol, b.protocol), strings.Compare(a.src, b.src), cmp.Compare(a.sport, b.sport), strings.Compare(a.dst, b.dst), cmp.Compare(a.dport, b.dport), strings.Compare(a.nat, b.nat), cmp.Compare(a.natPort, b.natPort), cmp.Compare(a.started, b.started))
	})
	for _, e := range all[:min(top, len(all))] {
		var age any
		if e.started != 0 {
			age = thousandths(float64(e.time-e.started) / 1000000)
		}
		answer = append(answer, line("node", e.node, "netns", null(e.netns), "zone", e.zone, "protocol", e.protocol, "state", null(e.state), "src", e.src, "sport", null(e.sport), "dst", e.dst, "dport", null(e.dport), "nat_address", null(e.nat), "nat_port", null(e.natPort), "idle_s", e.idle, "timeout_s", e.timeout, "age_s", age))
	}
	return answer
}

func (t Tables) talkers(from, to string, top int) (answer []row) {
	type connection struct {
		node, netns, protocol, src string
		zone, sport                int32
		dst                        string
		dport                      int32
		started                    table.Time
	}
	type counters struct {
		counted                 bool
		sent, received, packets int64
	}
	seen := map[connection]*counters{}
	for _, e := range t.between(from, to) {
		k := connection{e.Node, e.Netns, e.Protocol, e.Src, e.Zone, e.Sport, e.Dst, e.Dport, e.Started}
		if seen[k] == nil {
			seen[k] = &counters{}
		}
		c := seen[k]
		c.counted = c.counted || e.OrigBytes != nil
		c.sent, c.received = max(c.sent, value(e.OrigBytes)), max(c.received, value(e.ReplyBytes))
		c.packets = max(c.packets, value(e.OrigPackets)+value(e.ReplyPackets))
	}
	type client struct {
		nodes                  map[string]bool
		connections, uncounted int64
		counters
	}
	all := map[string]*client{}
	var bytes int64
	for k, c := range seen {
		s := all[k.src]
		if s == nil {
			s = &client{nodes: map[string]bool{}}
			all[k.src] = s
		}
		s.nodes[k.node] = true
		s.connections++
		if !c.counted {
			s.uncounted++
		}
		s.sent, s.received, s.packets = s.sent+c.sent, s.received+c.received, s.packets+c.packets
		bytes += c.sent + c.received
	}
	keys := sortedKeys(all, func(a, b string) int {
		return cmp.Or(-cmp.Compare(all[a].sent+all[a].received, all[b].sent+all[b].received), -cmp.Compare(all[a].connections, all[b].connections), strings.Compare(a, b))
	})
	for _, k := range keys[:min(top, len(keys))] {
		s := all[k]
		answer = append(answer, line("src", k, "nodes", len(s.nodes), "connections", s.connections, "uncounted", s.uncounted, "sent_bytes", s.sent, "received_bytes", s.received, "packets", s.packets, "percent", thousandths(100*(float64(s.sent+s.received)/float64(bytes)))))
	}
	return answer
}
