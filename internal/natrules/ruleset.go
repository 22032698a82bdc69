package natrules

import (
	"encoding/binary"
	"fmt"
)

// kernelRule is a rule as the kernel tells it, each expression with its own bytes.
type kernelRule struct {
	family       uint8
	table, chain string
	handle       uint64
	exprs        []kernelExpr
	attrs        attrs
}

type kernelExpr struct {
	name string
	data attrs
	raw  []byte // the content of its NFTA_LIST_ELEM
}

// kernelChain is a chain; hook is -1 where it is not a base chain.
type kernelChain struct {
	family      uint8
	table, name string
	kind        string
	hook        int
	priority    int32
	policy      uint32
}

// body takes the nfgenmsg off a message: family, version, resource.
func body(msg []byte) (family uint8, all attrs, err error) {
	if len(msg) < 4 {
		return 0, nil, errGarbled
	}
	all, err = parseAttrs(msg[4:])
	return msg[0], all, err
}

func parseChain(msg []byte) (kernelChain, error) {
	family, a, err := body(msg)
	if err != nil {
		return kernelChain{}, fmt.Errorf("parse chain: %w", err)
	}
	c := kernelChain{family: family, table: a.text(nftChainTable), name: a.text(nftChainName), kind: a.text(nftChainType), hook: -1}
	if hook := a.nested(nftChainHook); hook.has(nftHookNum) {
		c.hook = int(hook.u32(nftHookNum))
		c.priority, c.policy = int32(hook.u32(nftHookPriority)), a.u32(nftChainPolicy)
	}
	return c, nil
}

func (c kernelChain) key() tableKey { return tableKey{c.family, c.table} }

func (c kernelChain) translates() bool {
	return c.kind == "nat" && c.hook >= 0 && c.hook < len(hookNames) && familyNames[c.family] != ""
}

func parseRule(msg []byte) (*kernelRule, error) {
	family, a, err := body(msg)
	if err != nil {
		return nil, fmt.Errorf("parse rule: %w", err)
	}
	r := &kernelRule{family: family, table: a.text(nftRuleTable), chain: a.text(nftRuleChain), handle: a.u64(nftRuleHandle), attrs: a}
	list, err := parseAttrs(a.get(nftRuleExprs))
	if err != nil {
		return nil, fmt.Errorf("parse rule %d of %s: %w", r.handle, r.chain, err)
	}
	for _, elem := range list {
		e, err := parseAttrs(elem.data)
		if err != nil {
			return nil, fmt.Errorf("parse rule %d of %s: %w", r.handle, r.chain, err)
		}
		r.exprs = append(r.exprs, kernelExpr{e.text(nftExprName), e.nested(nftExprData), elem.data})
	}
	return r, nil
}

// parseVerdicts are the chains that the elements of a verdict map lead to.
func parseVerdicts(msg []byte) ([]string, error) {
	_, a, err := body(msg)
	if err != nil {
		return nil, fmt.Errorf("parse elements of a map: %w", err)
	}
	var chains []string
	for _, elem := range a.nested(nftSetElemListElems) {
		e, err := parseAttrs(elem.data)
		if err != nil {
			return nil, fmt.Errorf("parse elements of a map: %w", err)
		}
		if _, chain := verdict(e.nested(nftSetElemData)); chain != "" {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

// verdict takes NFTA_DATA_VERDICT apart; without one it is NFT_CONTINUE.
func verdict(data attrs) (code int32, chain string) {
	v := data.nested(nftDataVerdict)
	if !v.has(nftVerdictCode) {
		return -1, ""
	}
	return int32(v.u32(nftVerdictCode)), v.text(nftVerdictChain)
}

func beUint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}
