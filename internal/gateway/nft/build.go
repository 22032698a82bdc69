package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// Priorities come after those of Docker, firewalld and hand-made rules (dstnat -100,
// srcnat 100, firewalld's +10): what they translate stays theirs.
var baseChains = []chain{
	{"raw-prerouting", "filter", unix.NF_INET_PRE_ROUTING, -300},
	{name: neutralChain}, // where raw-prerouting leads
	{"raw-output", "filter", unix.NF_INET_LOCAL_OUT, -300},
	{"prerouting", "nat", unix.NF_INET_PRE_ROUTING, -80},
	{"output", "nat", unix.NF_INET_LOCAL_OUT, -80},
	{"mss", "filter", unix.NF_INET_FORWARD, -150},
	{"forward", "filter", unix.NF_INET_FORWARD, 0},
	{"untranslatable", "filter", unix.NF_INET_FORWARD, 120},
	{"stateless", "filter", unix.NF_INET_POST_ROUTING, 110},
	{name: hairpinChain}, // where postrouting leads
	{"postrouting", "nat", unix.NF_INET_POST_ROUTING, 120},
}

// host is what the table depends on beside the plan.
type host struct {
	// flowtable are those of the plan's interfaces for it that there are.
	flowtable []string
	// netmap tells that the kernel has NF_NAT_RANGE_NETMAP for nftables (5.8).
	netmap bool
	// flowCounts tells that the flowtable is to count for the tracker (5.7).
	flowCounts bool
}

// manySets are so many that they are shared: the kernel looks for each through all
// those of the transaction (nft_set_lookup_byid). Below, each rule is easier to read.
const manySets = 256

// build makes the table of a plan.
func build(p *gateway.Plan, h host) *table {
	t := &table{handNetmap: !h.netmap}
	t.fill(p, h)
	if len(t.sets) > manySets {
		t = &table{handNetmap: !h.netmap, shared: map[string]*set{}}
		t.fill(p, h)
	}
	return t
}

func (t *table) fill(p *gateway.Plan, h host) {
	t.mss(p.MSS)
	t.hairpins(p)
	for _, f := range []*family{ip4, ip6} {
		t.untracked(p, f)
		t.stateless(p, f)
		t.destinations(p, f)
		t.sources(p, f)
		if p.IPv4 && !f.v6 || p.IPv6 && f.v6 {
			t.limit(p, f)
		}
	}
	t.untranslatable(p)
	t.offload(h)
	t.chains = t.used()
	t.mark(gateway.Digest(p))
}

// used are the chains that have rules: another would cost each packet a call, and
// a nat chain starts the tracker.
func (t *table) used() []chain {
	rules := map[string]int{}
	for _, r := range t.rules {
		rules[r.chain]++
	}
	var used []chain
	for _, c := range baseChains {
		if rules[c.name] > 0 {
			used = append(used, c)
		}
	}
	return used
}

// mark leaves the digest of the plan.
func (t *table) mark(digest string) {
	t.chains = append(t.chains, chain{name: MarkChain})
	t.rules = append(t.rules, rule{chain: MarkChain, comment: fmt.Sprint(digestWords, digest),
		exprs: []expression{&expr.Verdict{Kind: expr.VerdictReturn}}})
}
