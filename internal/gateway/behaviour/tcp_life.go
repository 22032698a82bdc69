package behaviour

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
)

func tcpLifeCycle() []Case {
	return []Case{
		sequence("rfc5382-req-2-fin-inside", "the inside may close first", func(c *connection) error {
			return inTurn(c.talk, func() error { return c.close(&c.inside) })
		}),
		sequence("rfc5382-req-2-fin-outside", "the outside may close first", func(c *connection) error {
			return inTurn(c.talk, func() error { return c.close(&c.outside) })
		}),
		sequence("rfc5382-req-2-fin-both", "both may close at the same time: their FINs cross", simultaneousClose),
		sequence("rfc5382-req-2-half-closed-inside", "after the inside's FIN the outside may go on sending", func(c *connection) error {
			return halfClose(c, &c.inside)
		}),
		sequence("rfc5382-req-2-half-closed-outside", "after the outside's FIN the inside may go on sending", func(c *connection) error {
			return halfClose(c, &c.outside)
		}),
		sequence("rfc5382-req-2-fin-retransmitted", "a FIN that was sent again passes, and its ACK", retransmittedFIN),
		{
			ID: "rfc5382-req-2-syn-retransmitted", RFC: 5382, Requirement: "REQ-2", Level: Must,
			Asks: "a SYN that was sent again passes with the same mapping, and makes no second session",
			Run:  retransmittedSYN,
			Want: []Outcome{"one session"},
		}, {
			ID: "rfc5382-req-2-reopened", RFC: 5382, Requirement: "REQ-2", Level: Must,
			Asks: "a new connection between the same ends opens in TIME_WAIT of the old one, with the same mapping",
			Run:  func(p *Play) (Outcome, error) { return reopened(p, true) },
			Want: []Outcome{"opens with the same mapping"},
		}, {
			ID: "rfc5382-req-2-reopened-outside", RFC: 5382, Requirement: "REQ-2", Level: Must,
			Asks: "so it does where the outside closed the old one",
			Run:  func(p *Play) (Outcome, error) { return reopened(p, false) },
			Want: []Outcome{"opens with the same mapping"},
		},
	}
}

// sequence is a case about an open connection.
func sequence(id, asks string, run func(*connection) error) Case {
	return Case{ID: id, RFC: 5382, Requirement: "REQ-2", Level: Must, Asks: asks, Want: []Outcome{Passes},
		Run: func(p *Play) (Outcome, error) {
			c, err := dial(p)
			if err == nil {
				err = run(c)
			}
			return verdict(Passes, err)
		}}
}

func simultaneousClose(c *connection) error {
	return inTurn(c.talk,
		func() error { return c.say(&c.inside, packet.FIN|packet.ACK, "") },
		// The outside has not seen the inside's FIN when it sends its own.
		func() error { c.outside.got--; return c.say(&c.outside, packet.FIN|packet.ACK, "") },
		func() error { c.outside.got++; return c.say(&c.inside, packet.ACK, "") },
		func() error { return c.say(&c.outside, packet.ACK, "") },
	)
}

func halfClose(c *connection, first *side) error {
	other := c.other(first)
	return inTurn(c.talk,
		func() error { return c.leave(first) },
		func() error { return c.say(other, packet.PSH|packet.ACK, "more data") },
		func() error { return c.say(first, packet.ACK, "") },
		func() error { return c.say(other, packet.PSH|packet.ACK, "and more") },
		func() error { return c.say(first, packet.ACK, "") },
		func() error { return c.leave(other) },
	)
}

func retransmittedFIN(c *connection) error {
	return inTurn(
		func() error { return c.say(&c.inside, packet.FIN|packet.ACK, "") },
		func() error { c.inside.next--; return c.say(&c.inside, packet.FIN|packet.ACK, "") },
		func() error { return c.say(&c.outside, packet.ACK, "") },
		func() error { return c.leave(&c.outside) },
		func() error { c.outside.next--; return c.say(&c.outside, packet.FIN|packet.ACK, "") },
		func() error { return c.say(&c.inside, packet.ACK, "") },
	)
}

func retransmittedSYN(p *Play) (Outcome, error) {
	c := between(p, insideA, outsideX)
	again := func() error { c.inside.next--; return c.say(&c.inside, packet.SYN, "") }
	err := inTurn(
		func() error { return c.say(&c.inside, packet.SYN, "") }, again, again,
		func() error { return c.say(&c.outside, packet.SYN|packet.ACK, "") },
		again, // the SYN+ACK was lost behind the gateway
		func() error { c.outside.next--; return c.say(&c.outside, packet.SYN|packet.ACK, "") },
		func() error { return c.say(&c.inside, packet.ACK, "") },
		c.talk,
	)
	if err != nil {
		return verdict("", err)
	}
	n, err := sessions(p)
	return yes(n == 1, "one session", "several sessions"), err
}

// sessions is how many mappings of TCP the engine holds.
func sessions(p *Play) (n int, err error) {
	mappings, err := p.Mappings()
	for _, m := range mappings {
		if m.Protocol == unix.IPPROTO_TCP {
			n++
		}
	}
	return n, err
}

func reopened(p *Play, byInside bool) (Outcome, error) {
	old, err := dial(p)
	if err != nil {
		return verdict("", err)
	}
	first := &old.outside
	if byInside {
		first = &old.inside
	}
	if err := inTurn(old.talk, func() error { return old.close(first) }); err != nil {
		return verdict("", err)
	}
	c := between(p, insideA, outsideX)
	c.inside.next, c.outside.next = old.inside.next+100_000, old.outside.next+200_000
	if err := inTurn(func() error { return c.open(&c.inside) }, c.talk); err != nil {
		return verdict("", err)
	}
	return yes(c.outside.peer == old.outside.peer, "opens with the same mapping", "opens with another mapping"), nil
}

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
		ID: "tcp-data-beyond-window", Level: Natkit,
		Asks: "data from outside beyond the window harms nothing: nobody answers it with a RST",
		Run:  dataBeyondWindow,
		Want: []Outcome{Dropped, Passes},
		Expect: onNetfilter("rst to x",
			"the tracker takes it for invalid and does not translate it, so that it reaches the gateway's own TCP (net.netfilter.nf_conntrack_tcp_be_liberal=1 lets it pass)"),
	}, {
		ID: "tcp-data-beyond-window-inside", Untranslated: true, Level: Natkit,
		Asks: "data from inside beyond the window does not leave with its inside address",
		Run:  dataBeyondWindowInside,
		Want: []Outcome{Dropped, Translated},
		Expect: onNetfilter("leaves untranslated",
			"the tracker takes it for invalid, and NAT rules do not see what is invalid; a rule that drops it (ct state invalid) is the firewall's to make"),
	}}
}

// reset sends a RST that is off by some sequence numbers, and looks whether the
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
	passes, err := c.inject(from, packet.RST|packet.ACK, off)
	if err != nil {
		return "", err
	}
	if passes && off != 0 {
		// The challenge ACK.
		if err := c.say(c.other(from), packet.ACK, ""); err != nil {
			return verdict("", err)
		}
	}
	goes, err := c.goesOn()
	return yes(passes, "passes", "is dropped") + yes(goes, ", session goes on", ", session closes"), err
}

// inject sends a segment without counting it, and tells whether it arrived.
func (c *connection) inject(from *side, flags packet.TCPFlags, off int64) (bool, error) {
	forged := *from
	forged.next += uint32(off)
	arrivals, err := c.play.Send(from.host, c.segment(&forged, flags, "").bytes())
	return len(arrivals.At(c.other(from).host)) > 0, err
}

// goesOn tells whether the session is more than one that is closing, which it waits
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
	arrivals, err := p.Send(X, c.segment(&forged, packet.ACK, "data").bytes())
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
	arrivals, err := p.Send(A, c.segment(&forged, packet.ACK, "data").bytes())
	if err != nil || len(arrivals) == 0 {
		return Dropped, err
	}
	return yes(arrivals[0].Frame.Source == WANAddress.Addr(), Translated, "leaves untranslated"), nil
}
