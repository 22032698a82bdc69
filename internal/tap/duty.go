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

// Duty has the feeds of a source rest where all packets are too many to look at. It may be used by one goroutine.
type Duty struct {
	source   *Source
	schedule Schedule
	// since is when the shift, or the pause, began; received is what the interfaces had received then.
	since    time.Time
	received uint64
	pausing  bool
	// paused is the time of the pauses that have ended.
	paused time.Duration
}

// NewDuty begins with a shift.
func NewDuty(s *Source, schedule Schedule) (*Duty, error) {
	d := &Duty{source: s, schedule: schedule, since: time.Now()}
	return d, d.count()
}

// count notes what has been received up to now.
func (d *Duty) count() error {
	return d.source.ns.Do(func() (err error) { d.received, err = received(); return err })
}

// Turn lets see take the packets that have come, unless there is a pause. At the end of a shift on a busy host the
// feeds rest, which see returns, and pause learns of it.
func (d *Duty) Turn(see func() error, feeds func() []Feed, pause func()) error {
	if d.pausing {
		return d.resume(feeds())
	}
	if err := see(); err != nil {
		return err
	}
	busy, err := d.over()
	if err != nil || !busy {
		return err
	}
	for _, f := range feeds() {
		if err := f.Rest(); err != nil {
			return err
		}
	}
	if err := see(); err != nil { // what came meanwhile
		return err
	}
	d.pausing = true
	pause()
	return nil
}

// shifts are those for the source as it is now.
func (d *Duty) shifts() Shifts {
	if d.source.Programs() {
		return d.schedule.Programs
	}
	return d.schedule.Sockets
}

// over reports whether a shift has ended in which packets were too many for a longer one.
func (d *Duty) over() (busy bool, err error) {
	shifts, now := d.shifts(), time.Now()
	spent := now.Sub(d.since)
	if spent < shifts.Seen {
		return false, nil
	}
	before := d.received
	if err := d.count(); err != nil {
		return false, err
	}
	d.since = now
	return float64(d.received-min(d.received, before)) > shifts.BusyRate*spent.Seconds(), nil
}

// resume begins a shift once the pause has been long enough.
func (d *Duty) resume(feeds []Feed) error {
	if time.Since(d.since) < d.shifts().Pause {
		return nil
	}
	for _, f := range feeds {
		if err := f.Resume(); err != nil {
			return err
		}
	}
	now := time.Now()
	d.paused, d.pausing, d.since = d.Off(now), false, now
	return d.count()
}

// Off is the time in which packets were not seen, up to now.
func (d *Duty) Off(now time.Time) time.Duration {
	if d.pausing {
		return d.paused + now.Sub(d.since)
	}
	return d.paused
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
