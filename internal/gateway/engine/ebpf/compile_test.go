package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// TestCompile: the tables of a file, line by line.
func TestCompile(t *testing.T) {
	const file = `gateway:
  engine: ebpf
  interfaces: {wan: [wan0, wan1], lan: [lan0, lan1]}
  sets: {p: {pairs: [203.0.113.51 10.0.0.50, 203.0.113.50 10.0.0.51]}}
  nat:
    - static: {inside: 10.0.0.2, outside: 203.0.113.11, hairpin: on}
    - masquerade: {from: 10.0.1.0/24, out: wan1}
    - dnat: {on: 203.0.113.12, port: [tcp/80, udp/5000-5001], to: 10.0.0.3}
    - dnat: {on: 203.0.113.12, port: tcp/81-82, to: "10.0.0.3:8081-8082", in: wan0}
    - dnat: {on: 203.0.113.13, port: icmp, to: 10.0.0.4}
    - static: {pairs: $p}
  ipv6:
    - netmap: {inside: "fd00:1::/48", outside: "2001:db8:1::/48", stateless: on, out: wan0}
`
	p := planOf(t, file, testHost())
	mine, _, notes := Engine{}.Claim(p, testHost())
	if len(notes) != 1 {
		t.Errorf("%+v", notes)
	}
	c := compile(mine)
	var got []string
	for name, table := range map[string][]plane.Mapping{"to": c.Destinations, "from": c.Sources} {
		for m := range plane.Each(table) {
			got = append(got, fmt.Sprintf("%s %s %d/%d %s/%d neutral %t roles %x of %s", name, m.Match, m.Protocol, m.Port, m.To, m.ToPort, m.Neutral, m.Roles, c.rules[m.Rule]))
		}
	}
	slices.Sort(got)
	want := strings.Split(strings.TrimSpace(`
from 10.0.0.2/32 0/0 203.0.113.11/32/0 neutral false roles 80000002 of nat[0] static
from 10.0.0.3/32 17/5000 203.0.113.12/32/0 neutral false roles 2 of nat[2] dnat
from 10.0.0.3/32 17/5001 203.0.113.12/32/0 neutral false roles 2 of nat[2] dnat
from 10.0.0.3/32 6/80 203.0.113.12/32/0 neutral false roles 2 of nat[2] dnat
from 10.0.0.3/32 6/8081 203.0.113.12/32/81 neutral false roles 4 of nat[3] dnat
from 10.0.0.3/32 6/8082 203.0.113.12/32/82 neutral false roles 4 of nat[3] dnat
from 10.0.0.4/32 1/0 203.0.113.13/32/0 neutral false roles 2 of nat[4] dnat
from 10.0.0.50/32 0/0 203.0.113.51/32/0 neutral false roles 2 of nat[5] static
from 10.0.0.51/32 0/0 203.0.113.50/32/0 neutral false roles 2 of nat[5] static
from fd00:1::/48 0/0 2001:db8:1::/48/0 neutral true roles 80000004 of ipv6[0] netmap
to 2001:db8:1::/48 0/0 fd00:1::/48/0 neutral true roles 80000004 of ipv6[0] netmap
to 203.0.113.11/32 0/0 10.0.0.2/32/0 neutral false roles 80000002 of nat[0] static
to 203.0.113.12/32 17/5000 10.0.0.3/32/0 neutral false roles 2 of nat[2] dnat
to 203.0.113.12/32 17/5001 10.0.0.3/32/0 neutral false roles 2 of nat[2] dnat
to 203.0.113.12/32 6/80 10.0.0.3/32/0 neutral false roles 2 of nat[2] dnat
to 203.0.113.12/32 6/81 10.0.0.3/32/8081 neutral false roles 4 of nat[3] dnat
to 203.0.113.12/32 6/82 10.0.0.3/32/8082 neutral false roles 4 of nat[3] dnat
to 203.0.113.13/32 1/0 10.0.0.4/32/0 neutral false roles 2 of nat[4] dnat
to 203.0.113.50/32 0/0 10.0.0.51/32/0 neutral false roles 2 of nat[5] static
to 203.0.113.51/32 0/0 10.0.0.50/32/0 neutral false roles 2 of nat[5] static
`), "\n")
	bits := map[string]plane.Roles{}
	for _, i := range testHost().Interfaces {
		bits[i.Name] = c.roles.Of(i)
	}
	number := func(names ...string) plane.Roles { return c.roles.asked(names) }
	both, one := number("wan0", "wan1"), number("wan0")
	for i := range want { // the numbers of lists follow from the order of the plan
		want[i] = strings.Replace(strings.Replace(want[i], "roles 80000002", fmt.Sprintf("roles %x", plane.Inside|both), 1), "roles 80000004", fmt.Sprintf("roles %x", plane.Inside|one), 1)
		want[i] = strings.Replace(strings.Replace(want[i], "roles 2 ", fmt.Sprintf("roles %x ", both), 1), "roles 4 ", fmt.Sprintf("roles %x ", one), 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if want := map[string]plane.Roles{"wan0": 1 | both | one, "wan1": 1 | both, "lan0": 1 | plane.Inside, "lan1": 1 | plane.Inside}; !cmp.Equal(bits, want) {
		t.Errorf("%x, want %x", bits, want)
	}
	if int(c.Rules) != len(c.rules) || c.Rules != 7 || c.rules[0] != (gateway.Ref{}) {
		t.Errorf("%d counters, %v", c.Rules, c.rules)
	}
}

// TestRoles: patterns and link groups are for what they are on the host; without roles nothing is inside.
func TestRoles(t *testing.T) {
	r := roles{plan: &gateway.Plan{WAN: []string{"ppp*"}}}
	r.add([]string{"ppp*"})
	r.add([]string{"group 7"})
	for _, tt := range []struct {
		i    gateway.Interface
		want plane.Roles
	}{
		{gateway.Interface{Name: "ppp0"}, 1 | 2}, {gateway.Interface{Name: "ppp0", Group: 7}, 1 | 2 | 4}, {gateway.Interface{Name: "eth0"}, 1 | plane.Inside},
	} {
		if got := r.Of(tt.i); got != tt.want {
			t.Errorf("%+v: %x, want %x", tt.i, got, tt.want)
		}
	}
	if none := (&roles{plan: &gateway.Plan{}}); none.Of(gateway.Interface{Name: "eth0"}) != 1 {
		t.Error("inside without roles")
	}
	for i := range mostLists + 1 {
		if fits := r.add([]string{fmt.Sprint("eth", i)}); fits != (i < mostLists-2) {
			t.Errorf("list %d: %t", i+2, fits)
		}
	}
}

// TestSpans compares the index with a slow search.
func TestSpans(t *testing.T) {
	var all []span
	for _, text := range []string{"10.0.0.0/8", "10.0.0.0/24", "10.0.0.7/32", "10.0.0.8/29", "10.0.1.0/24", "0.0.0.0/0", "2001:db8::/32", "2001:db8::1/128"} {
		for _, protocol := range []uint8{0, 6, 17} {
			for _, ports := range [][2]uint16{{0, 65535}, {80, 80}, {70, 90}, {85, 100}} {
				if s := (span{netip.MustParsePrefix(text), protocol, nat.Ports{First: ports[0], Last: ports[1]}, nil}); protocol != 0 || ports[1] == 65535 {
					all = append(all, s)
				}
			}
		}
	}
	x := indexed(all)
	for _, s := range all {
		var got, want []int
		x.overlapping(s, func(i int) { got = append(got, i) })
		for i, o := range all {
			if _, meet := s.common(o); meet {
				want = append(want, i)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", s, got, want)
		}
	}
}

// BenchmarkClaim is that of many rules, with compile.
func BenchmarkClaim(b *testing.B) {
	for _, bm := range []struct {
		name string
		rule func(i int) string
		n    int
	}{
		{"static", func(i int) string {
			return fmt.Sprintf("static: {inside: 10.%d.%d.%d, outside: 100.%[1]d.%[2]d.%[3]d}", i>>16, i>>8&255, i&255)
		}, 10000},
		{"dnat", func(i int) string {
			return fmt.Sprintf("dnat: {on: 203.0.113.8, port: tcp/%d, to: \"10.0.%d.%d:80\"}", 1024+i, 100+i>>8, i&255)
		}, 10000},
		{"left", func(i int) string {
			return fmt.Sprintf("{dnat: {on: 203.0.113.%d, port: tcp/%d, to: \"10.0.%d.%d:80\"}, log: %s}", 8+i%2, 1024+i, 100+i>>8, i&255, []string{"on", "off"}[i%2])
		}, 10000},
		{"ports", func(i int) string {
			return fmt.Sprintf("dnat: {on: 203.0.%d.%d, port: tcp/4097-8192, to: \"10.0.%d.%[2]d:8193-12288\"}", 114+i>>8, i&255, i>>8)
		}, 250},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var text strings.Builder
			text.WriteString("gateway:\n  engine: ebpf\n  interfaces: {wan: wan0}\n  nat:\n")
			for i := range bm.n {
				fmt.Fprintf(&text, "  - %s\n", bm.rule(i))
			}
			p := planOf(b, text.String(), testHost())
			b.ResetTimer()
			for range b.N {
				mine, _, _ := Engine{}.Claim(p, testHost())
				b.ReportMetric(float64(len(compile(mine).Destinations)), "mappings")
			}
		})
	}
}
