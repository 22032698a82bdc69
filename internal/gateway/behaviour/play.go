package behaviour

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
)

// Play is a World in which a case runs. It notes what must never be, whatever the
// case is about: a wrong checksum, an address from inside that is seen outside.
type Play struct {
	World
	// Plan is the one that the engine carries out.
	Plan *gateway.Plan
	// untranslated is the case's.
	untranslated bool
	faults       []error
}

// Send is World's, with all checksums verified of what arrives, those of quoted
// packets included as far as they are quoted.
func (p *Play) Send(from Host, packets ...[]byte) (Arrivals, error) {
	arrivals, err := p.World.Send(from, packets...)
	for i := range arrivals {
		fault := arrivals[i].fault()
		if fault == nil && !p.untranslated {
			fault = arrivals[i].leak()
		}
		if fault != nil {
			p.faults = append(p.faults, fault)
		}
	}
	return arrivals, err
}

func (a *Arrival) fault() error {
	if err := wrongChecksums(a.Packet); err != nil {
		return fmt.Errorf("at %s: %w: %s", a.At, err, line(&a.Frame))
	}
	f := &a.Frame
	switch {
	case !f.IPChecksumOK():
		return fmt.Errorf("at %s: the IP header's checksum is wrong: %s", a.At, line(f))
	case bad(f):
		return fmt.Errorf("at %s: transport checksum %v: %s", a.At, f.TransportChecksum(), line(f))
	case !f.ICMPError():
		return nil
	}
	var inner frame.Frame
	if err := f.Quoted(&inner); err != nil {
		return fmt.Errorf("at %s: %w", a.At, err)
	}
	if !inner.IPChecksumOK() || bad(&inner) {
		return fmt.Errorf("at %s: checksums of the quoted packet: header ok: %v, transport %v: %s", a.At, inner.IPChecksumOK(), inner.TransportChecksum(), line(&inner))
	}
	return nil
}

// insidePrefixes have the addresses that must not be seen outside.
var insidePrefixes = []netip.Prefix{
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
}

func inside(a netip.Addr) bool {
	return slices.ContainsFunc(insidePrefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// leak returns an error if an address from inside is seen outside, in the header or in
// the packet that an ICMP error quotes.
func (a *Arrival) leak() error {
	if at, _ := deviceOf(a.At); at.dev != WAN {
		return nil
	}
	var inner frame.Frame
	if inside(a.Frame.Source) || a.Frame.Quoted(&inner) == nil && (inside(inner.Source) || inside(inner.Destination)) {
		return fmt.Errorf("at %s: an address from inside is seen outside: %s", a.At, line(&a.Frame))
	}
	return nil
}

func bad(f *frame.Frame) bool {
	c := f.TransportChecksum()
	return c == frame.ChecksumBad || c == frame.ChecksumPartial
}

// Exchange sends one packet and wants exactly one to arrive, at the host to. The
// error wraps errLost where none does.
func (p *Play) Exchange(from, to Host, b []byte) (*Arrival, error) {
	arrivals, err := p.Send(from, b)
	switch {
	case err != nil:
		return nil, err
	case len(arrivals) == 0:
		return nil, fmt.Errorf("%s to %s: %s: %w", from, to, describe(b), errLost)
	case len(arrivals) > 1 || arrivals[0].At != to:
		return nil, fmt.Errorf("%s to %s: %s: arrived instead: %s", from, to, describe(b), arrivals)
	}
	return &arrivals[0], nil
}

// errLost is that a packet arrived nowhere.
var errLost = errors.New("nothing arrived")

// Lost reports whether an Exchange failed as nothing arrived anywhere.
func Lost(err error) bool { return errors.Is(err, errLost) }

func (a Arrivals) String() string {
	if len(a) == 0 {
		return "nothing"
	}
	s := ""
	for i := range a {
		s += fmt.Sprintf("; at %s: %s", a[i].At, line(&a[i].Frame))
	}
	return s[2:]
}

func describe(b []byte) string {
	var f frame.Frame
	if err := decode(&f, b); err != nil {
		return err.Error()
	}
	return line(&f)
}

// decode parses an IP packet.
func decode(f *frame.Frame, b []byte) error {
	if len(b) > 0 && b[0]>>4 == 6 {
		return f.DecodeNetwork(frame.EtherTypeIPv6, b)
	}
	return f.DecodeNetwork(frame.EtherTypeIPv4, b)
}

// UDPPacket composes a datagram. Its payload distinguishes packets; empty is "x".
func UDPPacket(from, to netip.AddrPort, payload string) []byte {
	if payload == "" {
		payload = "x"
	}
	ip := frame.IP{Source: from.Addr(), Destination: to.Addr(), Protocol: unix.IPPROTO_UDP}
	return ip.Append(nil, frame.AppendUDP(nil, frame.Tuple{Src: from, Dst: to}, []byte(payload), false))
}

// Back composes the answer to what arrived: the same protocol, ends exchanged.
func (a *Arrival) Back(payload string) []byte {
	t := a.Frame.Tuple()
	return UDPPacket(t.Dst, t.Src, payload)
}
