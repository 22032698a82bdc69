package behaviour

import (
	"fmt"
	"strings"
	"time"
)

// conditions are what rules ask of a connection besides addresses, each with packets that match and some that do not.
func conditions() []Case {
	return append(append(conditionsOfPackets(), conditionsOfPlaces()...), conditionsOfPrograms()...)
}

// conditionsOfPackets are about what is in a packet, or known of it.
func conditionsOfPackets() []Case {
	const ef, af41 = 46, 34
	marked := func(h Host, mark uint32) step {
		return func(p *Play) (Outcome, error) { return bothWays, p.Mark(h, mark) }
	}
	return []Case{
		{ID: "condition-ports", Requirement: "port", Asks: "a list of services: single ports, ranges and protocols",
			Gateway: rules("  - masquerade: {}\n  - snat: {from: 192.168.0.0/24, port: [udp/53, udp/5000-5002, icmp], to: 203.0.113.8}"),
			Run: allSteps(outTo(insideA, outsideX.port(53), "203.0.113.8:4000"), outTo(insideA, outsideX.port(5002), "203.0.113.8:4000"),
				echoAs(insideA, "203.0.113.8"), outTo(insideA, outsideX.port(5003), "203.0.113.1:4000"))},
		{ID: "condition-ports-ipv6", Requirement: "port, NAT66", Asks: "the same with NAT66",
			Gateway: rules6("  - masquerade: {}\n  - snat: {from: \"fd00:1::/64\", port: [udp/53, udp/5000-5002], to: \"2001:db8:1::8\"}"),
			Run: allSteps(outTo(insideA6, outsideX6.port(53), "[2001:db8:1::8]:4000"), outTo(insideA6, outsideX6.port(5002), "[2001:db8:1::8]:4000"),
				outTo(insideA6, outsideX6.port(5003), "[2001:db8:1::1]:4000"))},
		{ID: "condition-except-port", Untranslated: true, Requirement: "except-port", Asks: "services that are left alone",
			Gateway: rules("  - masquerade: {except-port: [udp/53, udp/5000-5002]}"),
			Run: allSteps(outTo(insideA, outsideX.port(53), "192.168.0.2:4000"), outTo(insideA, outsideX.port(5001), "192.168.0.2:4000"),
				outTo(insideA, outsideX.port(54), "203.0.113.1:4000"))},
		{ID: "condition-except-from", Untranslated: true, Requirement: "except-from", Asks: "hosts that are left alone",
			Gateway: rules("  - masquerade: {except-from: [192.168.0.3, 10.0.0.0/8]}"),
			Run:     allSteps(outAs(insideB, "192.168.0.3:4000"), outAs(at(A, "10.1.0.2:4000"), "10.1.0.2:4000"), outAs(insideA, "203.0.113.1:4000"))},
		{ID: "condition-except-clients", Requirement: "except-from", Asks: "clients that a forward is not for",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/53, except-from: 198.18.1.0/24, to: 192.168.0.2}"),
			Run:     allSteps(inTo("203.0.113.7:53", at(A, "192.168.0.2:53")), notInFrom(outsideY, "203.0.113.7:53"))},
		{ID: "condition-destinations", Untranslated: true, Requirement: "only-to, except-to", Asks: "destinations that are translated, others that are not",
			Gateway: rules("  - masquerade: {except-to: 198.18.1.0/24}\n  - snat: {only-to: 198.18.0.8/29, to: 203.0.113.8}"),
			Run: allSteps(outAs(insideA, "203.0.113.8:4000"), outTo(insideA, at(X, "198.18.0.16:5000"), "203.0.113.1:4000"),
				outTo(insideA, outsideY, "192.168.0.2:4000"))},
		{ID: "condition-mark", Requirement: "mark", Asks: "packets that another program has marked, by the bits that the rule names",
			Gateway: rules("  - masquerade: {}\n  - snat: {mark: 0x20/0xf0, to: 203.0.113.8}\n  - snat: {mark: 0x31, to: 203.0.113.9}"),
			Run: allSteps(marked(A, 0x125), marked(B, 0x31), marked(C, 0x131), outAs(insideA, "203.0.113.8:4000"), outAs(insideB, "203.0.113.9:4000"),
				outAs(at(C, "172.17.0.2:4000"), "203.0.113.1:4000"))},
		{ID: "condition-except-mark", Untranslated: true, Requirement: "except-mark", Asks: "marks that are left alone",
			Gateway: rules("  - masquerade: {except-mark: [0x20/0xf0, 0x1]}"),
			Run: allSteps(marked(A, 0x125), marked(C, 0x1), outAs(insideA, "192.168.0.2:4000"), outAs(at(C, "172.17.0.2:4000"), "172.17.0.2:4000"),
				outAs(insideB, "203.0.113.1:4000"))},
		{ID: "condition-mark-forward", Requirement: "mark", Asks: "a forward for packets that another program has marked",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/53, to: 192.168.0.2}\n  - dnat: {on: 203.0.113.7, port: udp/53, mark: 0x7, to: 192.168.0.3}"),
			Run:     allSteps(marked(Y, 0x7), inTo("203.0.113.7:53", at(A, "192.168.0.2:53")), inFrom(outsideY, "203.0.113.7:53", at(B, "192.168.0.3:53")))},
		{ID: "condition-dscp", Requirement: "dscp", Asks: "the class of a connection's first packet; later ones of another class go on under the mapping",
			Gateway: rules("  - masquerade: {}\n  - snat: {dscp: [ef, 10], to: 203.0.113.8}"),
			Run: allSteps(classAs(ef, insideA, outsideX, "203.0.113.8:4000"), classAs(af41, insideA, outsideX, "203.0.113.8:4000"),
				classAs(10, insideB.port(4001), outsideX, "203.0.113.8:4001"), classAs(af41, insideA, outsideY, "203.0.113.1:4000"))},
		{ID: "condition-except-dscp", Untranslated: true, Requirement: "except-dscp", Asks: "classes that are left alone",
			Gateway: rules("  - masquerade: {except-dscp: ef}"),
			Run:     allSteps(classAs(ef, insideA, outsideX, "192.168.0.2:4000"), classAs(af41, insideA, outsideY, "203.0.113.1:4000"))},
		{ID: "condition-dscp-ipv6", Requirement: "dscp, NAT66", Asks: "the traffic class of IPv6",
			Gateway: rules6("  - masquerade: {}\n  - snat: {dscp: ef, to: \"2001:db8:1::8\"}"),
			Run:     allSteps(classAs(ef, insideA6, outsideX6, "[2001:db8:1::8]:4000"), classAs(af41, insideB6, outsideX6, "[2001:db8:1::1]:4000"))},
		{ID: "condition-hours", Requirement: "utc-hours", Asks: "connections that begin in some hours, or not in some",
			Gateway: rules(strings.NewReplacer("NOW", hours(-2), "LATER", hours(6)).Replace(
				"  - masquerade: {}\n  - snat: {from: 192.168.0.2, utc-hours: NOW, to: 203.0.113.8}\n  - snat: {from: 192.168.0.3, utc-hours: LATER, to: 203.0.113.8}\n" +
					"  - snat: {from: 192.168.0.4, except-utc-hours: NOW, to: 203.0.113.8}\n  - snat: {from: 192.168.0.5, except-utc-hours: LATER, to: 203.0.113.8}")),
			Run: timely},
		{ID: "condition-days", Requirement: "utc-days", Asks: "connections that begin on some days, or not on some",
			Gateway: rules(strings.NewReplacer("NOW", days(-1), "LATER", days(2)).Replace(
				"  - masquerade: {}\n  - snat: {from: 192.168.0.2, utc-days: NOW, to: 203.0.113.8}\n  - snat: {from: 192.168.0.3, utc-days: LATER, to: 203.0.113.8}\n" +
					"  - snat: {from: 192.168.0.4, except-utc-days: NOW, to: 203.0.113.8}\n  - snat: {from: 192.168.0.5, except-utc-days: LATER, to: 203.0.113.8}")),
			Run: timely},
		{ID: "condition-several", Requirement: "mark, dscp, port", Asks: "all conditions of a rule have to hold, and more of them are more specific",
			Gateway: rules("  - masquerade: {}\n  - snat: {mark: 0x1, to: 203.0.113.8}\n  - snat: {mark: 0x1, dscp: ef, to: 203.0.113.9}"),
			Run: allSteps(marked(A, 0x1), classAs(ef, insideA, outsideX, "203.0.113.9:4000"), classAs(af41, insideA, outsideY, "203.0.113.8:4000"),
				classAs(ef, insideB, outsideX, "203.0.113.1:4000"))},
	}
}

// timely is what hours and days say of four hosts.
var timely = allSteps(outAs(insideA, "203.0.113.8:4000"), outAs(insideB, "203.0.113.1:4000"),
	outAs(at(A, "192.168.0.4:4001"), "203.0.113.1:4001"), outAs(at(B, "192.168.0.5:4002"), "203.0.113.8:4002"))

// hours are five of a day that begin so many from now on, of which no case reaches the end.
func hours(from int) string {
	now := time.Now().UTC().Hour()
	return fmt.Sprintf("%02d:00-%02d:00", (now+from+24)%24, (now+from+5+24)%24)
}

// days are three, which begin so many from today on.
func days(from int) string {
	var all []string
	for n := range 3 {
		day := time.Now().UTC().AddDate(0, 0, from+n).Weekday()
		all = append(all, strings.ToLower(day.String()[:3]))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// conditionsOfPlaces are about where a connection comes in and goes out.
func conditionsOfPlaces() []Case {
	inDMZ := at(C, "172.17.0.2:4000")
	return []Case{
		{ID: "condition-in", Untranslated: true, Requirement: "in, except-in", Asks: "the interface by which a connection comes in",
			Gateway: rules("  - masquerade: {except-in: dmz}\n  - snat: {from: 192.168.0.0/31, in: lan, to: 203.0.113.7}\n  - snat: {from: 10.0.0.0/8, in: [lan], to: 203.0.113.8}"),
			Run:     allSteps(outAs(insideA, "203.0.113.1:4000"), outAs(inDMZ, "172.17.0.2:4000"), outAs(at(A, "10.1.0.2:4001"), "203.0.113.8:4001"))},
		{ID: "condition-in-forward", Requirement: "in, except-in", Asks: "a forward for what comes in by some interfaces",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/53, in: dmz, to: 192.168.0.2}\n  - dnat: {on: 203.0.113.8, port: udp/53, except-in: dmz, to: 192.168.0.2}"),
			Run: allSteps(inFrom(inDMZ, "203.0.113.7:53", at(A, "192.168.0.2:53")), notIn("203.0.113.7:53"),
				inTo("203.0.113.8:53", at(A, "192.168.0.2:53")), notInFrom(inDMZ, "203.0.113.8:53"))},
		{ID: "condition-out", Untranslated: true, Requirement: "out, except-out", Asks: "the interface by which a connection leaves",
			Gateway: "interfaces: {wan: wan, lan: [lan, dmz]}\nnat:\n  - masquerade: {from: 192.168.0.2, out: dmz}\n  - masquerade: {from: 192.168.0.3, except-out: dmz}\n",
			Run: allSteps(outTo(insideA, at(C, "172.17.0.2:5000"), "172.17.0.1:4000"), outAs(insideA, "192.168.0.2:4000"),
				outTo(insideB, at(C, "172.17.0.2:5000"), "192.168.0.3:4000"), outAs(insideB, "203.0.113.1:4000"))},
		{ID: "condition-pattern", Untranslated: true, Requirement: "interfaces", Asks: "`la*` stands for all interfaces whose names begin so, and not for others",
			Gateway: "interfaces: {wan: \"wa*\", lan: [\"la*\", dmz]}\nnat:\n  - masquerade: {in: \"la*\"}\n  - dnat: {on: wan, port: udp/53, to: 192.168.0.2}\n",
			Run: allSteps(outAs(insideA, "203.0.113.1:4000"), outAs(inDMZ, "172.17.0.2:4000"),
				inTo("203.0.113.1:53", at(A, "192.168.0.2:53")))},
		{ID: "condition-group", Requirement: "interfaces", Asks: "a link group, also of an interface that joins it later, until it leaves",
			Gateway: rules("  - masquerade: {}\n  - snat: {in: group 10, to: 203.0.113.8}\n  - dnat: {on: any, in: group 10, port: udp/53, to: 192.168.0.2}"),
			Run: allSteps(outAs(inDMZ, "203.0.113.1:4000"), grouped(DMZ, 10), outAs(inDMZ.port(4001), "203.0.113.8:4001"),
				inFrom(inDMZ, "198.18.0.10:53", at(A, "192.168.0.2:53")), outAs(insideA.port(4003), "203.0.113.1:4003"), grouped(DMZ, 0), outAs(inDMZ.port(4002), "203.0.113.1:4002"))},
	}
}

// grouped puts an interface into a link group.
func grouped(dev string, group uint32) step {
	return func(p *Play) (Outcome, error) { return bothWays, p.Group(dev, group) }
}

// conditionsOfPrograms are about who runs a program on the gateway.
func conditionsOfPrograms() []Case {
	return []Case{
		{ID: "condition-user", Requirement: "user", Asks: "what programs of a user on the gateway send; what is forwarded has no user",
			Gateway: rules("  - masquerade: {}\n  - snat: {user: [33, 1000-1999], to: 203.0.113.8}"),
			Run: allSteps(ownAs(Socket{User: 33}, "203.0.113.8"), ownAs(Socket{User: 1999}, "203.0.113.8"), ownAs(Socket{User: 2000}, "203.0.113.1"),
				outAs(insideA, "203.0.113.1:4000"))},
		{ID: "condition-except-user", Untranslated: true, Requirement: "except-user", Asks: "what other users' programs send, and nothing that is forwarded",
			Gateway: rules("  - snat: {except-user: [0, 33], to: 203.0.113.8}"),
			Run: allSteps(ownAs(Socket{User: 1000}, "203.0.113.8"), ownAs(Socket{User: 33}, "203.0.113.1"), ownAs(Socket{}, "203.0.113.1"),
				outAs(insideA, "192.168.0.2:4000"))},
		{ID: "condition-users-group", Requirement: "group, except-group", Asks: "the group of a program",
			Gateway: rules("  - snat: {group: 7, to: 203.0.113.8}\n  - snat: {port: udp/53, except-group: 7, to: 203.0.113.9}"),
			Run: allSteps(ownAs(Socket{Group: 7}, "203.0.113.8"), ownAs(Socket{}, "203.0.113.1"),
				programTo(Socket{Group: 8}, "198.18.0.10:53", outsideX.port(53), "203.0.113.9"), programTo(Socket{Group: 7}, "198.18.0.10:53", outsideX.port(53), "203.0.113.8"))},
		{ID: "condition-user-forward", Requirement: "user", Asks: "what programs of a user ask leads to a host inside (a proxy for them alone)",
			Gateway: rules("  - masquerade: {}\n  - dnat: {on: any, user: 33, port: udp/53, to: \"192.168.0.2:5353\"}"),
			Run: allSteps(programTo(Socket{User: 33}, "198.18.0.10:53", at(A, "192.168.0.2:5353"), ""),
				programTo(Socket{}, "198.18.0.10:53", outsideX.port(53), "203.0.113.1"), outTo(insideB, outsideX.port(53), "203.0.113.1:4000"))},
	}
}

// classAs is outTo for packets of a class (DSCP), which they keep.
func classAs(class uint8, from, to end, as string) step {
	return func(p *Play) (Outcome, error) {
		d := udp(from.AddrPort, to.AddrPort, []byte("data"))
		d.DSCP = class
		sent, err := carry(p, from, to, d)
		if err != nil {
			return "", err
		}
		f := &sent.got.Frame
		if mapped := f.Tuple().Src; mapped != ap(as) || f.IPv4.DSCP+f.IPv6.DSCP != class {
			return Outcome(fmt.Sprintf("%v with class %d became %v with %d", from.AddrPort, class, mapped, f.IPv4.DSCP+f.IPv6.DSCP)), nil
		}
		came, err := p.in(to, ap(as), from)
		return yes(came, bothWays, "the answer is lost"), err
	}
}

// echoAs has a host ping X, be seen under an address, and get the answer.
func echoAs(from end, address string) step {
	return func(p *Play) (Outcome, error) {
		f, err := flowEcho.start(p, from, outsideX)
		if err != nil {
			return "", err
		}
		return yes(f.mapped().Addr().String() == address, bothWays, Outcome(fmt.Sprintf("%v pings as %v", from.Addr(), f.mapped().Addr()))), nil
	}
}
