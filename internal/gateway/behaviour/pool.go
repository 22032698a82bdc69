package behaviour

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

const keepPorts = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8, ports: keep}
`

const spreadPool = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8-203.0.113.15, persistent: off}
`

const keepPool = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.64/27, ports: keep}
`

// pools are cases of ports: unusual ones, used up ones, ones that are to be kept.
func pools() []Case {
	cases := []Case{
		{ID: "port-0-source", Requirement: "ports", Asks: "a datagram from port 0 (RFC 768: none) is translated, and what comes back for it too",
			Run: portZeroSource, Want: []Outcome{bothWays}},
		{ID: "port-0-destination", Requirement: "ports", Asks: "one to port 0 arrives there",
			Run: portZeroDestination, Want: []Outcome{"arrives"}},
		{ID: "pool-no-port-twice", Requirement: "pool", Asks: "no port of a pool is given twice for one destination",
			Gateway: fourPorts, Run: four.of(noPortTwice), Want: []Outcome{"each once"}},
		{ID: "pool-no-port-twice-ipv6", Requirement: "pool, NAT66", Asks: "the same with NAT66, and a fifth host gets nothing",
			Gateway: rules6("  - snat: {from: \"fd00:1::/64\", to: \"2001:db8:1::8\", ports: 5000-5003}"), Run: six.of(noPortTwice), Want: []Outcome{"each once"}},
		{ID: "pool-failures-counted", Requirement: "pool", Asks: "each packet that finds no port is counted",
			Gateway: fourPorts, Run: failuresCounted, Want: []Outcome{"each counted"}},
		{ID: "pool-recovers", Requirement: "pool", Asks: "ports serve others after their mapping has ended",
			Gateway: fourPorts, Run: recovers, Want: []Outcome{"recovers"}},
		{ID: "pool-echo", Requirement: "pool", Asks: "identifiers of echos come from the pool's ports too, no one twice",
			Gateway: fourPorts, Run: poolEcho, Want: []Outcome{"each once"}},
		{ID: "pool-addresses", Requirement: "pool", Asks: "a pool of several addresses is used as a whole",
			Gateway: pairedPool, Run: poolAddresses, Want: []Outcome{"all are used"}},
		{ID: "pool-spread", Requirement: "pool", Asks: "with `persistent: off` a host's connections are spread over its addresses",
			Gateway: spreadPool, Run: four.of(pooling), Want: []Outcome{"arbitrary"}},
		{ID: "keep-paired", Requirement: "ports: keep", Asks: "a host has one address of a pool without port translation for all that it does",
			Gateway: keepPool, Run: four.of(pooling), Want: []Outcome{"paired"}},
		{ID: "keep-ports", Requirement: "ports: keep", Asks: "the source port stays, for any port",
			Gateway: keepPorts, Run: keptPorts, Want: []Outcome{"kept"}},
		{ID: "keep-clash", Requirement: "ports: keep", Asks: "a second host with the port gets nothing at the same destination, counted, and its own port at another",
			Gateway: keepPorts, Run: keepClash, Want: []Outcome{"lost and counted; kept at another"}},
		{ID: "keep-clash-recovers", Requirement: "ports: keep", Asks: "and gets its port when the first has ended and the engine has noticed that",
			Gateway: keepPorts, Run: keepRecovers, Want: []Outcome{"recovers"}},
		{ID: "keep-late-packet", Requirement: "ports: keep", Asks: "also where a late packet for the ended mapping comes in before",
			Gateway: keepPorts, Run: keepLate, Want: []Outcome{"recovers"},
			Expect: onNetfilter("lost", "the tracker enters the late packet as a connection from outside, which has that pair of ends until it ends itself (nf_conntrack_udp_timeout). Rules without `keep` take another port then; a firewall that drops unsolicited packets prevents it")},
	}
	for i := range cases {
		cases[i].Level = Natkit
	}
	return cases
}

func portZeroSource(p *Play) (Outcome, error) {
	mapped, err := p.both(insideA.port(0), outsideX)
	return yes(mapped.Addr() == WANAddress.Addr(), bothWays, Outcome("as "+mapped.String())), err
}

func portZeroDestination(p *Play) (Outcome, error) {
	_, err := p.both(insideA, outsideX.port(0))
	if Lost(err) {
		return "dropped", nil
	}
	return "arrives", err
}

func noPortTwice(p *Play, f ipFamily) (Outcome, error) {
	if err := p.exhaustIn(f, f.x, 0); err != nil {
		return "", err
	}
	_, err := p.out(f.hostIn(4, 4000), f.x)
	if Lost(err) {
		return "each once", nil
	}
	return "five of four", err
}

// wanting lets n more hosts ask for a port at X, for which there is none, and returns
// how many got one.
func (p *Play) wanting(n int) (served int, err error) {
	for i := range n {
		_, err := p.out(insideHost(10+i, 4000), outsideX)
		if err == nil {
			served++
		} else if !Lost(err) {
			return served, err
		}
	}
	return served, nil
}

func failuresCounted(p *Play) (Outcome, error) {
	if err := p.exhaust(outsideX, 0); err != nil {
		return "", err
	}
	before, err := p.Failures()
	if err != nil {
		return "", err
	}
	served, err := p.wanting(7)
	if err != nil || served > 0 {
		return Outcome(fmt.Sprintf("%d more than four are served", served)), err
	}
	after, err := p.Failures()
	return yes(after-before == 7, "each counted", Outcome(fmt.Sprintf("%d of 7 counted", after-before))), err
}

func recovers(p *Play) (Outcome, error) {
	if err := p.short(time.Second); err != nil {
		return "", err
	}
	if err := p.exhaust(outsideX, 0); err != nil {
		return "", err
	}
	if served, err := p.wanting(1); err != nil || served > 0 {
		return "a fifth is served", err
	}
	if err := p.Pass(1300 * time.Millisecond); err != nil {
		return "", err
	}
	return "recovers", p.exhaust(outsideX, 20)
}

// poolEcho has five hosts ping with the same identifier, one more than there are.
func poolEcho(p *Play) (Outcome, error) {
	given := map[uint16]bool{}
	for n := range 5 {
		from := insideHost(n, 0)
		got, err := p.Exchange(from.host, X, ping(from.Addr(), outsideX.Addr(), 77, 1).bytes())
		if Lost(err) && n == 4 {
			return "each once", nil
		}
		if err != nil {
			return "", err
		}
		id := got.Frame.ICMP.Identifier()
		if given[id] || id < 5000 || id > 5003 {
			return Outcome(fmt.Sprintf("identifier %d, after %v", id, given)), nil
		}
		given[id] = true
	}
	return "five of four", nil
}

func poolAddresses(p *Play) (Outcome, error) {
	used := map[netip.Addr]bool{}
	for n := range 62 {
		mapped, err := p.both(insideHost(n, 4000), outsideX)
		if err != nil {
			return "", err
		}
		used[mapped.Addr()] = true
	}
	return yes(len(used) == 8, "all are used", Outcome(fmt.Sprintf("%d of 8 are used", len(used)))), nil
}

func keptPorts(p *Play) (Outcome, error) {
	for _, port := range []uint16{1, 53, 511, 512, 1023, 1024, 40000, 65535} {
		mapped, err := p.both(insideA.port(port), outsideX)
		if err != nil {
			return "", err
		}
		if mapped != netip.AddrPortFrom(netip.MustParseAddr("203.0.113.8"), port) {
			return Outcome(fmt.Sprintf("%d became %v", port, mapped)), nil
		}
	}
	return "kept", nil
}

// clash has B use the port that A has at X.
func (p *Play) clash() (lost bool, err error) {
	if _, err := p.both(insideA, outsideX); err != nil {
		return false, err
	}
	_, err = p.out(insideB, outsideX)
	if Lost(err) {
		return true, nil
	}
	return false, err
}

func keepClash(p *Play) (Outcome, error) {
	lost, err := p.clash()
	if err != nil || !lost {
		return "served", err
	}
	counted, err := p.Failures()
	if err != nil || counted != 1 {
		return Outcome(fmt.Sprintf("lost, and counted %d times", counted)), err
	}
	mapped, err := p.both(insideB, outsideY)
	return yes(mapped.Port() == insideB.Port(), "lost and counted; kept at another", Outcome("as "+mapped.String())), err
}

// afterClash lets A's mapping end and then reads the mappings. The reading matters:
// the kernel does not check for ended connections when a single port is asked for
// (nf_nat_l4proto_unique_tuple in net/netfilter/nf_nat_core.c), and entering the new one
// fails until the ended one is gone, by the tracker's garbage collection within a
// minute or so, or when the table is listed (ctnetlink_dump_table).
func (p *Play) afterClash() error {
	if err := p.short(time.Second); err != nil {
		return err
	}
	if lost, err := p.clash(); err != nil || !lost {
		return errors.Join(errors.New("there is no clash"), err)
	}
	if err := p.Pass(1300 * time.Millisecond); err != nil {
		return err
	}
	if left, err := p.Mappings(); err != nil || len(left) > 0 {
		return errors.Join(fmt.Errorf("mappings that do not end: %+v", left), err)
	}
	return nil
}

func keepRecovers(p *Play) (Outcome, error) {
	if err := p.afterClash(); err != nil {
		return "", err
	}
	return p.keptAfter()
}

// keepLate has a packet come for the mapping that has ended before B tries again.
func keepLate(p *Play) (Outcome, error) {
	if err := p.afterClash(); err != nil {
		return "", err
	}
	if came, err := p.in(outsideX, netip.MustParseAddrPort("203.0.113.8:4000"), insideA); err != nil || came {
		return "A's mapping does not end", err
	}
	return p.keptAfter()
}

func (p *Play) keptAfter() (Outcome, error) {
	mapped, err := p.both(insideB, outsideX)
	if Lost(err) {
		return "lost", nil
	}
	return yes(mapped.Port() == insideB.Port(), "recovers", Outcome("as "+mapped.String())), err
}
