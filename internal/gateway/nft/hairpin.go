package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// hairpinChain has the sources that connections get which come back inside.
const hairpinChain = "hairpin"

// hairpins lead connections there whose destination was translated and that come in and
// leave by interfaces inside. The gateway's own come in by none; nor does what a bridge
// takes from one port to another where it hands packets to netfilter (br_nf_post_routing
// in net/bridge/br_netfilter_hooks.c), which its source tells from them.
func (t *table) hairpins(p *gateway.Plan) {
	if !slices.ContainsFunc(p.Sources, func(s gateway.Source) bool { return s.Hairpin.Prefix.IsValid() }) {
		return
	}
	names, others := p.LAN, false
	if len(names) == 0 {
		names, others = p.WAN, true
	}
	none := make([]byte, 4)
	iif := &expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}
	routed := append([]expression{iif, unequal(reg1, none)}, t.interfaces(expr.MetaKeyIIFNAME, names, others)...)
	bridged := []expression{iif, equal(reg1, none),
		&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagSADDR: true}, unequal(reg1, hostUint32(unix.RTN_LOCAL))}
	for _, came := range [][]expression{routed, bridged} {
		t.rules = append(t.rules, rule{chain: "postrouting", comment: "hairpin", exprs: slices.Concat(translated(), came,
			t.interfaces(expr.MetaKeyOIFNAME, names, others), []expression{&expr.Verdict{Kind: expr.VerdictJump, Chain: hairpinChain}})})
	}
}

// translated asks whether the destination was.
func translated() []expression {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return []expression{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, dstNAT), Xor: make([]byte, 4)},
		unequal(reg1, make([]byte, 4)),
	}
}
