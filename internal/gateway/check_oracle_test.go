package gateway

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// A slow, obvious reading of what check means by overlap and shadow: every packet of
// a small world is asked which rules match it, and how specific each of these is.

// packet of the small world; out is only known on the way out.
type tiny struct {
	src, dst netip.Addr
	proto    string
	port     uint16
	out      string
}

var (
	tinyHosts = addressesOf("10.0.0.0/30")
	tinyHere  = addressesOf("203.0.113.8/30")
	tinyOut   = []string{"eth0", "eth8", "eth9"} // eth0 is wan
	tinyPorts = []uint16{1, 2, 3, 4}
)

func addressesOf(prefix string) (all []netip.Addr) {
	p := netip.MustParsePrefix(prefix)
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		all = append(all, a)
	}
	return all
}

// subPrefix is a random prefix within one.
func subPrefix(r *rand.Rand, of string) netip.Prefix {
	p := netip.MustParsePrefix(of)
	all := addressesOf(of)
	return netip.PrefixFrom(all[r.IntN(len(all))], p.Bits()+r.IntN(33-p.Bits())).Masked()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// tinyPairs are sets that tinyRule names.
var tinyPairs = map[string][]nat.AddrPair{
	"a": {{Outside: tinyHere[0], Inside: tinyHosts[1]}, {Outside: tinyHere[1], Inside: tinyHosts[0]}},
	"b": {{Outside: tinyHere[1], Inside: tinyHosts[2]}, {Outside: tinyHere[3], Inside: tinyHosts[3]}},
}

// withTinyPairs is a file with rules of the small world.
func withTinyPairs(rules ...string) string {
	sets := ""
	for _, name := range slices.Sorted(maps.Keys(tinyPairs)) {
		p := tinyPairs[name]
		sets += fmt.Sprintf("    %s: {pairs: [%s, %s]}\n", name, p[0], p[1])
	}
	return strings.Replace(inFile(rules...), "  nat:\n", "  sets:\n"+sets+"  nat:\n", 1)
}

// tinyRule is a random rule of the small world.
func tinyRule(r *rand.Rand) string {
	out := pick(r, "", "", ", out: eth8", ", out: [eth8, eth9]", ", out: wan")
	except := pick(r, "", "", "", ", except-to: 198.51.100.1")
	switch r.IntN(10) {
	case 9:
		return "static: {pairs: $" + pick(r, "a", "b") + "}"
	case 0:
		return fmt.Sprintf("masquerade: {from: %s%s%s}", subPrefix(r, "10.0.0.0/30"), out, except)
	case 1:
		return fmt.Sprintf("snat: {from: [%s, %s], to: 203.0.113.77%s%s}", subPrefix(r, "10.0.0.0/30"), subPrefix(r, "10.0.0.0/30"), out, except)
	case 2:
		return fmt.Sprintf("static: {inside: %s, outside: %s}", pick(r, tinyHosts...), pick(r, tinyHere...))
	case 3:
		bits := 30 + r.IntN(2)
		in := netip.PrefixFrom(pick(r, tinyHosts...), bits).Masked()
		return fmt.Sprintf("netmap: {inside: %s, outside: %s}", in, netip.PrefixFrom(pick(r, tinyHere...), bits).Masked())
	}
	a := pick(r, tinyPorts...)
	port := pick(r, "", ", port: udp", ", port: tcp", fmt.Sprintf(", port: tcp/%d", a), fmt.Sprintf(", port: tcp/%d-%d", a, a+uint16(r.IntN(3))))
	from := pick(r, "", "", ", from: "+subPrefix(r, "198.51.100.0/30").String())
	return fmt.Sprintf("dnat: {on: %s%s%s, to: 10.0.0.99}", pick(r, tinyHere[1:3]...), port, from)
}

// way is one direction in which a rule matches, with how specific it is: what is
// larger wins, in the order of the numbers.
type way struct {
	specific []int
	matches  func(tiny) bool
}

// ways reads a rule as the page says it.
func ways(r Rule) (source, destination []way) {
	switch {
	case r.Masquerade != nil:
		source = sourceWays(&r.Masquerade.Sources)
	case r.SNAT != nil:
		source = sourceWays(&r.SNAT.Sources)
	case r.Static != nil && r.Static.Pairs != "":
		for _, p := range tinyPairs[r.Static.Pairs.name()] {
			source = append(source, pairWay(Prefix{Prefix: nat.Host(p.Inside)}, 9))
			destination = append(destination, onWay(nat.Host(p.Outside), Port{}, netip.Prefix{}))
		}
	case r.Static != nil:
		one := Prefix{Prefix: nat.Host(r.Static.Inside.Addr)}
		source = []way{pairWay(one, 9)}
		destination = []way{onWay(nat.Host(r.Static.Outside.Addr), Port{}, netip.Prefix{})}
	case r.Netmap != nil:
		source = []way{pairWay(r.Netmap.Inside, 8)}
		destination = []way{onWay(r.Netmap.Outside.Prefix, Port{}, netip.Prefix{})}
	case r.DNAT != nil:
		from := []netip.Prefix{{}}
		if len(r.DNAT.From) > 0 {
			from = []netip.Prefix{r.DNAT.From[0].Prefix}
		}
		port := Port{}
		if len(r.DNAT.Port) > 0 {
			port = r.DNAT.Port[0]
		}
		destination = []way{onWay(nat.Host(r.DNAT.On.Address), port, from[0])}
	}
	return source, destination
}

func sourceWays(s *Sources) (all []way) {
	out := []string(s.Out)
	if len(out) == 0 || out[0] == RoleWAN {
		out = []string{"eth0"}
	}
	for _, from := range s.From {
		all = append(all, way{[]int{1, from.Bits(), -len(out), len(s.ExceptTo)}, func(p tiny) bool {
			return from.Contains(p.src) && slices.Contains(out, p.out) && !slices.ContainsFunc(s.ExceptTo, func(e Prefix) bool { return e.Contains(p.dst) })
		}})
	}
	return all
}

func pairWay(inside Prefix, kind int) way {
	return way{[]int{kind, inside.Bits(), -1, 0}, func(p tiny) bool { return inside.Contains(p.src) && p.out == "eth0" }}
}

func onWay(on netip.Prefix, port Port, from netip.Prefix) way {
	return way{[]int{on.Bits(), -spanOf(port), from.Bits()}, func(p tiny) bool {
		return on.Contains(p.dst) && (!from.IsValid() || from.Contains(p.src)) &&
			(port.Protocol == "" || port.Protocol == p.proto && (port.First == 0 || port.First <= p.port && p.port <= port.Last))
	}}
}

func spanOf(port Port) int {
	e := Entry{}
	e.Protocol, e.Ports = port.Service()
	return e.span()
}

// world is every packet: those that go out, and those that come in.
func world() (out, in []tiny) {
	for _, src := range tinyHosts {
		for _, name := range tinyOut {
			for _, dst := range addressesOf("198.51.100.0/30") {
				out = append(out, tiny{src: src, dst: dst, proto: "tcp", port: 1, out: name})
			}
		}
	}
	for _, dst := range tinyHere {
		for _, src := range append(addressesOf("198.51.100.0/30"), netip.MustParseAddr("192.0.2.1")) {
			in = append(in, tiny{src: src, dst: dst, proto: "icmp"})
			for port := uint16(1); port <= 8; port++ {
				in = append(in, tiny{src: src, dst: dst, proto: "tcp", port: port}, tiny{src: src, dst: dst, proto: "udp", port: port})
			}
		}
	}
	return out, in
}

// verdict asks all packets: overlapping reports whether two rules are equally specific
// for one, whatever else is for it, dead are the rules (with their direction) that win none.
func verdict(rules []Rule) (overlapping bool, dead map[string]bool) {
	out, in := world()
	dead = map[string]bool{}
	ask := func(packets []tiny, direction string, of func(Rule) []way) {
		alive := make([]bool, len(rules))
		for _, p := range packets {
			best, who := []int(nil), -1
			by := map[string]int{} // how specific: which rule
			for i, r := range rules {
				for _, w := range of(r) {
					if !w.matches(p) {
						continue
					}
					key := fmt.Sprint(w.specific)
					if other, taken := by[key]; taken && other != i {
						overlapping = true
					}
					by[key] = i
					if slices.Compare(w.specific, best) > 0 {
						best, who = w.specific, i
					}
				}
			}
			if who >= 0 {
				alive[who] = true
			}
		}
		for i, r := range rules {
			if len(of(r)) > 0 && !alive[i] {
				dead[fmt.Sprint(i, " ", direction)] = true
			}
		}
	}
	ask(out, "out", func(r Rule) []way { s, _ := ways(r); return s })
	ask(in, "in", func(r Rule) []way { _, d := ways(r); return d })
	return overlapping, dead
}

// Check refuses exactly those files of the small world in which some packet does not
// know which rule is meant, or a rule never gets one.
func TestCheckAgainstEveryPacket(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	seen := map[string]int{}
	for range 1500 {
		var rules []string
		for range 1 + r.IntN(5) {
			rules = append(rules, tinyRule(r))
		}
		text := withTinyPairs(rules...)
		f, err := Parse("f", []byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		overlapping, dead := verdict(f.Config.NAT)
		var overlap, never []string
		for _, x := range Check(f, Facts{}) {
			switch x.ID {
			case "rules-overlap":
				overlap = append(overlap, x.Message)
			case "rule-never-matches":
				never = append(never, x.Message)
			}
		}
		// Which of two that overlap is dead has no answer.
		if (len(overlap) > 0) != overlapping || !overlapping && (len(never) > 0) != (len(dead) > 0) {
			t.Fatalf("%soverlap: every packet %v, check %q\nnever: every packet %v, check %q", strings.TrimPrefix(text, "gateway:\n"), overlapping, overlap, dead, never)
		}
		seen[fmt.Sprint(overlapping, len(never) > 0)]++
	}
	for _, want := range []string{"true false", "false true", "false false"} {
		if seen[want] < 30 {
			t.Errorf("%d files are %s (overlapping, never): the small world is too small", seen[want], want)
		}
	}
}
