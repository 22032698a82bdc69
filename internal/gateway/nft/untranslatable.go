package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// UntranslatableComment is that of the rules that drop what the tracker takes for
// invalid and a rule of the file would have had to translate.
const UntranslatableComment = "untranslatable"

// untranslatable drops packets through the gateway whose source a rule is for, and that
// the tracker takes for invalid: no nat chain is asked about these (nf_nat_inet_fn does
// nothing without a connection), so that they would leave with addresses from inside.
// What no rule is for passes, and so does what is untracked, which is another state. So
// does what a server sends that only a dnat leads to: its own connections leave as they
// are, and who reaches it by its own address, past the tracker one way, needs the other. In
// the chain forward the gateway's own packets are not met, with any kernel; its priority
// is after that of IPVS (ip_vs_reply4, 100), which gives answers of real servers, invalid
// to the tracker, the service's address and makes them untracked.
func (t *table) untranslatable(p *gateway.Plan) {
	rules := []rule{validPass()}
	for _, f := range []*family{ip4, ip6} {
		all := leaks(p, f)
		if len(all) > 0 {
			rules = append(rules, t.errorsPass(p, f)...)
		}
		for i, l := range all {
			rules = append(rules, t.dropOf(l, f, fmt.Sprintf("untranslatable%s-%d", f.suffix, i+1)))
		}
	}
	if len(rules) > 1 {
		t.rules = append(t.rules, rules...)
	}
}

// errorsPass lets ICMP errors of routers inside out that are about packets to hosts
// which are not tracked: no error about these has a connection, and without some of
// them a path's MTU is not found.
func (t *table) errorsPass(p *gateway.Plan, f *family) []rule {
	hosts := untracked(p, f)
	if len(hosts) == 0 {
		return nil
	}
	exprs := append(f.is(), (&rewriter{t: t, f: f}).icmpErrors()...)
	if about := f.quoted(true); len(hosts) == 1 {
		exprs = append(exprs, about.within(f, hosts[0])...)
	} else {
		all := t.prefixSet("untracked"+f.suffix, f, hosts)
		exprs = append(exprs, about.load(uint32(f.bytes)), all.lookup(reg1, false))
	}
	exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})
	return []rule{{chain: "untranslatable", exprs: exprs, comment: UntranslatableComment}}
}

// untracked are the hosts that the tracker does not see, by their addresses inside.
func untracked(p *gateway.Plan, f *family) (hosts []netip.Prefix) {
	for _, s := range p.Stateless {
		hosts = append(hosts, s.Inside)
	}
	for _, u := range p.Untracked {
		hosts = append(hosts, netip.PrefixFrom(u.On, u.On.BitLen()))
	}
	return slices.DeleteFunc(hosts, func(p netip.Prefix) bool { return familyOf(p.Addr()) != f })
}

// validPass ends the chain for all but invalid packets: others pay for nothing else.
func validPass() rule {
	return rule{chain: "untranslatable", comment: UntranslatableComment, exprs: []expression{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		unequal(reg1, hostUint32(expr.CtStateBitINVALID)), &expr.Verdict{Kind: expr.VerdictAccept},
	}}
}

// leak are the sources of rules that agree in their other conditions.
type leak struct {
	from, notTo []netip.Prefix
	out         []string
}

// leaks are those of one family. Entries about connections that come back inside have
// none: the destination of an invalid packet is not translated, and so it does not.
func leaks(p *gateway.Plan, f *family) (all []*leak) {
	known := map[string]*leak{}
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.Hairpin.Prefix.IsValid() || sourceFamily(s) != f {
			continue
		}
		key := strings.Join(s.Out, " ") + fmt.Sprint(s.NotTo)
		l := known[key]
		if l == nil {
			l = &leak{out: s.Out, notTo: s.NotTo}
			known[key], all = l, append(all, l)
		}
		l.from = append(l.from, s.From...)
	}
	return all
}

func (t *table) dropOf(l *leak, f *family, name string) rule {
	exprs := append(f.is(), t.interfaces(expr.MetaKeyOIFNAME, l.out, false)...)
	exprs = append(exprs, t.oneOf(l.from, f, name)...)
	exprs = append(exprs, t.addresses(f, f.daddr, l.notTo, true)...)
	exprs = append(exprs, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
	return rule{chain: "untranslatable", exprs: exprs, comment: UntranslatableComment}
}

// oneOf is a condition on the source, by a set that has a name where there are several
// prefixes. One for any source is none.
func (t *table) oneOf(from []netip.Prefix, f *family, name string) []expression {
	switch {
	case slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	case len(from) == 1:
		return f.within(f.saddr, from[0], expr.CmpOpEq)
	}
	s := t.prefixSet(name, f, from)
	return []expression{payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), reg1), s.lookup(reg1, false)}
}

func (t *table) prefixSet(name string, f *family, all []netip.Prefix) *set {
	return t.add(&set{name: name, key: f.address, flags: unix.NFT_SET_INTERVAL, elements: intervals(all), about: UntranslatableComment})
}
