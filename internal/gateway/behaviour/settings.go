package behaviour

import (
	"cmp"
	"fmt"

	"github.com/natkit/natkit/internal/frame"
)

// settings are cases of what a file says beside its rules.
func settings() []Case {
	return []Case{
		{ID: "ttl", Requirement: "ttl", Asks: "what is forwarded by a WAN leaves with one TTL, whatever it had; other packets have one less than they came with",
			Gateway: "interfaces: {wan: wan, lan: [lan, dmz]}\nttl: 65\nnat:\n  - masquerade: {}\n", Run: func(p *Play) (Outcome, error) { return oneTTL(p, four, at(C, "172.17.0.2:5000")) }},
		{ID: "ttl-ipv6", Requirement: "ttl, NAT66", Asks: "the same of the hop limit",
			Gateway: "interfaces: {wan: wan, lan: [lan, dmz]}\nttl: 65\nipv6:\n  - masquerade: {}\n", Run: func(p *Play) (Outcome, error) { return oneTTL(p, six, at(C, "[fd00:2::2]:5000")) }},
		{ID: "helper-tftp", Requirement: "helpers", Asks: "what a server of TFTP answers from another port comes in, and nothing from others",
			Gateway: helped("tftp"), Run: func(p *Play) (Outcome, error) { return tftp(p, insideA) }},
		{ID: "helper-ftp", Requirement: "helpers", Asks: "what FTP announces is translated in its data, sequence numbers follow, and the connection that it announces comes in",
			Gateway: helped("ftp"), Run: ftpActive},
	}
}

// helped is a file with helpers.
func helped(helpers string) string {
	return "interfaces: {wan: wan, lan: [lan, dmz]}\nhelpers: " + helpers + "\nnat:\n  - snat: {from: 192.168.0.0/24, to: 203.0.113.40}\n"
}

// oneTTL sends packets with several TTLs out, back and to another network inside.
func oneTTL(p *Play, f ipFamily, c end) (Outcome, error) {
	came := func(from, to end, mapped end, ttl uint8) (uint8, error) {
		d := udp(from.AddrPort, mapped.AddrPort, []byte("data"))
		d.TTL = ttl
		sent, err := carry(p, from, to, d)
		if err != nil {
			return 0, err
		}
		return sent.got.Frame.IPv4.TTL + sent.got.Frame.IPv6.HopLimit, nil
	}
	outside := end{AddrPort: ap("203.0.113.1:4000")}
	if f.a.Addr().Is6() {
		outside = end{AddrPort: ap("[2001:db8:1::1]:4000")}
	}
	for _, c := range []struct {
		from, to, mapped end
		ttl, want        uint8
	}{{f.a, f.x, f.x, 2, 65}, {f.a, f.x, f.x, 128, 65}, {f.x, f.a, outside, 9, 8}, {f.a, c, c, 9, 8}} {
		if got, err := came(c.from, c.to, c.mapped, c.ttl); err != nil || got != c.want {
			return Outcome(fmt.Sprintf("a packet from %s to %s with TTL %d arrives with %d", c.from.host, c.to.host, c.ttl, got)), err
		}
	}
	return bothWays, nil
}

// tftp has a host ask for a file, and the server answer from another port.
func tftp(p *Play, from end) (Outcome, error) {
	server, data := outsideX.port(69), outsideX.port(6000)
	got, err := p.Exchange(from.host, X, UDPPacket(from.AddrPort, server.AddrPort, applications[69]))
	if err != nil {
		return "", err
	}
	mapped := got.Frame.Tuple().Src
	if came, err := p.in(outsideY.port(6000), mapped, from); err != nil || came {
		return "another server's answer comes in", err
	}
	if came, err := p.in(data, mapped, from); err != nil || !came {
		return "the answer does not come in", err
	}
	source, err := p.out(from, data)
	return yes(source == mapped, bothWays, Outcome(fmt.Sprintf("%v became %v, and then %v", from.AddrPort, mapped, source))), err
}

// switchedHelper is tftp while its helper is on, and when it is off.
func switchedHelper(p *Play) (Outcome, error) {
	if got, err := tftp(p, insideA); err != nil || got != bothWays {
		return "on: " + got, err
	}
	if err := p.change(DefaultGateway); err != nil {
		return "", err
	}
	got, err := tftp(p, insideB)
	return yes(got == "the answer does not come in", "on, and off", "off: "+got), err
}

// ftpActive has A announce the address and port at which it waits for the server's connection: outside it is of another
// length.
func ftpActive(p *Play) (Outcome, error) {
	const inside, announced = "PORT 192,168,0,2,19,137\r\n", "PORT 203,0,113,40,19,137\r\n"
	const data = frame.PSH | frame.ACK
	c := between(p, insideA, outsideX.port(21))
	err := inTurn(
		func() error { return c.open(&c.inside) },
		func() error { return c.say(&c.inside, data, "USER anonymous\r\n") }, // the kernel looks for commands behind the end of a line
	)
	if err != nil {
		return verdict("", err)
	}
	port, err := p.Exchange(A, X, c.segment(&c.inside, data, inside).bytes())
	if err != nil || string(port.Frame.Payload) != announced {
		return verdict("", cmp.Or(err, deviates("the announcement is not translated")))
	}
	seen, has := c.inside.next+uint32(len(announced)), c.inside.next+uint32(len(inside)) // what X acknowledges, and A sent
	c.outside.got, c.inside.next = seen, has
	ok, err := p.Exchange(X, A, c.segment(&c.outside, data, "200 ok\r\n").bytes())
	if err != nil || ok.Frame.TCP.AcknowledgmentNumber != has {
		return verdict("", cmp.Or(err, deviates("the acknowledgment is not translated")))
	}
	list, err := p.Exchange(A, X, c.segment(&c.inside, data, "LIST\r\n").bytes())
	if err != nil || list.Frame.TCP.SequenceNumber != seen {
		return verdict("", cmp.Or(err, deviates("the sequence number is not translated")))
	}
	d := toInside(p, outsideX.port(20), ap("203.0.113.40:5001"), at(A, "192.168.0.2:5001"))
	return verdict(bothWays, inTurn(func() error { return d.open(&d.outside) }, d.talk))
}
