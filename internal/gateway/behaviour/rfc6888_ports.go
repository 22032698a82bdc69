package behaviour

import (
	"fmt"
	"net/netip"
	"time"
)

// scattered sees to it that each range of the pool serves, and nothing outside of it.
func scattered(p *Play) (Outcome, error) {
	ranges := map[string]netip.Prefix{}
	for _, s := range []string{"203.0.113.8/31", "203.0.113.64/30", "203.0.113.77/32"} {
		ranges[s] = netip.MustParsePrefix(s)
	}
	for n := range 62 {
		mapped, err := p.both(insideHost(n, 4000), outsideX)
		if err != nil {
			return "", err
		}
		name := rangeOf(mapped.Addr())
		if name == "" {
			return Outcome(mapped.Addr().String() + " is not of the pool"), nil
		}
		delete(ranges, name)
	}
	if len(ranges) > 0 {
		return Outcome(fmt.Sprintf("62 hosts leave %d ranges unused", len(ranges))), nil
	}
	return "all ranges are used", nil
}

func rangeOf(a netip.Addr) string {
	for _, s := range []string{"203.0.113.8/31", "203.0.113.64/30", "203.0.113.77/32"} {
		if netip.MustParsePrefix(s).Contains(a) {
			return s
		}
	}
	return ""
}

func turnedOff(p *Play) (Outcome, error) {
	untouched, err := p.both(insideA, outsideY)
	if err != nil {
		return "", err
	}
	translated, err := p.both(insideA, outsideX)
	switch {
	case untouched != insideA.AddrPort:
		return Outcome("translated to " + untouched.String()), err
	case translated.Addr() != WANAddress.Addr():
		return "turned off for all", err
	}
	return "turned off", err
}

// reallocation lets A's mapping of the only port end, and gives the port to B.
func reallocation(p *Play) (Outcome, error) {
	if err := p.short(time.Second); err != nil {
		return "", err
	}
	mapped, err := p.both(insideA, outsideX)
	if err != nil {
		return "", err
	}
	if err := p.Pass(1200 * time.Millisecond); err != nil {
		return "", err
	}
	again, err := p.out(insideB, outsideY)
	if Lost(err) {
		return "not before 120 s", nil
	}
	if err != nil || again != mapped {
		return Outcome("another port: " + again.String()), err
	}
	old, err := p.in(outsideX, mapped, insideB)
	return yes(!old, "at once, and only the new destination reaches it", "at once, and A's destination reaches B"), err
}

// utilization takes all four ports at one destination, then at another.
func utilization(p *Play) (Outcome, error) {
	if err := p.exhaust(outsideX, 0); err != nil {
		return "", err
	}
	if err := p.exhaust(outsideY, 10); Lost(err) {
		return "every port", nil
	} else if err != nil {
		return "", err
	}
	return "every port, for every destination again", nil
}

// exhaust gives four hosts, from the one of that number on, all ports of fourPorts at
// one destination, and sees that no port is given twice.
func (p *Play) exhaust(to end, first int) error { return p.exhaustIn(four, to, first) }

func (p *Play) exhaustIn(f ipFamily, to end, first int) error {
	given := map[netip.AddrPort]bool{}
	for n := range 4 {
		mapped, err := p.both(f.hostIn(first+n, 4000), to)
		if err != nil {
			return err
		}
		if given[mapped] {
			return fmt.Errorf("%v is given twice at %v", mapped, to)
		}
		if mapped.Port() < 5000 || mapped.Port() > 5003 {
			return fmt.Errorf("%v is not of the pool", mapped)
		}
		given[mapped] = true
	}
	return nil
}

// guessing has one host make flows, port after port. That all outside ports are the
// same distance from it, or from each other, is as good as impossible by chance.
func guessing(p *Play) (Outcome, error) {
	const flows = 16
	var ports [flows]uint16
	for n := range uint16(flows) {
		mapped, err := p.both(insideA.port(4000+n), outsideX)
		if err != nil {
			return "", err
		}
		ports[n] = mapped.Port()
	}
	near := 0
	for n := 1; n < flows; n++ {
		if d := int(ports[n]) - int(ports[n-1]); -256 < d && d < 256 {
			near++
		}
	}
	// Two of 64,512 ports are that near in one of 126 cases.
	return yes(near < 4, "random", Outcome(fmt.Sprintf("near each other: %v", ports))), nil
}
