package read

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/netns"
)

// Numbers of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix
// has no names for, or that read better beside what uses them.
const (
	nftRuleTable, nftRuleChain, nftRuleHandle, nftRuleExprs = 1, 2, 3, 4
	nftRuleCompat, nftRuleUserdata                          = 5, 7

	nftCompatProto        = 1
	nftCompatFlags        = 2
	nftCompatInverted     = 2 // NFT_RULE_COMPAT_F_INV
	nftListElem           = 1
	nftExprName           = 1
	nftExprData           = 2
	nftDataValue          = 1
	nftDataVerdict        = 2
	nftVerdictCode        = 1
	nftVerdictChain       = 2
	nftImmediateDreg      = 1
	nftImmediateData      = 2
	nftTableName          = 1
	nftTableFlags         = 2
	nftTableDormant       = 1 // NFT_TABLE_F_DORMANT
	nftTableOwner         = 2 // NFT_TABLE_F_OWNER
	nftChainTable         = 1
	nftChainName          = 3
	nftChainHook          = 4
	nftChainPolicy        = 5
	nftChainType          = 7
	nftHookNum            = 1
	nftHookPriority       = 2
	nftSetElemListTable   = 1
	nftSetElemListSet     = 2
	nftSetElemListElems   = 3
	nftSetElemKey         = 1
	nftSetElemFlags       = 3
	nftSetElemData        = 2
	nftLookupSet          = 1
	nftLookupSreg         = 2
	nftLookupFlags        = 5 // NFT_LOOKUP_F_INV
	nftLookupDreg         = 3
	nftMetaDreg           = 1
	nftMetaKey            = 2
	nftPayloadDreg        = 1
	nftPayloadBase        = 2
	nftPayloadOffset      = 3
	nftPayloadLen         = 4
	nftCmpSreg            = 1
	nftCmpOp              = 2
	nftCmpData            = 3
	nftBitwiseSreg        = 1
	nftBitwiseDreg        = 2
	nftBitwiseMask        = 4
	nftBitwiseXor         = 5
	nftBitwiseOp          = 6
	nftXtName             = 1
	nftXtRevision         = 2
	nftXtInfo             = 3
	nftGenID              = 1
	nfnlBatchGenID        = 1
	payloadNetwork        = 1 // NFT_PAYLOAD_NETWORK_HEADER
	payloadTransport      = 2
	verdictDrop           = 0
	verdictAccept         = 1
	verdictJump           = -3
	verdictGoto           = -4
	verdictReturn         = -5
	metaIif, metaOif      = 4, 5
	metaIifname           = 6
	metaOifname           = 7
	metaNfproto           = 15
	metaL4proto           = 16
	familyInet, familyIP4 = 1, 2 // NFPROTO_INET, NFPROTO_IPV4
	familyIP6             = 10
)

// NF_NAT_RANGE_* of include/uapi/linux/netfilter/nf_nat.h.
const (
	rangeMapIPs      = 1 << 0
	rangePorts       = 1 << 1
	rangeRandom      = 1 << 2
	rangePersistent  = 1 << 3
	rangeFullyRandom = 1 << 4
	rangeOffset      = 1 << 5
	rangeNetmap      = 1 << 6
)

var familyNames = map[uint8]string{familyInet: "inet", familyIP4: "ip", familyIP6: "ip6"}

// hookNames are nft's, by NF_INET_*.
var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// nftChains are the tables of nftables that have chains at the hooks of IP.
func nftChains(ns *netns.Handle) ([]NATTable, error) {
	return over(ns, func(c conn) (all []NATTable, err error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		var tables []*kernelTable
		var ways *budget
		_, _, err = c.settled(func() (err error) { ways = newBudget(); tables, err = c.withSets(kernelChain.atIP, ways); return err })
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			all = append(all, t.stepByElement(names, ways).exported(t.isNAT))
		}
		return all, nil
	})
}

// withSets reads the tables that have such a chain, with the sets of those that are not
// natkit's own.
func (c conn) withSets(such func(kernelChain) bool, ways *budget) (all []*kernelTable, err error) {
	chains, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	var keys []tableKey
	for _, chain := range chains {
		key := chain.key()
		if such(chain) && flags[key]&nftTableDormant == 0 && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		t, err := c.tableOf(key, chains)
		if err != nil {
			return nil, err
		}
		if !key.isGateway() {
			if t.sets, err = c.constantSets(t, ways); err != nil {
				return nil, err
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// atIP reports whether packets of IP come to it from a hook.
func (c kernelChain) atIP() bool {
	return c.hook >= 0 && c.hook < len(hookNames) && familyNames[c.family] != ""
}

func (t *kernelTable) isNAT(chain string) bool {
	return slices.ContainsFunc(t.chains, func(c kernelChain) bool { return c.name == chain && c.translates() })
}

// concerning are the rules that a gateway may have words for: those that packets to be
// translated come to, and those that keep the tracker off or bound segments. Filters
// may have sets of any size.
func (t *kernelTable) concerning() map[*kernelRule]bool {
	g, nat := t.graph(), map[string]bool{}
	for _, c := range t.chains {
		if c.translates() {
			_, chains := g.reach(c.name)
			for _, name := range append(chains, c.name) {
				nat[name] = true
			}
		}
	}
	all, place := map[*kernelRule]bool{}, map[string]int{}
	for _, r := range t.rules {
		all[r] = nat[r.chain] || g.steps[r.chain][place[r.chain]].besidesNAT()
		place[r.chain]++
	}
	return all
}

// stepByElement is the table with all its base chains, and a step for each element of
// the sets that rules look into.
func (t *kernelTable) stepByElement(links map[uint32]string, ways *budget) *ruleTable {
	table := newTable(familyNames[t.key.family], t.key.name)
	for _, c := range t.chains {
		chain := table.chain(c.name)
		if c.atIP() {
			chain.bases = append(chain.bases, base{c.hook, c.priority})
		}
	}
	m := machine{family: table.family, links: links, sets: t.sets, ways: ways, verdicts: func(set string) []string { return t.verdicts[set] }}
	concerning := t.concerning()
	for _, r := range t.rules {
		chain := table.chain(r.chain)
		if concerning[r] {
			chain.steps = append(chain.steps, m.readSteps(r)...)
		} else {
			chain.steps = append(chain.steps, m.readStep(r))
		}
	}
	table.short = ways.short
	return table
}

// identify gives the rules that natkit can change their Targets: namespace, place
// and a hash over what a change of options does not change. Of rules that are alike
// the second one of a chain, by age, has the suffix "#2": a program that misses its own
// rule since natkit changed it adds another one, often in front.
func (s *ruleset) identify(inode uint64) {
	for i := range s.tables {
		t := &s.tables[i]
		times := map[string]int{}
		byAge := func(a, b *kernelRule) int { return cmp.Compare(a.handle, b.handle) }
		for _, r := range slices.SortedFunc(slices.Values(t.rules), byAge) {
			if _, ok := editable(r); !ok || t.key.isGateway() { // the gateway's file is where those are changed
				continue
			}
			name := fmt.Sprintf("netns %d %s %s %s %08x", inode, familyNames[r.family],
				oneWord(r.table), oneWord(r.chain), fingerprint(r))
			if times[name]++; times[name] > 1 {
				name += fmt.Sprintf("#%d", times[name])
			}
			t.targets[r] = name
		}
	}
}

// oneWord writes names, which may have blanks and worse, as in a URL.
func oneWord(s string) string { return url.PathEscape(s) }

// fingerprint is a hash over a rule's expressions without counters, and without
// ports and options of its translation.
func fingerprint(r *kernelRule) uint32 {
	e, _ := editable(r)
	h := fnv.New32a()
	for i, x := range r.exprs {
		if e.portImmediate(i) {
			continue
		}
		h.Write([]byte(x.name))
		h.Write([]byte{0})
		if i == e.at {
			h.Write(e.masked())
		} else {
			h.Write(stateless(x))
		}
	}
	return h.Sum32()
}

// stateless is an expression's data without what packets change in it.
func stateless(x kernelExpr) []byte {
	switch x.name {
	case "counter", "last":
		return nil
	case "quota":
		return without(x.data, 4) // NFTA_QUOTA_CONSUMED
	case "lookup": // an anonymous set has another number in every rule
		name := strings.TrimRight(x.data.text(nftLookupSet), "0123456789")
		if name == "__set" || name == "__map" {
			return append(without(x.data, nftLookupSet), name...)
		}
	}
	return without(x.data)
}

// without writes attributes out again, but for some.
func without(a attrs, kinds ...uint16) []byte {
	var b []byte
	for _, x := range a {
		if !slices.Contains(kinds, x.kind) {
			b = binary.BigEndian.AppendUint16(b, x.kind)
			b = append(b, x.data...)
		}
	}
	return b
}
