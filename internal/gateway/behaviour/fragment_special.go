package behaviour

import (
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// fragmentedHeaders are about first fragments that do not have all that is needed, and
// other places of fragments.
func fragmentedHeaders() []Case {
	tiny := bothFamilies(Case{ID: "fragments-tiny", Level: Natkit, Want: []Outcome{Passes, Dropped},
		Asks: "a packet whose first fragment ends within the TCP header, behind the ports, is translated whole or dropped"}, tinyFirst)
	return slices.Concat(tiny,
		[]Case{{
			ID: "fragments-hairpinned", RFC: 4787, Requirement: "REQ-14", Level: Must, Want: []Outcome{Passes}, Gateway: basicNAT,
			Asks: "fragments pass between hosts inside that know each other by external addresses, in reverse order, too",
			Run:  fragmentsHairpinned,
		}, {
			ID: "fragments-dont-fragment", Level: Natkit, Want: []Outcome{Passes},
			Asks: "fragments with DF pass, and keep it", Run: fragmentsKeepDF,
			Expect: onNetfilter("without DF", "the tracker puts the packet together, and what is cut again where it was cut before gets new flags (ip_fraglist_init)"),
		}, {
			ID: "fragments-unknown-protocol", Level: Natkit, Want: []Outcome{Passes}, Gateway: basicNAT,
			Asks: "so do fragments of an unknown protocol, with a static address", Run: fragmentsUnknown,
		}})
}

// tinyFirst cuts behind eight bytes of a TCP header: the ports and the sequence number.
func tinyFirst(p *Play, e endsOf) (Outcome, error) {
	data := someData(5)
	whole := carrierTCP.ask(e.a, e.x.AddrPort, data)
	arrivals, err := p.Send(A, packets(whole.fragments(0x5555, 8))...)
	if err != nil {
		return "", err
	}
	if len(arrivals.At(X)) == 0 {
		return Dropped, nil
	}
	return carrierTCP.judge(arrivals, X, e.wan, e.x.Addr(), [][]byte{data}), nil
}

func fragmentsHairpinned(p *Play) (Outcome, error) {
	data := [][]byte{someData(6), someData(7)}
	one, two := udp(insideC.AddrPort, publicStatic, data[0]), udp(insideC.AddrPort, publicStatic, data[1])
	parts := reversed(one.fragments(0x1111, 400, 800), two.fragments(0x2222, 800))
	arrivals, err := p.Send(C, packets(parts)...)
	if err != nil || len(arrivals) == 0 {
		return Dropped, err
	}
	if arrivals[0].Frame.Source == insideC.Addr() {
		return "seen under the inside address", nil
	}
	return carrierUDP.judge(arrivals, A, arrivals[0].Frame.Source, insideA.Addr(), data), nil
}

// publicStatic is a port of A by its static address.
var publicStatic = ap("203.0.113.9:5000")

func fragmentsKeepDF(p *Play) (Outcome, error) {
	data := someData(8)
	whole := carrierUDP.ask(insideA, outsideX.AddrPort, data)
	whole.DontFragment = true
	arrivals, err := p.Send(A, packets(whole.fragments(0x6666, 800))...)
	if err != nil {
		return "", err
	}
	for i := range arrivals {
		if !arrivals[i].Frame.IPv4.DontFragment {
			return "without DF", nil
		}
	}
	return carrierUDP.judge(arrivals, X, WANAddress.Addr(), outsideX.Addr(), [][]byte{data}), nil
}

func fragmentsUnknown(p *Play) (Outcome, error) {
	data := someData(9)
	whole := datagramOf(insideA.Addr(), outsideX.Addr(), 253, data)
	arrivals, err := p.Send(A, packets(reversed(whole.fragments(0x7777, 800)))...)
	if err != nil {
		return "", err
	}
	return carrierUDP.judge(arrivals, X, staticA, outsideX.Addr(), [][]byte{data}), nil
}

// fragmentsAndErrors are ICMP errors about fragments, and in fragments.
func fragmentsAndErrors() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "fragments-error-about-first", Level: Natkit, Want: []Outcome{Translated},
			Asks: "an error about a first fragment comes to the host inside"}, errorAboutFirst),
		bothFamilies(Case{ID: "fragments-error-about-later", Level: Natkit, Want: []Outcome{Translated, Dropped},
			Asks: "an error about a later fragment, which does not identify its host, is dropped, or finds its host"}, errorAboutLater),
		bothFamilies(Case{ID: "fragments-error-in-fragments", Level: Natkit, Want: []Outcome{Passes},
			Asks: "an error that comes in fragments itself is translated"}, errorInFragments),
	)
}

// partsSeen are the fragments of a packet from A as they were sent, and as X got them.
func partsSeen(p *Play, e endsOf) ([]datagram, Arrivals, error) {
	parts := carrierUDP.ask(e.a, e.x.AddrPort, someData(1)).fragments(0x1111, 800)
	arrivals, err := p.Send(A, packets(parts)...)
	return parts, arrivals, err
}

func errorAboutFirst(p *Play, e endsOf) (Outcome, error) { return errorAboutPart(p, e, 0) }

func errorAboutLater(p *Play, e endsOf) (Outcome, error) { return errorAboutPart(p, e, 1) }

func errorAboutPart(p *Play, e endsOf, n int) (Outcome, error) {
	parts, seen, err := partsSeen(p, e)
	if err != nil {
		return "", err
	}
	if len(seen) != 2 {
		return "the fragments do not come as two", nil
	}
	expired := frame.ICMP{Type: timeExceeded, Code: 1}
	if e.v6 {
		expired.Type = timeExceeded6
	}
	sent := parts[n].bytes()
	if e.v6 {
		// The identification is the gateway's: it has cut the packet again.
		copy(sent[44:48], seen[n].Packet[44:48])
	}
	return report{by: e.x, kind: expired}.seen(p, exchanged{e.a, e.x, sent, &seen[n]}, e.x.Addr())
}

// errorInFragments has an error quote so much that it is cut on its way.
func errorInFragments(p *Play, e endsOf) (Outcome, error) {
	d := carrierUDP.ask(e.a, e.x.AddrPort, someData(1))
	sent, err := carry(p, e.a, e.x, d)
	if err != nil {
		return "", err
	}
	return errorComes(p, report{by: e.x, kind: e.portUnreachableKind}, sent, 0x8888)
}

// errorComes sends an error about a packet to the host that sent it, in fragments.
func errorComes(p *Play, r report, about exchanged, id uint32) (Outcome, error) {
	whole := icmp(r.by.Addr(), about.got.Frame.Source, r.kind, about.got.Packet)
	arrivals, err := p.Send(r.by.host, packets(reversed(whole.fragments(id, 800)))...)
	if err != nil {
		return "", err
	}
	came := assemble(arrivals)
	if len(came) != 1 || came[0].missing || came[0].at != about.from.host {
		return yes(len(came) == 0, Dropped, "not all parts arrive"), nil
	}
	b := came[0].ip.Append(nil, came[0].payload)
	if err := wrongChecksums(b); err != nil {
		return Outcome(err.Error()), nil
	}
	return yes(r.quotes(came[0].payload[8:], about), Passes, "quotes another packet"), nil
}
