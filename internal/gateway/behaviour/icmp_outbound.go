package behaviour

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

func icmpOutbound() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "rfc5508-req-5", RFC: 5508, Requirement: "REQ-5 a, b", Level: Must, Want: []Outcome{Translated},
			Asks: "errors of the host inside, of every type and code, come to the sender outside about the packet as it sent it"}, outboundErrors),
		bothFamilies(Case{ID: "rfc5508-req-5-unmatched", RFC: 5508, Requirement: "REQ-5", Level: Should, Want: []Outcome{Dropped},
			Asks: "errors from inside about no session are dropped"}, outboundUnmatched),
		bothFamilies(Case{ID: "rfc5508-req-5-c", RFC: 5508, Requirement: "REQ-5 c", Level: Must, Want: []Outcome{Translated},
			Asks: "errors of routers inside leave with the gateway's external address"}, outboundFromRouter),
		[]Case{{
			ID: "rfc5508-req-5-c-basic", RFC: 5508, Requirement: "REQ-5 c", Level: Must, Want: []Outcome{"its own external address"}, Gateway: basicNAT,
			Asks: "with static addresses (Basic NAT) an error leaves with the external address of the one that sent it",
			Run:  outboundBasic,
			Expect: onNetfilter("the external address of the session",
				"an error has no session of its own: it is translated by that of the quoted packet"),
		}},
		bothFamilies(Case{ID: "rfc5508-req-6", RFC: 5508, Requirement: "REQ-6", Level: Must, Want: []Outcome{"neither refreshed nor deleted"},
			Asks: "an error about an echo neither refreshes nor deletes its session"}, errorAboutEcho),
	)
}

func outboundErrors(p *Play, e endsOf) (Outcome, error) {
	return everyError(p, e, report{by: e.a}, cameIn, e.wan)
}

func outboundFromRouter(p *Play, e endsOf) (Outcome, error) {
	return everyError(p, e, report{by: e.b}, cameIn, e.wan)
}

func outboundUnmatched(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		never := k.say(e.x.AddrPort, e.a.port(3999).AddrPort).bytes()
		b := icmp(e.a.Addr(), e.x.Addr(), e.portUnreachableKind, never).bytes()
		arrivals, err := p.Send(A, b)
		if err != nil || !all.same(k.name, leaving(arrivals, e.a.Addr())) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

// leaving reports whether what left is translated.
func leaving(arrivals Arrivals, inside netip.Addr) Outcome {
	switch {
	case len(arrivals) == 0:
		return Dropped
	case arrivals[0].Frame.Source == inside:
		return leavesUntranslated
	}
	return Translated
}

func outboundBasic(p *Play) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	arrivals, err := p.Send(B, report{by: insideB, kind: frame.ICMP{Type: unreachable, Code: 1}}.about(f.in))
	if err != nil || len(arrivals) != 1 {
		return where(arrivals, X), err
	}
	switch arrivals[0].Frame.Source {
	case staticB:
		return "its own external address", nil
	case staticA:
		return "the external address of the session", nil
	}
	return leavesUntranslated, nil
}

// errorAboutEcho has both ends report about an echo and its reply.
func errorAboutEcho(p *Play, e endsOf) (Outcome, error) {
	const set = 20 * time.Second
	var f flow
	got, err := aged(p, map[Timer]time.Duration{ICMP: set, ICMPv6: set}, e.a.AddrPort,
		func() (err error) { f, err = flowEcho.start(p, e.a, e.x); return err },
		func() error {
			return inTurn(
				func() error { return report{by: e.x, kind: e.portUnreachableKind}.translated(p, f.out, e.x.Addr()) },
				func() error { return report{by: e.a, kind: e.portUnreachableKind}.translated(p, f.in, e.wan) })
		})
	return yes(got == "not refreshed", "neither refreshed nor deleted", got), err
}

// icmpChecks are about what is wrong in an error.
func icmpChecks() []Case {
	return []Case{{
		ID: "rfc5508-req-3", RFC: 5508, Requirement: "REQ-3", Level: Should, Want: []Outcome{Dropped},
		Asks: "an error from outside whose ICMP checksum is wrong is dropped",
		Run: func(p *Play) (Outcome, error) {
			return wrongReport(p, false, func(b []byte) { b[22] ^= 0xff })
		},
	}, {
		ID: "rfc5508-req-3-outbound", RFC: 5508, Requirement: "REQ-3", Level: Should, Want: []Outcome{Dropped},
		Asks: "so is one from inside",
		Run:  func(p *Play) (Outcome, error) { return wrongReport(p, true, func(b []byte) { b[22] ^= 0xff }) },
	}, {
		ID: "rfc5508-req-3-a", RFC: 5508, Requirement: "REQ-3 a", Level: Should, Want: []Outcome{Dropped},
		Asks:   "an error is dropped that quotes an IP header whose checksum is wrong",
		Run:    quotedHeaderWrong,
		Expect: onNetfilter(Translated, "the tracker reads the quoted addresses and ports only; what it changes keeps the checksum as wrong as it was"),
	}, {
		ID: "rfc5508-req-3-b", RFC: 5508, Requirement: "REQ-3 b", Level: Must, Want: []Outcome{Translated},
		Asks: "IP options of the quoted packet are passed over to find its ports",
		Run:  quotedOptions,
	}, {
		ID: "rfc5508-req-3-c", RFC: 5508, Requirement: "REQ-3 c", Level: Should, Want: []Outcome{Translated},
		Asks: "the transport checksum of the quoted packet is not verified",
		Run:  quotedTransportWrong,
	}, {
		ID: "rfc5508-req-3-d", RFC: 5508, Requirement: "REQ-3 d", Level: Must, Want: []Outcome{Translated},
		Asks: "ICMP extensions behind the quoted packet (RFC 4884) come through as they are",
		Run:  quotedExtensions,
	}}
}

// wrongReport sends an error with something changed in the finished packet. What comes
// of it is not verified, as it may be as wrong as it was.
func wrongReport(p *Play, outbound bool, change func([]byte)) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	r, of := report{by: outsideX, kind: frame.ICMP{Type: unreachable, Code: portUnreachable}}, f.out
	if outbound {
		r.by, of = insideA, f.in
	}
	b := r.about(of)
	change(b)
	arrivals, err := p.World.Send(r.by.host, b)
	if outbound {
		return leaving(arrivals, insideA.Addr()), err
	}
	return yes(len(arrivals.At(A)) == 0, Dropped, Passes), err
}

func quotedHeaderWrong(p *Play) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	r := report{by: outsideX, kind: frame.ICMP{Type: unreachable, Code: portUnreachable}, alter: func(b []byte) { b[10] ^= 0xff }}
	arrivals, err := p.World.Send(X, r.about(f.out))
	if err != nil {
		return "", err
	}
	return r.judge(f.out, outsideX.Addr(), arrivals), nil
}

func quotedOptions(p *Play) (Outcome, error) {
	d := udpData(insideA.AddrPort, outsideX.AddrPort)
	d.Options = []byte{1, 1, 1, 1, 148, 4, 0, 0} // NOPs, router alert (RFC 2113)
	e, err := carry(p, insideA, outsideX, d)
	if err != nil {
		return "", err
	}
	return report{by: routerX, kind: frame.ICMP{Type: timeExceeded}, quote: 28 + 8}.seen(p, e, routerX.Addr())
}

// quotedTransportWrong has what the outside received be wrong already. The host inside
// then finds its own packet with the same fault.
func quotedTransportWrong(p *Play) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	const at = 30 // in the data, which the checksum covers
	spoil := func(b []byte) { b[at] ^= 0xff }
	r := report{by: outsideX, kind: frame.ICMP{Type: unreachable, Code: portUnreachable}, alter: spoil}
	arrivals, err := p.World.Send(X, r.about(f.out))
	if err != nil {
		return "", err
	}
	f.out.sent = slices.Clone(f.out.sent)
	spoil(f.out.sent)
	return r.judge(f.out, outsideX.Addr(), arrivals), nil
}

// quotedExtensions pads the quoted packet to 128 bytes, puts an MPLS object behind
// it (RFC 4950), and says in the header where it begins.
func quotedExtensions(p *Play) (Outcome, error) {
	d := udp(insideA.AddrPort, outsideX.AddrPort, make([]byte, 128-28))
	e, err := carry(p, insideA, outsideX, d)
	if err != nil {
		return "", err
	}
	r := report{by: routerX, kind: frame.ICMP{Type: timeExceeded, Rest: 128 / 4 << 16}, tail: mplsExtension()}
	return r.seen(p, e, routerX.Addr())
}

func mplsExtension() []byte {
	object := []byte{0, 8, 1, 1, 0x12, 0x34, 0x51, 64}
	b := append([]byte{0x20, 0, 0, 0}, object...)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum>>16+sum&0xffff))
	return b
}
