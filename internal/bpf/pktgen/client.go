package pktgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// Values of enum stage and enum closing, and the layout of a connection's record.
const (
	stageSYN     = 1
	stageRequest = 2
	stageClosing = 3
	stageExpired = 6

	stageMask = 0xff
	sentShift = 32
	timeShift = 10
)

var closings = map[load.CloseMode]uint8{load.CloseClient: 0, load.CloseServer: 1, load.CloseReset: 2, packets.CloseNone: 3}

const (
	// connectBurst bounds the connections of one system call, after which the window is
	// looked at again.
	connectBurst = 1 << 12
	// idle is how long the generator leaves its CPU to the packets while its window is full.
	idle = 20 * time.Microsecond
	// abandoned is how long an interrupted run waits for what is under way.
	abandoned = 100 * time.Millisecond
	// silent is how long nothing became complete at the end of a run that has a note about it.
	silent = time.Second
	// deadTimeouts and deadLimit without a complete connection end a run that has no time limit.
	deadTimeouts = 10
	deadLimit    = 10 * time.Second
)

// client makes the connections of a run under way.
type client struct {
	cfg      packets.ConnectConfig
	from     Egress
	progress func(packets.ConnectProgress)
	objects  clientObjects
	sender   sender
	link     link.Link
	passage  *passage
	closers  []func() error
	notes    []string
	course   []packets.ConnectSecond

	runID   uint32 // marks the run's requests; random, in network byte order
	memory  []byte // of the table of connections
	records []uint64
	order   load.Permutation
	// settled connections, in the order in which they began, are not looked at any more.
	settled int64
	expired atomic.Int64
	// full says that connections are due since the window had no room.
	full bool
	// lastComplete is when the number of complete ones was last seen to grow.
	lastComplete time.Duration
	complete     int64
	// worked is how long connections were begun.
	worked time.Duration
}

type clientObjects struct {
	Initiate    *ebpf.Program  `ebpf:"initiate"`
	Client      *ebpf.Program  `ebpf:"chosen"` // client4 or client6
	Generator   *ebpf.Variable `ebpf:"generator"`
	Connections *ebpf.Map      `ebpf:"connections"`
	Counts      *ebpf.Map      `ebpf:"client_counts"`
	Handshakes  *ebpf.Map      `ebpf:"handshakes"`
	Strays      *ebpf.Map      `ebpf:"strays"`
}

func (o *clientObjects) close() error {
	return errors.Join(o.Initiate.Close(), o.Client.Close(), o.Connections.Close(), o.Counts.Close(), o.Handshakes.Close(), o.Strays.Close())
}

// Connect makes cfg's connections by from until ctx ends. A Responder answers at the other end. It
// takes the segments of its flows from the interface, so that the kernel does not reset them.
// progress, if not nil, is called several times a second. Nothing outlives the process. It needs
// what Run needs.
func Connect(ctx context.Context, cfg packets.ConnectConfig, from Egress, progress func(packets.ConnectProgress)) (result *packets.ConnectResult, err error) {
	if err := permit.Change("send packets"); err != nil {
		return nil, err
	}
	c := &client{cfg: cfg, from: from, progress: progress, runID: rand.Uint32()}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.open(); err != nil {
		return nil, err
	}
	return c.conduct(ctx)
}

func (c *client) close() error {
	var errs []error
	for i := len(c.closers) - 1; i >= 0; i-- {
		errs = append(errs, c.closers[i]())
	}
	c.closers = nil
	return errors.Join(errs...)
}

func (c *client) open() error {
	if err := c.cfg.Check(); err != nil {
		return err
	}
	for _, step := range []func() error{c.load, c.mapRecords, c.attach, c.openPassage, c.makeSender} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) load() error {
	spec, err := programs()
	if err != nil {
		return err
	}
	n := c.cfg.Flows.Count
	if err := checkMemory(8 * int64(n)); err != nil {
		return fmt.Errorf("make a table of %d connections: %w", n, err)
	}
	spec.Maps[pktgenMapConnections].MaxEntries = uint32(n)
	if err := set(spec, c.variables()); err != nil {
		return err
	}
	spec.Programs["chosen"] = spec.Programs[pktgenProgClient4]
	if c.cfg.Flows.IPv6() {
		spec.Programs["chosen"] = spec.Programs[pktgenProgClient6]
	}
	if err := loadPrograms(spec, &c.objects, nil); err != nil {
		return err
	}
	c.closers = append(c.closers, c.objects.close)
	return nil
}

func (c *client) variables() map[string]any {
	flows, to := c.cfg.Flows, c.cfg.Target()
	all := uint32(flows.Count)
	c.order = load.NewPermutation(flows.Combinations(), flows.Seed)
	start := uint32(c.order.At(0))
	return map[string]any{
		pktgenVarIpv6: flows.IPv6(), pktgenVarRunId: c.runID, pktgenVarKey: [2]uint64{rand.Uint64(), rand.Uint64()},
		pktgenVarOutIfindex: uint32(c.from.Index), pktgenVarMacWords: words(c.from.NextMAC, c.from.MAC),
		pktgenVarTarget: addressWords(to.Addr()), pktgenVarTargetPort: bits.ReverseBytes16(to.Port()), pktgenVarFirstSource: addressWords(flows.Sources[0]),
		pktgenVarSourceCount: uint32(len(flows.Sources)),
		pktgenVarFirstPort:   uint32(flows.SourcePorts.First), pktgenVarPortCount: uint32(flows.SourcePorts.Len()),
		pktgenVarOrderStart: start, pktgenVarOrderStep: (uint32(c.order.At(1)) + all - start) % all,
		pktgenVarClosing:   closings[c.cfg.Close],
		pktgenVarGenerator: pktgenGeneratorState{Flow: start},
	}
}

// mapRecords makes the table of connections readable without a system call for each.
func (c *client) mapRecords() (err error) {
	page := os.Getpagesize()
	length := (8*c.cfg.Flows.Count + page - 1) / page * page
	c.memory, err = unix.Mmap(c.objects.Connections.FD(), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the table of connections: %w", err)
	}
	c.closers = append(c.closers, func() error { return unix.Munmap(c.memory) })
	c.records = unsafe.Slice((*uint64)(unsafe.Pointer(&c.memory[0])), c.cfg.Flows.Count)
	return nil
}

func (c *client) attach() (err error) {
	var note string
	if c.link, note, err = attach(c.from.Port, c.from.Index, c.objects.Client); err != nil {
		return fmt.Errorf("connect by %v: %w", c.from.Port, err)
	}
	c.closers = append(c.closers, c.link.Close)
	c.note(note)
	return nil
}

func (c *client) openPassage() (err error) {
	if c.passage, err = openPassage(c.from, nil, func(*peer) error { return nil }); err != nil {
		return err
	}
	c.closers = append(c.closers, c.passage.close)
	c.note(c.passage.note)
	return nil
}

func (c *client) note(text string) {
	if text != "" {
		c.notes = append(c.notes, text)
	}
}

// makeSender takes one CPU. The kernel mostly handles a packet where it was sent, so that all
// packets of a connection are made there.
func (c *client) makeSender() error {
	cpus, err := CPUs()
	if err != nil {
		return err
	}
	length := frame.EthernetLen + frame.IPv4Len + frame.TCPLen + 4
	if c.cfg.Flows.IPv6() {
		length += frame.IPv6Len - frame.IPv4Len
	}
	c.sender = sender{
		ns: c.from.Netns, cpu: cpus[0], frame: make([]byte, max(length, 60)),
		objects: generatorObjects{Program: c.objects.Initiate, Generator: c.objects.Generator},
	}
	if c.sender.anchor, err = newAnchor(c.objects.Initiate); err != nil {
		return err
	}
	c.closers = append(c.closers, c.sender.anchor.close)
	return nil
}

// counts are what was counted until now.
type connectCounts struct {
	packets.Connections
	arrived pktgenClientCounters
	// pending connections have begun and not ended.
	pending int64
}

func (c *client) counts() (n connectCounts, err error) {
	var cpus []pktgenClientCounters
	if err := c.objects.Counts.Lookup(uint32(0), &cpus); err != nil {
		return n, fmt.Errorf("read the client's counters: %w", err)
	}
	sum := &n.arrived
	for _, one := range cpus {
		sum.Established += one.Established
		sum.Answered += one.Answered
		sum.Complete += one.Complete
		for i := range sum.Resets {
			sum.Resets[i] += one.Resets[i]
		}
		sum.Duplicated += one.Duplicated
		sum.Late += one.Late
		sum.Unexpected += one.Unexpected
		sum.Misdelivered += one.Misdelivered
		sum.BadChecksum += one.BadChecksum
		sum.NoRoom += one.NoRoom
	}
	// What the generator has counted is read last: it is ahead of what has arrived.
	s, err := c.sender.state()
	if err != nil {
		return n, err
	}
	n.Connections = packets.Connections{
		Started: int64(s.Sent), Established: int64(sum.Established), Answered: int64(sum.Answered), Complete: int64(sum.Complete),
		Reset: packets.Steps{SYNACK: int64(sum.Resets[stageSYN]), Reply: int64(sum.Resets[stageRequest]), Close: int64(sum.Resets[stageClosing])},
	}
	n.pending = n.Started - n.Complete - n.Reset.Total() - int64(s.Overtaken) - c.expired.Load()
	return n, nil
}

// any reports whether anything answered at all.
func (n connectCounts) any() bool {
	return n.Established+n.Reset.Total() > 0 || n.arrived.Misdelivered+n.arrived.BadChecksum > 0
}

// conduct probes the way, makes the connections, waits for the last of them and counts.
func (c *client) conduct(ctx context.Context) (*packets.ConnectResult, error) {
	var before connectCounts // of a paced run nothing: its probes are the first of the schedule
	if err := c.sender.onCPU(func() error { return c.probe(ctx) }); err != nil {
		return nil, err
	}
	var err error
	if c.cfg.Rate == 0 {
		if before, err = c.counts(); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := c.watch(start, end)
	err = c.sender.onCPU(func() error { return errors.Join(c.work(working, start, end), c.drain(working, start)) })
	stop()
	if err != nil {
		return nil, err
	}
	result, err := c.result(before)
	if ctx.Err() == nil && working.Err() != nil {
		err = errors.Join(err, context.Cause(working))
	}
	return result, err
}

// probe begins the first connections, and goes no further where nothing answers.
func (c *client) probe(ctx context.Context) error {
	n := min(probesOf(c.cfg.Total(), c.pace(), c.cfg.Duration), int64(c.cfg.Window))
	if err := c.sender.sendUntil(n); err != nil {
		return err
	}
	found, err := poll(ctx, probeLimit, func() (bool, error) {
		n, err := c.counts()
		return n.any(), err
	})
	if err != nil || found || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("none of the first %d SYNs from %v to %v was answered: is 'natkit bench serve --engine packet' running there? Else check the path: routes both ways (also to the source addresses) and forwarding, filter rules, rp_filter, and the NAT rule for this destination",
		n, c.from.Port, c.cfg.Target())
}

func (c *client) pace() load.Pace { return load.Pace{PerSecond: c.cfg.Rate} }

// schedule is what is due and when; without a rate all of it is due at once.
func (c *client) schedule() schedule {
	s := schedule{pace: c.pace(), total: c.cfg.Total(), end: math.MaxInt64 / 2}
	if c.cfg.Rate == 0 {
		s.pace.PerSecond = math.Inf(1)
	}
	if c.cfg.Duration > 0 {
		s.end = c.cfg.Duration
	}
	if c.cfg.Duration > 0 && c.cfg.Rate > 0 {
		s.grace = min(c.cfg.Duration/10, 100*time.Millisecond)
	}
	return s
}

// work begins connections as they are due and the window has room, until ctx ends. It ends the
// run if the path is dead.
func (c *client) work(ctx context.Context, start time.Time, end context.CancelCauseFunc) error {
	defer func() { c.worked = time.Since(start) }()
	s := c.schedule()
	for ctx.Err() == nil {
		n, err := c.counts()
		if err != nil {
			return err
		}
		now := time.Since(start)
		c.observe(n, now)
		c.expire(n.Started)
		due, last := s.total, now >= s.end
		if c.cfg.Rate > 0 {
			due, last = s.due(now)
		}
		begin := min(due-n.Started, int64(c.cfg.Window)-n.pending, connectBurst)
		switch {
		case begin > 0 && now < s.end+s.grace:
			if err := c.sender.sendUntil(n.Started + begin); err != nil {
				return err
			}
		case n.Started >= s.total || last:
			return nil
		case n.Started < due: // the window is full
			c.full = true
			if c.dead(now) {
				end(fmt.Errorf("connect to %v: nothing became complete in %.1f s, and the window is full: the run ended after %d of %d connections; check the path and the responder, or bound the run by --time",
					c.cfg.Target(), (now - c.lastComplete).Seconds(), n.Started, s.total))
			}
			pause(idle)
		default:
			c.full = false
			wait(ctx, min(max(s.pace.At(n.Started)-now, tick), s.end-now))
		}
	}
	return nil
}

// dead reports whether nothing becomes complete in a run without a time limit, which would wait
// for --timeout again and again.
func (c *client) dead(now time.Duration) bool {
	return c.cfg.Duration == 0 && now-c.lastComplete >= max(deadTimeouts*c.cfg.Timeout, deadLimit)
}

func (c *client) observe(n connectCounts, now time.Duration) {
	if n.Complete > c.complete {
		c.complete, c.lastComplete = n.Complete, now
	}
}

// pause leaves the CPU to the packets, without the delay of Go's timers.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil)
}

// drain waits until all connections have ended or their time is over, after ctx has ended for a
// moment only.
func (c *client) drain(ctx context.Context, start time.Time) error {
	if err := c.await(ctx, start, c.cfg.Timeout+time.Second); err != nil || ctx.Err() == nil {
		return err
	}
	return c.await(context.WithoutCancel(ctx), start, abandoned)
}

// await waits until no connection is under way, limit has passed or ctx has ended.
func (c *client) await(ctx context.Context, start time.Time, limit time.Duration) error {
	for end := time.Now().Add(limit); ctx.Err() == nil && time.Now().Before(end); pause(idle) {
		n, err := c.counts()
		if err != nil {
			return err
		}
		c.observe(n, time.Since(start))
		if n.pending <= 0 {
			return nil
		}
		c.expire(n.Started)
	}
	return nil
}

// expire gives up the connections whose time is over, the oldest first.
func (c *client) expire(started int64) {
	now, timeout := clock(), uint32(c.cfg.Timeout>>timeShift)
	c.settled = max(c.settled, started-int64(len(c.records))) // those before are overtaken
	for ; c.settled < started; c.settled++ {
		record := &c.records[c.order.At(uint64(c.settled))]
		was := atomic.LoadUint64(record)
		for ; pending(was); was = atomic.LoadUint64(record) {
			if now-uint32(was>>sentShift) < timeout {
				return
			}
			if atomic.CompareAndSwapUint64(record, was, was&^stageMask|stageExpired) {
				c.expired.Add(1)
				break
			}
		}
	}
}

func pending(record uint64) bool {
	stage := record & stageMask
	return stage >= stageSYN && stage <= stageClosing
}

// clock is that of the programs, bpf_ktime_get_ns.
func clock() uint32 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint32(t.Nano() >> timeShift)
}

// watch reports progress and records the course of the run until stop, and ends a broken run.
func (c *client) watch(start time.Time, end context.CancelCauseFunc) (stop func()) {
	return every(200*time.Millisecond, func() {
		c.sample(time.Since(start))
		if err := c.broken(); err != nil {
			end(err)
		}
	})
}

// sample adds to the course. An error here shows again at the end of the run.
func (c *client) sample(elapsed time.Duration) {
	n, err := c.counts()
	if err != nil {
		return
	}
	c.course = packets.AddSecond(c.course, elapsed, n.Started, n.Complete)
	if c.progress != nil {
		c.progress(packets.ConnectProgress{Elapsed: elapsed, Started: n.Started, Complete: n.Complete})
	}
}

func (c *client) broken() error {
	if err := stillAttached(c.link, c.from.Port); err != nil {
		return fmt.Errorf("connect by %v: %w while the run was under way: the counts from then on are not valid", c.from.Port, err)
	}
	return c.passage.broken()
}

// result sums up; before is what was counted when the clock started.
func (c *client) result(before connectCounts) (*packets.ConnectResult, error) {
	n, err := c.counts()
	if err != nil {
		return nil, err
	}
	a := n.arrived
	r := &packets.ConnectResult{
		Config: c.cfg, From: c.from.String(), Seconds: max(c.worked, c.lastComplete).Seconds(), Connections: n.Connections,
		Misdelivered: int64(a.Misdelivered), BadChecksum: int64(a.BadChecksum), NoRoom: int64(a.NoRoom),
		Duplicated: int64(a.Duplicated), Late: int64(a.Late), Unexpected: int64(a.Unexpected),
		WindowFull: c.full && c.behind(n.Started), Course: c.course,
	}
	r.Notes = append(c.notes, c.endNotes(n.Connections)...)
	r.Settle(c.cfg.Closes())
	r.CompletePerSecond = c.rate(n.Connections, before.Complete, r.Seconds)
	r.GeneratorLimit = c.limit(n.Started)
	if r.MisdeliveredAs, err = readStrays(c.objects.Strays, c.cfg.Flows.IPv6()); err != nil {
		return nil, err
	}
	r.Handshake, err = c.handshakes()
	return r, err
}

// rate returns the complete connections per second. The first ones of a paced run go ahead of its
// schedule: it has at least the time that the schedule has for what was begun.
func (c *client) rate(n packets.Connections, before int64, seconds float64) float64 {
	if c.cfg.Rate > 0 {
		seconds = max(seconds, c.pace().At(n.Started).Seconds())
	}
	if seconds == 0 {
		return 0
	}
	return float64(n.Complete-before) / seconds
}

// endNotes are remarks about how the run ended.
func (c *client) endNotes(n packets.Connections) (notes []string) {
	quiet, usual := c.worked-c.lastComplete, silent
	if c.cfg.Rate > 0 {
		usual += c.pace().At(1)
	}
	if n.Complete < n.Started && quiet > usual {
		notes = append(notes, fmt.Sprintf("nothing became complete in the last %.1f s", quiet.Seconds()))
	}
	if c.worked < c.cfg.Duration && n.Started == c.cfg.Total() && n.Started != c.cfg.Connections {
		notes = append(notes, fmt.Sprintf("it ended after %.1f s, as each flow was used %d times: more source addresses or ports make more",
			c.worked.Seconds(), n.Started/int64(c.cfg.Flows.Count)))
	}
	return notes
}

// due returns how many connections were due while the run went on, its number of connections aside.
func (c *client) due() int64 { return c.pace().Due(min(c.worked, c.schedule().end-1)) }

// behind reports whether a paced run ended behind its schedule.
func (c *client) behind(started int64) bool {
	if c.cfg.Rate == 0 {
		return false
	}
	due := c.due()
	behind := float64(due - started)
	return behind > (1-keepUp)*float64(due) && behind > c.cfg.Rate*hiccup.Seconds()
}

// limit returns how far a paced run was behind its schedule, if it was for the generator.
func (c *client) limit(started int64) string {
	if c.full || !c.behind(started) {
		return ""
	}
	return fmt.Sprintf("it began %d connections of the %d that were due: lower --rate, or use another machine", started, c.due())
}

func (c *client) handshakes() (load.Times, error) {
	var cpus []pktgenHandshakeTimes
	if err := c.objects.Handshakes.Lookup(uint32(0), &cpus); err != nil {
		return load.Times{}, fmt.Errorf("read the times of the handshakes: %w", err)
	}
	var sum [len(cpus[0].Buckets)]uint64
	for _, one := range cpus {
		for i, n := range one.Buckets {
			sum[i] += n
		}
	}
	return packets.HandshakeTimes(sum[:], 1<<timeShift), nil
}
