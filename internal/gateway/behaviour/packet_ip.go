package behaviour

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// mapped is what an inside end is seen as that has its port for itself.
func (e endsOf) mapped(inside end) netip.AddrPort { return netip.AddrPortFrom(e.wan, inside.Port()) }

// someOptions are NOP, router alert (RFC 2113), one that is reserved for experiments
// (94, RFC 4727), and the end.
func someOptions() []byte { return []byte{1, 148, 4, 0, 0, 94, 4, 0xab, 0xcd, 1, 1, 0} }

func ipOptions(p *Play) (Outcome, error) {
	out := udpData(insideA.AddrPort, outsideX.AddrPort)
	out.Options = someOptions()
	sent, err := carry(p, insideA, outsideX, out)
	if err != nil {
		return "", err
	}
	back := udpData(outsideX.AddrPort, sent.got.Frame.Tuple().Src)
	back.Options = someOptions()
	answer, err := carry(p, outsideX, insideA, back)
	if err != nil {
		return "", err
	}
	ok := bytes.Equal(sent.got.Frame.IPv4.Options, someOptions()) && bytes.Equal(answer.got.Frame.IPv4.Options, someOptions())
	return yes(ok, Untouched, "changed"), nil
}

// sourceRoute wants to go to the gateway and from there to X (LSRR; RFC 791).
func sourceRoute(p *Play) (Outcome, error) {
	d := udpData(insideA.AddrPort, netip.AddrPortFrom(LANAddress.Addr(), 53))
	d.Options = append([]byte{131, 7, 4}, outsideX.Addr().AsSlice()...)
	arrivals, err := p.Send(A, d.bytes())
	return yes(len(arrivals.At(X)) == 0, Dropped, Passes), err
}

// extensionHeaders puts a hop-by-hop and a destination options header, with padding only
// (PadN; RFC 8200, section 4.2), before UDP.
func extensionHeaders(p *Play) (Outcome, error) {
	header := func(next uint8) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	d := udpData(insideA6.AddrPort, outsideX6.AddrPort)
	d.Protocol = unix.IPPROTO_HOPOPTS
	headers := append(header(unix.IPPROTO_DSTOPTS), header(unix.IPPROTO_UDP)...)
	d.Payload = append(headers[:16:16], d.Payload...)
	got, err := carry(p, insideA6, outsideX6, d)
	if err != nil {
		return "", err
	}
	f := &got.got.Frame
	if f.Tuple().Src.Addr() != WANAddress6.Addr() || f.TransportChecksum() != frame.ChecksumOK {
		return "not translated", nil
	}
	return yes(bytes.Equal(f.IPv6.Extensions, headers), Untouched, "changed"), nil
}

// ipFields compares headers byte by byte.
func ipFields(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		for _, ecn := range []byte{0, 1, 2, 3} {
			got, err := carriesFields(p, e, k, ecn)
			if err != nil || !all.note(k.name, got, Untouched) {
				return all.outcome(), err
			}
		}
	}
	return all.outcome(), nil
}

func carriesFields(p *Play, e endsOf, k flowKind, ecn byte) (Outcome, error) {
	d := k.ask(e.a.AddrPort, e.x.AddrPort)
	d.DSCP, d.TTL, d.Identification, d.DontFragment = 46, 17, 0xbeef, ecn%2 == 0
	sent := d.bytes()
	if e.v6 {
		sent[1] |= ecn<<4 | 0x0a // and a flow label
		sent[2], sent[3] = 0xbc, 0xde
	} else {
		sent[1] |= ecn
		sum := uint32(^binary.BigEndian.Uint16(sent[10:])) + uint32(ecn)
		binary.BigEndian.PutUint16(sent[10:], ^uint16(sum>>16+sum&0xffff))
	}
	got, err := p.Exchange(A, X, sent)
	if err != nil {
		return "", err
	}
	return yes(bytes.Equal(fields(sent, 1), fields(got.Packet, 0)), Untouched, "changed"), nil
}

// fields are those of a header that stay; the TTL is lowered by what a router takes.
func fields(ip []byte, taken byte) []byte {
	if ip[0]>>4 == 6 {
		return append(append([]byte{}, ip[:7]...), ip[7]-taken)
	}
	return append(append([]byte{}, ip[:8]...), ip[8]-taken, ip[9])
}
