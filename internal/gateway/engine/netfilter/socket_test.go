package netfilter

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestCulprit: the expression that the kernel does not know is found by trying. Here
// it is one that no kernel knows.
func TestCulprit(t *testing.T) {
	testutil.NeedRoot(t)
	brings["hashish"] = "CONFIG_NFT_HASHISH"
	t.Cleanup(func() { delete(brings, "hashish") })
	ns := testutil.Namespace(t)
	plan := planOfText(t, "test", "gateway: {nat: [{snat: {from: 10.0.0.0/24, to: 203.0.113.1}}]}")
	tab := build(plan, host{netmap: true})
	for i := range tab.rules {
		if tab.rules[i].chain == "postrouting" {
			exprs := tab.rules[i].exprs
			tab.rules[i].exprs = append(exprs[:len(exprs)-1:len(exprs)-1], raw{name: "hashish"}, exprs[len(exprs)-1])
		}
	}
	err := commit(ns, tab)
	var m *Missing
	if !errors.As(err, &m) || m.About != "nat[0] snat" || m.What != "hashish" || !errors.Is(err, unix.ENOENT) {
		t.Fatalf("%v", err)
	}
	if want := "nat[0] snat: this kernel has no nftables hashish: it needs CONFIG_NFT_HASHISH"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
	if s, err := Read(ns); err != nil || s.Present {
		t.Errorf("something was left: %+v, %v", s, err)
	}
}

// TestProbeChangesNothing: a transaction without its end is checked and thrown away.
func TestProbeChangesNothing(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	messages, err := build(largePlan("dnat", 10), host{netmap: true}).messages(nil)
	if err != nil {
		t.Fatal(err)
	}
	if refused, err := send(ns, messages, 0, false); err != nil || len(refused) > 0 {
		t.Fatalf("%v, %v", refused, err)
	}
	if s, err := Read(ns); err != nil || s.Present {
		t.Errorf("something was left: %+v, %v", s, err)
	}
}

func TestInWords(t *testing.T) {
	chainNAT := chain{"prerouting", "nat", unix.NF_INET_PRE_ROUTING, -80}.message()
	for _, tt := range []struct {
		refused netlink.Refusal
		want    string
	}{
		{netlink.Refusal{Seq: 1, Errno: unix.EOPNOTSUPP}, "CONFIG_NF_TABLES_INET"},
		{netlink.Refusal{Seq: 0, Errno: unix.EOPNOTSUPP}, "CONFIG_NF_TABLES"},
		{netlink.Refusal{Seq: 2, Errno: unix.ENOENT}, "CONFIG_NFT_NAT, and Linux 5.2"},
		{netlink.Refusal{Seq: 0, Errno: unix.EPERM}, "CAP_NET_ADMIN"},
		{netlink.Refusal{Seq: 2, Errno: unix.ENOMEM}, "no memory"},
		{netlink.Refusal{Seq: 8, Errno: unix.EINVAL, Text: "odd"}, "odd"},
	} {
		err := inWords(nil, []message{tableMessage(unix.NFT_MSG_NEWTABLE), chainNAT}, []netlink.Refusal{tt.refused})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, tt.refused.Errno) {
			t.Errorf("%+v: %v", tt.refused, err)
		}
	}
}

// TestRefusedElement: of rules that share a map, the error names the one that does not
// go with another.
func TestRefusedElement(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	tab := build(largePlan("dnat", 500), host{netmap: true})
	of := tab.sets[len(tab.sets)-1].elements
	of[400].key = of[7].key
	err := commit(ns, tab)
	var refused *Refused
	if !errors.As(err, &refused) || refused.About != of[400].comment || !strings.Contains(refused.Why, "another rule") {
		t.Errorf("about %s: %v", of[400].comment, err)
	}
	if s, err := Read(ns); err != nil || s.Present {
		t.Errorf("something was left: %+v, %v", s, err)
	}
}

// TestWithout: what a kernel lacks is left out once, where that can be.
func TestWithout(t *testing.T) {
	h := host{netmap: true, flowCounts: true}
	for _, tt := range []struct {
		what  string
		again bool
	}{{"nat prefix", true}, {"nat prefix", false}, {"flowtable", true}, {"flowtable", false}, {"hash", false}} {
		if h.without(&Missing{What: tt.what}) != tt.again {
			t.Errorf("%s: again: %v", tt.what, !tt.again)
		}
	}
	if h.without(nil) || h.without(unix.EPERM) || h.netmap || h.flowCounts {
		t.Errorf("%+v", h)
	}
}

func TestIntervals(t *testing.T) {
	for _, tt := range []struct{ prefixes, want string }{
		{"10.0.0.0/8", "!0.0.0.0 10.0.0.0 !11.0.0.0"},
		{"10.0.0.0/8 10.1.0.0/16", "!0.0.0.0 10.0.0.0 !11.0.0.0"},
		{"11.0.0.0/8 10.0.0.0/8", "!0.0.0.0 10.0.0.0 !12.0.0.0"},
		{"0.0.0.0/8 10.0.0.0/8", "0.0.0.0 !1.0.0.0 10.0.0.0 !11.0.0.0"},
		{"10.0.0.0/8 255.0.0.0/8", "!0.0.0.0 10.0.0.0 !11.0.0.0 255.0.0.0"},
		{"0.0.0.0/0 10.0.0.0/8", "0.0.0.0"},
		{"ff00::/8 fd00::/8", "!:: fd00:: !fe00:: ff00::"},
	} {
		var prefixes []netip.Prefix
		for p := range strings.FieldsSeq(tt.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		var got []string
		for _, e := range intervals(prefixes) {
			a, _ := netip.AddrFromSlice(e.key)
			text := a.String()
			if e.end {
				text = "!" + text
			}
			got = append(got, text)
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %s, not %s", tt.prefixes, s, tt.want)
		}
	}
}

// TestGroups: rules of one shape share a map unless one between them could match the
// same packets, and so has to come between them.
func TestGroups(t *testing.T) {
	source := func(from string, random nat.Random) gateway.Entry {
		return gateway.Entry{Match: nat.Match{From: []netip.Prefix{netip.MustParsePrefix(from)}},
			Action: nat.Action{Kind: nat.SNAT, Random: random, To: nat.AddrRanges{nat.OneAddr(netip.MustParseAddr("203.0.113.1"))}}}
	}
	several := func(from string, balance nat.Balance, index int) gateway.Entry {
		e := source(from, "")
		e.Rule = gateway.Ref{List: "nat", Index: index, Kind: "dnat"}
		e.Action = nat.Action{Kind: nat.DNAT, Balance: balance, Backends: []nat.Backend{{Address: netip.MustParseAddr("10.9.0.1")}, {Address: netip.MustParseAddr("10.9.0.2")}}}
		return e
	}
	for _, tt := range []struct {
		name    string
		sources []gateway.Entry
		want    []int // entries of each group
	}{
		{"alike", []gateway.Entry{source("10.0.0.1/32", ""), source("10.0.0.2/32", "")}, []int{2}},
		{"another between, of other addresses", []gateway.Entry{source("10.0.0.1/32", ""), source("10.0.0.2/32", "fully"), source("10.0.0.3/32", "")}, []int{2, 1}},
		{"another between, of the same address", []gateway.Entry{source("10.0.0.1/32", ""), source("10.0.0.3/32", "fully"), source("10.0.0.3/32", "")}, []int{1, 1, 1}},
		{"a wider one between", []gateway.Entry{source("10.0.0.1/32", ""), source("10.0.0.0/24", "fully"), source("10.0.0.3/32", "")}, []int{1, 1, 1}},
		{"each in its turn, of two rules", []gateway.Entry{several("10.0.0.1/32", nat.BalanceRoundRobin, 0), several("10.0.0.2/32", nat.BalanceRoundRobin, 0), several("10.0.0.3/32", nat.BalanceRoundRobin, 1)}, []int{2, 1}},
		{"by a hash, of two rules", []gateway.Entry{several("10.0.0.1/32", nat.BalanceHash, 0), several("10.0.0.2/32", nat.BalanceHash, 1)}, []int{2}},
		{"twice the same", []gateway.Entry{source("10.0.0.1/32", ""), source("10.0.0.1/32", "")}, []int{1}},
	} {
		var all groups
		for i := range tt.sources {
			all.collect(&tt.sources[i], ip4, bySource)
		}
		var got []int
		for _, g := range all.all {
			got = append(got, len(g.entries))
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v, not %v", tt.name, got, tt.want)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %v, not %v", tt.name, got, tt.want)
			}
		}
	}
}

func TestWeights(t *testing.T) {
	r := func(first, last string) nat.AddrRange {
		return nat.AddrRange{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	small := weights(nat.AddrRanges{r("203.0.113.0", "203.0.113.7"), r("203.0.113.9", "203.0.113.9")})
	large := weights(nat.AddrRanges{r("2001:db8::", "2001:db8::ffff:ffff:ffff"), r("2001:db8:1::", "2001:db8:1::7fff:ffff"), r("2001:db8:2::1", "2001:db8:2::1")})
	if small[0] != 8 || small[1] != 1 || large[0] != maxWeight || large[1] != maxWeight/2 || large[2] != 1 {
		t.Errorf("%v, %v", small, large)
	}
}
