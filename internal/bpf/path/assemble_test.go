package path

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// functions of a kernel that is not there, by address.
var functions = map[uint64]bpf.Symbol{
	1: {Name: "ip_rcv"}, 2: {Name: "nf_hook_slow"}, 3: {Name: "nf_conntrack_in", Module: "nf_conntrack"},
	4: {Name: "ip_forward"}, 5: {Name: "dev_hard_start_xmit"}, 6: {Name: "tcp_v4_rcv"},
	7: {Name: "nf_hook_slow", Offset: 0x8a}, 8: {Name: "__copy_skb_header"},
}

func assembler1(limit int) *assembler {
	place := func(addr uint64) bpf.Symbol {
		if s, ok := functions[addr]; ok {
			return s
		}
		return new(bpf.Table).Place(addr)
	}
	return newAssembler(place, bpf.MakeReasons(map[uint32]string{5: "NETFILTER_DROP"}), time.Unix(1000, 0), limit)
}

// event makes one of packet 1, sk_buff 100, at a time in microseconds.
func event(kind pathKind, us, at uint64, more func(*pathEvent)) pathEvent {
	e := pathEvent{Kind: kind, Time: us * 1000, Packet: 1, Skb: 100, At: at, Netns: 7, Stack: 1 << 20}
	if more != nil {
		more(&e)
	}
	return e
}

// short is a way in one line for each step.
func short(p *snapshot.PacketPath) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%d %d %s #%d", s.Nanoseconds/1000, s.Depth, s.Event, s.Buffer)
		if s.Function != "" {
			b.WriteString(" " + s.Function)
		}
		if s.Offset != 0 {
			fmt.Fprintf(&b, "+%#x", s.Offset)
		}
		for _, word := range []string{s.Hook, s.Returned, s.Reason} {
			if word != "" {
				b.WriteString(" " + word)
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprint(&b, p.Verdict.Result, " ", p.Verdict.Function, " ", p.Verdict.Reason)
	return strings.TrimSpace(b.String())
}

func stack(sp uint64) func(*pathEvent) { return func(e *pathEvent) { e.Stack = sp } }

func returned(value int64, hook int) func(*pathEvent) {
	return func(e *pathEvent) {
		e.Value = value
		if hook >= 0 {
			e.Hook, e.HasHook, e.Pf = uint8(hook), 1, 2
		}
	}
}

func TestAssemble(t *testing.T) {
	const top = 1 << 20
	for _, tt := range []struct {
		name   string
		events []pathEvent
		want   string
	}{
		{"dropped by a hook", []pathEvent{
			event(pathKindSTEP, 0, 1, stack(top)),
			event(pathKindSTEP, 1, 2, stack(top-64)),
			event(pathKindSTEP, 2, 3, stack(top-256)),
			event(pathKindRESULT, 3, 3, returned(1, 0)),
			event(pathKindDROPPED, 4, 7, returned(5, -1)),
			event(pathKindRESULT, 5, 2, returned(-1, 0)),
		}, `0 0 call #1 ip_rcv
1 1 call #1 nf_hook_slow PRE_ROUTING DROP
2 2 call #1 nf_conntrack_in PRE_ROUTING ACCEPT
4 3 dropped #1 nf_hook_slow+0x8a NETFILTER_DROP
dropped nf_hook_slow NETFILTER_DROP`},
		{"a copy ends elsewhere, events come late", []pathEvent{
			event(pathKindSTEP, 0, 1, nil),
			event(pathKindSTEP, 9, 6, nil),
			event(pathKindCLONE, 3, 8, func(e *pathEvent) { e.Skb, e.Other = 200, 100 }),
			event(pathKindCONSUMED, 4, 0, func(e *pathEvent) { e.Skb = 200 }),
			event(pathKindFREED, 12, 0, nil),
		}, `0 0 call #1 ip_rcv
3 0 clone #2 __copy_skb_header
4 1 consumed #2
9 0 call #1 tcp_v4_rcv
12 1 freed #1
delivered tcp_v4_rcv`},
		{"sent", []pathEvent{
			event(pathKindSTEP, 0, 4, nil), event(pathKindSTEP, 1, 5, nil), event(pathKindCONSUMED, 2, 0, nil),
		}, "0 0 call #1 ip_forward\n1 0 call #1 dev_hard_start_xmit\n2 1 consumed #1\nsent dev_hard_start_xmit"},
		{"sent to another namespace, where nothing was seen of it but one call", []pathEvent{
			event(pathKindSTEP, 0, 5, nil), event(pathKindSTEP, 1, 1, func(e *pathEvent) { e.Netns = 8 }), event(pathKindCONSUMED, 2, 0, nil),
		}, "0 0 call #1 dev_hard_start_xmit\n1 0 call #1 ip_rcv\n2 1 consumed #1\nconsumed ip_rcv"},
		{"in a queue", []pathEvent{event(pathKindSTEP, 0, 4, nil)}, "0 0 call #1 ip_forward\nopen ip_forward"},
		{"an unknown function and reason", []pathEvent{
			event(pathKindSTEP, 0, 0xabc, nil), event(pathKindDROPPED, 1, 7, returned(99, -1)),
		}, "0 0 call #1 0xabc\n1 1 dropped #1 nf_hook_slow+0x8a reason 99\ndropped nf_hook_slow reason 99"},
		{"a return without a call", []pathEvent{
			event(pathKindSTEP, 0, 1, nil), event(pathKindRESULT, 1, 3, returned(2, -1)), event(pathKindCONSUMED, 2, 0, nil),
		}, "0 0 call #1 ip_rcv\n1 1 return #1 nf_conntrack_in STOLEN\n2 1 consumed #1\nconsumed ip_rcv"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := assembler1(1)
			for i := range tt.events {
				a.add(&tt.events[i])
			}
			got := a.ready(0)
			if len(got) != 1 || !a.finished() {
				t.Fatalf("%d packets", len(got))
			}
			if d := cmp.Diff(tt.want, short(got[0])); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestReady: a packet is complete a moment after it was freed, or when it has no more
// events; later events belong to no packet.
func TestReady(t *testing.T) {
	a := assembler1(2)
	step, freed := event(pathKindSTEP, 1000, 1, nil), event(pathKindFREED, 1001, 0, nil)
	other := event(pathKindSTEP, 1000, 4, func(e *pathEvent) { e.Packet = 2 })
	third := event(pathKindSTEP, 1000, 4, func(e *pathEvent) { e.Packet = 3 })
	for _, e := range []*pathEvent{&step, &other, &third, &freed} {
		a.add(e)
	}
	if got := a.ready(freed.Time); len(got) != 0 {
		t.Error("a packet is ready at once")
	}
	if got := a.ready(freed.Time + settle); len(got) != 1 || got[0].Number != 1 {
		t.Errorf("%d packets are ready after a moment, want the first", len(got))
	}
	a.add(&step) // late
	if got := a.ready(other.Time + idle); len(got) != 1 || got[0].Number != 2 || got[0].Verdict.Result != snapshot.PathOpen {
		t.Errorf("%d packets are ready after a second, want the other", len(got))
	}
	if !a.finished() {
		t.Error("it waits for more than two packets")
	}
	if at := time.Unix(1000, 0).Add(time.Millisecond); !a.path(&following{events: []pathEvent{step}}).Time.Equal(at) {
		t.Error("the time of day is wrong")
	}
}

// TestReusedAddress: an address that was freed and is copied to again is another
// sk_buff.
func TestReusedAddress(t *testing.T) {
	a := assembler1(1)
	to200 := func(e *pathEvent) { e.Skb = 200 }
	for i, kind := range []pathKind{pathKindSTEP, pathKindCLONE, pathKindFREED, pathKindCLONE, pathKindFREED} {
		e := event(kind, uint64(i), 1, nil)
		if i > 0 {
			to200(&e)
		}
		a.add(&e)
	}
	var buffers []int
	for _, s := range a.ready(0)[0].Steps {
		buffers = append(buffers, s.Buffer)
	}
	if d := cmp.Diff([]int{1, 2, 2, 3, 3}, buffers); d != "" {
		t.Error(d)
	}
}

func TestStepsAreBounded(t *testing.T) {
	a := assembler1(1)
	for i := range uint64(maxSteps + 10) {
		e := event(pathKindSTEP, i, 1, nil)
		a.add(&e)
	}
	if p := a.ready(0)[0]; len(p.Steps) != maxSteps || !p.Incomplete {
		t.Errorf("%d steps, incomplete %v", len(p.Steps), p.Incomplete)
	}
}

func TestNesting(t *testing.T) {
	var n nesting
	for i, tt := range []struct {
		cpu   uint32
		stack uint64
		want  int
	}{
		{0, 1000, 0}, {0, 900, 1}, {0, 800, 2},
		{0, 900, 1},              // the second returned, its caller called another
		{0, 950, 1},              // from a function with a smaller frame
		{0, 1000, 0},             // all returned
		{0, 500, 1}, {1, 400, 0}, // another processor
		{1, 300, 1}, {1, 300 + 1<<20, 0}, // another stack
	} {
		if got := n.depth(tt.cpu, tt.stack); got != tt.want {
			t.Errorf("%d: depth %d, want %d", i, got, tt.want)
		}
	}
}

func TestVerdictOf(t *testing.T) {
	for _, tt := range []struct {
		function string
		value    int64
		want     string
	}{
		{"nf_hook_slow", 1, "ACCEPT"}, {"nf_hook_slow", 0, "STOLEN or QUEUE"}, {"nf_hook_slow", -1, "DROP"},
		{"nf_conntrack_in", 1, "ACCEPT"}, {"nf_conntrack_in", 0, "DROP"}, {"nft_do_chain", 2, "STOLEN"},
		{"nft_do_chain", 3 | 7<<16, "QUEUE"}, {"ipt_do_table", -13 << 16, "DROP"}, {"nft_do_chain", 77, "77"},
	} {
		if got := verdictOf(tt.function, tt.value); got != tt.want {
			t.Errorf("%s returned %d: %s, want %s", tt.function, tt.value, got, tt.want)
		}
	}
}

func TestHookName(t *testing.T) {
	for _, tt := range []struct {
		pf, hook uint8
		want     string
	}{
		{unix.NFPROTO_IPV4, 0, "PRE_ROUTING"}, {unix.NFPROTO_IPV6, 4, "POST_ROUTING"}, {unix.NFPROTO_BRIDGE, 2, "bridge FORWARD"},
		{unix.NFPROTO_ARP, 0, "ARP_IN"}, {unix.NFPROTO_NETDEV, 0, "INGRESS"}, {unix.NFPROTO_IPV4, 9, "hook 9"},
	} {
		if got := hookName(tt.pf, tt.hook); got != tt.want {
			t.Errorf("pf %d, hook %d: %s, want %s", tt.pf, tt.hook, got, tt.want)
		}
	}
}

func TestAddresses(t *testing.T) {
	v4 := func(a, b, c, d byte) [4]uint32 { return [4]uint32{hostOrder([4]byte{a, b, c, d})} }
	v6 := [4]uint32{hostOrder([4]byte{0x20, 1, 0xd, 0xb8}), 0, 0, hostOrder([4]byte{0, 0, 0, 1})}
	for _, tt := range []struct {
		name string
		fill func(*pathEvent)
		want snapshot.PathAddresses
	}{
		{"tcp", func(e *pathEvent) {
			f := &e.Flow
			f.L3, f.Proto, f.Flags, f.Ttl = unix.ETH_P_IP, unix.IPPROTO_TCP, bpf.HasAddresses|bpf.HasPorts, 64
			f.Saddr, f.Daddr, f.Sport, f.Dport, f.TcpFlags = v4(198, 18, 0, 1), v4(198, 18, 0, 2), 1000, 80, 0x12
		}, snapshot.PathAddresses{Protocol: "tcp", Source: "198.18.0.1:1000", Destination: "198.18.0.2:80", TCPFlags: "SYN,ACK", TTL: 64}},
		{"later fragment", func(e *pathEvent) {
			f := &e.Flow
			f.L3, f.Proto, f.Flags = unix.ETH_P_IP, unix.IPPROTO_UDP, bpf.HasAddresses|bpf.IsFragment
			f.Saddr, f.Daddr = v4(198, 18, 0, 1), v4(198, 18, 0, 2)
		}, snapshot.PathAddresses{Protocol: "udp fragment", Source: "198.18.0.1", Destination: "198.18.0.2"}},
		{"icmp6", func(e *pathEvent) {
			f := &e.Flow
			f.L3, f.Proto, f.Flags, f.Saddr, f.Daddr = unix.ETH_P_IPV6, unix.IPPROTO_ICMPV6, bpf.HasAddresses, v6, v6
		}, snapshot.PathAddresses{Protocol: "icmp6", Source: "2001:db8::1", Destination: "2001:db8::1"}},
		{"gre", func(e *pathEvent) { e.Flow.L3, e.Flow.Proto = unix.ETH_P_IP, 47 }, snapshot.PathAddresses{Protocol: "gre"}},
		{"unknown", func(e *pathEvent) { e.Flow.L3 = 0x88cd }, snapshot.PathAddresses{Protocol: "ethertype 0x88cd"}},
		{"none yet", func(*pathEvent) {}, snapshot.PathAddresses{}},
	} {
		var e pathEvent
		tt.fill(&e)
		if d := cmp.Diff(tt.want, addresses(&e)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

// hostOrder is how the program reads four bytes of a packet.
func hostOrder(b [4]byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24 // amd64 and arm64
}

func TestDeviceName(t *testing.T) {
	for raw, want := range map[string]string{
		"eth0\x00rest": "eth0", "sixteen-letters!": "sixteen-letters!", "\x1b[31m": "?[31m", "": "", "a b": "a?b", "\xc3\xa9": "??",
	} {
		var name [16]int8
		for i := range min(len(raw), 16) {
			name[i] = int8(raw[i])
		}
		if got := deviceName(name); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}
