package simulate

import (
	"time"

	"github.com/natkit/natkit/internal/capacity"
)

// conn is a connection under way, from its first SYN until it is closed or given up.
type conn struct {
	begin int64
	// held is when the NAT's entry that a RST closed is gone.
	held   int64
	host   int32
	server int32
	batch  int32
	set    int32
	slot   uint32
	isn    uint32
	stamp  uint32
	next   int32 // of the free ones
	source uint16
	dest   uint16
	tries  uint8
	// mapped: the NAT has a port for it. routed: the balancer knows it.
	mapped, routed bool
	// hastened: the first SYN was answered with another connection's ACK.
	hastened bool
}

func (e *engine) newConn() int32 {
	if n := e.freeConn; n != none {
		e.freeConn = e.conns[n].next
		return n
	}
	e.conns = append(e.conns, conn{})
	return int32(len(e.conns) - 1)
}

// begin starts a connection.
func (e *engine) begin() {
	batch, host := e.source.take()
	id := e.newConn()
	c := &e.conns[id]
	*c = conn{begin: e.now, host: host, batch: batch, dest: e.destination()}
	c.source = e.people.sourcePort(host, c.dest, e.random)
	c.isn = e.people.isn(host, c.source, c.dest, e.now, e.random)
	c.stamp = e.people.stampOffset(host, c.source, c.dest)
	c.set = int32(e.people.hosts[host].nat)*int32(len(e.destinations)) + int32(c.dest)
	e.live++
	e.add(c, fConnections)
	e.send(id)
}

func (e *engine) groupOf(c *conn) *clientGroup { return &e.people.groups[e.people.hosts[c.host].group] }

// send is a SYN on its way through NAT and balancer to a server.
func (e *engine) send(id int32) {
	c := &e.conns[id]
	if c.held != 0 && e.slots[c.slot].heldUntil == c.held {
		e.release(c.slot) // nf_ct_kill: an entry in CLOSE makes place for the SYN
		e.outdated++
	}
	c.held = 0
	if !c.mapped && !e.assign(c) {
		e.add(c, fNoPort)
		e.wait(id)
		return
	}
	c.server = e.route(c)
	e.addBoth(c, e.servers[c.server].group, fSYNs)
	n := e.find(c.slot, c.server)
	if n == none {
		e.accept(id)
		return
	}
	e.meet(id, n)
}

// meet is a SYN that finds a TIME_WAIT.
func (e *engine) meet(id, n int32) {
	c, t := &e.conns[id], &e.nodes[n]
	s, g := &e.servers[c.server], e.groupOf(c)
	switch t.syn(c.isn, c.stamp+uint32(e.now/g.tick), g.stamps, e.now) {
	case twSYN:
		e.deschedule(n)
		e.addBoth(c, s.group, fReused)
		e.accept(id)
		return
	case twPAWS:
		e.addBoth(c, s.group, fPAWS)
		e.reschedule(n)
	case twSequence:
		e.addBoth(c, s.group, fSequence)
	}
	if !s.limitsACKs || e.now-t.answered >= ackLimit {
		t.answered = e.now
		c.hastened = c.hastened || c.tries == 0
		e.reset(c, n)
	}
	e.wait(id)
}

// reset is the RST with which a client answers an ACK that it does not expect: it
// bears the sequence number that the ACK asks for and no timestamps, so that
// TIME_WAIT takes it for its own.
func (e *engine) reset(c *conn, n int32) {
	if e.cfg.NAT.Reset == ResetDropped {
		return
	}
	if s := &e.servers[c.server]; !s.rfc1337 {
		e.deschedule(n)
		e.addBoth(c, s.group, fResets)
	}
	if e.balancer != nil {
		e.keep(c.slot, e.balancer.ResetTimeout)
	}
	if e.cfg.NAT.Reset == ResetReopens {
		e.slots[c.slot].end = c.isn + 1
		e.hold(qClosed, c.slot, true)
		c.held, c.mapped = e.slots[c.slot].heldUntil, false
	}
}

// timetable are the queues in which a connection waits between its SYNs.
func (e *engine) timetable(c *conn) []int {
	group := e.people.hosts[c.host].group
	if c.hastened {
		return e.hasten[group]
	}
	return e.waits[group]
}

// wait is until the next SYN, or until the client gives up.
func (e *engine) wait(id int32) {
	c := &e.conns[id]
	e.put(e.timetable(c)[c.tries], id)
}

// wake is the end of that time.
func (e *engine) wake(v event) {
	id := int32(v.id)
	c := &e.conns[id]
	if int(c.tries)+1 == len(e.timetable(c)) {
		e.fail(id)
		return
	}
	c.tries++
	e.add(c, fRetransmits)
	e.send(id)
}

// accept is a connection that is established.
func (e *engine) accept(id int32) {
	c := &e.conns[id]
	how := fAccepted
	if c.tries > 0 {
		how = fDelayed
		e.delays[e.now-c.begin]++
	}
	e.addBoth(c, e.servers[c.server].group, how)
	if c.batch >= 0 {
		e.batches[c.batch].delays[e.now-c.begin]++
	}
	if e.balancer != nil {
		e.sessions[c.slot].until = never
	}
	e.put(qClose, id)
}

// closed is the end of a connection.
func (e *engine) closed(v event) {
	id := int32(v.id)
	c := &e.conns[id]
	g, s := e.groupOf(c), &e.servers[c.server]
	end := c.isn + e.length
	if e.serverCloses {
		e.enter(c.slot, c.server, end, c.stamp+uint32(e.now/g.tick), g.stamps && s.stamps)
	}
	e.slots[c.slot].end = end
	e.hold(qHold, c.slot, true)
	if e.balancer != nil {
		e.keep(c.slot, e.balancer.Timeout)
	}
	e.over(id)
}

// fail is a client that gives up.
func (e *engine) fail(id int32) {
	c := &e.conns[id]
	e.add(c, fFailed)
	if c.mapped {
		e.hold(qSYN, c.slot, false)
	}
	e.over(id)
}

func (e *engine) over(id int32) {
	c := &e.conns[id]
	e.live--
	e.source.over(c.batch, e.now)
	e.next[e.atArrival] = e.source.due()
	c.next, e.freeConn = e.freeConn, id
}

const (
	timeWaitLen = int64(capacity.TimeWaitLength)
	// paws24Days is TCP_PAWS_24DAYS: a timestamp of this age is not compared.
	paws24Days = 24 * 24 * 60 * 60 * second
	// ackLimit is net.ipv4.tcp_invalid_ratelimit: a TIME_WAIT answers what is out of its
	// window not more often (tcp_timewait_check_oow_rate_limit, since Linux 4.0).
	ackLimit = int64(500 * time.Millisecond)
)

// none is no index.
const none = -1

// timeWait is one socket in TIME_WAIT (tcp_timewait_sock).
type timeWait struct {
	// born is when it was made, and when tsRecent was received.
	born int64
	// expires is when the timer is due; it is not used with a wheel.
	expires int64
	// answered is when it last sent an ACK.
	answered int64
	slot     uint32
	rcvNxt   uint32
	tsRecent uint32
	// next is the next one of the same slot, or the next free node.
	next int32
	// before and after are neighbours in the wheel's cell.
	before, after int32
	server        int16
	cell          int8
	// hasStamps: the connection had timestamps.
	hasStamps bool
	// renewed: its time was extended, so that it says nothing of the timer.
	renewed bool
}

// verdict is what tcp_timewait_state_process makes of a SYN.
type verdict uint8

const (
	twSYN      verdict = iota // TCP_TW_SYN: a new connection in its place
	twPAWS                    // TCP_TW_ACK, the timestamp went back
	twSequence                // TCP_TW_ACK, the sequence number is not past the old one
)

// after is before and after of include/net/tcp.h: sequence numbers wrap.
func after(a, b uint32) bool { return int32(b-a) < 0 }

// pawsReject is tcp_paws_reject for a segment that is no RST.
func (t *timeWait) pawsReject(stamp uint32, now int64) bool {
	return int32(t.tsRecent-stamp) > 0 && now < t.born+paws24Days && t.tsRecent != 0
}

// syn is tcp_timewait_state_process for a SYN.
func (t *timeWait) syn(isn, stamp uint32, hasStamp bool, now int64) verdict {
	saw := hasStamp && t.hasStamps
	if saw && t.pawsReject(stamp, now) {
		return twPAWS
	}
	if after(isn, t.rcvNxt) || saw && int32(t.tsRecent-stamp) < 0 {
		return twSYN
	}
	return twSequence
}

// server is one server.
type server struct {
	group      int32
	stamps     bool
	rfc1337    bool
	limitsACKs bool
	// limit is tcp_max_tw_buckets, -1 for none; count is how many there are.
	limit, count int32
	wheel        *wheel
}

// find is the server's TIME_WAIT for a slot, or none.
func (e *engine) find(slot uint32, server int32) int32 {
	n := e.slots[slot].timeWait
	for n != none && int32(e.nodes[n].server) != server {
		n = e.nodes[n].next
	}
	return n
}

// enter is tcp_time_wait.
func (e *engine) enter(slot uint32, id int32, rcvNxt, stamp uint32, hasStamps bool) {
	s := &e.servers[id]
	if s.limit >= 0 && s.count >= s.limit {
		e.addServer(s.group, fOverflow)
		return
	}
	e.addServer(s.group, fTimeWaits)
	n := e.newNode()
	e.nodes[n] = timeWait{slot: slot, server: int16(id), rcvNxt: rcvNxt, tsRecent: stamp, born: e.now,
		answered: -ackLimit, next: e.slots[slot].timeWait, hasStamps: hasStamps}
	e.slots[slot].timeWait = n
	e.schedule(n)
}

func (e *engine) newNode() int32 {
	if n := e.freeNode; n != none {
		e.freeNode = e.nodes[n].next
		return n
	}
	e.nodes = append(e.nodes, timeWait{})
	return int32(len(e.nodes) - 1)
}

// schedule is inet_twsk_schedule.
func (e *engine) schedule(n int32) {
	t := &e.nodes[n]
	s := &e.servers[t.server]
	if s.wheel != nil {
		e.toWheel(s, n)
		return
	}
	t.expires = e.now + timeWaitLen
	e.put(qExpire, n)
	s.count++
}

// reschedule extends its time.
func (e *engine) reschedule(n int32) {
	t := &e.nodes[n]
	s := &e.servers[t.server]
	t.renewed = true
	if s.wheel != nil {
		s.wheel.unlink(e.nodes, n)
	}
	s.count--
	e.schedule(n)
}

// deschedule ends one before its time.
func (e *engine) deschedule(n int32) {
	s := &e.servers[e.nodes[n].server]
	if s.wheel != nil {
		s.wheel.unlink(e.nodes, n)
	}
	if s.count--; s.count == 0 && s.wheel != nil {
		s.wheel.timer = never // del_timer
		e.rearm()
	}
	e.remove(n)
}

// expire is what the timer of a node does, if that is still its time.
func (e *engine) expire(v event) {
	n := int32(v.id)
	if e.nodes[n].expires != v.at {
		return
	}
	e.servers[e.nodes[n].server].count--
	e.outlived(n)
}

// outlived counts how long a node stood, and removes it.
func (e *engine) outlived(n int32) {
	t := &e.nodes[n]
	if !t.renewed {
		e.life[e.servers[t.server].group].add(e.now - t.born)
	}
	e.remove(n)
}

// remove takes a node out of its slot.
func (e *engine) remove(n int32) {
	t := &e.nodes[n]
	at := &e.slots[t.slot].timeWait
	for *at != n {
		at = &e.nodes[*at].next
	}
	*at = t.next
	t.expires, t.next, e.freeNode = never, e.freeNode, n
}

// The timer of TIME_WAIT in Linux up to 4.0.
const (
	wheelSlots  = capacity.WheelSlots
	wheelPeriod = int64(capacity.WheelPeriod)
	wheelQuota  = capacity.WheelQuota
	rearmTime   = int64(capacity.RearmTime)
)

// wheel is inet_timewait_death_row. Closed connections go into the cell that was
// purged last. One that is purged completely lets the wheel go on; of a larger one the
// rest is left to a work item, which runs at once, and the wheel goes on only at the
// next run, a period later, that finds the cell empty.
type wheel struct {
	slot  int
	cells [wheelSlots]int32
	// timer is when it runs next.
	timer  int64
	rearms bool
}

func newWheel(rearms bool) *wheel {
	w := &wheel{timer: never, rearms: rearms}
	for i := range w.cells {
		w.cells[i] = none
	}
	return w
}

func (w *wheel) link(nodes []timeWait, n int32) {
	cell := (w.slot + wheelSlots - 1) % wheelSlots
	head := w.cells[cell]
	nodes[n].cell, nodes[n].before, nodes[n].after = int8(cell), none, head
	if head != none {
		nodes[head].before = n
	}
	w.cells[cell] = n
}

func (w *wheel) unlink(nodes []timeWait, n int32) {
	t := &nodes[n]
	if t.before == none {
		w.cells[t.cell] = t.after
	} else {
		nodes[t.before].after = t.after
	}
	if t.after != none {
		nodes[t.after].before = t.before
	}
}

// toWheel is the slow half of inet_twsk_schedule.
func (e *engine) toWheel(s *server, n int32) {
	s.wheel.link(e.nodes, n)
	if s.count++; s.count == 1 {
		s.wheel.timer = e.now + wheelPeriod
		e.rearm()
	}
}

// rearm finds which wheel is due first.
func (e *engine) rearm() {
	next := int64(never)
	for _, w := range e.wheels {
		next = min(next, e.servers[w].wheel.timer)
	}
	e.next[atWheel] = next
}

// turn runs the first wheel that is due.
func (e *engine) turn() {
	for _, id := range e.wheels {
		if s := &e.servers[id]; s.wheel.timer == e.now {
			e.hangman(s)
			break
		}
	}
	e.rearm()
}

// hangman is inet_twdr_hangman.
func (e *engine) hangman(s *server) {
	w := s.wheel
	w.timer = never
	if s.count == 0 {
		return
	}
	if e.purge(s) {
		w.timer = e.now + wheelPeriod
		e.work(s)
		return
	}
	if s.count > 0 {
		w.timer = e.now + wheelPeriod
	}
	w.slot = (w.slot + 1) % wheelSlots
}

// purge is inet_twdr_do_twkill_work: it reports whether the quota was exceeded.
func (e *engine) purge(s *server) bool {
	cell := &s.wheel.cells[s.wheel.slot]
	for killed := 0; *cell != none; {
		n := *cell
		s.wheel.unlink(e.nodes, n)
		s.count--
		e.outlived(n)
		if killed++; killed > wheelQuota {
			return true
		}
	}
	return false
}

// work is inet_twdr_twkill_work.
func (e *engine) work(s *server) {
	again := false
	for e.purge(s) {
		again = true
	}
	if again && s.wheel.rearms {
		s.wheel.timer = e.now + rearmTime
	}
}
