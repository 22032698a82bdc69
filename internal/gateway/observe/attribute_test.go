package observe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// entry is a connection, by its first packet and what an answer to it looks like.
func entry(t testing.TB, proto, orig, reply string) *conntrack.Entry {
	t.Helper()
	tuple := func(text string) conntrack.Tuple {
		src, dst, ok := strings.Cut(text, " > ")
		if !ok {
			t.Fatal(text)
		}
		s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
		number, _ := gateway.Port{Protocol: proto}.Number()
		return conntrack.Tuple{Src: s.Addr(), Dst: d.Addr(), Proto: number, SrcPort: s.Port(), DstPort: d.Port()}
	}
	return &conntrack.Entry{Family: unix.AF_INET, Orig: tuple(orig), Reply: tuple(reply)}
}

func TestAttribute(t *testing.T) {
	p := compile(t, manyKinds, router)
	a := Attribute(p)
	for _, c := range []struct{ name, proto, orig, reply, source, destination string }{
		{"nothing translated", "tcp", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 192.168.0.9:4000", "", ""},
		{"masquerade", "tcp", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.1:4000", "nat[0] masquerade", ""},
		{"masquerade is not for what it excepts", "tcp", "192.168.0.9:4000 > 10.9.0.1:80", "10.9.0.1:80 > 203.0.113.1:4000", "", ""},
		{"the longest prefix", "tcp", "192.168.0.2:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.7:4000", "nat[1] snat", ""},
		{"another rule than what is in force now made it", "tcp", "192.168.0.2:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.200:4000", "nat[0] masquerade", ""},
		{"pool, another port", "udp", "10.0.7.7:4000 > 198.18.0.1:53", "198.18.0.1:53 > 203.0.113.12:5001", "nat[2] snat", ""},
		{"not of the pool", "udp", "10.0.7.7:4000 > 198.18.0.1:53", "198.18.0.1:53 > 203.0.113.16:5001", "", ""},
		{"one port", "tcp", "198.18.0.1:4000 > 203.0.113.7:8080", "172.17.0.2:80 > 198.18.0.1:4000", "", "nat[3] dnat"},
		{"a range of ports, and from", "udp", "198.51.100.1:4000 > 203.0.113.7:5550", "172.17.0.3:5550 > 198.51.100.1:4000", "", "nat[4] dnat"},
		{"a range of ports, from another host", "udp", "198.18.0.1:4000 > 203.0.113.7:5550", "172.17.0.3:5550 > 198.18.0.1:4000", "", ""},
		{"beside the range, in its block", "udp", "198.51.100.1:4000 > 203.0.113.7:5601", "172.17.0.4:5601 > 198.51.100.1:4000", "", "nat[7] dnat"},
		{"hairpin", "tcp", "192.168.0.9:4000 > 203.0.113.7:8080", "172.17.0.2:80 > 203.0.113.7:4000", "nat[3] dnat", "nat[3] dnat"},
		{"hairpin, with a pool of one's own", "tcp", "192.168.0.2:4000 > 203.0.113.9:22", "192.168.0.3:22 > 203.0.113.7:4000", "nat[1] snat", "nat[5] static"},
		{"static, both ways", "tcp", "192.168.0.3:4000 > 203.0.113.9:22", "192.168.0.3:22 > 203.0.113.9:4000", "nat[5] static", "nat[5] static"},
		{"netmap out", "icmp", "10.1.0.77:0 > 198.18.0.1:0", "198.18.0.1:0 > 198.51.100.77:0", "nat[6] netmap", ""},
		{"netmap in", "gre", "198.18.0.1:0 > 198.51.100.77:0", "10.1.0.77:0 > 198.18.0.1:0", "", "nat[6] netmap"},
		{"netmap of another host", "gre", "198.18.0.1:0 > 198.51.100.77:0", "10.1.0.78:0 > 198.18.0.1:0", "", ""},
	} {
		source, destination := a.Of(entry(t, c.proto, c.orig, c.reply))
		if text(source) != c.source || text(destination) != c.destination {
			t.Errorf("%s: source %q, destination %q; want %q, %q", c.name, text(source), text(destination), c.source, c.destination)
		}
	}
}

const manyConditions = roles + `
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - snat: {from: 192.168.0.0/16, only-to: 198.18.0.0/24, port: [tcp/443, udp/443], to: 203.0.113.8}
    - snat: {from: 192.168.0.0/16, mark: 0x10, to: 203.0.113.9}
    - snat: {from: 192.168.0.0/16, dscp: ef, except-from: 192.168.0.7, except-port: tcp/25, to: 203.0.113.10}
    - dnat: {on: 203.0.113.1, port: tcp/8000-8010, to: "192.168.0.2:9000-9010"}
    - dnat: {on: any, in: lan, port: tcp/http, to: ":3128"}
    - dnat: {on: 203.0.113.2, except-from: 198.18.0.0/24, except-port: udp/53, to: 192.168.0.3}
    - masquerade: {from: 192.168.0.0/16, user: 33}`

// TestAttributeConditions: an entry shows addresses and ports; what else rules ask for is not held against them.
func TestAttributeConditions(t *testing.T) {
	a := Attribute(compile(t, manyConditions, router))
	for _, c := range []struct{ name, proto, orig, reply, source, destination string }{
		{"destination and service", "tcp", "192.168.0.9:4000 > 198.18.0.1:443", "198.18.0.1:443 > 203.0.113.8:4000", "nat[1] snat", ""},
		{"another service", "tcp", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.1:4000", "nat[0] masquerade", ""},
		{"another destination", "tcp", "192.168.0.9:4000 > 198.18.1.1:443", "198.18.1.1:443 > 203.0.113.1:4000", "nat[0] masquerade", ""},
		{"the mark is not seen", "tcp", "192.168.0.9:4000 > 198.18.1.1:443", "198.18.1.1:443 > 203.0.113.9:4000", "nat[2] snat", ""},
		{"nor the DSCP", "tcp", "192.168.0.9:4000 > 198.18.1.1:443", "198.18.1.1:443 > 203.0.113.10:4000", "nat[3] snat", ""},
		{"an excepted host", "tcp", "192.168.0.7:4000 > 198.18.1.1:443", "198.18.1.1:443 > 203.0.113.10:4000", "nat[0] masquerade", ""},
		{"an excepted service", "tcp", "192.168.0.9:4000 > 198.18.1.1:25", "198.18.1.1:25 > 203.0.113.10:4000", "nat[0] masquerade", ""},
		{"a masquerade of a user is not surely it", "tcp", "192.168.0.9:4000 > 198.19.1.1:443", "198.19.1.1:443 > 203.0.113.1:4000", "nat[0] masquerade", ""},
		{"a port at its place", "tcp", "198.18.1.1:4000 > 203.0.113.1:8003", "192.168.0.2:9003 > 198.18.1.1:4000", "", "nat[4] dnat"},
		{"a port at another place", "tcp", "198.18.1.1:4000 > 203.0.113.1:8003", "192.168.0.2:9004 > 198.18.1.1:4000", "", ""},
		{"redirected", "tcp", "192.168.0.9:4000 > 198.18.1.1:80", "192.168.0.1:3128 > 192.168.0.9:4000", "", "nat[5] dnat"},
		{"but for some", "tcp", "198.18.1.1:4000 > 203.0.113.2:80", "192.168.0.3:80 > 198.18.1.1:4000", "", "nat[6] dnat"},
		{"one of these", "tcp", "198.18.0.1:4000 > 203.0.113.2:80", "192.168.0.3:80 > 198.18.0.1:4000", "", ""},
		{"an excepted service of the address", "udp", "198.18.1.1:4000 > 203.0.113.2:53", "192.168.0.3:53 > 198.18.1.1:4000", "", ""},
	} {
		source, destination := a.Of(entry(t, c.proto, c.orig, c.reply))
		if text(source) != c.source || text(destination) != c.destination {
			t.Errorf("%s: source %q, destination %q; want %q, %q", c.name, text(source), text(destination), c.source, c.destination)
		}
	}
}

// What a rule gave once, and would not give to a new connection, is not its own any more.
func TestAttributeOfNew(t *testing.T) {
	const rules = roles + `
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - netmap: {inside: 192.168.7.0/24, outside: 198.51.100.0/24}
    - dnat: {on: 203.0.113.7, port: tcp/80-90, to: 172.17.0.2}
    - dnat: {on: 203.0.113.7, port: tcp/80, to: 172.17.0.3}
    - dnat: {on: 203.0.113.8, to: 172.17.0.2, hairpin: true}
    - dnat: {on: 203.0.113.8, port: tcp/80, to: 172.17.0.3}`
	facts := router
	facts.Interfaces = slices.Clone(router.Interfaces)
	facts.Interfaces[1].Addresses = append(slices.Clone(facts.Interfaces[1].Addresses), prefixes("203.0.113.9/32", "198.18.5.1/24")...)
	a := Attribute(compile(t, rules, facts)).OfNew(&facts)
	for _, c := range []struct{ name, orig, reply, source, destination string }{
		{"masquerade", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.1:4000", "nat[0] masquerade", ""},
		{"the address of another network", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 198.18.5.1:4000", "nat[0] masquerade", ""},
		{"an address that is gone", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.77:4000", "", ""},
		{"an address that is not the first of its network", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.2:4000", "", ""},
		{"an address without a network", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.9:4000", "", ""},
		{"an address of another interface", "192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 192.168.0.1:4000", "", ""},
		{"netmap", "192.168.7.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 198.51.100.9:4000", "nat[1] netmap", ""},
		{"masquerade where netmap is first", "192.168.7.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.1:4000", "", ""},
		{"a range of ports", "198.18.0.1:4000 > 203.0.113.7:81", "172.17.0.2:81 > 198.18.0.1:4000", "", "nat[2] dnat"},
		{"a range of ports where one port is first", "198.18.0.1:4000 > 203.0.113.7:80", "172.17.0.2:80 > 198.18.0.1:4000", "", ""},
		{"by other interfaces than the first one", "198.18.0.1:4000 > 203.0.113.8:80", "172.17.0.2:80 > 198.18.0.1:4000", "", "nat[4] dnat"},
	} {
		source, destination := a.Of(entry(t, "tcp", c.orig, c.reply))
		if text(source) != c.source || text(destination) != c.destination {
			t.Errorf("%s: source %q, destination %q; want %q, %q", c.name, text(source), text(destination), c.source, c.destination)
		}
	}
}

func text(r *gateway.Ref) string {
	if r == nil {
		return ""
	}
	return r.String()
}

// slowly is Attribute by looking at every entry of the plan.
func slowly(p *gateway.Plan, e *conntrack.Entry) (source, destination *gateway.Ref) {
	packet := nat.Packet{Protocol: e.Orig.Proto, Src: e.Orig.Src, Dst: e.Orig.Dst, SrcPort: e.Orig.SrcPort, DstPort: e.Orig.DstPort}
	anywhere := func(m nat.Match) nat.Match { // an entry does not record the interfaces
		m.In, m.Out = nil, nil
		return m
	}
	for i := range p.Destinations {
		d := &p.Destinations[i]
		if m := anywhere(d.Match); e.IsDNAT() && m.Matches(&packet) && destinationGave(d, e) {
			destination = &d.Rule
			break
		}
	}
	packet.Dst = e.Reply.Src
	if destination != nil {
		packet.OriginalDst, packet.OriginalPort = e.Orig.Dst, e.Orig.DstPort
	}
	for i := range p.Sources {
		s := &p.Sources[i]
		if m := anywhere(s.Match); e.IsSNAT() && m.Matches(&packet) && sourceGave(s, e) {
			return &s.Rule, destination
		}
	}
	return nil, destination
}

func TestAttributeLikeTheSlowWay(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const seen = 300
	var sources, destinations int
	for plan := range 50 {
		p := compile(t, manyKinds+randomRules(r, 40), router)
		a := Attribute(p)
		for range seen {
			e := randomEntry(r)
			s, d := a.Of(e)
			wantS, wantD := slowly(p, e)
			if s != wantS || d != wantD {
				t.Fatalf("plan %d: %v: got %v %v, want %v %v\n%+v", plan, e, s, d, wantS, wantD, p)
			}
			sources, destinations = sources+count1(s), destinations+count1(d)
		}
	}
	if sources < 500 || destinations < 500 {
		t.Errorf("the sample says little: %d sources, %d destinations", sources, destinations)
	}
}

func count1(r *gateway.Ref) int {
	if r == nil {
		return 0
	}
	return 1
}

// randomRules are rules over few addresses, so that they meet.
func randomRules(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		host, port := r.IntN(4), 5000+r.IntN(600)
		switch r.IntN(4) {
		case 0:
			fmt.Fprintf(&b, "\n    - snat: {from: 192.168.%d.0/%d, to: 203.0.113.%d}", host*8, 21+r.IntN(4), 20+host)
		case 1:
			fmt.Fprintf(&b, "\n    - dnat: {on: 203.0.113.%d, port: tcp/%d, to: 172.17.0.%d, hairpin: true}", 20+host, port, host)
		case 2:
			fmt.Fprintf(&b, "\n    - dnat: {on: 203.0.113.%d, port: tcp/%d-%d, to: 172.17.0.%d, from: 198.18.%d.0/24}", 20+host, port, port+r.IntN(600), host, host)
		case 3:
			fmt.Fprintf(&b, "\n    - static: {inside: 192.168.%d.7, outside: 203.0.113.%d, hairpin: true}", host*8, 20+host)
		}
	}
	return b.String()
}

func randomEntry(r *rand.Rand) *conntrack.Entry {
	pick := func(list ...string) netip.Addr { return netip.MustParseAddr(list[r.IntN(len(list))]) }
	outside := func() netip.Addr {
		return pick("203.0.113.20", "203.0.113.21", "203.0.113.22", "203.0.113.23", "203.0.113.7", "203.0.113.9")
	}
	o := conntrack.Tuple{Proto: 6, SrcPort: 4000, DstPort: uint16(5000 + r.IntN(600)),
		Src: pick("192.168.0.7", "192.168.8.7", "192.168.9.1", "192.168.24.7", "198.18.0.1", "198.18.1.1"),
		Dst: outside()}
	reply := o.Mirror()
	if r.IntN(3) > 0 {
		reply.Src = pick("172.17.0.0", "172.17.0.1", "172.17.0.2", "172.17.0.3", "192.168.0.7", "192.168.8.7", "172.17.0.4")
	}
	if r.IntN(3) > 0 {
		reply.Dst = outside()
	}
	return &conntrack.Entry{Family: unix.AF_INET, Orig: o, Reply: reply}
}

// BenchmarkAttribute is one entry of a table, with ten and with 10,000 rules: port
// forwards on one address, and hosts with addresses of their own.
func BenchmarkAttribute(b *testing.B) {
	for _, rules := range []int{10, 10000} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			a := Attribute(compile(b, forwards(rules), router))
			entries := forwardEntries(rules)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if s, d := a.Of(&entries[i%len(entries)]); s == nil && d == nil {
					b.Fatal("not attributed", entries[i%len(entries)])
				}
			}
		})
	}
}

func forwards(n int) string {
	var b strings.Builder
	b.WriteString(roles + "\n  nat:\n    - masquerade: {from: 192.168.0.0/16}")
	for i := range n / 2 {
		fmt.Fprintf(&b, "\n    - dnat: {on: 203.0.113.7, port: tcp/%d, to: \"172.17.%d.%d:80\", hairpin: true}", 1024+i, i/250, i%250+1)
		fmt.Fprintf(&b, "\n    - snat: {from: 10.%d.%d.1, to: 203.0.113.%d}", i/250, i%250, 8+i%8)
	}
	return b.String()
}

func forwardEntries(rules int) (out []conntrack.Entry) {
	client, server := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("203.0.113.7")
	for i := range rules / 2 {
		in := conntrack.Tuple{Src: client, Dst: server, Proto: 6, SrcPort: 4000, DstPort: uint16(1024 + i)}
		reply := in.Mirror()
		reply.Src, reply.SrcPort = netip.AddrFrom4([4]byte{172, 17, byte(i / 250), byte(i%250 + 1)}), 80
		out = append(out, conntrack.Entry{Orig: in, Reply: reply})
		away := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 1}), Dst: client, Proto: 17, SrcPort: 4000, DstPort: 53}
		reply = away.Mirror()
		reply.Dst = netip.AddrFrom4([4]byte{203, 0, 113, byte(8 + i%8)})
		out = append(out, conntrack.Entry{Orig: away, Reply: reply})
	}
	return out
}

// outbound is a connection from inside, translated to an address and answered.
func outbound(from, to, remote string, packets uint64) *conntrack.Entry {
	addr := netip.MustParseAddr
	return &conntrack.Entry{
		Orig:   conntrack.Tuple{Src: addr(from), Dst: addr(remote), Proto: 6, SrcPort: 4000, DstPort: 443},
		Reply:  conntrack.Tuple{Src: addr(remote), Dst: addr(to), Proto: 6, SrcPort: 443, DstPort: 4000},
		Status: conntrack.SeenReply | conntrack.SrcNAT, Sent: conntrack.Counters{Packets: packets, Bytes: 100 * packets},
	}
}

func TestTally(t *testing.T) {
	prefix := netip.MustParsePrefix
	snat, masquerade := gateway.Ref{List: "nat", Index: 2, Kind: "snat"}, gateway.Ref{List: "nat", Kind: "masquerade"}
	p := &gateway.Plan{Sources: []gateway.Entry{
		{Rule: snat, Match: nat.Match{From: []netip.Prefix{prefix("10.0.0.0/8")}}, Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{{First: netip.MustParseAddr("203.0.113.7"), Last: netip.MustParseAddr("203.0.113.9")}}}},
		{Rule: masquerade, Match: nat.Match{From: []netip.Prefix{prefix("192.168.0.0/24")}}, Action: nat.Action{Kind: nat.Masquerade}},
		{Rule: masquerade, Match: nat.Match{From: []netip.Prefix{prefix("192.168.8.0/24")}}, Action: nat.Action{Kind: nat.Masquerade}},
	}}
	tally := NewTally(p, []netip.Addr{netip.MustParseAddr("203.0.113.1")})
	unanswered := outbound("192.168.8.2", "203.0.113.1", "198.51.100.9", 1)
	unanswered.Status = conntrack.SrcNAT
	plain := outbound("10.0.0.5", "10.0.0.5", "198.51.100.9", 5)
	plain.Status = conntrack.SeenReply
	for _, e := range []*conntrack.Entry{
		outbound("10.0.0.5", "203.0.113.8", "198.51.100.9", 10),
		outbound("192.168.0.2", "203.0.113.1", "198.51.100.9", 2),
		outbound("192.168.0.2", "203.0.113.250", "198.51.100.9", 3), // an address that went
		unanswered, plain,
		outbound("172.16.0.2", "203.0.113.1", "198.51.100.9", 4), // Docker's
	} {
		tally.Add(e)
	}
	usage := tally.Usage(1)
	if got := usage[snat]; got != (Usage{Flows: 1, Packets: 10, Bytes: 1000}) {
		t.Errorf("snat %+v", got)
	}
	if got := usage[masquerade]; got != (Usage{Flows: 3, Packets: 6, Bytes: 600, Unanswered: 1}) {
		t.Errorf("masquerade %+v", got)
	}
	if n, at := tally.Stale(1); n != 1 || !slices.Equal(at, []netip.Addr{netip.MustParseAddr("203.0.113.250")}) {
		t.Errorf("stale %d, %v", n, at)
	}
	announced := outbound("172.16.0.2", "203.0.113.1", "198.51.100.9", 4)
	announced.Status |= conntrack.Expected
	helped := NewTally(&gateway.Plan{Helpers: []gateway.Helper{"ftp"}}, nil)
	for _, t := range []*Tally{tally, helped} {
		t.Add(announced)
	}
	if tally.Related(1) != 0 || tally.Strangers(1) != 2 || helped.Related(3) != 3 || helped.Strangers(1) != 0 {
		t.Errorf("of an announced connection: related %d, strangers %d; without helpers %d, %d", helped.Related(1), helped.Strangers(1), tally.Related(1), tally.Strangers(1))
	}
	if tally.Seen() != 7 || tally.Strangers(10) != 20 || tally.Usage(10)[snat].Packets != 100 {
		t.Errorf("seen %d, strangers %d", tally.Seen(), tally.Strangers(1))
	}
}

// TestTallyHosts: connections count for the host that they became, with the rule's port or with theirs.
func TestTallyHosts(t *testing.T) {
	on, web, any := []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}, gateway.Ref{List: "nat", Kind: "dnat"}, gateway.Ref{List: "nat", Index: 1, Kind: "dnat"}
	host := func(a string, port uint16) nat.Backend {
		return nat.Backend{Address: netip.MustParseAddr(a), Port: port}
	}
	p := &gateway.Plan{Destinations: []gateway.Entry{
		{Rule: web, Match: nat.Match{To: on, Protocol: 6, Ports: []nat.Ports{{First: 80, Last: 80}}}, Action: nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{host("10.0.0.1", 8080), host("10.0.0.1", 8081)}}},
		{Rule: any, Match: nat.Match{To: on}, Action: nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{host("10.0.0.1", 0), host("10.0.0.2", 0)}}},
	}}
	tally := NewTally(p, nil)
	for _, c := range []struct {
		port uint16
		to   string
	}{{80, "10.0.0.1:8080"}, {80, "10.0.0.1:8081"}, {80, "10.0.0.1:8081"}, {443, "10.0.0.1:443"}, {444, "10.0.0.2:444"}, {445, "10.0.0.2:445"}} {
		to := netip.MustParseAddrPort(c.to)
		client := netip.MustParseAddr("198.51.100.9")
		tally.Add(&conntrack.Entry{Status: conntrack.DstNAT | conntrack.SeenReply,
			Orig:  conntrack.Tuple{Proto: 6, Src: client, SrcPort: 4000, Dst: on[0].Addr(), DstPort: c.port},
			Reply: conntrack.Tuple{Proto: 6, Src: to.Addr(), SrcPort: to.Port(), Dst: client, DstPort: 4000}})
	}
	got := tally.Hosts(2)
	if got[web]["10.0.0.1:8080"] != 2 || got[web]["10.0.0.1:8081"] != 4 || got[any]["10.0.0.1"] != 2 || got[any]["10.0.0.2"] != 4 {
		t.Errorf("%v", got)
	}
}
