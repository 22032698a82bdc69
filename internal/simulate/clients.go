package simulate

import (
	"math/rand/v2"
	"time"
)

// maxRTO is TCP_RTO_MAX.
const maxRTO = 120 * time.Second

// portStep: __inet_hash_connect goes on by 2 times 1 to 8 ports.
const portStep = 8

// clientGroup is a Clients made ready.
type clientGroup struct {
	first, hosts int32
	// upTo is the sum of the weights of all hosts up to this group's last one.
	upTo, weight  float64
	stamps        bool
	offset        string
	tick          int64 // of the timestamps
	isnTick       int64
	isnRandom     bool
	lowPort       uint16
	portSpan      uint32
	waits, hasten []int64
}

// host is one machine behind the NAT.
type host struct {
	group uint16
	// nat is its address at the NAT.
	nat uint16
	// perturb is where the search for a source port begins.
	perturb uint32
	// stamp is where the clock of its timestamps stands at the beginning.
	stamp uint32
}

// population is all hosts.
type population struct {
	groups []clientGroup
	hosts  []host
	secret uint64
}

func newPopulation(c *Config, random *rand.Rand) population {
	p := population{secret: random.Uint64()}
	upTo := 0.0
	for i := range c.Clients {
		g := &c.Clients[i]
		upTo += g.Weight * float64(g.Hosts)
		p.groups = append(p.groups, newClientGroup(g, int32(len(p.hosts)), upTo))
		for n := range g.Hosts {
			p.hosts = append(p.hosts, newHost(g, i, n, c.NAT.Addresses, random))
		}
	}
	return p
}

func newClientGroup(c *Clients, first int32, upTo float64) clientGroup {
	g := clientGroup{
		first: first, hosts: int32(c.Hosts), upTo: upTo, weight: c.Weight, stamps: *c.Timestamps, offset: c.Clock.Offset,
		tick: int64(time.Second) / int64(c.Clock.Hz), isnTick: int64(c.ISN.Tick.Duration), isnRandom: c.ISN.Kind == ISNRandom,
		lowPort: c.SourcePorts[0], portSpan: uint32(c.SourcePorts[1]) - uint32(c.SourcePorts[0]) + 1,
		waits: c.SYN.waits(c.SYN.First.Duration), hasten: c.SYN.waits(c.SYN.AfterACK.Duration),
	}
	if c.SYN.AfterACK.Duration == 0 {
		g.hasten = g.waits
	}
	if g.portSpan > 1 {
		g.portSpan &^= 1 // as the kernel, which wants pairs
	}
	return g
}

func newHost(c *Clients, group, n, addresses int, random *rand.Rand) host {
	h := host{group: uint16(group), nat: uint16(random.IntN(addresses)), perturb: random.Uint32()}
	switch c.Clock.Offset {
	case OffsetUptime:
		h.stamp = uint32(random.Float64() * c.Clock.Uptime.Seconds() * float64(c.Clock.Hz))
	case OffsetValues:
		h.stamp = c.Clock.Values[n]
	default:
		h.stamp = random.Uint32()
	}
	return h
}

// waits are the times from each SYN to the next one, the last one that to giving up:
// tcp_retransmit_timer and tcp_write_timeout.
func (s *SYN) waits(first time.Duration) []int64 {
	rto, elapsed := s.First.Duration, time.Duration(0)
	var waits []int64
	for n := 0; ; n++ {
		wait := rto
		if n == 0 {
			wait = first
		}
		if limit := s.Timeout.Duration; limit != 0 && elapsed+wait >= limit {
			return append(waits, int64(limit-elapsed))
		}
		waits = append(waits, int64(wait))
		if n == *s.Retries+*s.Linear {
			return waits
		}
		elapsed += wait
		if n+1 > *s.Linear {
			rto = min(2*rto, maxRTO)
		}
	}
}

// pick is a host, each by its weight.
func (p *population) pick(random *rand.Rand) int32 {
	if len(p.hosts) == 1 {
		return 0
	}
	at := random.Float64() * p.groups[len(p.groups)-1].upTo
	for i := range p.groups {
		if g := &p.groups[i]; at < g.upTo {
			n := g.hosts - 1 - int32((g.upTo-at)/g.weight)
			return g.first + max(n, 0)
		}
	}
	return int32(len(p.hosts)) - 1
}

// sourcePort is the one that a host takes next toward a destination.
func (p *population) sourcePort(id int32, dest uint16, random *rand.Rand) uint16 {
	h := &p.hosts[id]
	g := &p.groups[h.group]
	h.perturb += 2 + 2*uint32(random.Uint64()&(portStep-1))
	offset := (h.perturb + uint32(mix(p.secret+1, uint64(id)<<16|uint64(dest)))) % g.portSpan
	return g.lowPort + uint16(offset&^1)
}

// isn is the initial sequence number of a connection that begins now.
func (p *population) isn(id int32, port, dest uint16, now int64, random *rand.Rand) uint32 {
	g := &p.groups[p.hosts[id].group]
	if g.isnRandom {
		return random.Uint32()
	}
	return uint32(mix(p.secret+2, uint64(id)<<32|uint64(port)<<16|uint64(dest))) + uint32(now/g.isnTick)
}

// stampOffset is what a host adds to its clock in the timestamps of a connection.
func (p *population) stampOffset(id int32, port, dest uint16) uint32 {
	h := &p.hosts[id]
	switch p.groups[h.group].offset {
	case OffsetPair:
		return h.stamp + uint32(dest)*0x9e3779b9
	case OffsetConnection:
		return uint32(mix(p.secret+3, uint64(id)<<32|uint64(port)<<16|uint64(dest)))
	}
	return h.stamp
}
