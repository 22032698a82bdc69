package collect

import (
	"errors"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// fillIPv6 puts connections of UDP to port 53 into a table: of 2001:db8::1 with the ports of a range, and others.
func fillIPv6(t *testing.T, ns *netns.Handle, others, first, last int) {
	t.Helper()
	own, server := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:9::9")
	i, total := 0, others+last-first+1
	if taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 1, 15: byte(i >> 15)}), Dst: server, Proto: unix.IPPROTO_UDP, SrcPort: uint16(1024 + i&0x7fff), DstPort: 53}
		reply := orig.Mirror()
		if i >= others {
			orig.DstPort = 9
			reply = orig.Mirror()
			reply.Dst, reply.DstPort = own, uint16(first+i-others)
		}
		*e = conntrack.Entry{Family: unix.AF_INET6, Orig: orig, Reply: reply, Timeout: 3600}
		i++
		return i <= total
	}); err != nil || taken != int64(total) {
		t.Fatalf("inserted %d of %d: %v", taken, total, err)
	}
}

// TestNarrowPools: pools of few ports are counted exactly among others of IPv6, of which the kernel leaves out those to other ports
// than the rule's, and not at all where it would have to pass on too many.
func TestNarrowPools(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		return errors.Join(exec.Command("ip", "link", "set", "lo", "up").Run(), exec.Command("ip", "address", "add", "2001:db8::1/128", "dev", "lo").Run(),
			exec.Command("ip", "address", "add", "198.18.0.1/32", "dev", "lo").Run())
	})
	const others, first, last = mostPassed + 5000, 40000, 40099
	fillIPv6(t, ns, others, first, last)
	for rule, exact := range map[string]bool{
		"ip6 t post udp dport 9 snat to [2001:db8::1]:40000-40099":       true,
		"ip6 t post udp dport 9 masquerade to :40000-40099":              true,
		"inet t post udp dport 9 masquerade to :40000-40099":             true,
		"inet t post oifname lo udp dport 9 masquerade to :40000-40099":  true,
		"inet t post oifname up0 udp dport 9 masquerade to :40000-40099": false, // there is no such interface
		"ip6 t post meta l4proto udp masquerade to :40000-40099":         false, // the kernel would pass on more than is read
		"ip6 t post udp dport 9 masquerade":                              false, // no few ports
		"ip t post udp dport 9 masquerade to :40000-40099":               false, // another version of IP
	} {
		t.Run(rule, func(t *testing.T) {
			family := rule[:4]
			if family[3] == ' ' {
				family = family[:3]
			}
			if family[2] == ' ' {
				family = family[:2]
			}
			testutil.Nft(t, ns, "add table "+family+" t\nadd chain "+family+" t post { type nat hook postrouting priority 100; }\nadd rule "+rule+"\n")
			t.Cleanup(func() { testutil.Nft(t, ns, "delete table "+family+" t\n") })
			rules, err := read.NAT(ns)
			if err != nil {
				t.Fatal(err)
			}
			release, err := Release()
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			pools, err := NarrowPools(t.Context(), ns, &Narrow{Rules: rules, Release: release, Sampled: 1000, Entries: others + 100, Now: began})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d pools in %s", len(pools), time.Since(began))
			if !exact {
				if len(pools) > 0 {
					t.Errorf("counted: %+v", pools)
				}
				return
			}
			if len(pools) != 1 || !pools[0].Exact || pools[0].Used != last-first+1 || pools[0].FirstPort != first || pools[0].LastPort != last ||
				pools[0].Address != "2001:db8::1" || pools[0].Destination != "[2001:db8:9::9]:9" {
				t.Errorf("%+v", pools)
			}
		})
	}
}

// TestNarrowRanges: the smallest ranges are read, of equal ones those with more in the sample, and none that another one has.
func TestNarrowRanges(t *testing.T) {
	rule := func(address string, first, last, remote uint16) snapshot.NATRule {
		a := netip.MustParseAddr(address)
		return snapshot.NATRule{Kind: snapshot.NATSource, Family: "ip", First: a, Last: a, FirstPort: first, LastPort: last,
			NATCondition: snapshot.NATCondition{Protocol: "udp", DestinationPort: remote}}
	}
	all := &snapshot.NATRules{Rules: []snapshot.NATRule{
		rule("198.18.0.1", 1000, 1999, 0), rule("198.18.0.2", 1099, 1000, 0), rule("198.18.0.3", 1000, 1099, 0), rule("198.18.0.3", 1000, 1099, 53),
		rule("198.18.0.4", 1024, 65535, 0), {Kind: snapshot.NATSource, Family: "ip"},
	}}
	n := &Narrow{Rules: all, Release: "6.1.0", Sampled: 2000, Entries: 100_000, Seen: map[netip.Addr]int{netip.MustParseAddr("198.18.0.3"): 7}}
	var got []string
	for _, g := range n.ranges(n.rules(), &masquerades{}) {
		got = append(got, g.address.String()+" "+g.ports.String())
	}
	if len(got) != 2 || got[0] != "198.18.0.3 1000-1099" || got[1] != "198.18.0.2 1000-1099" {
		t.Errorf("%q", got)
	}
	for release, most := range map[string]int{"5.15.0-91-generic": 0, "5.16": 4, "?": 0} {
		if n.Release = release; len(n.rules()) != most {
			t.Errorf("%s: %d rules, want %d", release, len(n.rules()), most)
		}
	}
}
