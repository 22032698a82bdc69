package simulate

import "time"

const (
	// timeWaitLen is TCP_TIMEWAIT_LEN.
	timeWaitLen = int64(60 * time.Second)
	// paws24Days is TCP_PAWS_24DAYS: after so long a timestamp says nothing.
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
	// expires is when the timer is due; of a wheel it says nothing.
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
