package behaviour

import (
	"fmt"
	"net/netip"
	"time"
)

func lifeOfOneWay(p *Play) (Outcome, error) {
	if _, err := p.out(insideA, outsideX); err != nil {
		return "", err
	}
	m, err := p.mapping(insideA.AddrPort)
	if err != nil || m.Left >= 2*time.Minute-time.Second {
		return "two minutes or more", err
	}
	return Outcome(fmt.Sprintf("%d s before an answer", roundUp(m.Left))), nil
}

// roundUp returns the timeout that was set a moment ago, from an engine's whole seconds
// remaining.
func roundUp(left time.Duration) int { return int((left+time.Second)/time.Second) / 10 * 10 }

// stream makes a mapping that has been in use both ways for long enough that an
// engine takes it for more than a question and its answer (nf_conntrack: two
// seconds).
func (p *Play) stream() (Mapping, error) {
	for range 2 {
		if _, err := p.both(insideA, outsideX); err != nil {
			return Mapping{}, err
		}
		if err := p.Pass(2100 * time.Millisecond); err != nil {
			return Mapping{}, err
		}
	}
	if _, err := p.both(insideA, outsideX); err != nil {
		return Mapping{}, err
	}
	return p.mapping(insideA.AddrPort)
}

func lifeOfStream(p *Play) (Outcome, error) {
	m, err := p.stream()
	return yes(m.Left >= 2*time.Minute-time.Second, "two minutes or more", Outcome(m.Left.String())), err
}

func defaultLife(p *Play) (Outcome, error) {
	m, err := p.stream()
	if m.Left >= 5*time.Minute-time.Second {
		return "five minutes or more", err
	}
	return Outcome(fmt.Sprintf("%d minutes", int((m.Left + time.Second).Minutes()))), err
}

// short sets both timers of UDP.
func (p *Play) short(d time.Duration) error {
	return p.Timers(map[Timer]time.Duration{UDP: d, UDPStream: d})
}

func expiry(p *Play) (Outcome, error) {
	if err := p.short(2 * time.Second); err != nil {
		return "", err
	}
	mapped, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	if err := p.Pass(time.Second); err != nil {
		return "", err
	}
	before, err := p.in(outsideX, mapped, insideA)
	if err != nil {
		return "", err
	}
	if err := p.Pass(2200 * time.Millisecond); err != nil {
		return "", err
	}
	after, err := p.in(outsideX, mapped, insideA)
	switch {
	case !before:
		return "too early", err
	case after:
		return "still there", err
	}
	return "as configured", err
}

// refreshOut and refreshIn use a mapping once, in one direction, and check for it when
// it would have ended without that.
func refreshOut(p *Play) (Outcome, error) {
	return p.refresh(func() (bool, error) {
		_, err := p.out(insideA, outsideX)
		return true, err
	})
}

func refreshIn(p *Play) (Outcome, error) {
	return p.refresh(func() (bool, error) { return p.in(outsideX, insideA.mapped(), insideA) })
}

// mapped is what an end behind DefaultGateway is seen as, where no other end has its
// port.
func (e end) mapped() netip.AddrPort { return netip.AddrPortFrom(WANAddress.Addr(), e.Port()) }

func (p *Play) refresh(use func() (bool, error)) (Outcome, error) {
	const timer, step = 3 * time.Second, 1800 * time.Millisecond
	if err := p.short(timer); err != nil {
		return "", err
	}
	mapped, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	if mapped != insideA.mapped() {
		return "", fmt.Errorf("%v is mapped to %v, expected %v", insideA, mapped, insideA.mapped())
	}
	if err := p.Pass(step); err != nil {
		return "", err
	}
	if alive, err := use(); err != nil || !alive {
		return "", fmt.Errorf("the mapping does not outlive %v of its %v: %v, %w", step, timer, alive, err)
	}
	if err := p.Pass(step); err != nil {
		return "", err
	}
	came, err := p.in(outsideX, mapped, insideA)
	return yes(came, "refreshed", "not refreshed"), err
}
