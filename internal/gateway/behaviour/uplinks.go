package behaviour

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/gateway"
)

// divided makes a file with two WANs: behind the one is X, behind the other C, to which a DMZ is a provider here.
func divided(weight, standby, lines string) string {
	return fmt.Sprintf("interfaces: {wan: [{interface: wan, weight: %s, via: 203.0.113.251}, {interface: dmz, weight: %s, via: 172.17.0.2}], lan: lan}\nnat:\n%s", weight, standby, lines)
}

// farAway is a host to which only default routes lead: it is behind either provider.
var farAway = ap("192.0.2.9:5000")

// uplinks are cases of several WANs among which connections are divided.
func uplinks() []Case {
	const masquerade = "  - masquerade: {}\n"
	return []Case{
		{ID: "uplink-divided", Requirement: "several WANs", Asks: "hosts inside are divided by weight, each has one WAN and its address for all that it does",
			Gateway: divided("3", "1", masquerade), Run: dividedHosts},
		{ID: "uplink-answers", Requirement: "several WANs", Asks: "who comes in by a WAN gets the answers by it",
			Gateway: divided("1", "1", masquerade+"  - dnat: {on: wan, port: udp/80, to: 192.168.0.2}\n"),
			Run: allSteps(inFrom(end{X, farAway}, "203.0.113.1:80", at(A, "192.168.0.2:80")), inFrom(end{C, farAway}.port(5001), "172.17.0.1:80", at(A, "192.168.0.2:80")),
				inFrom(end{X, farAway}, "203.0.113.1:80", at(A, "192.168.0.2:80")))},
		{ID: "uplink-specific-route", Requirement: "several WANs", Asks: "routes that are more specific than a default route come first",
			Gateway: divided("0", "1", masquerade), Run: allSteps(outAs(insideA, "203.0.113.1:4000"), outTo(insideA, end{C, farAway}, "172.17.0.1:4000"))},
		{ID: "uplink-down", Requirement: "several WANs", Asks: "new connections of a WAN that is down take another one, existing ones stay, and new ones return",
			Gateway: divided("1", "1", masquerade), Run: uplinkDown},
		{ID: "uplink-standby", Requirement: "several WANs", Asks: "a WAN of weight 0 gets connections while all others are down, and no others",
			Gateway: divided("1", "0", masquerade), Run: standby},
	}
}

// leaves sends a datagram far away, and its answer back, and returns at which provider it came.
func (p *Play) leaves(from end) (Host, error) {
	arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, farAway, ""))
	if err == nil && (len(arrivals) != 1 || arrivals[0].Frame.Tuple().Dst != farAway) {
		err = fmt.Errorf("%v to %v arrived: %s", from, farAway, arrivals)
	}
	if err != nil {
		return "", err
	}
	by, mapped := arrivals[0].At, arrivals[0].Frame.Tuple().Src
	if want := map[Host]netip.Prefix{X: WANAddress, C: DMZAddress}[by]; mapped.Addr() != want.Addr() {
		return by, fmt.Errorf("%v is seen by the provider %s as %v", from, by, mapped)
	}
	came, err := p.in(end{by, farAway}, mapped, from)
	if err == nil && !came {
		err = fmt.Errorf("the answer to %v by %s is lost", from, by)
	}
	return by, err
}

func dividedHosts(p *Play) (Outcome, error) {
	hosts := map[Host]int{}
	for n := range 60 {
		from := insideHost(n, 4000)
		by, err := p.leaves(from)
		if err != nil {
			return "", err
		}
		if other, err := p.leaves(from.port(4001)); err != nil || other != by {
			return Outcome(fmt.Sprintf("%v leaves by %s and by %s", from.Addr(), by, other)), err
		}
		hosts[by]++
	}
	return yes(hosts[C] > 0 && hosts[X] > 2*hosts[C], bothWays, Outcome(fmt.Sprintf("hosts by WAN: %v", hosts))), nil
}

// steered has one of the WANs be up: an interface, or "" for both.
func (p *Play) steered(up string) error {
	return p.Steer(p.Plan, func(u *gateway.Uplink, _ bool) bool { return up == "" || u.Interface == up })
}

// hostBy is a host inside that leaves by a provider.
func (p *Play) hostBy(provider Host) (end, error) {
	for n := range 32 {
		from := insideHost(n, 4000)
		if by, err := p.leaves(from); err != nil || by == provider {
			return from, err
		}
	}
	return end{}, fmt.Errorf("no host of 32 leaves by %s", provider)
}

func uplinkDown(p *Play) (Outcome, error) {
	mine, err := p.hostBy(C)
	if err != nil {
		return "", err
	}
	for _, c := range []struct {
		up       string
		port     uint16
		provider Host
	}{{WAN, 4001, X}, {WAN, 4000, C}, {"", 4002, C}} {
		if err := p.steered(c.up); err != nil {
			return "", err
		}
		if by, err := p.leaves(mine.port(c.port)); err != nil || by != c.provider {
			return Outcome(fmt.Sprintf("port %d of a host leaves by %s", c.port, by)), err
		}
	}
	return bothWays, nil
}

func standby(p *Play) (Outcome, error) {
	for i, c := range []struct {
		up       string
		provider Host
	}{{"", X}, {DMZ, C}, {"", X}} {
		if err := p.steered(c.up); err != nil {
			return "", err
		}
		for n := range 8 {
			if by, err := p.leaves(insideHost(n, uint16(4000+i))); err != nil || by != c.provider {
				return Outcome(fmt.Sprintf("a host leaves by %s, %q is up", by, c.up)), err
			}
		}
	}
	return bothWays, nil
}
