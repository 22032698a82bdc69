package behaviour

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
)

// tcpOptionsKept opens a connection with options and sends data with others; what
// arrives is compared by sameSegment.
func tcpOptionsKept(p *Play, e endsOf) (Outcome, error) {
	multipath := []byte{30, 12, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8} // RFC 8684
	experiment := []byte{253, 6, 0xf9, 0x89, 1, 2}            // RFC 6994
	opening := tcpOptions(mssOption(8960), sackPermitted(), timestamps(0x01020304, 0), windowScale(14))
	c := between(p, e.a, e.x)
	// What came twice is reported (RFC 2883): the SYN.
	later := func(s *side) []byte {
		return tcpOptions(timestamps(0xfffffff0, 0x01020304), sack(s.got-1, s.got), experiment)
	}
	err := inTurn(
		func() error { return c.sayWith(&c.inside, frame.SYN, opening) },
		func() error { return c.sayWith(&c.outside, frame.SYN|frame.ACK, opening) },
		func() error { return c.sayWith(&c.inside, frame.ACK, tcpOptions(multipath)) },
		func() error { return c.sayWith(&c.outside, frame.ACK, later(&c.outside)) },
		func() error { return c.sayWith(&c.inside, frame.ACK, later(&c.inside)) },
	)
	return verdict(Untouched, err)
}

// sayWith is say with options and no data.
func (c *connection) sayWith(from *side, flags frame.TCPFlags, options []byte) error {
	h := frame.TCP{SequenceNumber: from.next, AcknowledgmentNumber: from.got, Flags: flags, Options: options}
	if flags&frame.ACK == 0 {
		h.AcknowledgmentNumber = 0
	}
	b := tcp(from.AddrPort, from.peer, h, nil).bytes()
	from.next += sequenceLength(flags, "")
	arrivals, err := c.play.Send(from.host, b)
	if err != nil {
		return err
	}
	return c.other(from).hear(fmt.Sprintf("%s from %s", flags, from.name), b, arrivals)
}

// clampedTo gives the MSS that large ones of SYN and SYN+ACK become, and a small one of
// another connection.
func clampedTo(p *Play, e endsOf) (Outcome, error) {
	out, mapped, err := mssSeen(p, e.a, e.x, e.x.AddrPort, frame.SYN, 8960)
	if err != nil {
		return "", err
	}
	back, _, err := mssSeen(p, e.x, e.a, mapped, frame.SYN|frame.ACK, 8960)
	if err != nil {
		return "", err
	}
	small, _, err := mssSeen(p, e.a.port(4001), e.x, e.x.AddrPort, frame.SYN, 1000)
	return Outcome(fmt.Sprintf("%d, %d, %d", out, back, small)), err
}

func clampedNarrow(p *Play, e endsOf) (Outcome, error) {
	if err := p.MTU(WAN, narrow); err != nil {
		return "", err
	}
	return clampedTo(p, e)
}

// mssSeen sends a segment with an MSS, with other options before and behind it, and
// gives what arrives, and from whom.
func mssSeen(p *Play, from, to end, peer netip.AddrPort, flags frame.TCPFlags, mss uint16) (uint16, netip.AddrPort, error) {
	h := frame.TCP{SequenceNumber: 100, Flags: flags, Options: tcpOptions(sackPermitted(), mssOption(mss), windowScale(3))}
	if flags&frame.ACK != 0 {
		h.SequenceNumber, h.AcknowledgmentNumber = 900, 101
	}
	got, err := carry(p, from, to, tcp(from.AddrPort, peer, h, nil))
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	f := &got.got.Frame
	value, ok := f.TCP.Option(frame.OptionMaximumSegmentSize)
	if !ok || len(value) != 2 {
		return 0, netip.AddrPort{}, fmt.Errorf("no MSS in %s", line(f))
	}
	return binary.BigEndian.Uint16(value), f.Tuple().Src, nil
}
