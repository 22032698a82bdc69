package main

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/natkit/natkit/internal/table"
)

// pool is the destination to which node "full" uses up its ports, four in five of the first hundred at the last reading.
const (
	poolServer = "198.19.9.9"
	poolPorts  = 100
)

// Entries are those of a node's table, reading after reading. The first half of them is there every time.
func (f Fleet) Entries(n int) iter.Seq[table.Entry] {
	return func(yield func(table.Entry) bool) {
		a := addressesOf(n)
		step := f.end().Sub(f.Start) / time.Duration(f.Readings+1)
		reading := 0
		for at := range f.every(n, step) {
			if reading++; reading > f.Readings {
				return
			}
			for i := range f.TableEntries {
				id := uint64(i)
				if i >= f.TableEntries/2 {
					id |= uint64(reading) << 32
				}
				if !yield(f.entry(n, a, at, id)) {
					return
				}
			}
			for i := range f.pool(n, reading) {
				if !yield(f.poolEntry(a, at, i)) {
					return
				}
			}
			if n == double && !f.again(n, a, at, yield) {
				return
			}
		}
	}
}

// again is an entry that is in the table already, in a namespace with the same addresses, and one that is in another zone.
func (f Fleet) again(n int, a addresses, at time.Time, yield func(table.Entry) bool) bool {
	blue, zoned := f.entry(n, a, at, 1), table.Entry{}
	for id := uint64(0); zoned.IdleS == nil; id++ {
		zoned = f.entry(n, a, at, id)
	}
	blue.Netns, zoned.Zone = "blue", plantedZone
	return yield(blue) && yield(zoned)
}

// plantedZone is a conntrack zone with a connection that the default one has as well.
const plantedZone = 7

// pool is how many entries a node has towards that destination.
func (f Fleet) pool(n, reading int) int {
	if n != full {
		return 0
	}
	return poolPorts * 8 / 10 * reading / f.Readings
}

func (f Fleet) poolEntry(a addresses, at time.Time, i int) table.Entry {
	e := f.entry(full, a, at, uint64(i)<<48)
	e.NATAddress, e.NATPort = a.nat[0], int32(firstPort+i)
	e.ReplyDst, e.ReplyDport = e.NATAddress, e.NATPort
	e.Dst, e.Server, e.ReplySrc = poolServer, poolServer, poolServer
	e.Dport, e.ServerPort, e.ReplySport = 443, 443, 443
	e.Protocol, e.State, e.SNAT = "tcp", "TIME_WAIT", true
	if i%4 == 0 {
		e.State = "ESTABLISHED"
	}
	return e
}

// entry is a connection at a time, which follows from its number.
func (f Fleet) entry(n int, a addresses, at time.Time, id uint64) table.Entry {
	var source rand.PCG
	source.Seed(f.Seed<<8|4, uint64(n)<<56^id*0x9e3779b97f4a7c15)
	r := rand.New(&source)
	began := f.Start
	if id>>32 != 0 {
		began = at.Add(-time.Hour)
	}
	c := next(r, began.Add(time.Duration(r.Int64N(int64(40*time.Minute)))).UnixMicro())
	e := table.Entry{Head: f.head(n, at), Family: "ipv4", Protocol: "tcp", State: "ESTABLISHED", Src: a.client[c.client], Sport: c.sport, Dst: a.server[c.server], Dport: serverPorts[int(c.server)%len(serverPorts)], Assured: true, Replied: true}
	if sixth(n) {
		e.Family = "ipv6"
	}
	if c.udp {
		e.Protocol, e.State = "udp", ""
	}
	e.Server, e.ServerPort, e.ReplySrc, e.ReplySport = e.Dst, e.Dport, e.Dst, e.Dport
	e.ReplyDst, e.ReplyDport = e.Src, e.Sport
	if r.Int32N(10) > 0 {
		e.SNAT, e.NATAddress, e.NATPort = true, a.nat[c.client%natAddresses], c.nport
		e.ReplyDst, e.ReplyDport = e.NATAddress, e.NATPort
	}
	if r.Int32N(8) == 0 {
		e.DNAT, e.Server, e.ServerPort = true, fmt.Sprintf("10.255.0.%d", c.server%200+1), 8080
		e.ReplySrc, e.ReplySport = e.Server, e.ServerPort
	}
	f.counters(n, &e, r, at, c)
	return e
}

func (f Fleet) counters(n int, e *table.Entry, r *rand.Rand, at time.Time, c connection) {
	if n%7 != 3 { // there net.netfilter.nf_conntrack_acct is 0
		packets := 1 + at.Sub(f.Start).Microseconds()/1_000_000*r.Int64N(50)
		e.OrigPackets, e.ReplyPackets = ref(packets), ref(packets*2)
		e.OrigBytes, e.ReplyBytes = ref(packets*(60+r.Int64N(100))), ref(packets*(200+r.Int64N(2800)))
	}
	if n%5 != 4 { // there net.netfilter.nf_conntrack_timestamp is 0
		e.Started = table.Time(c.started)
	}
	e.TimeoutS = ref(1 + r.Int64N(432000))
	if e.State != "" {
		e.IdleS = ref(432000 - *e.TimeoutS)
	}
}
