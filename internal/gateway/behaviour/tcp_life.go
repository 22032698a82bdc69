package behaviour

import (
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
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
			Run: func(p *Play) (Outcome, error) {
				return reopened(between(p, insideA, outsideX), (*connection).insideOf, (*connection).insideOf)
			},
			Want: []Outcome{"opens with the same mapping"},
		}, {
			ID: "rfc5382-req-2-reopened-outside", RFC: 5382, Requirement: "REQ-2", Level: Must,
			Asks: "so it does where the outside closed the old one",
			Run: func(p *Play) (Outcome, error) {
				return reopened(between(p, insideA, outsideX), (*connection).insideOf, (*connection).outsideOf)
			},
			Want: []Outcome{"opens with the same mapping"},
		}, {
			ID: "rfc5382-req-2-reopened-forwarded", RFC: 5382, Requirement: "REQ-2", Level: Must, Gateway: publishedA,
			Asks: "so it does from outside to a forwarded port",
			Run: func(p *Play) (Outcome, error) {
				return reopened(toInside(p, outsideX, publicA, serverA), (*connection).outsideOf, (*connection).insideOf)
			},
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
		func() error { return c.say(&c.inside, frame.FIN|frame.ACK, "") },
		// The outside has not seen the inside's FIN when it sends its own.
		func() error { c.outside.got--; return c.say(&c.outside, frame.FIN|frame.ACK, "") },
		func() error { c.outside.got++; return c.say(&c.inside, frame.ACK, "") },
		func() error { return c.say(&c.outside, frame.ACK, "") },
	)
}

func halfClose(c *connection, first *side) error {
	other := c.other(first)
	return inTurn(c.talk,
		func() error { return c.leave(first) },
		func() error { return c.say(other, frame.PSH|frame.ACK, "more data") },
		func() error { return c.say(first, frame.ACK, "") },
		func() error { return c.say(other, frame.PSH|frame.ACK, "and more") },
		func() error { return c.say(first, frame.ACK, "") },
		func() error { return c.leave(other) },
	)
}

func retransmittedFIN(c *connection) error {
	return inTurn(
		func() error { return c.say(&c.inside, frame.FIN|frame.ACK, "") },
		func() error { c.inside.next--; return c.say(&c.inside, frame.FIN|frame.ACK, "") },
		func() error { return c.say(&c.outside, frame.ACK, "") },
		func() error { return c.leave(&c.outside) },
		func() error { c.outside.next--; return c.say(&c.outside, frame.FIN|frame.ACK, "") },
		func() error { return c.say(&c.inside, frame.ACK, "") },
	)
}

func retransmittedSYN(p *Play) (Outcome, error) {
	c := between(p, insideA, outsideX)
	again := func() error { c.inside.next--; return c.say(&c.inside, frame.SYN, "") }
	err := inTurn(
		func() error { return c.say(&c.inside, frame.SYN, "") }, again, again,
		func() error { return c.say(&c.outside, frame.SYN|frame.ACK, "") },
		again, // the SYN+ACK was lost behind the gateway
		func() error { c.outside.next--; return c.say(&c.outside, frame.SYN|frame.ACK, "") },
		func() error { return c.say(&c.inside, frame.ACK, "") },
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

func (c *connection) insideOf() *side { return &c.inside }

func (c *connection) outsideOf() *side { return &c.outside }

// reopened has a connection whole, and then one more between the same ends.
func reopened(old *connection, opens, closes func(*connection) *side) (Outcome, error) {
	fresh := *old
	if err := inTurn(func() error { return old.open(opens(old)) }, old.talk, func() error { return old.close(closes(old)) }); err != nil {
		return verdict("", err)
	}
	fresh.inside.next, fresh.outside.next = old.inside.next+100_000, old.outside.next+200_000
	if err := inTurn(func() error { return fresh.open(opens(&fresh)) }, fresh.talk); err != nil {
		return verdict("", err)
	}
	same := fresh.outside.peer == old.outside.peer && fresh.inside.peer == old.inside.peer
	return yes(same, "opens with the same mapping", "opens with another mapping"), nil
}
