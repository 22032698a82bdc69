package tap

import (
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netlink/socket"
)

// Shifts are how long packets are seen, and then not, where the interfaces receive more than BusyRate packets a
// second.
type Shifts struct {
	BusyRate    float64
	Seen, Pause time.Duration
}

// Schedule has the shifts of a source that works by programs, and by packet sockets: one that sees all packets has
// the kernel clone each that is sent (dev_queue_xmit_nit), up to a third of what forwarding one costs; programs cost
// a twentieth.
type Schedule struct{ Programs, Sockets Shifts }

// seen is longer than what goes unanswered takes to be missed, and than a SYN takes to come again.
const seen = 1250 * time.Millisecond

var usual = Schedule{
	Programs: Shifts{BusyRate: 100_000, Seen: seen, Pause: 3 * seen},
	Sockets:  Shifts{BusyRate: 50_000, Seen: seen, Pause: 4 * seen},
}

// duty has a source rest where all packets are too many to look at.
type duty struct {
	schedule Schedule
	// since is when the shift, or the pause, began; received is what the interfaces had received then.
	since    time.Time
	received uint64
	// pauses is how many have begun; pausing is true in one.
	pauses  int
	pausing bool
	// paused is the time of the pauses that have ended.
	paused time.Duration
}

// Schedule replaces the shifts, for tests.
func (s *Source) Schedule(to Schedule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.duty.schedule = to
}

// Paused is the time in which packets were not seen, up to now.
func (s *Source) Paused(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.duty.off(now)
}

func (d *duty) off(now time.Time) time.Duration {
	if d.pausing {
		return d.paused + now.Sub(d.since)
	}
	return d.paused
}

// turn begins and ends pauses where it is time. It returns how many have begun, and when there is something to see
// again.
func (s *Source) turn() (pauses int, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, now := &s.duty, time.Now()
	shifts := d.schedule.Sockets
	if s.capture != nil {
		shifts = d.schedule.Programs
	}
	switch spent := now.Sub(d.since); {
	case d.since.IsZero():
		d.since = now
		err = s.count()
	case d.pausing && spent < shifts.Pause:
		return d.pauses, shifts.Pause - spent, nil
	case d.pausing:
		err = s.begin()
	case spent >= shifts.Seen:
		err = s.end(now, shifts.BusyRate*spent.Seconds())
	}
	if d.pausing {
		wait = shifts.Pause
	}
	return d.pauses, wait, err
}

// begin begins a shift.
func (s *Source) begin() error {
	if err := s.resume(); err != nil {
		return err
	}
	d, now := &s.duty, time.Now()
	d.paused, d.pausing, d.since = d.off(now), false, now
	return s.count()
}

// end begins a pause where more packets were received in a shift than are few, otherwise another shift.
func (s *Source) end(now time.Time, few float64) error {
	d := &s.duty
	before := d.received
	d.since = now
	if err := s.count(); err != nil || float64(d.received-min(d.received, before)) <= few {
		return err
	}
	d.pausing = true
	d.pauses++
	return s.rest()
}

// count notes what has been received up to now.
func (s *Source) count() error {
	return s.ns.Do(func() (err error) { s.duty.received, err = received(); return err })
}

// received is how many packets the interfaces of this namespace have received.
func received() (packets uint64, err error) {
	links, err := socket.Whole(netlink.LinkList)
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			packets += s.RxPackets
		}
	}
	return packets, err
}
