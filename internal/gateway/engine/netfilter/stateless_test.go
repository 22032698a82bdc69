package netfilter_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestNetmapByHand: what kernels before 5.8 get does the same.
func TestNetmapByHand(t *testing.T) {
	b := newBed(t, netfilter.ApplyByHand, `
  nat:
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - netmap: {inside: 192.168.0.0/26, outside: 203.0.113.64/26}
  ipv6: [{netmap: {inside: "fd00:1::/64", outside: "2001:db8:5::/64"}}]
`)
	b.out("10.1.0.2:500", "198.18.0.10:53", "198.51.100.2:500")
	b.in("198.18.0.10:4000", "198.51.100.2:9", "10.1.0.2:9")
	b.out("192.168.0.2:500", "198.18.0.10:53", "203.0.113.66:500")
	b.in("198.18.0.10:4000", "203.0.113.100:9", "192.168.0.36:9")
	b.out("[fd00:1::2]:500", "[2001:db8:f:1::10]:53", "[2001:db8:5::2]:500")
	b.in("[2001:db8:f:1::10]:4000", "[2001:db8:5::4]:9", "[fd00:1::4]:9")
}

// TestStatelessErrors: errors about packets that were translated without state name to
// each side its own addresses.
func TestStatelessErrors(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  nat:
    - static: {inside: 192.168.0.2, outside: 203.0.113.9, stateless: true}
    - static: {inside: 192.168.0.4, outside: 203.0.113.10, stateless: true}
  ipv6:
    - static: {inside: "fd00:1::2", outside: "2001:db8:1::9", stateless: true}
    - static: {inside: "fd00:1::4", outside: "2001:db8:1::a", stateless: true}
`)
	for _, f := range []struct {
		inside, outside, x string
		protocol, unreach  uint8
	}{{"192.168.0.4:500", "203.0.113.10:500", "198.18.0.10:53", unix.IPPROTO_ICMP, 3}, {"[fd00:1::4]:500", "[2001:db8:1::a]:500", "[2001:db8:f:1::10]:53", unix.IPPROTO_ICMPV6, 1}} {
		b.out(f.inside, f.x, f.outside)
		b.in(f.x, f.outside, f.inside)
		inside, outside, x := netip.MustParseAddrPort(f.inside), netip.MustParseAddrPort(f.outside), netip.MustParseAddrPort(f.x)
		for name, compose := range quoted {
			seen := compose(frame.Tuple{Src: outside, Dst: x})
			p := frame.IP{Source: x.Addr(), Destination: outside.Addr(), Protocol: f.protocol}.Append(nil,
				frame.AppendICMP(nil, x.Addr(), outside.Addr(), frame.ICMP{Type: f.unreach}, seen))
			b.quotes(name, b.send(behaviour.X, behaviour.A, p), inside.Addr(), x.Addr())
			came := compose(frame.Tuple{Src: x, Dst: inside})
			p = frame.IP{Source: inside.Addr(), Destination: x.Addr(), Protocol: f.protocol}.Append(nil,
				frame.AppendICMP(nil, inside.Addr(), x.Addr(), frame.ICMP{Type: f.unreach}, came))
			b.quotes(name, b.send(behaviour.A, behaviour.X, p), x.Addr(), outside.Addr())
		}
	}
	if m, err := b.World.Mappings(); err != nil || len(m) > 0 {
		t.Errorf("the tracker has %v, %v", m, err)
	}
}

func segment(t frame.Tuple, protocol uint8, options, payload []byte) []byte {
	return frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: protocol, Options: options}.Append(nil, payload)
}

// quotes wants one ICMP error about a packet between two addresses, all checksums
// right as far as that one is quoted.
func (b *bed) quotes(name string, got []frame.Frame, source, destination netip.Addr) {
	b.Helper()
	var inner frame.Frame
	if len(got) != 1 || got[0].Quoted(&inner) != nil || inner.Source != source || inner.Destination != destination ||
		!inner.IPChecksumOK() || inner.TransportChecksum() == frame.ChecksumBad && name != "UDP, with options" {
		b.Errorf("%s from %v to %v: %v %+v", name, source, destination, inner.TransportChecksum(), got)
	}
}

// TestStatelessNeighbours: who asks for the gateway's own address, which a prefix
// outside contains, is answered by it.
func TestStatelessNeighbours(t *testing.T) {
	b := newBed(t, netfilter.Apply, "  ipv6: [{netmap: {inside: 'fd00:1::/64', outside: '2001:db8:1::/64', stateless: on}}]\n")
	x, own := netip.MustParseAddr("2001:db8:1::fff1"), behaviour.WANAddress6.Addr()
	const solicitation, advertisement, linkAddress = 135, 136, 1
	option := []byte{linkAddress, 1, 0x02, 'n', 'a', 't', 0, 0x1a}
	got := b.send(behaviour.X, behaviour.X, frame.IP{Source: x, Destination: own, Protocol: unix.IPPROTO_ICMPV6, TTL: 255}.Append(nil,
		frame.AppendICMP(nil, x, own, frame.ICMP{Type: solicitation}, slices.Concat(own.AsSlice(), option))))
	if len(got) != 1 || got[0].ICMP.Type != advertisement {
		t.Errorf("a neighbour that asks for %v gets %+v", own, got)
	}
}

// invalid are packets that the tracker takes for invalid, as they belong to nothing that
// it knows, or are wrong to it.
var invalid = map[string]func(frame.Tuple) []byte{
	"a RST of no session": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_TCP, nil, frame.AppendTCP(nil, t, frame.TCP{Flags: frame.RST | frame.ACK}, nil))
	},
	"a SYN-ACK of no session": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_TCP, nil, frame.AppendTCP(nil, t, frame.TCP{Flags: frame.SYN | frame.ACK}, nil))
	},
	"an ICMP error about no session": func(t frame.Tuple) []byte {
		kind, protocol := uint8(3), uint8(unix.IPPROTO_ICMP)
		if t.Src.Addr().Is6() {
			kind, protocol = 1, unix.IPPROTO_ICMPV6
		}
		never := behaviour.UDPPacket(t.Dst, t.Src, "never sent")
		return segment(t, protocol, nil, frame.AppendICMP(nil, t.Src.Addr(), t.Dst.Addr(), frame.ICMP{Type: kind}, never))
	},
}

const leaky = `
  nat:
    - masquerade: {from: 192.168.0.0/29, except-to: [198.18.1.0/24]}
    - snat: {from: [192.168.0.16, 10.1.0.2], to: 203.0.113.7}
    - static: {inside: 192.168.0.32, outside: 203.0.113.9, hairpin: on}
    - static: {inside: 192.168.0.34, outside: 203.0.113.10, stateless: on}
    - notrack: {on: 192.168.0.4}
    - dnat: {on: 203.0.113.11, to: 192.168.0.40}
  ipv6:
    - masquerade: {from: "fd00:1::/124"}
`

// leakyHere is leaky as far as this kernel can do it.
func leakyHere() string {
	if testutil.Hairpin.Probe() != nil {
		return strings.ReplaceAll(leaky, ", hairpin: on", "")
	}
	return leaky
}

// TestUntranslatable: what the tracker takes for invalid, and what a rule would have had
// to translate, leaves by no interface that the rule is for. What no rule is for passes
// as ever.
func TestUntranslatable(t *testing.T) {
	b := newBed(t, netfilter.Apply, leakyHere())
	want := uint64(0)
	for _, c := range []struct {
		name, source, destination string
		from, to                  behaviour.Host
		drops                     bool
		seen                      string
	}{
		{"masqueraded", "192.168.0.2:4000", "198.18.0.10:80", behaviour.A, behaviour.X, true, ""},
		{"snat", "192.168.0.16:4000", "198.18.0.10:80", behaviour.A, behaviour.X, true, ""},
		{"the second host of a rule", "10.1.0.2:4000", "198.18.0.10:80", behaviour.A, behaviour.X, true, ""},
		{"static", "192.168.0.32:4000", "198.18.0.10:80", behaviour.A, behaviour.X, true, ""},
		{"IPv6", "[fd00:1::2]:4000", "[2001:db8:f:1::10]:80", behaviour.A, behaviour.X, true, ""},
		{"an excepted destination", "192.168.0.2:4000", "198.18.1.20:80", behaviour.A, behaviour.Y, false, "192.168.0.2"},
		{"another interface", "192.168.0.2:4000", "172.17.0.2:80", behaviour.A, behaviour.C, false, "192.168.0.2"},
		{"a host without a rule", "192.168.0.20:4000", "198.18.0.10:80", behaviour.A, behaviour.X, false, "192.168.0.20"},
		{"a server that only a dnat leads to", "192.168.0.40:4000", "198.18.0.10:80", behaviour.A, behaviour.X, false, "192.168.0.40"},
		{"IPv6 without a rule", "[fd00:1::20]:4000", "[2001:db8:f:1::10]:80", behaviour.A, behaviour.X, false, "fd00:1::20"},
		{"from outside", "198.18.0.10:80", "192.168.0.2:4000", behaviour.X, behaviour.A, false, "198.18.0.10"},
		{"not tracked", "192.168.0.4:4000", "198.18.0.10:80", behaviour.A, behaviour.X, false, "192.168.0.4"},
		{"stateless", "192.168.0.34:4000", "198.18.0.10:80", behaviour.A, behaviour.X, false, "203.0.113.10"},
	} {
		tuple := frame.Tuple{Src: netip.MustParseAddrPort(c.source), Dst: netip.MustParseAddrPort(c.destination)}
		for what, compose := range invalid {
			got := b.send(c.from, c.to, compose(tuple))
			switch {
			case c.drops && len(got) > 0:
				t.Errorf("%s, %s: left: %+v", c.name, what, got)
			case !c.drops && (len(got) != 1 || got[0].Source.String() != c.seen):
				t.Errorf("%s, %s: did not pass from %s: %+v", c.name, what, c.seen, got)
			}
			if c.drops {
				want++
			}
		}
	}
	if n := b.counted(netfilter.UntranslatableComment); n != want {
		t.Errorf("counted %d, not %d", n, want)
	}
	b.out("192.168.0.2:500", "198.18.0.10:53", "203.0.113.1:500")
	b.reports("192.168.0.2", "198.18.0.10", "192.168.0.34", "203.0.113.10") // stateless
	b.reports("192.168.0.2", "198.18.0.10", "192.168.0.4", "192.168.0.4")   // not tracked
	b.reports("192.168.0.2", "198.18.0.10", "192.168.0.6", "")
}

// TestUntranslatableListable: nft(8) shows the set of hosts that errors may be about,
// though it has no words to write such a rule.
func TestUntranslatableListable(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	b := newBed(t, netfilter.Apply, leakyHere())
	if text := b.program("nft", "list", "chain", "inet", netfilter.Table, "untranslatable"); !strings.Contains(text, "@th,192,32 @untracked4 accept") {
		t.Error(text)
	}
}

// reports wants an error of a router inside about a packet to a host to go out, about
// one to seen; empty is that it does not.
func (b *bed) reports(router, x, host, seen string) {
	b.Helper()
	from, to := netip.MustParseAddr(router), netip.MustParseAddr(x)
	about := behaviour.UDPPacket(netip.AddrPortFrom(to, 53), netip.AddrPortFrom(netip.MustParseAddr(host), 4000), "too large")
	tuple := frame.Tuple{Src: netip.AddrPortFrom(from, 0), Dst: netip.AddrPortFrom(to, 0)}
	got := b.send(behaviour.A, behaviour.X, segment(tuple, unix.IPPROTO_ICMP, nil, frame.AppendICMP(nil, from, to, frame.ICMP{Type: 3, Code: 4, Rest: 1280}, about)))
	var quoted frame.Frame
	switch {
	case seen == "" && len(got) > 0:
		b.Errorf("an error about %s left: %+v", host, got)
	case seen != "" && (len(got) != 1 || got[0].Quoted(&quoted) != nil || quoted.Destination.String() != seen):
		b.Errorf("the error about %s: %+v", host, got)
	}
}

// TestUntranslatableOfTheGateway: its own packets are none of this chain's. A server
// whose session the tracker has forgotten ends it by a FIN, and the RST that answers it
// spares the server to ask for long.
func TestUntranslatableOfTheGateway(t *testing.T) {
	b := newBed(t, netfilter.Apply, "  nat: [{masquerade: {}}]\n")
	tuple := frame.Tuple{Src: netip.MustParseAddrPort("198.18.0.10:80"), Dst: netip.MustParseAddrPort("203.0.113.1:4000")}
	fin := frame.AppendTCP(nil, tuple, frame.TCP{Flags: frame.FIN | frame.ACK}, nil)
	got := b.send(behaviour.X, behaviour.X, segment(tuple, unix.IPPROTO_TCP, nil, fin))
	if len(got) != 1 || got[0].TCP.Flags&frame.RST == 0 || got[0].Tuple().Src != tuple.Dst {
		t.Errorf("the gateway's RST did not arrive: %+v", got)
	}
	if n := b.counted(netfilter.UntranslatableComment); n != 0 {
		t.Errorf("counted %d", n)
	}
	if m, err := b.World.Mappings(); err != nil || len(m) > 0 {
		t.Errorf("neither is invalid: the tracker has %v, %v", m, err)
	}
}

// TestUntranslatableIsNotOfIPVS: answers of real servers are invalid to the tracker, which
// has seen no question to them, until IPVS gives them the service's address.
func TestUntranslatableIsNotOfIPVS(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPVS)
	testutil.NeedProgram(t, "ipvsadm")
	b := newBed(t, netfilter.Apply, "  nat: [{masquerade: {from: 192.168.0.0/24}}]\n")
	b.balance("203.0.113.1:80", "192.168.0.2:80")
	client, service, real := netip.MustParseAddrPort("198.18.0.10:4000"), netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("192.168.0.2:80")
	pass := func(from, to behaviour.Host, sent, want frame.Tuple, flags frame.TCPFlags) {
		t.Helper()
		got := b.send(from, to, segment(sent, unix.IPPROTO_TCP, nil, frame.AppendTCP(nil, sent, frame.TCP{Flags: flags, Window: 1000}, nil)))
		if len(got) != 1 || got[0].Tuple().Src != want.Src || got[0].Tuple().Dst != want.Dst {
			t.Errorf("%v became %+v, not %v", sent, got, want)
		}
	}
	pass(behaviour.X, behaviour.A, frame.Tuple{Src: client, Dst: service}, frame.Tuple{Src: client, Dst: real}, frame.SYN)
	pass(behaviour.A, behaviour.X, frame.Tuple{Src: real, Dst: client}, frame.Tuple{Src: service, Dst: client}, frame.SYN|frame.ACK)
	if n := b.counted(netfilter.UntranslatableComment); n != 0 {
		t.Errorf("counted %d", n)
	}
}

// balance makes a service of IPVS with one real server, by masquerading.
func (b *bed) balance(service, real string) {
	b.Helper()
	b.program("ipvsadm", "-A", "-t", service, "-s", "rr")
	b.program("ipvsadm", "-a", "-t", service, "-r", real, "-m")
}

// program runs one on the gateway, and gives what it says.
func (b *bed) program(name string, args ...string) string {
	b.Helper()
	var out []byte
	err := b.engine.ns.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		b.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}
