package netfilter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestChainsOfNeighbours: rules for neighbouring addresses have a chain of their own, in the order in which they would
// stand without it; what is for other addresses, or for any, stands before or behind the rule that leads there.
func TestChainsOfNeighbours(t *testing.T) {
	const four = `    - snat: {from: 10.0.0.1, only-to: 100.65.0.0/24, to: 203.0.113.1}
    - snat: {from: 10.1.0.1, mark: 0x10, to: 203.0.113.1}
    - snat: {from: 10.2.0.1, dscp: ef, to: 203.0.113.1}
    - snat: {from: 10.3.0.1, to: 203.0.113.1}
`
	const inFour = "nat[0] snat, nat[1] snat, nat[2] snat, nat[3] snat"
	for _, c := range []struct{ name, rules, want string }{
		{"too few", four, "postrouting: " + inFour},
		{"enough, and one of a program", four + `    - snat: {from: 10.4.0.1, to: 203.0.113.2, random: fully}
    - snat: {user: 7, to: 203.0.113.1}
`, "postrouting: rules for 10.0.0.0/13, nat[5] snat; source4-1-to-5: " + inFour + ", nat[4] snat"},
		{"one of all networks between", four + `    - snat: {only-to: 100.66.0.0/16, to: 203.0.113.2}
`, "postrouting: nat[0] snat, nat[4] snat, nat[1] snat, nat[2] snat, nat[3] snat"},
		{"addresses that share nothing", four + `    - snat: {from: 192.168.0.1, to: 203.0.113.2, random: fully}
`, "postrouting: " + inFour + ", nat[4] snat"},
		{"others behind those that share more", backends("203.0.113.2", 5) + `    - dnat: {on: 203.0.113.9, port: tcp/80, to: 10.0.0.1}
`, "prerouting: rules for 203.0.113.2/32, nat[5] dnat; destination4-1-to-5: nat[0] dnat, nat[1] dnat, nat[2] dnat, nat[3] dnat, nat[4] dnat"},
		{"logged", strings.ReplaceAll(backends("203.0.113.2", 5), "- dnat: {on", "- log: on\n      dnat: {on"),
			"prerouting: rules for 203.0.113.2/32; destination4-1-to-5: log, nat[0] dnat, log, nat[1] dnat, log, nat[2] dnat, log, nat[3] dnat, log, nat[4] dnat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := build(planOfText(t, c.name, "gateway:\n  nat:\n"+c.rules), host{netmap: true})
			var all []string
			for _, made := range tab.chains {
				var rules []string
				for _, r := range tab.rules {
					if r.chain == made.name {
						rules = append(rules, r.comment)
					}
				}
				if strings.HasSuffix(made.name, "routing") || strings.Contains(made.name, "-to-") {
					all = append(all, made.name+": "+strings.Join(rules, ", "))
				}
			}
			if diff := cmp.Diff(c.want, strings.Join(all, "; ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// backends are rules each of which chooses among two hosts, and shares no map with others.
func backends(on string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "    - dnat: {on: %s, port: tcp/%d, to: [10.0.0.1, 10.0.0.2]}\n", on, i+1)
	}
	return b.String()
}

// TestSought: a map is asked for what its entries differ in, the rule compares the rest.
func TestSought(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		want        []field
	}{
		{"ports of an address", `    - dnat: {on: 203.0.113.1, port: [tcp/80, udp/53], to: 10.0.0.1}`, []field{protocol, destinationPort}},
		{"ports of one protocol", `    - dnat: {on: 203.0.113.1, port: [tcp/80, tcp/81], to: 10.0.0.1}`, []field{protocol, destinationPort}},
		{"addresses with a port", `    - dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}
    - dnat: {on: 203.0.113.2, port: tcp/80, to: 10.0.0.1}`, []field{destinationAddress}},
		{"all", `    - dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}
    - dnat: {on: 203.0.113.2, port: udp/81, to: 10.0.0.1}`, []field{destinationAddress, protocol, destinationPort}},
		{"a key that the kernel would make a bitmap", `    - dnat: {on: 203.0.113.1, port: [tcp/80, udp/80], to: 10.0.0.1}`, []field{destinationAddress, protocol, destinationPort}},
		{"one", `    - dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}`, nil},
		{"sources with a mark", `    - snat: {from: 10.0.0.1, mark: 0x10, to: 203.0.113.1}
    - snat: {from: 10.0.0.2, mark: 0x10, to: 203.0.113.1}`, []field{sourceAddress}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planOfText(t, c.name, "gateway:\n  nat:\n"+c.rules+"\n")
			var all groups
			for i := range p.Destinations {
				all.collect(&p.Destinations[i], ip4, byDestination)
			}
			for i := range p.Sources {
				all.collect(&p.Sources[i], ip4, bySource)
			}
			g := all.all[0]
			g.seek()
			var got []field
			for _, i := range g.sought {
				got = append(got, g.key[i].field)
			}
			if len(all.all) != 1 || !slices.Equal(got, c.want) {
				t.Errorf("%d groups; sought are %v, want %v", len(all.all), got, c.want)
			}
		})
	}
}
