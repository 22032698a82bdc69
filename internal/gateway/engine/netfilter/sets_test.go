package netfilter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// withSets is a plan whose rules ask for sets of these elements.
func withSets(t testing.TB, hosts, nets, ports string) *gateway.Plan {
	return planOfText(t, "sets", fmt.Sprintf(`gateway:
  interfaces: {wan: eth0, lan: eth1}
  sets: {hosts: {addresses: [%s]}, nets: {addresses: [%s]}, web: {ports: [%s]}}
  nat:
    - snat: {from: $hosts, except-to: $nets, to: 203.0.113.8}
    - dnat: {on: 203.0.113.7, port: $web, from: $nets, to: 10.0.0.7}
  ipv6:
    - masquerade: {except-from: $nets}
`, hosts, nets, ports))
}

// What differs in elements alone is replaced: the table is then as one that is written anew, and its rules are still
// those that counted.
func TestUpdate(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.NetnsCookie) // without, all rules are written
	ns, fresh := testutil.Namespace(t), testutil.Namespace(t)
	was := withSets(t, "10.0.0.1", "192.0.2.0/24", "tcp/80")
	if err := Apply(ns, was); err != nil {
		t.Fatal(err)
	}
	for i, now := range []*gateway.Plan{
		withSets(t, "10.0.0.1, 10.0.0.2, 10.0.0.9", "192.0.2.0/24", "tcp/80"),
		withSets(t, "10.0.0.2", "192.0.2.0/24, 192.0.3.0/25", "tcp/80, udp/443, tcp/1000-1003"),
		withSets(t, "10.0.0.3, 10.0.0.4", "192.0.2.4-192.0.2.9, 192.0.2.10, 192.0.2.12-255.255.255.255, 'fd00::/8'", "udp/443"),
		withSets(t, "10.0.0.3", "192.0.2.5-192.0.2.8, 192.0.2.10-192.0.2.12, 'fd00::/9', '8000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "udp/444"),
	} {
		digest, former := gateway.Digest(now), was
		seal, done := Engine{}.Update(ns, now, digest, func(string) *gateway.Plan { return former })
		switch {
		case i == 2 && !done: // those of IPv6 become intervals: then all is written
			var err error
			if seal, err = (Engine{}).Apply(ns, now, digest); err != nil {
				t.Fatal(err)
			}
		case i == 2 || !done || seal == "":
			t.Fatalf("%d: updated: %v", i, done)
		}
		if _, err := (Engine{}).Apply(fresh, now, digest); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(listing(t, fresh), "\n"), strings.Split(listing(t, ns), "\n")); diff != "" {
			t.Errorf("%d: -anew +updated\n%s", i, diff)
		}
		s, err := Engine{}.Read(ns, seal, func(string) *gateway.Plan { return now })
		if err != nil || (s.Integrity != gateway.RulesIntact || s.Digest != digest) {
			t.Errorf("%d: %+v, %v", i, s, err)
		}
		was = now
	}
	if _, done := (Engine{}).Update(ns, withSets(t, "10.0.0.0/31", "10.9.0.0/16, 'fd00::/8'", "udp/1"), "d", func(string) *gateway.Plan { return was }); done {
		t.Error("a set of single addresses became one of intervals in place")
	}
	run(t, ns, "nft", "add", "table", "inet", "other")
	if _, done := (Engine{}).Update(ns, withSets(t, "10.0.0.5", "192.0.2.5, 'fd00::/9'", "udp/1"), "d", func(string) *gateway.Plan { return was }); done {
		t.Error("updated though rules changed since")
	}
}

// An element that another program adds or removes is noticed.
func TestSetsAreSealed(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	ns, p := testutil.Namespace(t), withSets(t, "10.0.0.1", "192.0.2.0/24", "tcp/80")
	seal, err := Engine{}.Apply(ns, p, gateway.Digest(p))
	if err != nil || seal == "" {
		t.Fatal(seal, err)
	}
	for _, command := range []string{"add element inet natkit set4-hosts {10.0.0.2}", "delete element inet natkit set4-hosts {10.0.0.1}"} {
		run(t, ns, "nft", command)
		s, err := Engine{}.Read(ns, seal, func(string) *gateway.Plan { return p })
		if err != nil || s.Integrity != gateway.RulesChanged || !strings.Contains(strings.Join(s.Changes, ";"), "set set4-hosts") {
			t.Errorf("%s: %+v, %v", command, s, err)
		}
	}
}

// Elements of random sets that replace each other are, in the kernel, those of the last one.
func TestUpdateAnything(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.NetnsCookie) // without, all rules are written
	testutil.NeedProgram(t, "nft")
	ns, r := testutil.Namespace(t), rand.New(rand.NewPCG(19, 7))
	plan := func() *gateway.Plan {
		var all nat.AddrRanges
		for range 1 + r.IntN(30) {
			first := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(256))})
			all = append(all, nat.AddrRange{First: first, Last: netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), first.As4()[3] | byte(r.IntN(8))})})
		}
		all = append(all, nat.RangeOf(netip.MustParsePrefix("192.0.2.0/24")))
		return planOfSet(nat.NewSet("s", all, nil))
	}
	was := plan()
	if err := Apply(ns, was); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		now, former := plan(), was
		if _, done := (Engine{}).Update(ns, now, gateway.Digest(now), func(string) *gateway.Plan { return former }); !done {
			t.Fatalf("%d: not updated from %s to %s", i, former.Sets[0].Text(), now.Sets[0].Text())
		}
		text := run(t, ns, "nft", "list", "set", "inet", "natkit", "set4-s")
		for host := range 512 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(host >> 8), byte(host)})
			if in := listedIn(text, a); in != now.Sets[0].HasAddr(a) {
				t.Fatalf("%d: %s: %v in\n%s", i, a, in, text)
			}
		}
		was = now
	}
}

// planOfSet masquerades what is in a set.
func planOfSet(s *nat.Set) *gateway.Plan {
	return &gateway.Plan{Engine: gateway.EngineNetfilter, IPv4: true, Sets: []*nat.Set{s}, Sources: []gateway.Entry{{Rule: gateway.Ref{List: "nat", Kind: "masquerade"},
		Match:  nat.Match{From: []netip.Prefix{nat.Anywhere(32)}, Members: []nat.Member{{Of: nat.From, Name: s.Name, Set: s}}},
		Action: nat.Action{Kind: nat.Masquerade}}}}
}

// listedIn reports whether nft lists an address among the elements of a set.
func listedIn(text string, a netip.Addr) bool {
	_, text, _ = strings.Cut(text, "elements = {")
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,\n\t{}", r) }) {
		first, last, isRange := strings.Cut(word, "-")
		r := nat.AddrRange{}
		if p, err := netip.ParsePrefix(word); err == nil {
			r = nat.RangeOf(p)
		} else {
			r.First = netip.MustParseAddr(first)
			if r.Last = r.First; isRange {
				r.Last = netip.MustParseAddr(last)
			}
		}
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// TestLargeSet: the hash table of a set that is not read back has room for twice its elements, in which others are
// exchanged; where they have no room nothing changes, and all is written anew.
func TestLargeSet(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.NetnsCookie) // without, all rules are written
	testutil.NeedProgram(t, "nft")
	ns := testutil.Namespace(t)
	plan := func(first string, n int) *gateway.Plan {
		var all nat.AddrRanges
		for i := range n {
			all = append(all, nat.OneAddr(address(first, 2*i)))
		}
		return planOfSet(nat.NewSet("s", all, nil))
	}
	size := func(want int) {
		t.Helper()
		if text := run(t, ns, "nft", "-t", "list", "set", "inet", "natkit", "set4-s"); !strings.Contains(text, fmt.Sprintf("size %d\n", want)) {
			t.Errorf("not of size %d: %s", want, text)
		}
	}
	was := plan("10.0.0.0", mostCompared+1)
	if err := Apply(ns, was); err != nil {
		t.Fatal(err)
	}
	size(1 << 16)
	for _, step := range []struct {
		now  *gateway.Plan
		done bool
	}{
		{plan("10.1.0.0", 60_000), true}, // that many others
		{plan("10.1.0.0", 70_000), false},
		{plan("10.9.0.0", 65_536), true},
	} {
		former := was
		if _, done := (Engine{}).Update(ns, step.now, gateway.Digest(step.now), func(string) *gateway.Plan { return former }); done != step.done {
			t.Fatalf("%d elements after %d: updated %v", step.now.Sets[0].Len(), was.Sets[0].Len(), done)
		}
		if step.done {
			was = step.now
		}
		for a, want := range map[string]bool{"10.1.0.0": was.Sets[0].HasAddr(netip.MustParseAddr("10.1.0.0")), "10.9.0.0": was.Sets[0].HasAddr(netip.MustParseAddr("10.9.0.0"))} {
			err := ns.Do(func() error {
				return exec.Command("nft", "get", "element", "inet", "natkit", "set4-s", "{"+a+"}").Run()
			})
			if (err == nil) != want {
				t.Errorf("%s is in: %v, want %v", a, err == nil, want)
			}
		}
	}
	grown := plan("10.1.0.0", 70_000)
	if err := Apply(ns, grown); err != nil {
		t.Fatal(err)
	}
	size(1 << 18)
}

// TestUpdateBesideOthers: what is in force in another network namespace is in no one's way.
func TestUpdateBesideOthers(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.NetnsCookie) // without, all rules are written
	ns, other := testutil.Namespace(t), testutil.Namespace(t)
	was, now := withSets(t, "10.0.0.1", "192.0.2.0/24", "tcp/80"), withSets(t, "10.0.0.2", "192.0.2.0/24", "tcp/80")
	for _, n := range []*netns.Handle{ns, other} {
		if err := Apply(n, was); err != nil {
			t.Fatal(err)
		}
	}
	if _, done := (Engine{}).Update(ns, now, gateway.Digest(now), func(string) *gateway.Plan { return was }); !done {
		t.Error("not updated")
	}
}

// withPairs is a plan of these pairs.
func withPairs(t testing.TB, pairs, more string) *gateway.Plan {
	return planOfText(t, "pairs", fmt.Sprintf(`gateway:
  interfaces: {wan: eth0, lan: eth1}
  sets: {floating: {pairs: [%s]}, fast: {pairs: [%s]}}
  nat:
    - static: {pairs: $floating}
    - static: {pairs: $fast, stateless: on}
  ipv6:
    - static: {pairs: $floating}
`, pairs, more))
}

// Pairs are replaced as other elements are, also those of which one address becomes that of another pair.
func TestUpdatePairs(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.NetnsCookie) // without, all rules are written
	ns, fresh := testutil.Namespace(t), testutil.Namespace(t)
	was := withPairs(t, "203.0.113.7 10.0.0.7, 203.0.113.8 10.0.0.8, '2001:db8::7 fd00::7'", "203.0.113.30 10.0.0.30, 203.0.113.31 10.0.0.31")
	if err := Apply(ns, was); err != nil {
		t.Fatal(err)
	}
	for i, now := range []*gateway.Plan{
		withPairs(t, "203.0.113.7 10.0.0.7, 203.0.113.8 10.0.0.8, 203.0.113.9 10.0.0.9, '2001:db8::7 fd00::7'", "203.0.113.30 10.0.0.30, 203.0.113.31 10.0.0.31"),
		withPairs(t, "203.0.113.7 10.0.0.8, 203.0.113.8 10.0.0.7, 203.0.113.9 10.0.0.9, '2001:db8::7 fd00::8'", "203.0.113.30 10.0.0.31, 203.0.113.31 10.0.0.30"),
		withPairs(t, "203.0.113.1 10.0.0.1", "203.0.113.30 10.0.0.31"),
	} {
		digest, former := gateway.Digest(now), was
		seal, done := Engine{}.Update(ns, now, digest, func(string) *gateway.Plan { return former })
		if !done {
			t.Fatalf("%d: not updated", i)
		}
		if _, err := (Engine{}).Apply(fresh, now, digest); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(listing(t, fresh), "\n"), strings.Split(listing(t, ns), "\n")); diff != "" {
			t.Errorf("%d: -anew +updated\n%s", i, diff)
		}
		s, err := Engine{}.Read(ns, seal, func(string) *gateway.Plan { return now })
		if err != nil || s.Integrity != gateway.RulesIntact || s.Digest != digest {
			t.Errorf("%d: %+v, %v", i, s, err)
		}
		was = now
	}
	run(t, ns, "nft", "delete element inet natkit pairs4-in-floating {203.0.113.1}")
	if s, err := (Engine{}).Read(ns, "", func(string) *gateway.Plan { return was }); err != nil || s.Integrity == gateway.RulesIntact {
		t.Errorf("a pair is gone: %+v, %v", s, err)
	}
	if err := (Engine{}).Remove(ns); err != nil {
		t.Fatal(err)
	}
	if text := run(t, ns, "nft", "list", "ruleset"); text != "" {
		t.Errorf("left: %s", text)
	}
}

// Who reads all rules of a host does not read the pairs, of which there may be a million.
func TestPairsAreNotRead(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	if err := Apply(ns, withPairs(t, "203.0.113.7 10.0.0.7", "203.0.113.30 10.0.0.30")); err != nil {
		t.Fatal(err)
	}
	c, err := read.Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dumps, _, err := c.Dumps((*ruleset.KernelChain).IsNAT)
	if err != nil || len(dumps) != 1 {
		t.Fatal(len(dumps), err)
	}
	if len(dumps[0].Elements) > 0 {
		t.Errorf("read: %v", dumps[0].Elements)
	}
	rules := 0
	for _, c := range dumps[0].Table(&ruleset.Budget{}).Chains {
		rules += len(c.Rules)
	}
	if rules != len(dumps[0].Rules) {
		t.Errorf("%d rules of %d", rules, len(dumps[0].Rules))
	}
}
