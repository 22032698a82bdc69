package main

import (
	"container/heap"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/natkit/natkit/internal/table"
)

const (
	natAddresses = 4     // of a node
	clients      = 2000  // behind a node
	servers      = 300   // that they ask
	firstPort    = 1024  // of a translated address
	ports        = 64512 // … and how many from there on
)

func natAddress(n, i int) string {
	if sixth(n) {
		return fmt.Sprintf("2001:db8:ffff:%x::%x", n, i+1)
	}
	return fmt.Sprintf("198.18.%d.%d", n/60, n%60*natAddresses+i)
}

func clientAddress(n, i int) string {
	if sixth(n) {
		return fmt.Sprintf("2001:db8:%x::%x", n, i+1)
	}
	// Nodes have the same private addresses behind them.
	return fmt.Sprintf("10.%d.%d.%d", n%8, i/250, i%250+1)
}

func serverAddress(n, i int) string {
	if sixth(n) {
		return fmt.Sprintf("2001:db8:5e::%x", i+1)
	}
	return fmt.Sprintf("198.19.%d.%d", i/250, i%250+1)
}

var serverPorts = []int32{443, 443, 443, 80, 53, 123, 8443, 5222}

// addresses are written once: rows have the same strings.
type addresses struct{ nat, client, server []string }

func addressesOf(n int) (a addresses) {
	for i := range natAddresses {
		a.nat = append(a.nat, natAddress(n, i))
	}
	for i := range clients {
		a.client = append(a.client, clientAddress(n, i))
	}
	for i := range servers {
		a.server = append(a.server, serverAddress(n, i))
	}
	return a
}

// connection is one of a node's log, in numbers.
type connection struct {
	started, ended int64 // µs
	client, server int32
	sport, nport   int32
	udp            bool
}

// tuple is what no two connections have at once.
func (c connection) tuple() uint64 {
	key := uint64(c.nport)<<24 | uint64(c.server)<<8 | uint64(c.client%natAddresses)<<1
	if c.udp {
		key |= 1
	}
	return key
}

// ending is the connections that last, the one that ends first at the top.
type ending []connection

func (e ending) Len() int           { return len(e) }
func (e ending) Less(i, j int) bool { return e[i].ended < e[j].ended }
func (e ending) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ending) Push(x any)        { *e = append(*e, x.(connection)) }
func (e *ending) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// NATLog is that of a node, in the order of time: a start, and an end unless it outlasts the fleet.
func (f Fleet) NATLog(n int) iter.Seq[table.NATLog] {
	return func(yield func(table.NATLog) bool) {
		r := f.random(n, 3)
		a := addressesOf(n)
		var lasting ending
		busy := map[uint64]bool{}
		end := f.end().UnixMicro()
		gap := (end - f.Start.UnixMicro()) / int64(max(f.Connections, 1))
		at := f.Start.UnixMicro()
		for range f.Connections {
			at += r.Int64N(2*gap) + 1
			for len(lasting) > 0 && lasting[0].ended < at {
				c := heap.Pop(&lasting).(connection)
				delete(busy, c.tuple())
				if c.ended < end && !yield(f.logRow(n, a, c, "end")) {
					return
				}
			}
			if at >= end || n == absent && at >= f.last().Add(noon).UnixMicro() {
				break
			}
			c := next(r, at)
			for busy[c.tuple()] {
				c.nport = firstPort + r.Int32N(ports)
			}
			busy[c.tuple()] = true
			heap.Push(&lasting, c)
			if !yield(f.logRow(n, a, c, "start")) {
				return
			}
		}
		for len(lasting) > 0 && n != absent {
			if c := heap.Pop(&lasting).(connection); c.ended < end && !yield(f.logRow(n, a, c, "end")) {
				return
			}
		}
	}
}

// next is a connection that begins now: a few clients and servers have many, most last for seconds.
func next(r *rand.Rand, at int64) connection {
	skewed := func(n int32) int32 { x := r.Float64(); return int32(x * x * x * float64(n)) }
	c := connection{started: at, client: skewed(clients), server: skewed(servers), sport: 32768 + r.Int32N(28232), nport: firstPort + r.Int32N(ports), udp: r.Int32N(4) == 0}
	last := time.Duration(50+r.Int64N(5000)) * time.Millisecond
	switch x := r.Int32N(100); {
	case x < 5:
		last = time.Duration(r.Int64N(int64(2 * time.Hour)))
	case x < 20:
		last = time.Duration(r.Int64N(int64(2 * time.Minute)))
	}
	c.ended = at + last.Microseconds() + 1
	return c
}

func (f Fleet) logRow(n int, a addresses, c connection, event string) table.NATLog {
	at := c.started
	if event == "end" {
		at = c.ended
	}
	row := table.NATLog{Event: event, Protocol: "tcp", Src: a.client[c.client], Sport: c.sport, NATAddress: a.nat[c.client%natAddresses], NATPort: c.nport, NATPortLast: c.nport,
		Dst: a.server[c.server], Dport: serverPorts[int(c.server)%len(serverPorts)], Started: table.Time(c.started)}
	row.Head = f.head(n, time.UnixMicro(at))
	if c.udp {
		row.Protocol = "udp"
	}
	if event == "end" {
		row.Ended = table.Time(c.ended)
	}
	return row
}
