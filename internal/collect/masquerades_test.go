package collect

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// TestMasquerades: the address that a rule is said to give is the one that the kernel gives.
func TestMasquerades(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	for name, tt := range map[string]struct {
		// ip are commands of ip(8) about the interface up0, rule is that of a table inet.
		ip, rule string
		to       string
		want     string
	}{
		"the network of the gateway":  {"address add 198.18.5.1/24 dev up0; address add 198.18.6.1/24 dev up0; route add default via 198.18.6.254", "", "203.0.113.9", "198.18.6.1"},
		"the first of a network":      {"address add 198.18.5.1/24 dev up0; address add 198.18.5.2/24 dev up0; route add default via 198.18.5.254", "", "203.0.113.9", "198.18.5.1"},
		"the first without a gateway": {"address add 198.18.5.1/24 dev up0; address add 198.18.6.1/24 dev up0; route add default dev up0", "", "203.0.113.9", "198.18.5.1"},
		"for the link alone":          {"address add 169.254.5.1/24 dev up0 scope link; address add 198.18.6.1/24 dev up0; route add default dev up0", "", "203.0.113.9", "198.18.6.1"},
		"one lent":                    {"route add default dev up0", "", "203.0.113.9", "198.18.200.1"},
		"a pattern":                   {"address add 198.18.5.1/24 dev up0; route add default dev up0", "oifname up*", "203.0.113.9", "198.18.5.1"},
		"any but another one":         {"address add 198.18.5.1/24 dev up0; route add default dev up0", "oifname != lo", "203.0.113.9", "198.18.5.1"},
		"IPv6":                        {"address add 2001:db8:1::1/64 dev up0 nodad; route add default dev up0", "", "2001:db8:9::9", "2001:db8:1::1"},
		"IPv6, the last added":        {"address add 2001:db8:1::1/64 dev up0 nodad; address add 2001:db8:1::2/64 dev up0 nodad; route add default dev up0", "", "2001:db8:9::9", "2001:db8:1::2"},
		"IPv6, one deprecated":        {"address add 2001:db8:1::1/64 dev up0 nodad; address add 2001:db8:1::2/64 dev up0 nodad preferred_lft 0; route add default dev up0", "", "2001:db8:9::9", "2001:db8:1::1"},
		"IPv6, one that is local":     {"address add 2001:db8:1::1/64 dev up0 nodad; address add fd00::1/64 dev up0 nodad; route add default dev up0", "", "2001:db8:9::9", "2001:db8:1::1"},
		"IPv6, to local ones":         {"address add 2001:db8:1::1/64 dev up0 nodad; address add fd00::1/64 dev up0 nodad; route add default dev up0", "ip6 daddr fd00:9::/64", "fd00:9::9", "fd00::1"},
		"IPv6, the nearest":           {"address add 2001:db8:1::1/64 dev up0 nodad; address add 2001:db8:2::1/64 dev up0 nodad; route add default dev up0", "ip6 daddr 2001:db8:1:1::/64", "2001:db8:1:1::9", "2001:db8:1::1"},
		"IPv6, one lent":              {"address add 2001:db8:1::1/64 dev up0 nodad preferred_lft 0; route add default dev up0", "", "2001:db8:9::9", "2001:db8:200::1"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.ShareHost(t)
			ns, other := testutil.Namespace(t), testutil.Namespace(t)
			testutil.Veth(t, testutil.End{Netns: ns, Name: "up0"}, testutil.End{Netns: other, Name: "eth0"})
			commands, from, all := tt.ip+"; address add 198.18.200.1/32 dev lo; address add 2001:db8:200::1/128 dev lo nodad; link set lo up", "198.18.200.1", false
			if strings.Contains(tt.to, ":") {
				from, all = "2001:db8:200::1", true
			}
			testutil.Inside(t, ns, func() error {
				for command := range strings.SplitSeq(commands, "; ") {
					words := strings.Fields(command)
					if all && words[0] == "route" {
						words = append([]string{"-6"}, words...)
					}
					if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
						return fmt.Errorf("ip %s: %w: %s", command, err, out)
					}
				}
				return nil
			})
			rule := tt.rule
			if !strings.Contains(rule, "oifname") {
				rule = strings.TrimSpace("oifname up0 " + rule)
			}
			testutil.Nft(t, ns, "add table inet t\nadd chain inet t post { type nat hook postrouting priority 100; }\nadd rule inet t post "+rule+" meta l4proto udp masquerade to :40000-40099\n")
			testutil.Inside(t, ns, func() error {
				return testutil.SendUDP(netip.AddrPortFrom(netip.MustParseAddr(from), 0), netip.AddrPortFrom(netip.MustParseAddr(tt.to), 9))
			})
			var gave []netip.Addr
			if _, err := dump.Each(t.Context(), ns, &conntrack.Filter{Proto: conntrack.Is(uint8(17))}, func(e *conntrack.Entry) error {
				gave = append(gave, e.Reply.Dst)
				return nil
			}); err != nil || len(gave) != 1 || gave[0] != netip.MustParseAddr(tt.want) {
				t.Fatalf("the kernel gave %v, want %s: %v", gave, tt.want, err)
			}
			rules, err := read.NAT(ns)
			if err != nil || len(rules.Rules) != 1 {
				t.Fatalf("%+v: %v", rules, err)
			}
			src := newLive(Options{Netns: ns})
			var found []netip.Addr
			if err := src.inside(func() error {
				w, err := src.world()
				if err != nil {
					return err
				}
				defer w.close()
				m, err := newMasquerades(w)
				if err == nil {
					found = m.given(&rules.Rules[0])
				}
				return err
			}); err != nil || !slices.Contains(found, gave[0]) {
				t.Errorf("found %v, and the kernel gave %v: %v", found, gave, err)
			}
			if n := len(slices.DeleteFunc(found, func(a netip.Addr) bool { return a.Is6() != gave[0].Is6() })); n != 1 {
				t.Errorf("found %d of that version of IP: %v", n, found)
			}
		})
	}
}
