package main

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/table"
)

// The answers of this file are slow and obvious: every one reads all rows, and keeps what it needs in maps.

// Tables are the rows of a fleet.
type Tables struct {
	Log      []table.NATLog
	Entries  []table.Entry
	Samples  []table.Sample
	Services []table.Service
}

// row is a line of an answer, as JSON has it: all numbers are float64.
type row map[string]any

const layout = "2006-01-02 15:04:05.000000"

func moment(s string) table.Time {
	t, err := time.Parse("2006-01-02 15:04:05", s)
	if err != nil {
		panic(err)
	}
	return table.TimeOf(t)
}

// null makes what is not there null.
func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return jsonOf(v)
}

func jsonOf(v any) any {
	switch v := v.(type) {
	case table.Time:
		return v.Time().Format(layout)
	case int64:
		return float64(v)
	case int32:
		return float64(v)
	case int:
		return float64(v)
	case *int64:
		if v == nil {
			return nil
		}
		return float64(*v)
	}
	return v
}

func line(pairs ...any) row {
	r := row{}
	for i := 0; i < len(pairs); i += 2 {
		r[pairs[i].(string)] = jsonOf(pairs[i+1])
	}
	return r
}

func thousandths(x float64) float64 { return math.Floor(x*1000+0.5) / 1000 }

// quotient is null where there is nothing to divide by.
func quotient(a, b float64) any {
	if b == 0 {
		return nil
	}
	return thousandths(a / b)
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// sortedKeys are the keys of a map in an order.
func sortedKeys[K comparable, V any](m map[K]V, less func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, less)
	return keys
}

func unique[T comparable](rows []T) (all []T) {
	seen := map[T]bool{}
	for _, r := range rows {
		if !seen[r] {
			seen[r] = true
			all = append(all, r)
		}
	}
	return all
}

// held is one use of a translated port.
type held struct {
	node, netns        string
	block              bool
	protocol, src      string
	sport              int32
	address            string
	port, last         int32
	dst                string
	dport              int32
	started            table.Time
	part               int        // of those with one key of which it is not known when they began
	ended, givenAgain  table.Time // not part of what it is
	present            table.Time // nor is this: when it was there, of one that was there when the log began
	nextSeen, hasEnded bool
}

// began is when it was there first.
func (h *held) began() table.Time { return cmp.Or(h.started, h.present) }

func (h held) key() held {
	h.ended, h.givenAgain, h.present, h.nextSeen, h.hasEnded = 0, 0, 0, false, false
	return h
}

// uses are the connections and blocks of log rows, with their ends where these were logged.
func uses(rows []table.NATLog) (all []*held) {
	byKey, parts := map[held]*held{}, map[held]int{}
	rows = unique(rows)
	slices.SortStableFunc(rows, func(a, b table.NATLog) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), -strings.Compare(a.Event, b.Event))
	})
	for _, r := range rows {
		h := held{node: r.Node, netns: r.Netns, block: r.Event == "block", protocol: r.Protocol, src: r.Src, sport: r.Sport, address: r.NATAddress, port: r.NATPort, last: r.NATPortLast, dst: r.Dst, dport: r.Dport, started: r.Started}
		if any := h; r.Started == 0 {
			if h.part = parts[any]; r.Event == "end" {
				parts[any]++
			}
		}
		if byKey[h] == nil {
			byKey[h] = &held{}
			*byKey[h] = h
			all = append(all, byKey[h])
		}
		byKey[h.key()].ended = max(byKey[h.key()].ended, r.Ended)
		if r.Event == "start" && r.Started == 0 && byKey[h].present == 0 {
			byKey[h].present = r.Time
		}
	}
	slices.SortFunc(all, func(a, b *held) int {
		return cmp.Or(cmp.Compare(a.began(), b.began()), strings.Compare(a.node, b.node), strings.Compare(a.netns, b.netns), strings.Compare(a.protocol, b.protocol), strings.Compare(a.src, b.src), cmp.Compare(a.sport, b.sport), strings.Compare(a.dst, b.dst), cmp.Compare(a.dport, b.dport))
	})
	return all
}

func (t Tables) who(address string, port int32, protocol, at string, slackS int64) (answer []row) {
	when := moment(at)
	slack := table.Time(slackS * 1e6)
	var rows []table.NATLog
	for _, r := range t.Log {
		if r.NATAddress == address && r.NATPort <= port && port <= r.NATPortLast && (protocol == "" || r.Protocol == "" || r.Protocol == protocol) && r.Started <= when+slack {
			rows = append(rows, r)
		}
	}
	all := uses(rows)
	for i, h := range all {
		end := h.ended
		for _, later := range all[i+1:] {
			if end == 0 && later.node == h.node && later.netns == h.netns && later.block == h.block && later.protocol == h.protocol && later.port == h.port && later.last == h.last && later.dst == h.dst && later.dport == h.dport {
				end = later.began()
			}
		}
		if end != 0 && end < when-slack {
			continue
		}
		sure := "log"
		switch {
		case h.started > when || end != 0 && end < when:
			sure = "clock"
		case h.started == 0 && h.present > when:
			sure = "no start"
		case h.ended == 0:
			sure = "no end"
		case h.started == 0 && h.present == 0:
			sure = "no start"
		}
		answer = append(answer, line("node", h.node, "netns", null(h.netns), "protocol", null(h.protocol), "src", h.src, "sport", null(h.sport), "dst", null(h.dst), "dport", null(h.dport), "started", null(h.started), "ended", null(end), "sure", sure))
	}
	return answer
}

func (t Tables) reused(from, to string, timeWaitS int64) (answer []row) {
	var rows []table.NATLog
	for _, r := range t.Log {
		if r.Event != "block" && r.Protocol == "tcp" && r.Started != 0 && r.Dst != "" && r.NATAddress != r.Src && r.Time >= moment(from) && r.Time < moment(to) {
			rows = append(rows, r)
		}
	}
	type port struct {
		address string
		port    int32
		dst     string
		dport   int32
	}
	type pair struct{ address, nodeBefore, netnsBefore, node, netns string }
	type count struct {
		times, overlaps int
		ports           map[int32]bool
		least           table.Time
		first, last     table.Time
	}
	last := map[port]*held{}
	counts := map[pair]*count{}
	for _, h := range uses(rows) {
		p := port{h.address, h.port, h.dst, h.dport}
		before := last[p]
		last[p] = h
		if before == nil || before.ended == 0 || h.started-before.ended >= table.Time(timeWaitS*1e6) {
			continue
		}
		gap := h.started - before.ended
		k := pair{h.address, before.node, before.netns, h.node, h.netns}
		c := counts[k]
		if c == nil {
			c = &count{ports: map[int32]bool{}, least: gap, first: h.started}
			counts[k] = c
		}
		c.times++
		c.ports[h.port] = true
		c.least, c.first, c.last = min(c.least, gap), min(c.first, h.started), max(c.last, h.started)
		if gap < 0 {
			c.overlaps++
		}
	}
	for _, k := range sortedKeys(counts, func(a, b pair) int {
		return cmp.Or(-cmp.Compare(counts[a].times, counts[b].times), strings.Compare(a.address, b.address), strings.Compare(a.nodeBefore, b.nodeBefore), strings.Compare(a.netnsBefore, b.netnsBefore), strings.Compare(a.node, b.node), strings.Compare(a.netns, b.netns))
	}) {
		c := counts[k]
		answer = append(answer, line("nat_address", k.address, "node_before", k.nodeBefore, "netns_before", null(k.netnsBefore), "node", k.node, "netns", null(k.netns), "times", c.times, "ports", len(c.ports), "overlaps", c.overlaps, "least_gap_s", thousandths(float64(c.least)/1000000), "first", c.first, "last", c.last))
	}
	return answer
}

// counted are the counts of services without what was sent twice.
func (t Tables) counted(keep func(table.Service) bool) (all []table.Service) {
	type key struct {
		node, netns, protocol, address string
		port                           int32
		target                         string
		targetPort                     int32
		nat                            string
		time                           table.Time
	}
	seen := map[key]bool{}
	for _, s := range t.Services {
		k := key{s.Node, s.Netns, s.Protocol, s.Address, s.Port, s.Target, s.TargetPort, s.NATAddress, s.Time}
		if s.Kind == "dnat" && keep(s) && !seen[k] {
			seen[k] = true
			all = append(all, s)
		}
	}
	return all
}

type service struct {
	protocol, address string
	port              int32
}

func (s service) compare(o service) int {
	return cmp.Or(strings.Compare(s.protocol, o.protocol), strings.Compare(s.address, o.address), cmp.Compare(s.port, o.port))
}

func serviceOf(s table.Service) service { return service{s.Protocol, s.Address, s.Port} }

// halves are what was attempted and answered before a moment and after it.
type halves struct{ before, answeredBefore, after, answeredAfter int64 }

func (h *halves) add(o halves) {
	h.before, h.answeredBefore = h.before+o.before, h.answeredBefore+o.answeredBefore
	h.after, h.answeredAfter = h.after+o.after, h.answeredAfter+o.answeredAfter
}

func (h halves) shares() (before, after float64) {
	return float64(h.answeredBefore) / float64(h.before), float64(h.answeredAfter) / float64(h.after)
}

func (t Tables) answered(at string, windowS int64, fell float64, least int64) (answer []row) {
	when, window := moment(at), table.Time(windowS*1e6)
	type nodeService struct {
		node string
		service
	}
	nodes := map[nodeService]*halves{}
	for _, s := range t.counted(func(s table.Service) bool { return s.Time > when-window && s.Time <= when+window }) {
		k := nodeService{s.Node, serviceOf(s)}
		if nodes[k] == nil {
			nodes[k] = &halves{}
		}
		if s.Time <= when {
			nodes[k].add(halves{before: s.Attempts, answeredBefore: s.Answered})
		} else {
			nodes[k].add(halves{after: s.Attempts, answeredAfter: s.Answered})
		}
	}
	all, count, worse := map[service]*halves{}, map[service]int{}, map[service]int{}
	for k, h := range nodes {
		if all[k.service] == nil {
			all[k.service] = &halves{}
		}
		all[k.service].add(*h)
		count[k.service]++
		if before, after := h.shares(); before-after >= fell { // false of NaN
			worse[k.service]++
		}
	}
	drop := func(s service) float64 { before, after := all[s].shares(); return before - after }
	for _, s := range sortedKeys(all, func(a, b service) int { return cmp.Or(-cmp.Compare(drop(a), drop(b)), a.compare(b)) }) {
		h := all[s]
		if h.before < least || h.after < least || !(drop(s) >= fell) {
			continue
		}
		before, after := h.shares()
		answer = append(answer, line("protocol", s.protocol, "address", s.address, "port", s.port, "nodes", count[s], "nodes_fell", worse[s], "attempts_before", h.before, "share_before", thousandths(before), "attempts_after", h.after, "share_after", thousandths(after), "fell", thousandths(drop(s))))
	}
	return answer
}

func (t Tables) handshake(from, to string, least int64, slower float64, top int) (answer []row) {
	type sum struct{ answered, weighted, worst int64 }
	sums := map[service]map[string]*sum{}
	for _, s := range t.counted(func(s table.Service) bool {
		return s.Time >= moment(from) && s.Time < moment(to) && s.HandshakeUS != nil && s.Answered > 0
	}) {
		k := serviceOf(s)
		if sums[k] == nil {
			sums[k] = map[string]*sum{}
		}
		if sums[k][s.Node] == nil {
			sums[k][s.Node] = &sum{}
		}
		n := sums[k][s.Node]
		n.answered, n.weighted, n.worst = n.answered+s.Answered, n.weighted+s.Answered**s.HandshakeUS, max(n.worst, *s.HandshakeUS)
	}
	type found struct {
		service
		node         string
		sum          sum
		mean, median float64
		nodes        int
	}
	var all []found
	for k, nodes := range sums {
		var these []found
		for node, n := range nodes {
			if n.answered >= least {
				these = append(these, found{service: k, node: node, sum: *n, mean: float64(n.weighted) / float64(n.answered)})
			}
		}
		slices.SortFunc(these, func(a, b found) int { return cmp.Compare(a.mean, b.mean) })
		for _, f := range these {
			f.nodes, f.median = len(these), these[(len(these)-1)/2].mean
			if f.mean >= slower*f.median {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(-cmp.Compare(a.mean/a.median, b.mean/b.median), a.compare(b.service), strings.Compare(a.node, b.node))
	})
	for _, f := range all[:min(top, len(all))] {
		answer = append(answer, line("protocol", f.protocol, "address", f.address, "port", f.port, "node", f.node, "answered", f.sum.answered, "handshake_us", thousandths(f.mean), "worst_us", f.sum.worst, "nodes", f.nodes, "median_us", thousandths(f.median), "times_median", thousandths(f.mean/f.median)))
	}
	return answer
}
