package behaviour

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// exchanged is a packet as an end sent it, and as it arrived at another.
type exchanged struct {
	from, to end
	sent     []byte
	got      *Arrival
}

// carry sends a packet that has to arrive.
func carry(p *Play, from, to end, d datagram) (exchanged, error) {
	e := exchanged{from: from, to: to, sent: d.bytes()}
	var err error
	e.got, err = p.Exchange(from.host, to.host, e.sent)
	return e, err
}

// flow is a session of which one packet went each way.
type flow struct{ out, in exchanged }

// flowKind makes the packets of a session: what an end sends to an address, and
// what the other answers.
type flowKind struct {
	name     string
	ask, say func(from, to netip.AddrPort) datagram
}

var (
	flowUDP  = flowKind{"udp", udpData, udpData}
	flowZero = flowKind{"udp without checksum",
		func(from, to netip.AddrPort) datagram { return udpWithout(from, to, []byte("without")) },
		func(from, to netip.AddrPort) datagram { return udpWithout(from, to, []byte("without, too")) }}
	flowTCP = flowKind{"tcp",
		func(from, to netip.AddrPort) datagram {
			return tcp(from, to, frame.TCP{SequenceNumber: 100, Flags: frame.SYN}, nil)
		},
		func(from, to netip.AddrPort) datagram {
			return tcp(from, to, frame.TCP{SequenceNumber: 900, AcknowledgmentNumber: 101, Flags: frame.SYN | frame.ACK}, nil)
		}}
	// flowEcho has the identifier in the inside's port.
	flowEcho = flowKind{"echo",
		func(from, to netip.AddrPort) datagram { return ping(from.Addr(), to.Addr(), from.Port(), 1) },
		func(from, to netip.AddrPort) datagram { return pong(from.Addr(), to.Addr(), to.Port(), 1) }}
)

func udpData(from, to netip.AddrPort) datagram {
	return udp(from, to, []byte("a datagram with some data"))
}

// flows are those that ICMP errors are about.
var flows = []flowKind{flowUDP, flowZero, flowTCP, flowEcho}

// start makes a session from one end to another, answered under the mapping.
func (k flowKind) start(p *Play, from, to end) (f flow, err error) {
	if f.out, err = carry(p, from, to, k.ask(from.AddrPort, to.AddrPort)); err != nil {
		return f, err
	}
	f.in, err = carry(p, to, from, k.say(to.AddrPort, f.mapped()))
	return f, err
}

// mapped is what the inside end is seen as.
func (f flow) mapped() netip.AddrPort {
	frame := &f.out.got.Frame
	if frame.Transport == 1 || frame.Transport == 58 {
		return netip.AddrPortFrom(frame.Source, frame.ICMP.Identifier())
	}
	return frame.Tuple().Src
}

// report is an ICMP error by a host or router.
type report struct {
	by   end
	kind frame.ICMP
	// quote is how many bytes are quoted; 0 is the whole packet. Behind them is Tail.
	quote int
	tail  []byte
	// alter changes the quoted packet before it is quoted.
	alter func([]byte)
}

// about composes the error for the sender of what arrived.
func (r report) about(e exchanged) []byte {
	quote := slices.Clone(e.got.Packet)
	if r.alter != nil {
		r.alter(quote)
	}
	if r.quote != 0 {
		quote = quote[:min(r.quote, len(quote))]
	}
	return icmp(r.by.Addr(), e.got.Frame.Source, r.kind, append(quote, r.tail...)).bytes()
}

// seen sends the report and judges what comes to the sender of the packet: it has to
// find its own packet quoted, and nothing else may come to anybody.
func (r report) seen(p *Play, e exchanged, source netip.Addr) (Outcome, error) {
	arrivals, err := p.Send(r.by.host, r.about(e))
	if err != nil {
		return "", err
	}
	return r.judge(e, source, arrivals), nil
}

// translated is seen where nothing else may come of it.
func (r report) translated(p *Play, e exchanged, source netip.Addr) error {
	got, err := r.seen(p, e, source)
	if err == nil && got != Translated {
		err = deviates("%s", got)
	}
	return err
}

func (r report) judge(e exchanged, source netip.Addr, arrivals Arrivals) Outcome {
	if o := where(arrivals, e.from.host); o != Passes {
		return o
	}
	f := &arrivals[0].Frame
	switch {
	case f.ICMP.Type != r.kind.Type || f.ICMP.Code != r.kind.Code:
		return "type or code changed"
	case f.ICMP.Rest != r.kind.Rest:
		return "MTU or pointer changed"
	case f.Destination != e.from.Addr():
		return "for another address"
	case f.Source != source:
		return "from " + nameOf(f.Source)
	case !r.quotes(f.Payload, e):
		return "quotes another packet"
	}
	return Translated
}

// quotes reports whether the quoted packet is the one that was sent, with what routers
// change: the TTL, and the header checksum with it.
func (r report) quotes(got []byte, e exchanged) bool {
	length := len(e.sent)
	if r.quote != 0 {
		length = min(r.quote, length)
	}
	if len(got) < length || !bytes.Equal(got[length:], r.tail) {
		return false
	}
	want, have := slices.Clone(e.sent[:length]), slices.Clone(got[:length])
	for _, b := range [][]byte{want, have} {
		if b[0]>>4 == 4 {
			b[8], b[10], b[11] = 0, 0, 0
		} else {
			b[7] = 0
		}
	}
	return bytes.Equal(want, have)
}

// nameOf says whose an address is, for outcomes.
func nameOf(a netip.Addr) Outcome {
	for _, known := range []struct {
		addr netip.Prefix
		name Outcome
	}{{WANAddress, "the gateway's WAN address"}, {LANAddress, "the gateway's LAN address"}, {WANAddress6, "the gateway's WAN address"}, {LANAddress6, "the gateway's LAN address"}} {
		if known.addr.Addr() == a {
			return known.name
		}
	}
	if a == insideA.Addr() || a == insideB.Addr() || a == insideA6.Addr() || a == insideB6.Addr() {
		return "an inside address"
	}
	return Outcome(a.String())
}

// each makes one outcome of several: good, or the first that is not, with its name.
type each struct {
	good, bad Outcome
}

// note adds one; it reports whether to go on.
func (e *each) note(name string, got, want Outcome) bool {
	if got == want {
		e.good = got
		return true
	}
	e.bad = Outcome(fmt.Sprintf("%s: %s", name, got))
	return false
}

// same adds one that has to be as those before, whatever they are.
func (e *each) same(name string, got Outcome) bool {
	if e.good == "" {
		e.good = got
	}
	return e.note(name, got, e.good)
}

func (e *each) outcome() Outcome {
	if e.bad != "" {
		return e.bad
	}
	return e.good
}
