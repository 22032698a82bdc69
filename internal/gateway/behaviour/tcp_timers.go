package behaviour

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// The least times of RFC 5382, REQ-5.
const (
	leastEstablished = 2*time.Hour + 4*time.Minute
	leastTransitory  = 4 * time.Minute
)

func tcpTimers() []Case {
	cases := []Case{{
		ID: "rfc5382-req-5", RFC: 5382, Requirement: "REQ-5", Level: Must,
		Asks: "an established connection may be idle for 2 h 4 min at least",
		Run:  func(p *Play) (Outcome, error) { return keptFor(p, established, leastEstablished) },
		Want: []Outcome{"at least 2h4m0s"},
	}, {
		ID: "rfc5382-req-5-unacknowledged", RFC: 5382, Requirement: "REQ-5", Level: Must,
		Asks: "so it may where the last data was not acknowledged",
		Run: func(p *Play) (Outcome, error) {
			return keptFor(p, func(c *connection) error {
				return inTurn(func() error { return established(c) }, func() error { return c.say(&c.outside, frame.ACK, "data") })
			}, leastEstablished)
		},
		Want: []Outcome{"at least 2h4m0s"},
		Expect: onNetfilter("300 s",
			"an end that lives sends unacknowledged data again long before (net.netfilter.nf_conntrack_tcp_timeout_unacknowledged)"),
	}}
	for _, s := range tcpStages {
		if s.timer != TCPEstablished && s.timer != TCPClose {
			cases = append(cases, s.transitory())
		}
	}
	return append(cases, Case{
		ID: "rfc5382-req-5-a", RFC: 5382, Requirement: "REQ-5 a", Level: May,
		Asks: "the times of all states are configurable: sessions end in 2 s where that was set",
		Run:  allTimers,
		Want: []Outcome{"as set"},
	}, Case{
		ID: "tcp-timer-refreshed-inside", Level: Natkit,
		Asks: "packets from inside keep an established session",
		Run:  func(p *Play) (Outcome, error) { return refreshed(p, true) },
		Want: []Outcome{"kept"},
	}, Case{
		ID: "tcp-timer-refreshed-outside", Level: Natkit,
		Asks: "so do packets from outside",
		Run:  func(p *Play) (Outcome, error) { return refreshed(p, false) },
		Want: []Outcome{"kept"},
	})
}

// stage is a state of a session, with the timer that runs in it.
type stage struct {
	timer Timer
	// name is for ids, words for readers.
	name, words string
	reach       func(*connection) error
	// seconds is the kernel's default (tcp_timeouts in
	// net/netfilter/nf_conntrack_proto_tcp.c).
	seconds int
}

var tcpStages = []stage{
	{TCPSynSent, "syn-sent", "after the inside's SYN", func(c *connection) error { return c.say(&c.inside, frame.SYN, "") }, 120},
	{TCPSynRecv, "syn-received", "after the outside's SYN+ACK", func(c *connection) error {
		return inTurn(func() error { return c.say(&c.inside, frame.SYN, "") },
			func() error { return c.say(&c.outside, frame.SYN|frame.ACK, "") })
	}, 60},
	{TCPEstablished, "established", "established", established, 5 * 24 * 3600},
	{TCPFinWait, "fin-wait", "after the inside's FIN", func(c *connection) error {
		return inTurn(func() error { return established(c) },
			func() error { return c.say(&c.inside, frame.FIN|frame.ACK, "") })
	}, 120},
	{TCPCloseWait, "close-wait", "after the inside's FIN and its ACK", func(c *connection) error {
		return inTurn(func() error { return established(c) }, func() error { return c.leave(&c.inside) })
	}, 60},
	{TCPLastAck, "last-ack", "after FINs of both sides", func(c *connection) error {
		return inTurn(func() error { return established(c) }, func() error { return c.leave(&c.inside) },
			func() error { return c.say(&c.outside, frame.FIN|frame.ACK, "") })
	}, 30},
	{TCPTimeWait, "time-wait", "after FINs of both sides and their ACKs", func(c *connection) error {
		return inTurn(func() error { return established(c) }, func() error { return c.close(&c.inside) })
	}, 120},
	{TCPClose, "closed", "after a RST", func(c *connection) error {
		return inTurn(func() error { return established(c) }, func() error { return c.say(&c.outside, frame.RST|frame.ACK, "") })
	}, 10},
}

func established(c *connection) error {
	return inTurn(func() error { return c.open(&c.inside) }, c.talk)
}

// transitory is the case about a stage before or after an established connection.
func (s stage) transitory() Case {
	return Case{
		ID: "rfc5382-req-5-" + s.name, RFC: 5382, Requirement: "REQ-5", Level: Must,
		Asks: fmt.Sprintf("a session is kept for 4 min at least %s", s.words),
		Run:  func(p *Play) (Outcome, error) { return keptFor(p, s.reach, leastTransitory) },
		Want: []Outcome{"at least 4m0s"},
		Expect: onNetfilter(Outcome(fmt.Sprintf("%d s", s.seconds)),
			fmt.Sprintf("that is the kernel's default; net.netfilter.nf_conntrack_%s is the administrator's to raise", timerSysctls[s.timer])),
	}
}

// keptFor reads how long a session is kept that is in a stage.
func keptFor(p *Play, reach func(*connection) error, least time.Duration) (Outcome, error) {
	c := between(p, insideA, outsideX)
	if err := reach(c); err != nil {
		return verdict("", err)
	}
	left, found, err := leftOf(p, insideA.AddrPort)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "no session", nil
	}
	return atLeast(left, least), nil
}

// atLeast compares a time that is left, some of which has gone by on a slow machine.
func atLeast(left, least time.Duration) Outcome {
	const gone = 4 * time.Second
	if left >= least-gone {
		return Outcome("at least " + least.String())
	}
	return Outcome(fmt.Sprintf("%d s", ceil(left, 10*time.Second)/time.Second))
}

func ceil(d, to time.Duration) time.Duration { return (d + to - 1) / to * to }

// leftOf is how long the session of an inside endpoint is kept.
func leftOf(p *Play, inside netip.AddrPort) (left time.Duration, found bool, err error) {
	mappings, err := p.Mappings()
	for _, m := range mappings {
		if m.Inside == inside {
			return m.Left, true, err
		}
	}
	return 0, false, err
}

// allTimers brings one connection into each stage, with timers of 2 s, checks that it is
// there, and that none is when they are over.
func allTimers(p *Play) (Outcome, error) {
	const set = 2 * time.Second
	timers := map[Timer]time.Duration{}
	for _, s := range tcpStages {
		timers[s.timer] = set
	}
	if err := p.Timers(timers); err != nil {
		return "", err
	}
	for i, s := range tcpStages {
		c := between(p, insideA.port(uint16(5000+i)), outsideX)
		if err := s.reach(c); err != nil {
			return verdict("", err)
		}
		_, found, err := leftOf(p, c.inside.AddrPort)
		if err != nil || !found {
			return Outcome(s.words + ": no session"), err
		}
	}
	if err := p.Pass(set + time.Second); err != nil {
		return "", err
	}
	after, err := sessions(p)
	return yes(after == 0, "as set", Outcome(fmt.Sprintf("%d sessions stay", after))), err
}

// refreshed lets one side send now and then for longer than a session may be idle.
func refreshed(p *Play, byInside bool) (Outcome, error) {
	if err := p.Timers(map[Timer]time.Duration{TCPEstablished: 2 * time.Second}); err != nil {
		return "", err
	}
	c, err := dial(p)
	if err != nil {
		return verdict("", err)
	}
	from := &c.outside
	if byInside {
		from = &c.inside
	}
	for range 3 {
		if err := p.Pass(time.Second); err != nil {
			return "", err
		}
		if err := c.say(from, frame.ACK, ""); err != nil {
			return verdict("", err)
		}
	}
	n, err := sessions(p)
	return yes(n == 1, "kept", "ended"), err
}
