package behaviour

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

func tcpResets() []Case {
	return []Case{{
		ID: "tcp-rst-inside", Level: Natkit,
		Asks: "a RST in the window from inside passes and ends the session",
		Run:  func(p *Play) (Outcome, error) { return reset(p, true, 0) },
		Want: []Outcome{"passes, session closes"},
	}, {
		ID: "tcp-rst-outside", Level: Natkit,
		Asks: "a RST in the window from outside passes and ends the session",
		Run:  func(p *Play) (Outcome, error) { return reset(p, false, 0) },
		Want: []Outcome{"passes, session closes"},
	}, {
		ID: "tcp-rst-before-window", Level: Natkit,
		Asks: "a RST from outside with a sequence number before the window does not end the session",
		Run:  func(p *Play) (Outcome, error) { return reset(p, false, -1_000_000) },
		Want: []Outcome{"is dropped, session goes on", "passes, session goes on"},
	}, {
		ID: "tcp-rst-beyond-window", Level: Natkit,
		Asks: "nor does one with a sequence number beyond the window",
		Run:  func(p *Play) (Outcome, error) { return reset(p, false, 1_000_000_000) },
		Want: []Outcome{"is dropped, session goes on", "passes, session goes on"},
	}, {
		ID: "tcp-rst-inexact", Level: Natkit,
		Asks: "nor does one in the window that is not exactly the next, which the inside answers with a challenge ACK (RFC 5961, section 3)",
		Run:  func(p *Play) (Outcome, error) { return reset(p, false, 1000) },
		Want: []Outcome{"is dropped, session goes on", "passes, session goes on"},
	}, {
		ID: "tcp-rst-before-window-inside", Level: Natkit,
		Asks: "one from inside with a sequence number before the window does not leave with its inside address, nor end the session",
		Run:  func(p *Play) (Outcome, error) { return reset(p, true, -1_000_000) },
		Want: []Outcome{"is dropped, session goes on", "passes, session goes on"},
	}, {
		ID: "tcp-data-beyond-window", Level: Natkit,
		Asks: "data from outside beyond the window harms nothing: it is not answered with a RST",
		Run:  dataBeyondWindow,
		Want: []Outcome{Dropped, Passes},
		Expect: onNetfilter("rst to x",
			"the tracker takes it for invalid and does not translate it, so that it reaches the gateway's own TCP, whose RST ends sessions that the tracker has forgotten, too, and is not natkit's to drop (net.netfilter.nf_conntrack_tcp_be_liberal=1 lets it pass)"),
	}, {
		ID: "tcp-data-beyond-window-inside", Level: Natkit,
		Asks: "data from inside beyond the window does not leave with its inside address",
		Run:  dataBeyondWindowInside,
		Want: []Outcome{Dropped, Translated},
	}}
}

// reset sends a RST that is off by some sequence numbers, and checks whether the
// session goes on: its timers are shortened, so that a session that closed is gone.
func reset(p *Play, byInside bool, off int64) (Outcome, error) {
	if err := p.Timers(map[Timer]time.Duration{TCPClose: time.Second}); err != nil {
		return "", err
	}
	c, err := dial(p)
	if err == nil {
		err = c.talk()
	}
	if err != nil {
		return verdict("", err)
	}
	from := &c.outside
	if byInside {
		from = &c.inside
	}
	passes, err := c.inject(from, frame.RST|frame.ACK, off)
	if err != nil {
		return "", err
	}
	if passes == "passes" && off != 0 {
		// The challenge ACK.
		if err := c.say(c.other(from), frame.ACK, ""); err != nil {
			return verdict("", err)
		}
	}
	goes, err := c.goesOn()
	return passes + yes(goes, ", session goes on", ", session closes"), err
}

// inject sends a segment without counting it, and returns its outcome.
func (c *connection) inject(from *side, flags frame.TCPFlags, off int64) (Outcome, error) {
	forged, to := *from, c.other(from)
	forged.next += uint32(off)
	arrivals, err := c.play.Send(from.host, c.segment(&forged, flags, "").bytes())
	arrivals = arrivals.At(to.host)
	switch {
	case err != nil || len(arrivals) == 0:
		return "is dropped", err
	case arrivals[0].Frame.Tuple().Src != to.peer:
		return leavesUntranslated, nil
	}
	return "passes", nil
}

// goesOn reports whether the session is more than one that is closing, which it waits
// for.
func (c *connection) goesOn() (bool, error) {
	if err := c.play.Pass(2 * time.Second); err != nil {
		return false, err
	}
	mappings, err := c.play.Mappings()
	return slices.ContainsFunc(mappings, func(m Mapping) bool { return m.Protocol == unix.IPPROTO_TCP && m.Left > time.Minute }), err
}

func dataBeyondWindow(p *Play) (Outcome, error) {
	c, err := dial(p)
	if err == nil {
		err = c.talk()
	}
	if err != nil {
		return verdict("", err)
	}
	forged := c.outside
	forged.next += 1_000_000_000
	arrivals, err := p.Send(X, c.segment(&forged, frame.ACK, "data").bytes())
	return where(arrivals, A), err
}

// where says what became of a packet for a host.
func where(arrivals Arrivals, at Host) Outcome {
	switch {
	case len(arrivals) == 0:
		return Dropped
	case len(arrivals) == 1 && arrivals[0].At == at:
		return Passes
	}
	return Outcome(arrivals.brief())
}

func dataBeyondWindowInside(p *Play) (Outcome, error) {
	c, err := dial(p)
	if err == nil {
		err = c.talk()
	}
	if err != nil {
		return verdict("", err)
	}
	forged := c.inside
	forged.next += 1_000_000_000
	arrivals, err := p.Send(A, c.segment(&forged, frame.ACK, "data").bytes())
	if err != nil || len(arrivals) == 0 {
		return Dropped, err
	}
	return yes(arrivals[0].Frame.Source == WANAddress.Addr(), Translated, leavesUntranslated), nil
}
