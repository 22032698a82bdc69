package simulate

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// What may be due, in the order in which things happen that are due at the same time;
// the waits of clients and last the arrivals follow. From qExpire on they are queues.
const (
	atSample = iota
	atWheel
	qExpire
	qHold
	qClosed
	qSYN
	qClose
	qWaits
)

// closedHold is nf_conntrack_tcp_timeout_close.
const closedHold = 10 * second

// horizon is the longest simulated time.
const horizon = 100 * 365 * int64(day)

// checkEvery is after how many events the context is checked.
const checkEvery = 1 << 16

// engine is a simulation under way. Times are nanoseconds since the beginning. A SYN, the
// answer, and the RST that answers that are one moment: the round trip only counts in
// what clients waited. Nothing is lost on the way.
type engine struct {
	cfg    *Config
	random *rand.Rand
	people population
	source source

	now int64
	// next is when each of the above is due, beside queues.
	next      []int64
	queues    []queue
	atArrival int
	// waits are the queues for the times between the SYNs of each group.
	waits, hasten [][]int

	conns    []conn
	freeConn int32
	live     int64

	slots     []slot
	sessions  []session // beside slots; none without a balancer
	ports     []portSet
	portCount int
	firstPort int
	strategy  string
	evicts    bool
	// outdated are the events in queues that would free a port which was
	// taken before; a queue that has sweepAt is searched for them.
	outdated, sweepAt int

	balancer     *Balancer
	destinations []destination
	calling      []uint16
	call         int
	circle       []int32
	turnAt       int
	changes      int64

	servers      []server
	wheels       []int32
	nodes        []timeWait
	freeNode     int32
	serverCloses bool
	// length is how many sequence numbers a client's connection takes.
	length uint32

	record
}

// newEngine makes a simulation of c, whose defaults are filled in.
func newEngine(c *Config) *engine {
	random := rand.New(rand.NewPCG(c.Seed, 0x6e61746b6974))
	e := &engine{
		cfg: c, random: random, people: newPopulation(c, random), freeConn: none, freeNode: none, sweepAt: fewestSwept,
		strategy: c.NAT.Strategy, evicts: *c.NAT.Evicts, firstPort: int(c.NAT.Ports[0]),
		portCount: int(c.NAT.Ports[1]) - int(c.NAT.Ports[0]) + 1,
		balancer:  c.Balancer, serverCloses: c.Connection.ClosesFirst == CloseServer,
		length: uint32(c.Connection.RequestBytes*c.Connection.Requests) + 2, // SYN and FIN
	}
	e.buildServers()
	e.buildPorts()
	e.buildQueues()
	e.buildRecord()
	if c.Arrivals != nil {
		e.source = newArrivals(c, &e.people, random)
	} else {
		e.source = newCourse(c, &e.people)
	}
	e.next[e.atArrival] = e.source.due()
	return e
}

func (e *engine) buildServers() {
	for i, g := range e.cfg.Servers {
		for range g.Count {
			e.buildServer(int32(i), &g)
		}
	}
	if e.balancer != nil {
		for range e.balancer.Addresses {
			e.destinations = append(e.destinations, destination{server: none})
		}
	}
}

func (e *engine) buildServer(group int32, g *Servers) {
	s := server{group: group, stamps: *g.Timestamps, rfc1337: g.RFC1337, limitsACKs: g.Kernel == KernelTimer, limit: -1}
	if g.MaxTimeWait != nil {
		s.limit = int32(*g.MaxTimeWait)
	}
	id := int32(len(e.servers))
	if g.Kernel != KernelTimer {
		s.wheel = newWheel(g.Kernel == KernelWheelRearm)
		e.wheels = append(e.wheels, id)
	}
	e.servers = append(e.servers, s)
	if e.balancer == nil {
		for range g.Addresses {
			e.destinations = append(e.destinations, destination{server: id, from: int64(g.From.Duration)})
		}
	}
}

func (e *engine) buildPorts() {
	sets := e.cfg.NAT.Addresses * len(e.destinations)
	for range sets {
		e.ports = append(e.ports, newPortSet(e.portCount))
	}
	e.slots = make([]slot, sets*e.portCount)
	for i := range e.slots {
		e.slots[i].timeWait = none
	}
	if e.balancer != nil {
		e.sessions = make([]session, len(e.slots))
	}
}

func (e *engine) buildQueues() {
	e.queues = make([]queue, qWaits)
	e.queues[qExpire].delay = timeWaitLen
	e.queues[qHold].delay = int64(e.cfg.NAT.HoldDown.Duration)
	e.queues[qClosed].delay = closedHold
	e.queues[qSYN].delay = int64(e.cfg.NAT.SYNHold.Duration)
	e.queues[qClose].delay = int64(e.cfg.Connection.Duration.Duration)
	for i := range e.people.groups {
		e.waits = append(e.waits, e.queuesFor(e.people.groups[i].waits))
		e.hasten = append(e.hasten, e.queuesFor(e.people.groups[i].hasten))
	}
	e.atArrival = len(e.queues)
	e.next = slices.Repeat([]int64{never}, len(e.queues)+1)
}

// queuesFor are queues with these delays, one for each that differs.
func (e *engine) queuesFor(delays []int64) (chosen []int) {
	for _, d := range delays {
		n := slices.IndexFunc(e.queues[qWaits:], func(q queue) bool { return q.delay == d })
		if n < 0 {
			n = len(e.queues) - qWaits
			e.queues = append(e.queues, queue{delay: d})
		}
		chosen = append(chosen, n+qWaits)
	}
	return chosen
}

// put makes something due when the time of a queue is over.
func (e *engine) put(q int, id int32) {
	at := e.now + e.queues[q].delay
	e.queues[q].push(at, uint32(id))
	if e.queues[q].size == 1 {
		e.next[q] = at
	}
}

// first returns the index of the event due first.
func (e *engine) first() int {
	at, when := 0, e.next[0]
	for i, t := range e.next {
		if t < when {
			at, when = i, t
		}
	}
	return at
}

// run goes on until all connections are over.
func (e *engine) run(ctx context.Context) error {
	for n := 1; !e.done(); n++ {
		if n%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if err := e.step(ctx); err != nil {
			return err
		}
	}
	e.sample()
	return nil
}

// done: nothing is under way and nothing will be.
func (e *engine) done() bool {
	return e.live == 0 && e.next[e.atArrival] == never && e.now >= e.until
}

// step does what is due first.
func (e *engine) step(ctx context.Context) error {
	what := e.first()
	e.now = e.next[what]
	switch what {
	case atSample:
		e.sample()
		if e.now > horizon {
			return fmt.Errorf("simulate: still under way after %.0f years", seconds(horizon)/365/24/3600)
		}
		return ctx.Err()
	case atWheel:
		e.turn()
	case e.atArrival:
		e.begin()
		e.next[e.atArrival] = e.source.due()
	default:
		v := e.queues[what].pop()
		e.next[what] = e.queues[what].first()
		e.happen(what, v)
	}
	return nil
}

func (e *engine) happen(what int, v event) {
	switch what {
	case qExpire:
		e.expire(v)
	case qHold, qSYN:
		e.unholdMost(v)
	case qClosed:
		e.unhold(v)
	case qClose:
		e.closed(v)
	default:
		e.wake(v)
	}
}

// never is the time of what does not happen.
const never = math.MaxInt64

// event is something that is due: what it means depends on its queue.
type event struct {
	at int64
	id uint32
}

// queue holds events that are all due the same time after they were put in, so that
// they come out in the order in which they went in: a ring, and no heap.
type queue struct {
	delay      int64
	ring       []event // a power of two
	head, size int
}

func (q *queue) first() int64 {
	if q.size == 0 {
		return never
	}
	return q.ring[q.head].at
}

func (q *queue) push(at int64, id uint32) {
	if q.size == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.size)&(len(q.ring)-1)] = event{at, id}
	q.size++
}

func (q *queue) pop() event {
	v := q.ring[q.head]
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.size--
	return v
}

func (q *queue) grow() {
	ring := make([]event, max(2*len(q.ring), 64))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

// keep drops the events that are not wanted any more; the others stay in their order.
func (q *queue) keep(wanted func(event) bool) {
	kept := 0
	for i := range q.size {
		v := q.ring[(q.head+i)&(len(q.ring)-1)]
		if wanted(v) {
			q.ring[(q.head+kept)&(len(q.ring)-1)] = v
			kept++
		}
	}
	q.size = kept
}

// mix is a hash of two numbers (a multiplication folded, as in wyhash).
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9)
	hi2, lo2 := bits.Mul64(hi^lo^0x94d049bb133111eb, 0xd6e8feb86659fd93)
	return hi2 ^ lo2
}

// Run simulates c until the last connection is over. progress, which may be nil, is
// called about a hundred times; while batches run their end is not known, and Total
// is 0. The error is ctx's, or a fault of c (Check).
func Run(ctx context.Context, c Config, progress func(Progress)) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	if a := c.Arrivals; a != nil && a.CSV != "" && len(a.Points) == 0 {
		return nil, fmt.Errorf("simulate: the arrivals of %s were not read", a.CSV)
	}
	filled := c.filled()
	e := newEngine(&filled)
	e.progress = progress
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e.result(), nil
}
