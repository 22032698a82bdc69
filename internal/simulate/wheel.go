package simulate

import "time"

// The timer of TIME_WAIT in Linux up to 4.0: net/ipv4/inet_timewait_sock.c.
const (
	// wheelSlots is INET_TWDR_TWKILL_SLOTS.
	wheelSlots = 8
	// wheelPeriod is twdr->period.
	wheelPeriod = timeWaitLen / wheelSlots
	// wheelQuota is INET_TWDR_TWKILL_QUOTA: a run ends when it has killed more.
	wheelQuota = 100
	// rearmTime is what the vendor kernel 3.10.0-1127 waits after a work item that
	// needed more than one run (inet_twdr_twkill_work).
	rearmTime = second
)

// LongestLife is how long a TIME_WAIT can stand on a server with that kernel which closes
// so many connections per second, all the time, if nothing ends it before.
func LongestLife(kernel string, perSecond float64) time.Duration {
	closings := func(d int64) float64 { return perSecond * seconds(d) }
	slot := wheelPeriod
	switch {
	case kernel == KernelTimer || closings(wheelPeriod) <= wheelQuota:
		return time.Duration(timeWaitLen)
	case kernel == KernelWheelRearm && closings(wheelPeriod+rearmTime) >= 2*(wheelQuota+1): // a run of the timer, and a full one of the work item
		slot += rearmTime
	default:
		slot += wheelPeriod
	}
	return time.Duration((wheelSlots-1)*slot + wheelPeriod)
}

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

// rearm looks which wheel is due first.
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
