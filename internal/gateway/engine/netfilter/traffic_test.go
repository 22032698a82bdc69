package netfilter_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// engine remembers the gateway's namespace, for its counters.
type engine struct {
	apply func(*netns.Handle, *gateway.Plan) error
	ns    *netns.Handle
}

func (e *engine) Name() string { return behaviour.Netfilter }
func (e *engine) Apply(ns *netns.Handle, p *gateway.Plan) error {
	e.ns = ns
	return e.apply(ns, p)
}
func (e *engine) Remove(ns *netns.Handle) error { return netfilter.Remove(ns) }

// bed is a world with a plan in force. What a single rule of each kind of NAT does is
// the behaviour suite's; here are many of a kind, which share a map.
type bed struct {
	*testing.T
	behaviour.World
	*engine
}

// patience is for frames that come in any case, on a machine that others keep busy. One
// world at a time does with the threads that run on any machine.
const patience = 30 * time.Second

func newBed(t *testing.T, apply func(*netns.Handle, *gateway.Plan) error, file string) *bed {
	t.Helper()
	testutil.NeedRoot(t)
	b := &bed{T: t, engine: &engine{apply: apply}}
	var err error
	if b.World, err = behaviour.Namespaces(b.engine, testutil.Patience(patience), behaviour.Pairs)(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.World.Close() })
	b.use(file)
	return b
}

// use puts a file in force.
func (b *bed) use(file string) {
	b.Helper()
	f, err := gateway.Parse("test", []byte("gateway:\n  interfaces: {wan: wan, lan: [lan, dmz]}\n"+file))
	if err != nil {
		b.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, behaviour.Facts())
	if err != nil {
		b.Fatal(err)
	}
	if err := b.World.Apply(p); err != nil {
		b.Fatal(err)
	}
}

// send gives what arrives at to; checksums have to be right.
func (b *bed) send(from, to behaviour.Host, p []byte) []frame.Frame {
	b.Helper()
	arrivals, err := b.World.Send(from, p)
	if err != nil {
		b.Fatal(err)
	}
	var all []frame.Frame
	for _, a := range arrivals {
		if a.At != to {
			b.Errorf("arrived at %s: %+v", a.At, a.Frame)
			continue
		}
		if !a.Frame.IPChecksumOK() || a.Frame.TransportChecksum() == frame.ChecksumBad {
			b.Errorf("checksums are wrong: %+v", a.Frame)
		}
		all = append(all, a.Frame)
	}
	return all
}

// udp sends a datagram and gives its ends as they arrive; zero where nothing does.
func (b *bed) udp(from, to behaviour.Host, source, destination string) frame.Tuple {
	b.Helper()
	got := b.send(from, to, behaviour.UDPPacket(netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination), ""))
	if len(got) != 1 {
		return frame.Tuple{}
	}
	return got[0].Tuple()
}

// out wants a datagram from inside to be seen as from.
func (b *bed) out(source, destination, from string) {
	b.Helper()
	got := b.udp(behaviour.A, behaviour.X, source, destination)
	if got.Src.String() != from {
		b.Errorf("%s to %s is seen from %v, not %s", source, destination, got.Src, from)
	}
}

// in wants a datagram from outside to arrive at.
func (b *bed) in(source, destination, at string) {
	b.Helper()
	got := b.udp(behaviour.X, behaviour.A, source, destination)
	if got.Dst.String() != at {
		b.Errorf("%s to %s arrives for %v, not %s", source, destination, got.Dst, at)
	}
}

// countedAll compares what rules counted that share maps, where the kernel counts that.
func (b *bed) countedAll(want map[string]uint64) {
	b.Helper()
	if testutil.SetCounters.Probe() != nil {
		return
	}
	for ref, n := range want {
		if got := b.counted(ref); got != n {
			b.Errorf("%s counted %d, not %d", ref, got, n)
		}
	}
}

// counted is what the rules of a Ref counted.
func (b *bed) counted(ref string) (packets uint64) {
	b.Helper()
	s, err := netfilter.Read(b.engine.ns)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range s.Counts {
		if c.Rule != nil && c.Rule.String() == ref || c.What == ref {
			packets += c.Packets
		}
	}
	return packets
}

// TestManySources: rules of one shape, which differ by what their map has.
func TestManySources(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  nat:
    - snat: {from: 192.168.0.2, to: 203.0.113.7, ports: 1024-2047}
    - snat: {from: 192.168.0.4, to: 203.0.113.7, ports: 2048-3071}
    - snat: {from: 192.168.0.6, to: 203.0.113.8, ports: keep}
    - snat: {from: 192.168.0.8, to: 203.0.113.9, ports: keep}
    - snat: {from: 192.168.0.10, to: 203.0.113.10}
    - snat: {from: 192.168.0.12, to: 203.0.113.11}
    - masquerade: {from: 192.168.0.0/24}
  ipv6:
    - snat: {from: "fd00:1::2", to: "2001:db8:1::7", ports: 1024-2047}
    - snat: {from: "fd00:1::4", to: "2001:db8:1::7", ports: 2048-3071}
    - snat: {from: "fd00:1::6", to: "2001:db8:1::8", ports: keep}
    - snat: {from: "fd00:1::8", to: "2001:db8:1::9", ports: keep}
`)
	const x, x6 = "198.18.0.10:53", "[2001:db8:f:1::10]:53"
	for source, from := range map[string]string{
		"192.168.0.6:77": "203.0.113.8:77", "192.168.0.8:77": "203.0.113.9:77", "192.168.0.2:1500": "203.0.113.7:1500", "192.168.0.4:2500": "203.0.113.7:2500",
		"192.168.0.10:4000": "203.0.113.10:4000", "192.168.0.12:4000": "203.0.113.11:4000", "192.168.0.14:4000": "203.0.113.1:4000"} {
		b.out(source, x, from)
	}
	for source, from := range map[string]string{
		"[fd00:1::6]:77": "[2001:db8:1::8]:77", "[fd00:1::8]:77": "[2001:db8:1::9]:77", "[fd00:1::2]:1500": "[2001:db8:1::7]:1500", "[fd00:1::4]:2500": "[2001:db8:1::7]:2500"} {
		b.out(source, x6, from)
	}
	for source, first := range map[string]uint16{"192.168.0.2:80": 1024, "192.168.0.4:80": 2048} {
		if got := b.udp(behaviour.A, behaviour.X, source, x); got.Src.Port() < first || got.Src.Port() >= first+1024 {
			t.Errorf("%s has %v", source, got.Src)
		}
	}
	b.countedAll(map[string]uint64{"nat[0] snat": 2, "nat[2] snat": 1, "nat[5] snat": 1, "nat[6] masquerade": 1, "ipv6[3] snat": 1})
}

// TestEchoes: identifiers are what ports are, also where they are kept.
func TestEchoes(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  nat:
    - snat: {from: 192.168.0.2, to: 203.0.113.7, ports: 1024-2047}
    - snat: {from: 192.168.0.4, to: 203.0.113.7, ports: keep}
    - snat: {from: 192.168.0.6, to: 203.0.113.8, ports: keep}
`)
	for source, want := range map[string][2]uint16{"192.168.0.2": {1024, 2047}, "192.168.0.4": {5, 5}, "192.168.0.6": {5, 5}} {
		from, to := netip.MustParseAddr(source), netip.MustParseAddr("198.18.0.10")
		p := frame.IP{Source: from, Destination: to, Protocol: unix.IPPROTO_ICMP}.Append(nil,
			frame.AppendICMP(nil, from, to, frame.ICMP{Type: 8, Rest: 5 << 16}, []byte("x")))
		got := b.send(behaviour.A, behaviour.X, p)
		if len(got) != 1 || got[0].ICMP.Identifier() < want[0] || got[0].ICMP.Identifier() > want[1] || got[0].Source.Is4() && got[0].Source == from {
			t.Errorf("echo of %s: %+v", source, got)
		}
	}
}

func TestManyDestinations(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  nat:
    - dnat: {on: 203.0.113.7, port: udp/8080, to: "192.168.0.2:80"}
    - dnat: {on: 203.0.113.7, port: udp/8081, to: "192.168.0.4:81"}
    - dnat: {on: 203.0.113.7, port: udp/5000-5100, to: 192.168.0.6}
    - dnat: {on: 203.0.113.7, port: udp/6000-6999, to: 192.168.0.8}
    - dnat: {on: 203.0.113.8, port: udp/6000-6999, to: 192.168.0.10}
    - dnat: {on: 203.0.113.7, port: udp, to: 192.168.0.12}
    - static: {inside: 192.168.0.14, outside: 203.0.113.14}
    - static: {inside: 192.168.0.16, outside: 203.0.113.16}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - netmap: {inside: 10.1.1.0/24, outside: 198.51.101.0/24}
  ipv6:
    - dnat: {on: "2001:db8:1::7", port: udp/8080, to: "[fd00:1::2]:80"}
    - dnat: {on: "2001:db8:1::7", port: udp/8081, to: "[fd00:1::4]:81"}
`)
	for on, at := range map[string]string{
		"203.0.113.7:8080": "192.168.0.2:80", "203.0.113.7:8081": "192.168.0.4:81", "203.0.113.7:5000": "192.168.0.6:5000", "203.0.113.7:5100": "192.168.0.6:5100",
		"203.0.113.7:6999": "192.168.0.8:6999", "203.0.113.8:6000": "192.168.0.10:6000", "203.0.113.7:5101": "192.168.0.12:5101",
		"203.0.113.14:9": "192.168.0.14:9", "203.0.113.16:9": "192.168.0.16:9", "198.51.100.2:9": "10.1.0.2:9"} {
		b.in("198.18.0.10:4000", on, at)
	}
	for on, at := range map[string]string{"[2001:db8:1::7]:8080": "[fd00:1::2]:80", "[2001:db8:1::7]:8081": "[fd00:1::4]:81"} {
		b.in("[2001:db8:f:1::10]:4000", on, at)
	}
	b.out("192.168.0.14:500", "198.18.0.10:53", "203.0.113.14:500")
	b.out("10.1.0.2:500", "198.18.0.10:53", "198.51.100.2:500")
	b.countedAll(map[string]uint64{"nat[0] dnat": 1, "nat[2] dnat": 2, "nat[4] dnat": 1, "nat[6] static": 2, "nat[8] netmap": 2, "nat[9] netmap": 0})
}

// quoted are packets as ICMP errors quote them.
var quoted = map[string]func(frame.Tuple) []byte{
	"UDP": func(t frame.Tuple) []byte { return behaviour.UDPPacket(t.Src, t.Dst, "some text") },
	"UDP, with options": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_UDP, []byte{1, 1, 1, 1}, frame.AppendUDP(nil, t, []byte("odd"), false))
	},
	"UDP without checksum": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_UDP, nil, frame.AppendUDP(nil, t, []byte("odd"), t.Src.Addr().Is4()))
	},
	"TCP": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_TCP, nil, frame.AppendTCP(nil, t, frame.TCP{Flags: frame.SYN}, nil))
	},
	"TCP, cut": func(t frame.Tuple) []byte {
		return segment(t, unix.IPPROTO_TCP, nil, frame.AppendTCP(nil, t, frame.TCP{}, nil)[:8])
	},
	"echo": func(t frame.Tuple) []byte {
		kind, protocol := uint8(8), uint8(unix.IPPROTO_ICMP)
		if t.Src.Addr().Is6() {
			kind, protocol = 128, unix.IPPROTO_ICMPV6
		}
		return segment(t, protocol, nil, frame.AppendICMP(nil, t.Src.Addr(), t.Dst.Addr(), frame.ICMP{Type: kind, Rest: 7}, []byte("x")))
	},
}

// TestReapply: connections keep their translation, new ones get the new one.
func TestReapply(t *testing.T) {
	b := newBed(t, netfilter.Apply, "  nat: [{snat: {from: 192.168.0.0/24, to: 203.0.113.7}}]\n")
	b.out("192.168.0.2:500", "198.18.0.10:53", "203.0.113.7:500")
	b.use("  nat: [{snat: {from: 192.168.0.0/24, to: 203.0.113.8}}]\n")
	b.out("192.168.0.2:500", "198.18.0.10:53", "203.0.113.7:500")
	b.out("192.168.0.2:501", "198.18.0.10:53", "203.0.113.8:501")
	b.in("198.18.0.10:53", "203.0.113.7:500", "192.168.0.2:500")
	if err := netfilter.Remove(b.engine.ns); err != nil {
		t.Fatal(err)
	}
	if s, err := netfilter.Read(b.engine.ns); err != nil || s.Present {
		t.Errorf("after it was removed: %+v, %v", s, err)
	}
	if err := netfilter.Remove(b.engine.ns); err != nil {
		t.Errorf("removed again: %v", err)
	}
}

var sourcePort uint16 = 2000
