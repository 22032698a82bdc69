package behaviour

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway"

	"golang.org/x/sys/unix"
)

// step is one part of a case of a kind: it fails, or says that all went both ways.
type step func(*Play) (Outcome, error)

// allSteps does one step after the other, until one says something else than bothWays.
func allSteps(steps ...step) step {
	return func(p *Play) (Outcome, error) {
		for _, s := range steps {
			if got, err := s(p); err != nil || got != bothWays {
				return got, err
			}
		}
		return bothWays, nil
	}
}

// outAs has an inside host talk to X, be seen there as given, and get its answer.
func outAs(from end, as string) step { return outTo(from, outsideX, as) }

func outTo(from, to end, as string) step {
	return func(p *Play) (Outcome, error) {
		mapped, err := p.both(from, to)
		return yes(mapped == ap(as), bothWays, Outcome(fmt.Sprintf("%v became %v", from.AddrPort, mapped))), err
	}
}

// inTo has X talk to an outside address, reach a host inside, and get its answer from
// the address that it asked.
func inTo(on string, want end) step { return inFrom(outsideX, on, want) }

func inFrom(from end, on string, want end) step {
	return func(p *Play) (Outcome, error) {
		came, err := p.in(from, ap(on), want)
		if err != nil || !came {
			return Outcome(fmt.Sprintf("%v did not reach %v", on, want.AddrPort)), err
		}
		source, err := p.out(want, from)
		return yes(source == ap(on), bothWays, Outcome(fmt.Sprintf("%v answers as %v", on, source))), err
	}
}

// balanced has X open connections to an outside address, as many as hosts inside are to get
// of them, send on each a second time, and get an answer from the address that it asked.
func balanced(on string, want map[end]int) step {
	return func(p *Play) (Outcome, error) {
		client, got, n := outsideX, map[end]int{}, 0
		if ap(on).Addr().Is6() {
			client = outsideX6
		}
		for _, share := range want {
			n += share
		}
		for i := range n {
			from := client.port(uint16(4000 + i))
			first, err := p.reached(from, ap(on))
			if err != nil {
				return "", err
			}
			again, err := p.reached(from, ap(on))
			if err != nil || again != first {
				return Outcome(fmt.Sprintf("a second packet of %v went to %v after %v", from, again, first)), err
			}
			if source, err := p.out(first, from); err != nil || source != ap(on) {
				return Outcome(fmt.Sprintf("%v answers as %v", first, source)), err
			}
			got[first]++
		}
		return yes(maps.Equal(got, want), bothWays, Outcome(fmt.Sprintf("shares %v", got))), nil
	}
}

// byClient has many clients outside open connections to an outside address: those of each
// reach one host, and together they reach all.
func byClient(on string, hosts ...end) step {
	return func(p *Play) (Outcome, error) {
		clients := map[end]int{}
		for i := range byte(16) {
			from := end{X, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, 100 + i}), 4000)}
			first, err := p.reached(from, ap(on))
			if err != nil {
				return "", err
			}
			for port := range uint16(3) {
				if other, err := p.reached(from.port(5000+port), ap(on)); err != nil || other != first {
					return Outcome(fmt.Sprintf("%v reaches %v and %v", from, first, other)), err
				}
			}
			clients[first]++
		}
		for _, h := range hosts {
			if clients[h] == 0 {
				return Outcome(fmt.Sprintf("clients by host: %v", clients)), nil
			}
		}
		return yes(len(clients) == len(hosts), bothWays, Outcome(fmt.Sprintf("clients by host: %v", clients))), nil
	}
}

// reached is where inside a datagram to an outside address arrives.
func (p *Play) reached(from end, to netip.AddrPort) (end, error) {
	arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, to, ""))
	if err == nil && len(arrivals) != 1 {
		err = fmt.Errorf("%v to %v arrived: %s", from, to, arrivals)
	}
	if err != nil {
		return end{}, err
	}
	return end{arrivals[0].At, arrivals[0].Frame.Tuple().Dst}, nil
}

// notIn has X talk to an outside address that maps to no host.
func notIn(on string) step { return notInFrom(outsideX, on) }

func notInFrom(from end, on string) step {
	return func(p *Play) (Outcome, error) {
		arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, ap(on), ""))
		for i := range arrivals {
			if arrivals[i].At != from.host {
				return Outcome(on + " reaches " + arrivals.String()), err
			}
		}
		return bothWays, err
	}
}

// hairpinTo is hairpinAs for what forwardHairpin forwards.
func hairpinTo(from end) step {
	return hairpinAs(from, forwarded.String(), at(A, "192.168.0.2:80"))
}

// hairpinAs has an inside host reach another one by an outside address, be seen there
// under that address, and get its answer from it.
func hairpinAs(from end, on string, want end) step {
	return func(p *Play) (Outcome, error) {
		got, err := p.across(from, ap(on), want.host)
		if err != nil {
			return "", err
		}
		t := got.Frame.Tuple()
		if t.Dst != want.AddrPort || t.Src.Addr() != ap(on).Addr() {
			return Outcome(fmt.Sprintf("%v to %s came as %v to %v", from.AddrPort, on, t.Src, t.Dst)), nil
		}
		back, err := p.across(want, t.Src, from.host)
		if err != nil {
			return "", err
		}
		t = back.Frame.Tuple()
		return yes(t.Src == ap(on) && t.Dst == from.AddrPort, bothWays, Outcome(fmt.Sprintf("the answer came as %v to %v", t.Src, t.Dst))), nil
	}
}

// leased has A open a port, as its router would answer it: it leads to A, also from inside, beside a forward and what A sends
// itself, until it is closed.
func leased(p *Play) (Outcome, error) {
	const on, own = "203.0.113.1:5000", "192.168.0.2:80"
	lend := func(leases ...gateway.Lease) error {
		plan := *p.Plan
		plan.Leases = leases
		return p.Apply(&plan)
	}
	err := lend(gateway.Lease{Protocol: unix.IPPROTO_UDP, External: ap(on), Internal: ap(own), Expires: time.Now().Add(24 * time.Hour)})
	if err != nil {
		return "", err
	}
	got, err := allSteps(inTo(on, at(A, own)), notIn("203.0.113.1:5002"), inTo("203.0.113.1:5001", at(B, "192.168.0.3:81")),
		hairpinAs(insideB, on, at(A, own)), hairpinAs(at(C, "172.17.0.2:4000"), on, at(A, own)), outAs(insideA, "203.0.113.1:4000"))(p)
	if err != nil || got != bothWays {
		return got, err
	}
	if err := lend(); err != nil {
		return "", err
	}
	return notInFrom(outsideX.port(4999), on)(p) // which the tracker does not know
}

// across is Exchange between hosts inside. The router may inform the sender, by an ICMPv6
// redirect, that the host which it reached is in its own network (RFC 4861, section
// 8.2); Linux does so for IPv6.
func (p *Play) across(from end, to netip.AddrPort, host Host) (*Arrival, error) {
	arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, to, ""))
	if err != nil {
		return nil, err
	}
	const redirect = 137
	there := slices.DeleteFunc(slices.Clone(arrivals), func(a Arrival) bool {
		return a.At == from.host && a.Frame.Transport == unix.IPPROTO_ICMPV6 && a.Frame.ICMP.Type == redirect
	})
	if len(there) != 1 || there[0].At != host {
		return nil, fmt.Errorf("%v to %v arrived: %s", from, to, arrivals)
	}
	return &there[0], nil
}

// opensTo has X open a connection of TCP to an outside address, and talk with a host inside.
func opensTo(on string, want end) step {
	return func(p *Play) (Outcome, error) {
		c := toInside(p, outsideX, ap(on), want)
		return verdict(bothWays, inTurn(func() error { return c.open(&c.outside) }, c.talk))
	}
}

// redirected has a host ask another one, a program on the gateway hear that at a port, and its answer come back as from
// whom was asked.
func redirected(from end, on string, port uint16) step {
	return func(p *Play) (Outcome, error) {
		program, err := p.Program(Socket{Port: port})
		if err != nil {
			return "", err
		}
		defer program.Close()
		arrivals, err := p.Send(from.host, UDPPacket(from.AddrPort, ap(on), "question"))
		if err != nil || len(arrivals) > 0 {
			return Outcome(fmt.Sprintf("%s of %v arrived: %s", on, from, arrivals)), err
		}
		payload, asks, ok, err := program.Receive()
		if err != nil || !ok || payload != "question" || asks != from.AddrPort {
			return Outcome(fmt.Sprintf("the program heard %q of %v", payload, asks)), err
		}
		arrivals, err = program.Send(asks, "answer")
		if err != nil || len(arrivals) != 1 || arrivals[0].At != from.host {
			return Outcome("the answer arrived: " + arrivals.String()), err
		}
		t := arrivals[0].Frame.Tuple()
		return yes(t.Src == ap(on) && t.Dst == from.AddrPort, bothWays, Outcome(fmt.Sprintf("the answer came as %v to %v", t.Src, t.Dst))), nil
	}
}

// localTo has a program on the gateway reach a host inside by an outside address.
func localTo(on string, want end) step { return programTo(Socket{}, on, want, "") }

// ownAs has a program on the gateway talk to X, and be seen there under an address.
func ownAs(s Socket, address string) step {
	return programTo(s, outsideX.String(), outsideX, address)
}

// programTo has a program on the gateway talk to an address, reach a host by it, be seen there under an address (empty:
// under any) and get the answer from whom it asked.
func programTo(s Socket, on string, want end, as string) step {
	return func(p *Play) (_ Outcome, err error) {
		program, err := p.Program(s)
		if err != nil {
			return "", err
		}
		defer program.Close()
		arrivals, err := program.Send(ap(on), "from the gateway")
		if err != nil || len(arrivals) != 1 || arrivals[0].At != want.host {
			return Outcome("arrived: " + arrivals.String()), err
		}
		if t := arrivals[0].Frame.Tuple(); t.Dst != want.AddrPort || as != "" && t.Src.Addr() != netip.MustParseAddr(as) {
			return Outcome(fmt.Sprintf("arrived as %v for %v", t.Src.Addr(), t.Dst)), nil
		}
		if _, err := p.Send(want.host, arrivals[0].Back("answer")); err != nil {
			return "", err
		}
		payload, from, ok, err := program.Receive()
		return yes(ok && payload == "answer" && from == ap(on), bothWays, Outcome(fmt.Sprintf("answer %q from %v", payload, from))), err
	}
}

// untracked sees that there is no mapping of UDP.
func untracked(p *Play) (Outcome, error) {
	mappings, err := p.Mappings()
	for _, m := range mappings {
		if m.Protocol == unix.IPPROTO_UDP {
			return Outcome(fmt.Sprintf("tracked: %v as %v", m.Inside, m.Outside)), err
		}
	}
	return bothWays, err
}

func lowPorts(p *Play) (Outcome, error) {
	for _, port := range []uint16{1, 53, 500, 1023, 1024, 65535} {
		mapped, err := p.both(insideA.port(port), outsideX)
		if err != nil {
			return "", err
		}
		want := netip.MustParseAddr("203.0.113.7")
		if mapped.Addr() != want || mapped.Port() < 1024 || port >= 1024 && mapped.Port() != port {
			return Outcome(fmt.Sprintf("%d became %v", port, mapped)), nil
		}
	}
	return bothWays, nil
}

// notrackPort is about udp/53 of one of A's addresses, as the server's port.
func notrackPort(p *Play) (Outcome, error) {
	server := at(A, "192.168.0.4:53")
	came, err := p.in(outsideX, server.AddrPort, server)
	if err != nil || !came {
		return "the port is not reached", err
	}
	return allSteps(outAs(server, server.AddrPort.String()), untracked, outAs(server.port(54), "203.0.113.1:54"))(p)
}
