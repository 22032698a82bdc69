package ebpf

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// model is a host with a plan: what programs and netfilter make of packets, slowly.
type model struct {
	plan     *gateway.Plan
	facts    gateway.Facts
	programs *compiled
	random   *rand.Rand
}

// route is by where a packet to an address leaves; empty for the host itself.
func (m *model) route(a netip.Addr) string {
	for _, r := range []struct{ prefix, out string }{{"203.0.113.1/32", ""}, {"203.0.113.2/32", ""}, {"203.0.113.11/32", ""}, {"10.0.0.1/32", ""}, {"10.0.1.1/32", ""}, {"198.18.0.1/32", ""},
		{"10.0.0.0/24", "lan0"}, {"10.0.1.0/24", "lan1"}, {"198.18.0.0/24", "wan1"}, {"198.51.100.128/25", "wan1"}} {
		if netip.MustParsePrefix(r.prefix).Contains(a) {
			return r.out
		}
	}
	return "wan0"
}

func (m *model) rolesOf(name string) plane.Roles {
	for _, i := range m.facts.Interfaces {
		if i.Name == name {
			return m.programs.roles.Of(i)
		}
	}
	panic(name)
}

// lookup is that of the programs: by port, by protocol, by address, by the longest prefix, in each as far as the
// interface has the role.
func lookup(table []plane.Mapping, a netip.Addr, protocol uint8, port uint16, roles plane.Roles) *plane.Mapping {
	for _, is := range []func(*plane.Mapping) bool{
		func(m *plane.Mapping) bool { return m.Protocol == protocol && m.Port != 0 && m.Port == port },
		func(m *plane.Mapping) bool { return m.Protocol == protocol && m.Port == 0 },
		func(m *plane.Mapping) bool { return m.Protocol == 0 },
	} {
		for i := range table {
			if m := &table[i]; m.Match == nat.Host(a) && is(m) && m.Roles&roles != 0 {
				return m
			}
		}
	}
	var longest *plane.Mapping
	for i := range table {
		if m := &table[i]; !m.Match.IsSingleIP() && m.Match.Contains(a) && (longest == nil || m.Match.Bits() > longest.Match.Bits()) {
			longest = m
		}
	}
	if longest != nil && longest.Roles&roles == 0 {
		return nil
	}
	return longest
}

// isOutside reports whether an address is one that the gateway has outside.
func (m *model) isOutside(a netip.Addr) bool {
	return nat.InAny(m.programs.Elsewhere, a) || slices.ContainsFunc(m.programs.Destinations, func(o plane.Mapping) bool { return o.Match.Contains(a) })
}

// run is what the programs make of a packet; false where they leave it to the stack.
func (m *model) run(p nat.Packet) (nat.Packet, bool) {
	in := m.rolesOf(p.In)
	q := p
	d := lookup(m.programs.Destinations, p.Dst, p.Protocol, p.DstPort, in)
	if d != nil {
		q.Dst = nat.Replace(p.Dst, d.To)
		if d.ToPort != 0 {
			q.DstPort = d.ToPort
		}
	} else if m.isOutside(p.Dst) {
		return p, false
	}
	if q.Out = m.route(q.Dst); q.Out == "" {
		return p, false
	}
	out := m.rolesOf(q.Out)
	hairpin := d != nil && in&out&plane.Inside != 0
	if out &^= plane.Inside; hairpin {
		out = plane.Inside
	}
	s := lookup(m.programs.Sources, p.Src, p.Protocol, p.SrcPort, out)
	switch {
	case s == nil && (hairpin || d == nil), hairpin && q.Dst == p.Src:
		return p, false
	case s != nil:
		q.Src = nat.Replace(p.Src, s.To)
		if s.ToPort != 0 {
			q.SrcPort = s.ToPort
		}
	}
	return q, true
}

// first is what netfilter makes of the first packet of a connection, for one of the ports that it may give. Stateless
// reports whether it is not tracked.
func (m *model) first(p nat.Packet) (q nat.Packet, stateless bool) {
	q = p
	for _, u := range m.plan.Untracked {
		back := p
		back.Src, back.Dst, back.SrcPort, back.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
		stateless = stateless || u.Matches(&p) || u.Matches(&back)
	}
	pair := -1
	for i, e := range m.plan.Stateless {
		if pair < 0 && e.HasOutside(p.Dst) && (len(e.Out) == 0 || nat.InNames(e.Out, p.In)) {
			pair, q.Dst, stateless = i, e.Inward(p.Dst), true
		}
	}
	for _, e := range m.plan.Stateless {
		out := m.route(p.Dst)
		stateless = stateless || e.HasInside(p.Src) && (len(e.Out) == 0 || nat.InNames(e.Out, out))
	}
	if !stateless {
		m.destination(&q)
	}
	if q.Out = m.route(q.Dst); q.Out == "" {
		return q, stateless
	}
	for _, e := range m.plan.Stateless {
		if e.HasInside(q.Src) && (len(e.Out) == 0 || nat.InNames(e.Out, q.Out)) {
			q.Src = e.Outward(q.Src)
			break
		}
	}
	if !stateless {
		m.source(&q)
	}
	return q, stateless
}

func (m *model) destination(q *nat.Packet) {
	for _, e := range m.plan.Destinations {
		if !e.Matches(q) {
			continue
		}
		q.OriginalDst, q.OriginalPort = q.Dst, q.DstPort
		a := &e.Action
		switch {
		case a.Kind == nat.Redirect:
			q.Dst = netip.MustParseAddr("10.0.0.1")
		case a.Pairs != "":
			q.Dst = e.Pairs().Inward(q.Dst)
		case a.Prefix.IsValid():
			q.Dst = nat.Replace(q.Dst, a.Prefix)
		default:
			b := a.Backends[m.random.IntN(len(a.Backends))]
			q.Dst = b.Address
			if b.Last != 0 {
				q.DstPort += b.Port - e.Ports[0].First
			} else if b.Port != 0 {
				q.DstPort = b.Port
			}
		}
		return
	}
}

func (m *model) source(q *nat.Packet) {
	for _, e := range m.plan.Sources {
		if e.IsHairpin() && !(q.OriginalDst.IsValid() && m.plan.Inside(q.In) && m.plan.Inside(q.Out)) || !e.Matches(q) {
			continue
		}
		a := &e.Action
		switch {
		case a.Kind == nat.Masquerade:
			for _, i := range m.facts.Interfaces {
				if i.Name == q.Out {
					q.Src = i.Addresses[0].Addr()
				}
			}
		case a.Pairs != "":
			q.Src = e.Pairs().Outward(q.Src)
		case a.Prefix.IsValid():
			q.Src = nat.Replace(q.Src, a.Prefix)
		default:
			r := a.To[m.random.IntN(len(a.To))]
			q.Src = r.At(uint64(m.random.Int64N(r.Size())))
		}
		shares := e.Rule.Kind == "masquerade" || e.Rule.Kind == "snat" || e.IsHairpin() && e.Original[0].Bits() > 0
		switch {
		case !nat.HasPorts(q.Protocol):
		case a.Ports != nat.Ports{}:
			q.SrcPort = a.Ports.First + uint16(m.random.IntN(a.Ports.Len()))
		case shares && m.random.IntN(2) == 0:
			q.SrcPort = m.port()
		}
		return
	}
}

var testPorts = []uint16{22, 80, 81, 8000, 8001, 8002, 8003, 9000, 9001, 9002, 9003, 33000, 40000}

func (m *model) port() uint16 { return testPorts[m.random.IntN(len(testPorts))] }

func (m *model) one(of ...string) string { return of[m.random.IntN(len(of))] }

func (m *model) address() netip.Addr {
	return netip.MustParseAddr(m.one("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.9", "10.0.1.2", "10.0.1.3", "198.51.100.1", "198.51.100.2", "198.51.100.129", "198.51.100.130",
		"203.0.113.1", "203.0.113.2", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.11", "198.18.0.1", "198.18.0.7", "10.0.0.1"))
}

func (m *model) packet() (p nat.Packet) {
	for {
		p.Protocol = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_GRE}[m.random.IntN(4)]
		p.Src, p.Dst, p.SrcPort, p.DstPort = m.address(), m.address(), 0, 0
		if p.Src.Is4() && slices.Contains([]byte{203, 198}, p.Src.As4()[0]) && p.Src.As4()[1] != 51 { // no client has one of the gateway's
			continue
		}
		if nat.HasPorts(p.Protocol) {
			p.SrcPort, p.DstPort = m.port(), m.port()
		}
		if p.In = m.route(p.Src); p.In != "" && p.Src != p.Dst {
			return p
		}
	}
}

// rules are those of a random file, as the words below its key.
func (m *model) rules() string {
	n := func(k int) int { return m.random.IntN(k) }
	inside := func() string { return m.one("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9", "10.0.1.2") }
	outside := func() string {
		return m.one("203.0.113.1", "203.0.113.2", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.11", "198.18.0.7")
	}
	some := func(share int, words string) string {
		if n(share) == 0 {
			return words
		}
		return ""
	}
	roles := n(6) != 0
	var b strings.Builder
	b.WriteString("gateway:\n  engine: ebpf\n")
	if roles {
		b.WriteString("  interfaces: " + m.one("{wan: wan0, lan: [lan0, lan1]}", "{wan: [wan0, wan1]}", "{wan: [wan0, wan1], lan: lan0}", "{wan: wan0}", "{lan: [lan0, lan1]}") + "\n")
	}
	hairpin := func() string {
		if !roles {
			return ""
		}
		return some(3, ", hairpin: on")
	}
	if n(3) > 0 {
		b.WriteString("  sets: {p: {pairs: [" + m.pairs() + "]}}\n  nat:\n    - static: {pairs: $p" + some(4, ", stateless: on") + some(6, m.one(", in: lan0", ", out: wan1", ", port: tcp/80")) + "}\n")
	} else {
		b.WriteString("  nat:\n")
	}
	for range 1 + n(5) {
		rule := ""
		switch n(9) {
		case 0, 1:
			rule = fmt.Sprintf("static: {inside: %s, outside: %s%s%s}", inside(), outside(), hairpin(), some(6, m.one(", in: lan0", ", out: wan1", ", in: wan1, out: wan1", ", port: tcp/80", ", only-to: 198.51.100.0/25")))
		case 2:
			rule = fmt.Sprintf("static: {inside: %s, outside: %s, stateless: on}", inside(), outside())
		case 3:
			rule = fmt.Sprintf("netmap: {inside: %s, outside: %s%s%s}", m.one("10.0.0.0/29", "10.0.1.0/29", "10.0.0.8/29"), m.one("203.0.113.8/29", "203.0.113.0/29", "198.18.0.0/29"), some(3, ", stateless: on"), some(4, ", out: wan1"))
		case 4, 5, 6:
			to := inside()
			port := m.one("", ", port: tcp/80", ", port: udp/80", ", port: tcp/22", ", port: [tcp/80, udp/80]", ", port: tcp", ", port: icmp", ", port: udp/33000", ", port: tcp/8000-8003", ", port: tcp/8000-8001")
			if strings.Contains(port, "/8000-8003") {
				to = m.one(to, to+":9000-9003")
			} else if strings.HasSuffix(port, "/80") || strings.HasSuffix(port, "/22") {
				to = m.one(to, to+":8001", to+":9001")
			}
			rule = fmt.Sprintf("dnat: {on: %s%s, to: %q%s%s}", m.one(outside(), outside(), outside(), "wan0", "10.0.0.1"), port, to, hairpin(), some(5, m.one(", from: 198.51.100.0/25", ", in: lan1", ", in: wan1")))
			if n(12) == 0 {
				rule = fmt.Sprintf("dnat: {on: any, in: %s, port: tcp/80, to: %q}", m.one("lan0", "lan1", "wan1"), m.one(inside(), ":22"))
			}
		case 7:
			rule = fmt.Sprintf("masquerade: {%s%s%s}", m.one("from: 10.0.0.0/24", "from: 10.0.0.0/16"), some(3, m.one(", out: wan0", ", out: wan1", ", out: lan0")), some(2, ", ports: 9000-9003"))
		case 8:
			rule = fmt.Sprintf("snat: {%s, to: %s%s%s}", m.one("from: 10.0.0.0/24", "from: 10.0.0.2", "from: 10.0.1.0/24"), m.one(outside(), outside(), "203.0.113.8-203.0.113.10"), some(3, m.one(", out: wan0", ", out: wan1")), some(2, ", ports: 9000-9003"))
			if n(4) == 0 {
				rule = fmt.Sprintf("notrack: {on: %s%s}", m.one(outside(), inside(), "198.51.100.1"), some(2, ", port: udp/80"))
			}
		}
		if n(10) == 0 && !strings.Contains(rule, "stateless") && !strings.HasPrefix(rule, "notrack") {
			rule = "{" + rule + ", log: on}"
		}
		b.WriteString("    - " + rule + "\n")
	}
	return b.String()
}

// pairs are a few, of different addresses on each side.
func (m *model) pairs() string {
	inside, outside := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9", "10.0.1.2"}, []string{"203.0.113.2", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.11", "198.18.0.7"}
	m.random.Shuffle(len(inside), func(i, j int) { inside[i], inside[j] = inside[j], inside[i] })
	m.random.Shuffle(len(outside), func(i, j int) { outside[i], outside[j] = outside[j], outside[i] })
	all := make([]string, 1+m.random.IntN(4))
	for i := range all {
		all[i] = outside[i] + " " + inside[i]
	}
	return strings.Join(all, ", ")
}

func text(p nat.Packet) string { return fmt.Sprintf("%s in %q out %q", p, p.In, p.Out) }

func answer(q nat.Packet) nat.Packet {
	return nat.Packet{Protocol: q.Protocol, Src: q.Dst, SrcPort: q.DstPort, Dst: q.Src, DstPort: q.SrcPort, In: q.Out}
}

func same(a, b nat.Packet) bool {
	return a.Src == b.Src && a.Dst == b.Dst && a.SrcPort == b.SrcPort && a.DstPort == b.DstPort
}

// TestWays: with random files and packets, what the programs translate netfilter translates alike, and each connection
// takes the same way in both directions: the programs undo what they did, and leave answers alone to what they did not
// translate.
func TestWays(t *testing.T) {
	const files, packets = 2000, 300
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &model{facts: testHost(), random: rand.New(rand.NewPCG(seed, 0))}
	claimed, forwarded, tracked := 0, 0, 0
	for range files {
		words := m.rules()
		f, err := gateway.Parse("f", []byte(words))
		if err != nil {
			t.Fatalf("%v\n%s", err, words)
		}
		if slices.ContainsFunc(gateway.Check(f, gateway.Facts{}), func(x gateway.Finding) bool { return x.Severity == gateway.Refuse }) {
			continue
		}
		if m.plan, err = gateway.Compile(&f.Config, m.facts); err != nil {
			t.Fatalf("%v\n%s", err, words)
		}
		mine, _, _ := Engine{}.Claim(m.plan, m.facts)
		if mine == nil {
			continue
		}
		claimed++
		m.programs = compile(mine)
		m.programs.Destinations = slices.Collect(plane.Each(m.programs.Destinations))
		m.programs.Sources = slices.Collect(plane.Each(m.programs.Sources))
		for range packets {
			by, wrong := m.connection()
			if wrong != "" {
				t.Fatalf("%s\n%s", wrong, words)
			}
			if by {
				forwarded++
			} else {
				tracked++
			}
		}
	}
	t.Logf("%d files, %d connections by programs, %d others", claimed, forwarded, tracked)
	if claimed < files/20 || forwarded < files {
		t.Error("too few")
	}
}

// connection plays a random one, and says what is wrong.
func (m *model) connection() (programs bool, wrong string) {
	p := m.packet()
	if m.random.IntN(8) == 0 {
		return false, m.own()
	}
	q, programs := m.run(p)
	if programs {
		if wrong = m.alike(p, q); wrong != "" {
			return programs, wrong
		}
		back, taken := m.run(answer(q))
		want := answer(p)
		if n, stateless := m.first(answer(q)); stateless && (!taken || same(n, back)) {
			return programs, "" // by pairs, which have no connections
		}
		if !taken || !same(back, want) || back.Out != p.In {
			return programs, fmt.Sprintf("%s becomes %s, its answer %s (%t)", text(p), text(q), text(back), taken)
		}
		return programs, ""
	}
	q, stateless := m.first(p)
	if q.Dst == p.Dst && m.isOutside(p.Dst) { // whoever is outside sends it back here: no other host has the address
		return programs, ""
	}
	if q.Out == "" || same(p, q) && !stateless { // what comes to a host by its own address is routed
		return programs, ""
	}
	back, taken := m.run(answer(q))
	if n, stateless := m.first(answer(q)); stateless && same(n, back) { // no connection has the answer
		return programs, ""
	}
	if taken {
		return programs, fmt.Sprintf("netfilter makes %s of %s, programs %s of the answer", text(q), text(p), text(back))
	}
	return programs, ""
}

// alike compares what programs made of a packet with what netfilter makes of it, as the first one of a connection or,
// where its source is that of a dnat, as an answer.
func (m *model) alike(p, q nat.Packet) string {
	if n, _ := m.first(p); same(n, q) && n.Out == q.Out || n.Src == n.Dst { // to itself
		return ""
	} else if back, _ := m.first(answer(q)); same(answer(back), p) && back.Out == p.In {
		return ""
	} else {
		return fmt.Sprintf("programs make %s of %s, netfilter %s, of the answer %s", text(q), text(p), text(n), text(back))
	}
}

// own is a connection of the host's own programs; its answers come to the host.
func (m *model) own() string {
	p := m.packet()
	if p.In = m.route(p.Dst); p.In == "" {
		return ""
	}
	for _, i := range m.facts.Interfaces {
		if i.Name == p.In {
			p.Src = i.Addresses[0].Addr()
		}
	}
	if p.SrcPort != 0 {
		p.SrcPort = 32768 + uint16(m.random.IntN(2000))
		if m.random.IntN(3) == 0 {
			p.SrcPort = 33000
		}
	}
	p.Out = p.In
	if back, taken := m.run(answer(p)); taken {
		if n, stateless := m.first(answer(p)); stateless && same(n, back) {
			return ""
		}
		return fmt.Sprintf("the host sends %s, programs make %s of the answer", text(p), text(back))
	}
	return ""
}
