package behaviour

import (
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// separateTimers sets a short time for connections that open and a long one for those
// that close, and checks which are there when the short one is over.
func separateTimers(p *Play) (Outcome, error) {
	const short, long = time.Second, 30 * time.Second
	if err := p.Timers(map[Timer]time.Duration{TCPSynSent: short, TCPSynRecv: short, TCPFinWait: long, TCPCloseWait: long, TCPLastAck: long, TCPTimeWait: long}); err != nil {
		return "", err
	}
	closing := between(p, insideA.port(4001), outsideX)
	if err := stageOf(TCPTimeWait).reach(closing); err != nil {
		return verdict("", err)
	}
	opening := between(p, insideA, outsideX)
	if err := stageOf(TCPSynSent).reach(opening); err != nil {
		return verdict("", err)
	}
	if err := p.Pass(short + time.Second); err != nil {
		return "", err
	}
	_, opens, err := leftOf(p, insideA.AddrPort)
	if err != nil {
		return "", err
	}
	_, closes, err := leftOf(p, insideA.port(4001).AddrPort)
	return yes(!opens && closes, "separate", "not separate"), err
}

func stageOf(t Timer) stage {
	return tcpStages[slices.IndexFunc(tcpStages, func(s stage) bool { return s.timer == t })]
}

// shortestTransitory reaches every stage but those of established and reset connections.
func shortestTransitory(p *Play) (Outcome, error) {
	shortest := leastTransitory
	for i, s := range tcpStages {
		if s.timer == TCPEstablished || s.timer == TCPClose {
			continue
		}
		from := insideA.port(uint16(5000 + i))
		if err := s.reach(between(p, from, outsideX)); err != nil {
			return verdict("", err)
		}
		left, found, err := leftOf(p, from.AddrPort)
		if err != nil {
			return "", err
		}
		if !found {
			return Outcome("no session " + s.words), nil
		}
		shortest = min(shortest, left)
	}
	return atLeast(shortest, leastTransitory), nil
}

func resetsPass(p *Play) (Outcome, error) {
	for i, byInside := range []bool{true, false} {
		c := between(p, insideA.port(uint16(4000+i)), outsideX)
		from := &c.outside
		if byInside {
			from = &c.inside
		}
		if err := inTurn(func() error { return established(c) }, func() error { return c.say(from, frame.RST|frame.ACK, "") }); err != nil {
			return verdict("", err)
		}
	}
	return Passes, nil
}

func overlapped(p *Play) (Outcome, error) {
	first, err := tcpSeenAs(p, insideA, outsideX)
	if err != nil {
		return verdict("", err)
	}
	second, err := tcpSeenAs(p, insideB, outsideY)
	if err != nil {
		return verdict("", err)
	}
	return yes(first == second, "overlapped", "not overlapped"), nil
}

// pairedExhausted has the only port of A's address used, and A begin once more, by UDP
// and by TCP.
func pairedExhausted(p *Play) (Outcome, error) {
	for _, k := range []flowKind{flowUDP, flowTCP} {
		first, err := k.start(p, insideA, outsideX)
		if err != nil {
			return "", err
		}
		arrivals, err := p.Send(A, k.ask(insideA.port(4001).AddrPort, outsideX.AddrPort).bytes())
		if err != nil {
			return "", err
		}
		if at := arrivals.At(X); len(at) > 0 {
			seen := at[0].Frame.Tuple().Src
			return yes(seen.Addr() != first.mapped().Addr(), "given another address", yes(seen == first.mapped(), "given a port twice", "given another port")), nil
		}
	}
	return Dropped, nil
}

func pairedProtocols(p *Play) (Outcome, error) {
	for n := range 8 {
		host := insideHost(n, 4000)
		var seen []netip.Addr
		for _, k := range []flowKind{flowUDP, flowTCP, flowEcho} {
			f, err := k.start(p, host, outsideX)
			if err != nil {
				return "", err
			}
			seen = append(seen, f.mapped().Addr())
		}
		if len(slices.Compact(seen)) > 1 {
			return "different addresses", nil
		}
	}
	return "paired", nil
}

func mappingOfProtocol(p *Play) (Outcome, error) {
	if _, err := tcpSeenAs(p, insideA, outsideX); err != nil {
		return verdict("", err)
	}
	seen, err := p.out(insideB, outsideX)
	return yes(seen.Port() == insideB.Port(), "protocol-dependent", "protocol-independent"), err
}

func filterOfProtocol(p *Play) (Outcome, error) {
	byUDP, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	c := toInside(p, outsideX, byUDP, insideA)
	arrivals, err := p.Send(X, c.segment(&c.outside, frame.SYN, "").bytes())
	if err != nil {
		return "", err
	}
	if len(arrivals.At(A)) > 0 {
		return "TCP gets in by UDP's mapping", nil
	}
	byTCP, err := tcpSeenAs(p, insideA.port(4001), outsideX)
	if err != nil {
		return verdict("", err)
	}
	came, err := p.in(outsideX, byTCP, insideA.port(4001))
	return yes(!came, "protocol-dependent", "UDP gets in by TCP's mapping"), err
}

// aged makes a mapping, lets two seconds pass, does something and reports whether that
// made it live longer than the time that has gone since.
func aged(p *Play, timers map[Timer]time.Duration, inside netip.AddrPort, start, act func() error) (Outcome, error) {
	const age = 2 * time.Second
	if err := p.Timers(timers); err != nil {
		return "", err
	}
	if err := start(); err != nil {
		return verdict("", err)
	}
	before, found, err := leftOf(p, inside)
	if err != nil || !found {
		return "no session", err
	}
	since := time.Now()
	if err := p.Pass(age); err != nil {
		return "", err
	}
	if err := act(); err != nil {
		return verdict("", err)
	}
	gone := max(age, time.Since(since))
	after, found, err := leftOf(p, inside)
	if err != nil || !found {
		return "deleted", err
	}
	return yes(after <= before-gone+time.Second, "not refreshed", "refreshed"), err
}

var agingUDP = map[Timer]time.Duration{UDP: 20 * time.Second, UDPStream: 20 * time.Second}

func refusedInbound(p *Play) (Outcome, error) {
	var mapped netip.AddrPort
	return aged(p, agingUDP, insideA.AddrPort,
		func() (err error) { mapped, err = p.both(insideA, outsideX); return err },
		func() error {
			for _, from := range []end{outsideY, outsideX.port(9999)} {
				came, err := p.in(from, mapped, insideA)
				if err != nil {
					return err
				}
				if came {
					return deviates("let in")
				}
			}
			return nil
		})
}

func outboundError(p *Play, e endsOf) (Outcome, error) {
	var f flow
	return aged(p, agingUDP, e.a.AddrPort,
		func() (err error) { f, err = flowUDP.start(p, e.a, e.x); return err },
		func() error { return report{by: e.a, kind: e.portUnreachableKind}.translated(p, f.in, e.wan) })
}

func outboundReset(p *Play) (Outcome, error) {
	c := between(p, insideA, outsideX)
	return aged(p, map[Timer]time.Duration{TCPEstablished: time.Hour}, insideA.AddrPort,
		func() error { return established(c) },
		func() error { return c.say(&c.inside, frame.RST|frame.ACK, "") })
}
