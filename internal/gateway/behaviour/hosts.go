package behaviour

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
)

// checkedHosts are two behind one port, whose health is checked.
func checkedHosts(more string) string {
	return rules("  - dnat: {on: 203.0.113.7, port: [udp/8080, tcp/8080], to: [\"192.168.0.2:80\", \"192.168.0.3:81\"], health: {tcp: on, port: 9}" + more + "}")
}

// The two, and the address outside.
var (
	firstHost, secondHost = at(A, "192.168.0.2:80"), at(B, "192.168.0.3:81")
	checkedPort           = ap("203.0.113.7:8080")
)

// severalHosts are cases of hosts behind one port of which some are down.
func severalHosts() []Case {
	return []Case{
		{ID: "health-down", Requirement: "health", Asks: "a host that is down gets no new connections, keeps those that it has, and gets its part again when it is up",
			Gateway: checkedHosts(""), Run: hostDown},
		{ID: "health-down-hash", Requirement: "health, balance: hash", Asks: "clients of a host that is down go to others, and return to it; clients of others stay",
			Gateway: checkedHosts(", balance: hash"), Run: hashedHostDown},
		{ID: "health-all-down-reject", Requirement: "all-down: reject", Asks: "while all are down UDP is answered with port unreachable, TCP with an RST, and what exists goes on",
			Gateway: checkedHosts(", all-down: reject"), Run: allDown},
		{ID: "health-all-down-last", Requirement: "all-down: last", Asks: "while all are down those that were up last get new connections",
			Untestable: "`natkit gateway run` then asks the engine for nothing: packets meet the choice as it was"},
	}
}

// down has the checks of some hosts fail: of the first, of the second.
func (p *Play) down(first, second bool) error {
	refs := slices.Collect(maps.Keys(p.Plan.Checked()))
	if len(refs) != 1 {
		return fmt.Errorf("%d rules whose hosts are checked, expected one", len(refs))
	}
	return p.Use(p.Plan, map[gateway.Ref][]bool{refs[0]: {first, second}})
}

// ofEach is how many new connections, from some ports of X on, each host gets.
func (p *Play) ofEach(port uint16, n int) (map[end]int, error) {
	got := map[end]int{}
	for i := range n {
		host, err := p.reached(outsideX.port(port+uint16(i)), checkedPort)
		if err != nil {
			return nil, err
		}
		got[host]++
	}
	return got, nil
}

func hostDown(p *Play) (Outcome, error) {
	both, err := p.ofEach(4000, 4)
	if err != nil || both[firstHost] != 2 || both[secondHost] != 2 {
		return Outcome(fmt.Sprintf("while both are up: %v", both)), err
	}
	client, err := p.clientOf(firstHost)
	if err != nil {
		return "", err
	}
	if err := p.down(true, false); err != nil {
		return "", err
	}
	one, err := p.ofEach(4100, 4)
	if err != nil || one[secondHost] != 4 {
		return Outcome(fmt.Sprintf("while one is down: %v", one)), err
	}
	if host, err := p.reached(client, checkedPort); err != nil || host != firstHost {
		return Outcome(fmt.Sprintf("a connection of the host that is down goes to %v", host)), err
	}
	if source, err := p.out(firstHost, client); err != nil || source != checkedPort {
		return Outcome(fmt.Sprintf("the host that is down answers as %v", source)), err
	}
	if err := p.down(false, false); err != nil {
		return "", err
	}
	both, err = p.ofEach(4200, 4)
	return yes(both[firstHost] == 2 && both[secondHost] == 2, bothWays, Outcome(fmt.Sprintf("when both are up again: %v", both))), err
}

// clientOf is an end outside with a connection to a host.
func (p *Play) clientOf(want end) (end, error) {
	for port := range uint16(64) {
		client := outsideX.port(6000 + port)
		host, err := p.reached(client, checkedPort)
		if err != nil || host == want {
			return client, err
		}
	}
	return end{}, fmt.Errorf("no connection of 64 goes to %v", want)
}

// hashedHostDown has the same clients connect anew three times.
func hashedHostDown(p *Play) (Outcome, error) {
	clients := func(port string) (all []end, err error) {
		for n := range 24 {
			host, err := p.reached(at(X, fmt.Sprintf("198.18.0.%d:%s", 100+n, port)), checkedPort)
			if err != nil {
				return nil, err
			}
			all = append(all, host)
		}
		return all, nil
	}
	before, err := clients("4000")
	if err != nil || !slices.Contains(before, firstHost) || !slices.Contains(before, secondHost) {
		return Outcome(fmt.Sprintf("hosts: %v", before)), err
	}
	if err := p.down(true, false); err != nil {
		return "", err
	}
	if while, err := clients("4001"); err != nil || slices.Contains(while, firstHost) {
		return Outcome(fmt.Sprintf("hosts while one is down: %v", while)), err
	}
	if err := p.down(false, false); err != nil {
		return "", err
	}
	after, err := clients("4002")
	return yes(slices.Equal(after, before), bothWays, Outcome(fmt.Sprintf("hosts: %v, then %v", before, after))), err
}

func allDown(p *Play) (Outcome, error) {
	client, err := p.clientOf(firstHost)
	if err != nil {
		return "", err
	}
	if err := p.down(true, true); err != nil {
		return "", err
	}
	refused, err := p.Send(X, UDPPacket(outsideX.port(4000).AddrPort, checkedPort, ""))
	if err != nil || refused.brief() != "ICMP 3/3 to x" {
		return "of UDP: " + Outcome(refused.brief()), err
	}
	refused, err = p.Send(X, tcp(outsideX.AddrPort, checkedPort, frame.TCP{SequenceNumber: 100, Flags: frame.SYN}, nil).bytes())
	if err != nil || len(refused) != 1 || refused[0].At != X || refused[0].Frame.Transport != unix.IPPROTO_TCP || refused[0].Frame.TCP.Flags&frame.RST == 0 {
		return "of TCP: " + Outcome(refused.String()), err
	}
	if host, err := p.reached(client, checkedPort); err != nil || host != firstHost {
		return Outcome(fmt.Sprintf("a connection of before goes to %v", host)), err
	}
	if err := p.down(false, true); err != nil {
		return "", err
	}
	return inFrom(outsideX.port(4001), checkedPort.String(), firstHost)(p)
}
