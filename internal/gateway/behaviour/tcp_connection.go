package behaviour

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// side is one end of a connection, as that end knows it.
type side struct {
	name string
	end
	// peer is what it takes the other end for: learnt from what arrives where it is
	// not valid.
	peer netip.AddrPort
	// next is the sequence number of what it sends next, got what it acknowledges.
	next, got uint32
}

// connection is one of TCP through the gateway, played from both ends.
type connection struct {
	play            *Play
	inside, outside side
}

// deviation is an error that is an outcome: the gateway did otherwise.
type deviation struct{ what string }

func (d *deviation) Error() string { return d.what }

func deviates(format string, args ...any) error { return &deviation{fmt.Sprintf(format, args...)} }

// verdict makes an outcome of how a play ended: good, what the gateway did instead, or
// an error that kept the play from being seen.
func verdict(good Outcome, err error) (Outcome, error) {
	var d *deviation
	switch {
	case err == nil:
		return good, nil
	case errors.As(err, &d):
		return Outcome(d.what), nil
	}
	return "", err
}

// between makes a connection from inside to outside, of which nothing was sent yet.
func between(p *Play, inside, outside end) *connection {
	return &connection{play: p,
		inside:  side{name: "inside", end: inside, peer: outside.AddrPort, next: 1_000_000},
		outside: side{name: "outside", end: outside, next: 4_000_000_000},
	}
}

// toInside is a connection from outside to an address of the gateway, behind which
// there is a host inside.
func toInside(p *Play, outside end, published netip.AddrPort, behind end) *connection {
	return &connection{play: p,
		inside:  side{name: "inside", end: behind, next: 1_000_000},
		outside: side{name: "outside", end: outside, peer: published, next: 4_000_000_000},
	}
}

func (c *connection) other(from *side) *side {
	if from == &c.inside {
		return &c.outside
	}
	return &c.inside
}

// segment is what a side sends next, without sending it.
func (c *connection) segment(from *side, flags frame.TCPFlags, payload string) datagram {
	h := frame.TCP{SequenceNumber: from.next, Flags: flags}
	if flags&frame.ACK != 0 {
		h.AcknowledgmentNumber = from.got
	}
	return tcp(from.AddrPort, from.peer, h, []byte(payload))
}

// say sends a segment and wants it, and nothing else, to arrive at the other side with
// the addresses that this side knows.
func (c *connection) say(from *side, flags frame.TCPFlags, payload string) error {
	b := c.segment(from, flags, payload).bytes()
	from.next += sequenceLength(flags, payload)
	arrivals, err := c.play.Send(from.host, b)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s from %s", flags, from.name)
	return c.other(from).hear(what, b, arrivals)
}

func sequenceLength(flags frame.TCPFlags, payload string) uint32 {
	n := uint32(len(payload))
	if flags&frame.SYN != 0 {
		n++
	}
	if flags&frame.FIN != 0 {
		n++
	}
	return n
}

// hear judges what arrived of a segment.
func (s *side) hear(what string, sent []byte, arrivals Arrivals) error {
	switch {
	case len(arrivals) == 0:
		return deviates("%s is lost", what)
	case len(arrivals) > 1 || arrivals[0].At != s.host:
		return deviates("%s: instead %s", what, arrivals.brief())
	}
	f := &arrivals[0].Frame
	if !s.peer.IsValid() {
		s.peer = f.Tuple().Src
	}
	switch got := f.Tuple(); {
	case got.Src != s.peer:
		return deviates("%s comes from another address or port than before", what)
	case got.Dst != s.AddrPort:
		return deviates("%s comes for another address or port than is there", what)
	}
	s.got = f.TCP.SequenceNumber + sequenceLength(f.TCP.Flags, string(f.Payload))
	return sameSegment(what, sent, f)
}

// sameSegment wants all to be as it was sent but addresses, ports and checksum.
func sameSegment(what string, sent []byte, got *frame.Frame) error {
	var want frame.Frame
	if err := decode(&want, sent); err != nil {
		return err
	}
	w, g := want.TCP, got.TCP
	same := w.SequenceNumber == g.SequenceNumber && w.AcknowledgmentNumber == g.AcknowledgmentNumber &&
		w.Flags == g.Flags && w.Window == g.Window && w.UrgentPointer == g.UrgentPointer
	if !same || !slices.Equal(w.Options, g.Options) || !slices.Equal(want.Payload, got.Payload) {
		return deviates("%s arrives changed", what)
	}
	return nil
}

// brief says what arrived where, in words that stay the same from run to run.
func (a Arrivals) brief() string {
	s := ""
	for i := range a {
		f := &a[i].Frame
		s += fmt.Sprintf(" and %s to %s", kindOf(f), a[i].At)
	}
	return s[5:]
}

func kindOf(f *frame.Frame) string {
	switch f.Transport {
	case 6:
		return f.TCP.Flags.String()
	case 1, 58:
		return fmt.Sprintf("ICMP %d/%d", f.ICMP.Type, f.ICMP.Code)
	}
	return fmt.Sprintf("protocol %d", f.Protocol)
}

// open is the handshake, begun by one side.
func (c *connection) open(first *side) error {
	other := c.other(first)
	return inTurn(
		func() error { return c.say(first, frame.SYN, "") },
		func() error { return c.say(other, frame.SYN|frame.ACK, "") },
		func() error { return c.say(first, frame.ACK, "") },
	)
}

// talk sends data in both directions, all of it acknowledged.
func (c *connection) talk() error {
	return inTurn(
		func() error { return c.say(&c.inside, frame.PSH|frame.ACK, "from inside") },
		func() error { return c.say(&c.outside, frame.PSH|frame.ACK, "from outside, longer") },
		func() error { return c.say(&c.inside, frame.ACK, "") },
	)
}

// leave lets one side close and the other one acknowledge that.
func (c *connection) leave(from *side) error {
	return inTurn(
		func() error { return c.say(from, frame.FIN|frame.ACK, "") },
		func() error { return c.say(c.other(from), frame.ACK, "") },
	)
}

// close is the whole end, begun by one side.
func (c *connection) close(first *side) error {
	return inTurn(
		func() error { return c.leave(first) },
		func() error { return c.leave(c.other(first)) },
	)
}

// inTurn does one thing after the other, until one fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// dial opens a connection from A to X.
func dial(p *Play) (*connection, error) {
	c := between(p, insideA, outsideX)
	return c, c.open(&c.inside)
}
