package simulate

import (
	"math/rand/v2"
	"time"
)

// destination is an address that clients call.
type destination struct {
	// server answers there; none where a balancer does.
	server int32
	from   int64
}

// session is what the balancer knows of a slot.
type session struct {
	// until is when it forgets that.
	until  int64
	server int16
	// ended: its connection ended.
	ended bool
}

// turnOver makes the lists of who takes part now, and notes when that changes.
func (e *engine) turnOver() {
	e.changes = never
	e.calling = e.calling[:0]
	for i, d := range e.destinations {
		if d.from <= e.now {
			e.calling = append(e.calling, uint16(i))
		} else {
			e.changes = min(e.changes, d.from)
		}
	}
	if e.balancer != nil {
		e.circle = e.circle[:0]
		e.weigh()
	}
	e.call, e.turnAt = 0, 0
}

// weigh makes one round of the weighted round robin (ip_vs_wrr.c): servers of the
// greatest weight first, and each so often as its weight.
func (e *engine) weigh() {
	divisor, most := 0, 0
	var present []int32
	for i := range e.servers {
		g := &e.cfg.Servers[e.servers[i].group]
		if from := int64(g.From.Duration); from > e.now {
			e.changes = min(e.changes, from)
			continue
		}
		present = append(present, int32(i))
		divisor, most = gcd(divisor, g.Weight), max(most, g.Weight)
	}
	for weight := most; weight > 0; weight -= divisor {
		for _, i := range present {
			if e.cfg.Servers[e.servers[i].group].Weight >= weight {
				e.circle = append(e.circle, i)
			}
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// destination is the next one in turn.
func (e *engine) destination() uint16 {
	if e.now >= e.changes {
		e.turnOver()
	}
	if len(e.calling) == 1 {
		return e.calling[0]
	}
	if e.call >= len(e.calling) {
		e.call = 0
	}
	e.call++
	return e.calling[e.call-1]
}

// route returns the server that gets the SYN of a connection.
func (e *engine) route(c *conn) int32 {
	if e.balancer == nil {
		return e.destinations[c.dest].server
	}
	s := &e.sessions[c.slot]
	switch known := s.until > e.now && !(s.ended && e.balancer.NewSession); {
	case c.routed && known:
	case known:
		e.add(c, fSessionsReused)
	default:
		e.add(c, fSessions)
		s.server = int16(e.wrr())
	}
	c.routed = true
	s.until, s.ended = e.now+int64(e.balancer.SYNTimeout.Duration), false
	return int32(s.server)
}

// wrr is the next server in turn.
func (e *engine) wrr() int32 {
	if e.now >= e.changes {
		e.turnOver()
	}
	if e.turnAt >= len(e.circle) {
		e.turnAt = 0
	}
	e.turnAt++
	return e.circle[e.turnAt-1]
}

// keep sets how long the balancer keeps a slot's session, now that its connection ended.
func (e *engine) keep(slot uint32, timeout Duration) {
	s := &e.sessions[slot]
	s.until, s.ended = e.now+int64(timeout.Duration), true
}

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

// stampOffset returns the offset that a host adds to its clock in a connection's timestamps.
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

// source decides when connections begin, and whose they are.
type source interface {
	// due is when the next one begins, never where that is not known yet.
	due() int64
	// take is the one that is due: its batch (none without batches) and its host.
	take() (batch, host int32)
	// over notes that a connection is over.
	over(batch int32, now int64)
}

// arrivals are those of a curve.
type arrivals struct {
	stream *stream
	people *population
	random *rand.Rand
	at     int64
}

func newArrivals(c *Config, people *population, random *rand.Rand) *arrivals {
	a := &arrivals{stream: newStream(c, random), people: people, random: random}
	a.at = a.stream.next()
	return a
}

func (a *arrivals) due() int64 { return a.at }

func (a *arrivals) take() (batch, host int32) {
	host = a.people.pick(a.random)
	a.at = a.stream.next()
	return none, host
}

func (a *arrivals) over(int32, int64) {}

// course is one batch after the other.
type course struct {
	batches []Batch
	people  *population
	// hosts are those of each batch: [first, first+count).
	hosts []clientRange
	spans []batchSpan

	// Of the batch at hand: how many are to begin and are under way, how many begin
	// at once when at comes, and the host whose turn it is.
	batch        int32
	left, active int64
	ready        int64
	at           float64
	turn         int32
}

type clientRange struct{ first, count int32 }

// batchSpan is from the first SYN of a batch until its last connection is over.
type batchSpan struct{ start, end int64 }

func newCourse(c *Config, people *population) *course {
	s := &course{batches: c.Batches, people: people, spans: make([]batchSpan, len(c.Batches))}
	for _, b := range c.Batches {
		r := clientRange{0, int32(len(people.hosts))}
		for i := range c.Clients {
			if b.Clients != "" && c.Clients[i].Name == b.Clients {
				r = clientRange{people.groups[i].first, people.groups[i].hosts}
			}
		}
		s.hosts = append(s.hosts, r)
	}
	s.enter(0)
	return s
}

// enter waits for the batch at hand, whose predecessor is over now.
func (s *course) enter(now int64) {
	if int(s.batch) == len(s.batches) {
		return
	}
	b := &s.batches[s.batch]
	s.left, s.at, s.turn = b.Connections, float64(now+int64(b.Pause.Duration)), 0
	s.ready = int64(b.Concurrency)
	s.spans[s.batch].start = int64(s.at)
}

func (s *course) due() int64 {
	if s.left == 0 || int(s.batch) == len(s.batches) {
		return never
	}
	if s.batches[s.batch].Rate == 0 && s.ready == 0 {
		return never
	}
	return int64(s.at)
}

func (s *course) take() (batch, host int32) {
	if rate := s.batches[s.batch].Rate; rate > 0 {
		s.at += float64(time.Second) / rate
	} else {
		s.ready--
	}
	s.left--
	s.active++
	r := s.hosts[s.batch]
	host = r.first + s.turn
	if s.turn++; s.turn == r.count {
		s.turn = 0
	}
	return s.batch, host
}

func (s *course) over(_ int32, now int64) {
	s.active--
	if s.left > 0 {
		if s.batches[s.batch].Rate == 0 {
			s.ready++
			s.at = float64(now)
		}
		return
	}
	if s.active == 0 {
		s.spans[s.batch].end = now
		s.batch++
		s.enter(now)
	}
}
