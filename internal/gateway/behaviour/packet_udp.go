package behaviour

import (
	"encoding/binary"

	"github.com/natkit/natkit/internal/frame"
)

// zeroChecksum sends without a checksum from two hosts with the same port, so that one
// gets another, and answers so.
func zeroChecksum(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, from := range []end{e.a, e.b} {
		out, err := p.World.Send(from.host, udpWithout(from.AddrPort, e.x.AddrPort, []byte("without")).bytes())
		if err == nil && len(out) > 0 && out[0].Frame.Source != e.wan {
			return leavesUntranslated, nil
		}
		if err != nil || !all.same("from inside", checksumKind(out, e.x.host)) {
			return all.outcome(), err
		}
		if len(out) == 0 {
			continue
		}
		back, err := p.World.Send(e.x.host, udpWithout(e.x.AddrPort, out[0].Frame.Tuple().Src, []byte("without, too")).bytes())
		if err != nil || !all.same("from outside", checksumKind(back, from.host)) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

// checksumKind classifies the checksum of a datagram that was sent without one.
func checksumKind(arrivals Arrivals, at Host) Outcome {
	if o := where(arrivals, at); o != Passes {
		return o
	}
	f := &arrivals[0].Frame
	if f.UDP.Checksum == 0 {
		return "stays 0"
	}
	return yes(f.TransportChecksum() == frame.ChecksumOK, "becomes right", "becomes wrong")
}

// checksumOfZero finds the data with which the translated datagram's checksum is 0: one
// word more adds to the sum what the checksum had left to all ones.
func checksumOfZero(p *Play, e endsOf) (Outcome, error) {
	word := make([]byte, 2)
	seen := frame.AppendUDP(nil, frame.Tuple{Src: e.mapped(e.a), Dst: e.x.AddrPort}, word, false)
	copy(word, seen[6:8])
	got, err := carry(p, e.a, e.x, udp(e.a.AddrPort, e.x.AddrPort, word))
	if err != nil {
		return "", err
	}
	if got.got.Frame.Tuple().Src != e.mapped(e.a) {
		return "with another mapping", nil
	}
	sum := binary.BigEndian.Uint16(ipPayload(got.got.Packet)[6:])
	return yes(sum == 0xffff, "0xffff", yes(sum == 0, "0", "wrong")), nil
}
