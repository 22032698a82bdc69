package behaviour

import (
	"fmt"
	"time"
)

// changedPorts has many hosts send from one port to one destination, and compares what
// all but the first get.
func changedPorts(p *Play) (Outcome, error) {
	var seen []uint16
	for n := range 17 {
		mapped, err := p.out(insideHost(n, 4000), outsideX)
		if err != nil {
			return "", err
		}
		if n > 0 {
			seen = append(seen, mapped.Port())
		}
	}
	return predictable(seen), nil
}

// everyPort has one host send from one port after the other.
func everyPort(p *Play) (Outcome, error) {
	var seen []uint16
	kept := 0
	for n := range uint16(16) {
		mapped, err := p.out(insideA.port(4000+n), outsideX)
		if err != nil {
			return "", err
		}
		seen = append(seen, mapped.Port())
		if mapped.Port() == 4000+n {
			kept++
		}
	}
	if kept > 1 {
		return Outcome(fmt.Sprintf("%d of 16 kept", kept)), nil
	}
	return predictable(seen), nil
}

// predictable takes ports for chosen at random of which neighbours are seldom close:
// with 64,512 to choose from, two of fifteen steps below 256 come by chance once in
// 150 times, five once in 30 million.
func predictable(ports []uint16) Outcome {
	close := 0
	for i := 1; i < len(ports); i++ {
		step := int(ports[i]) - int(ports[i-1])
		if -256 < step && step < 256 {
			close++
		}
	}
	return yes(close < 5, "not predictable", "predictable")
}

func identifications(p *Play) (Outcome, error) {
	var ids []uint32
	for _, from := range []end{insideA, insideB} {
		parts := udp(from.AddrPort, outsideX.AddrPort, someData(1)).fragments(0x7857, 800)
		arrivals, err := p.Send(from.host, packets(parts)...)
		if err != nil {
			return "", err
		}
		if len(arrivals.At(X)) == 0 {
			return Dropped, nil
		}
		ids = append(ids, arrivals.At(X)[0].Frame.Fragment.Identification)
	}
	return yes(ids[0] != ids[1], "different identifications", "the same identification"), nil
}

// endedQuery lets the only session of an echo's mapping end.
func endedQuery(p *Play) (Outcome, error) {
	const set = time.Second
	if err := p.Timers(map[Timer]time.Duration{ICMP: set}); err != nil {
		return "", err
	}
	if _, err := flowEcho.start(p, insideA, outsideX); err != nil {
		return "", err
	}
	if _, found, err := leftOf(p, insideA.AddrPort); err != nil || !found {
		return "no session", err
	}
	if err := p.Pass(set + time.Second); err != nil {
		return "", err
	}
	_, found, err := leftOf(p, insideA.AddrPort)
	return yes(found, "kept", "deleted"), err
}

func inboundQuery(p *Play) (Outcome, error) {
	asked, err := carry(p, outsideX, insideA, ping(outsideX.Addr(), staticA, 7, 1))
	if err != nil {
		return lostOr(Dropped, err)
	}
	answer, err := carry(p, insideA, outsideX, pong(insideA.Addr(), asked.got.Frame.Source, asked.got.Frame.ICMP.Identifier(), 1))
	if err != nil {
		return lostOr("the reply is lost", err)
	}
	f := &answer.got.Frame
	return yes(f.Source == staticA && f.ICMP.Identifier() == 7, Passes, "answered otherwise"), nil
}
