package main

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/natkit/natkit/internal/table"
)

// Fleet is a number of simulated nodes: all rows follow from these values.
type Fleet struct {
	Seed  uint64
	Nodes int
	Start time.Time // midnight, UTC
	Days  int
	// Connections is how many connections a node's NAT log has.
	Connections int
	// TableEntries is how many entries a node's table has each time that it is read, and Readings how often that is.
	TableEntries, Readings int
	// SampleEvery and ServiceEvery are the times between samples, and between counts of the services.
	SampleEvery, ServiceEvery time.Duration
}

// The parts that nodes play.
const (
	full     = 0 // its ports towards one destination are used up
	losing   = 1 // loses connections since losingSince of the last day
	bouts    = 2 // loses connections twice, with a boot between; some of its rows were sent twice
	growing  = 3 // its table is full soon; some of its handshakes take three times as long
	upgraded = 4 // and every fourth node: a new kernel from noon of the last day
	double   = 5 // has a second namespace, with its own table, which is full
	silent   = 6 // its counters could not be read
	absent   = 7 // not there from noon of the last day
)

const (
	oldKernel = "6.1.0-40-amd64"
	newKernel = "6.12.57+deb13-amd64"
	// Noon of the last day is when services change and nodes are upgraded.
	noon        = 12 * time.Hour
	losingSince = 10 * time.Hour
)

func (f Fleet) last() time.Time { return f.Start.AddDate(0, 0, f.Days-1) }
func (f Fleet) end() time.Time  { return f.Start.AddDate(0, 0, f.Days) }

func (f Fleet) random(node int, table uint64) *rand.Rand {
	return rand.New(rand.NewPCG(f.Seed<<8|table, uint64(node)))
}

func nodeName(n int) string { return fmt.Sprintf("nat-%03d", n) }

// sixth reports whether a node translates IPv6.
func sixth(n int) bool { return n%10 == 9 }

func isUpgraded(n int) bool { return n%4 == upgraded%4 }

func (f Fleet) booted(n int, at time.Time) bool {
	return (isUpgraded(n) || n == bouts) && !at.Before(f.last().Add(noon))
}

func (f Fleet) head(n int, at time.Time) table.Head {
	kernel := oldKernel
	if isUpgraded(n) && f.booted(n, at) {
		kernel = newKernel
	}
	return table.Head{Node: nodeName(n), Kernel: kernel, Time: table.TimeOf(at)}
}

// every yields the times at which a node that is there does something, from the first step on.
func (f Fleet) every(n int, step time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for at := f.Start.Add(step); at.Before(f.end()); at = at.Add(step) {
			if n == absent && !at.Before(f.last().Add(noon)) || !yield(at) {
				return
			}
		}
	}
}

// twice yields every row once, and one in so many a second time, as a sender does that had no answer.
func twice[T any](rows iter.Seq[T], one int) iter.Seq[T] {
	return func(yield func(T) bool) {
		i := 0
		for row := range rows {
			if i++; !yield(row) || i%one == 0 && !yield(row) {
				return
			}
		}
	}
}

// Samples are those of a node.
func (f Fleet) Samples(n int) iter.Seq[table.Sample] {
	rows := f.samples(n, "")
	if n == bouts {
		return twice(rows, 9)
	}
	return func(yield func(table.Sample) bool) {
		for row := range rows {
			if !yield(row) {
				return
			}
		}
		if n != double {
			return
		}
		for row := range f.samples(n, "blue") {
			if !yield(row) {
				return
			}
		}
	}
}

func (f Fleet) samples(n int, netns string) iter.Seq[table.Sample] {
	return func(yield func(table.Sample) bool) {
		r := f.random(n, 1)
		limit, dropped, failed := int64(262144), int64(n*100), int64(0)
		boot := 0
		i := int64(0)
		for at := range f.every(n, f.SampleEvery) {
			if f.booted(n, at) && boot == 0 {
				boot, dropped, failed = 1, 0, 0
			}
			count := 40000 + r.Int64N(2000) + 500*int64(n)
			dropped += f.lost(n, at, r)
			if r.Int64N(40) == 0 && n >= 8 && boot == 0 {
				failed++
			}
			switch {
			case n == growing:
				count += i * 200000 / (int64(f.end().Sub(f.Start)) / int64(f.SampleEvery))
			case netns != "":
				count = limit
			}
			row := table.Sample{Head: f.head(n, at), BootID: fmt.Sprintf("boot-%d-%d", n, boot), Entries: &count, EntriesMax: &limit, Drop: ref(dropped), InsertFailed: ref(failed)}
			row.Netns = netns
			if n == silent {
				row.Drop, row.InsertFailed, row.EntriesMax = nil, nil, nil
			}
			if i%50 == 7 { // one reading in fifty failed in part
				row.Drop, row.InsertFailed, row.Entries = nil, nil, nil
			}
			if i++; !yield(row) {
				return
			}
		}
	}
}

func ref(n int64) *int64 { return &n }

// lost is how many connections a node lost since the sample before.
func (f Fleet) lost(n int, at time.Time, r *rand.Rand) int64 {
	at0 := at.Sub(f.last())
	switch n {
	case losing:
		if at0 > losingSince {
			return 5 + r.Int64N(20)
		}
	case bouts:
		if at0 > 3*time.Hour && at0 <= 4*time.Hour || at0 > noon && at0 <= noon+2*time.Hour {
			return 1 + r.Int64N(3)
		}
	default:
		if isUpgraded(n) && at0 < noon {
			return r.Int64N(4)
		}
	}
	return 0
}

// services are those that the nodes translate to.
var services = []struct {
	protocol, address string
	port              int32
	targets           int
	handshakeUS       int64
}{
	{"tcp", "203.0.113.80", 443, 1, 900},
	{"tcp", "203.0.113.80", 80, 2, 400},
	{"tcp", "2001:db8:80::1", 443, 1, 1500},
	{"udp", "203.0.113.53", 53, 1, 0},
	{"tcp", "203.0.113.25", 25, 1, 20000},
}

// Services are those of a node, whose first one fails on nodes 1 to 3 from noon of the last day.
func (f Fleet) Services(n int) iter.Seq[table.Service] {
	rows := f.services(n)
	if n == bouts {
		return twice(rows, 7)
	}
	return rows
}

func (f Fleet) services(n int) iter.Seq[table.Service] {
	return func(yield func(table.Service) bool) {
		r := f.random(n, 2)
		for at := range f.every(n, f.ServiceEvery) {
			for i, s := range services {
				for target := range s.targets {
					row := f.service(n, at, r, i, target)
					if !yield(row) {
						return
					}
				}
			}
			all := table.Service{Head: f.head(n, at), Kind: "snat", Protocol: "tcp", NATAddress: natAddress(n, 0), Attempts: 500, Answered: 100, Unanswered: 400, Complete: true, IntervalS: f.ServiceEvery.Seconds()}
			if !yield(all) {
				return
			}
		}
	}
}

func (f Fleet) service(n int, at time.Time, r *rand.Rand, i, target int) table.Service {
	s := services[i]
	attempts := 50 + r.Int64N(50)
	answered := attempts - r.Int64N(3)
	after := !at.Before(f.last().Add(noon))
	if i == 0 && after && at != f.last().Add(noon) && n >= 1 && n <= 3 {
		answered = attempts * 6 / 10
	}
	if i == 4 && n != 1 { // asked seldom, by a few
		attempts, answered = 0, 0
	}
	row := table.Service{Head: f.head(n, at), Kind: "dnat", Protocol: s.protocol, Address: s.address, Port: s.port,
		Target: fmt.Sprintf("10.255.%d.%d", i, target+1), TargetPort: 8000 + s.port, Attempts: attempts, Answered: answered, Unanswered: attempts - answered, Complete: true, IntervalS: f.ServiceEvery.Seconds()}
	if s.handshakeUS > 0 && r.Int64N(10) > 0 {
		us := s.handshakeUS + r.Int64N(s.handshakeUS/4)
		if n == growing && i < 2 {
			us *= 3
		}
		if isUpgraded(n) && f.booted(n, at) {
			us = us * 8 / 10
		}
		row.HandshakeUS = &us
	}
	return row
}
