package simulate

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
)

// The reference is the same simulation written to be read: all events in one heap,
// all state in maps, TIME_WAITs in lists that are searched. It shares with the engine
// what makes the random numbers (hosts, arrivals) and the configuration.

type refEvent struct {
	at         int64
	class, seq int
	do         func()
}

type refHeap []*refEvent

func (h refHeap) Len() int { return len(h) }
func (h refHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.class, b.class), cmp.Compare(a.seq, b.seq)) < 0
}
func (h refHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *refHeap) Push(x any)   { *h = append(*h, x.(*refEvent)) }
func (h *refHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// refTuple is what a server sees: one of the NAT's addresses and ports, and the
// address that was called.
type refTuple struct{ nat, dest, port int }

// refPort is a port that the NAT does not give.
type refPort struct {
	conn  *refConn // that has it
	ended bool     // its connection is over, and it may be evicted
	end   uint32
}

type refSession struct {
	server int
	until  int64
	ended  bool
}

type refConn struct {
	batch, host      int32
	source, dest     uint16
	isn, stamp       uint32
	begin            int64
	tries            int
	hastened         bool
	tuple            refTuple
	port, dead       *refPort
	server           int
	routed           bool
	waits, hastening []int64
}

type refTimeWait struct {
	tuple         refTuple
	rcvNxt, stamp uint32
	stamps        bool
	born, stamped int64
	answered      int64
	generation    int // of the timer
	renewed       bool
}

type refServer struct {
	group    *Servers
	index    int // of the group
	sockets  []*refTimeWait
	slot     int
	cells    [8][]*refTimeWait
	timerSet int // the timer's generation; events of older ones do nothing
}

type reference struct {
	cfg     *Config
	random  *rand.Rand
	people  population
	source  source
	now     int64
	events  refHeap
	seq     int
	delays  []int64 // classes of waits
	ports   map[refTuple]*refPort
	cursors map[[2]int]int

	sessions map[refTuple]*refSession
	servers  []*refServer
	turns    int
	calls    int
	present  string
	live     int

	total  tally
	groups []tally
	batch  []tally
	life   []lives
	waited waited
}

func newReference(c Config) *reference {
	f := c.filled()
	random := rand.New(rand.NewPCG(f.Seed, 0x6e61746b6974))
	r := &reference{cfg: &f, random: random, people: newPopulation(&f, random), ports: map[refTuple]*refPort{}, cursors: map[[2]int]int{},
		sessions: map[refTuple]*refSession{}, groups: make([]tally, len(f.Servers)), batch: make([]tally, len(f.Batches)),
		life: make([]lives, len(f.Servers)), waited: waited{}}
	for i := range f.Servers {
		for range f.Servers[i].Count {
			r.servers = append(r.servers, &refServer{group: &f.Servers[i], index: i})
		}
	}
	for _, g := range r.people.groups {
		r.delays = append(append(r.delays, g.waits...), g.hasten...)
	}
	if f.Arrivals != nil {
		r.source = newArrivals(&f, &r.people, random)
	} else {
		r.source = newCourse(&f, &r.people)
	}
	return r
}

func (r *reference) after(delay int64, class int, do func()) {
	r.seq++
	heap.Push(&r.events, &refEvent{r.now + delay, class, r.seq, do})
}

func (r *reference) run() {
	for {
		due := r.source.due()
		if len(r.events) > 0 && r.events[0].at <= due {
			e := heap.Pop(&r.events).(*refEvent)
			r.now = e.at
			e.do()
		} else if due != never {
			r.now = due
			r.begin()
		}
		if r.live == 0 && r.source.due() == never && (r.cfg.Arrivals == nil || r.now >= int64(r.cfg.Duration.Duration) || len(r.events) == 0) {
			return
		}
	}
}

func (r *reference) count(c *refConn, server *refServer, f field) {
	r.total[f]++
	if server != nil {
		r.groups[server.index][f]++
	}
	if c != nil && c.batch >= 0 {
		r.batch[c.batch][f]++
	}
}

// destinations are the addresses that clients call: for each whose it is, and whether
// it is there yet.
func (r *reference) destinations() (servers []int, there []bool) {
	if b := r.cfg.Balancer; b != nil {
		return make([]int, b.Addresses), slices.Repeat([]bool{true}, b.Addresses)
	}
	for i, s := range r.servers {
		for range s.group.Addresses {
			servers = append(servers, i)
			there = append(there, int64(s.group.From.Duration) <= r.now)
		}
	}
	return servers, there
}

func (r *reference) begin() {
	r.meetNewcomers()
	batch, host := r.source.take()
	_, there := r.destinations()
	var calling []int
	for i, is := range there {
		if is {
			calling = append(calling, i)
		}
	}
	dest := uint16(calling[r.calls%len(calling)])
	r.calls++
	c := &refConn{batch: batch, host: host, dest: dest, begin: r.now}
	c.source = r.people.sourcePort(host, dest, r.random)
	c.isn = r.people.isn(host, c.source, dest, r.now, r.random)
	c.stamp = r.people.stampOffset(host, c.source, dest)
	g := r.group(c)
	c.waits, c.hastening = g.waits, g.hasten
	r.live++
	r.count(c, nil, fConnections)
	r.send(c)
}

// meetNewcomers begins the rounds anew when servers join.
func (r *reference) meetNewcomers() {
	present := ""
	for _, s := range r.servers {
		present += fmt.Sprint(int64(s.group.From.Duration) <= r.now)
	}
	if present != r.present {
		r.present, r.turns, r.calls = present, 0, 0
	}
}
