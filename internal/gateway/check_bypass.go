package gateway

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/units"
)

// engine checks what an engine needs of the file.
func (c *checker) engine() {
	ebpf := c.config.Engine == EngineEBPF
	if bool(c.config.AcknowledgeBypass) && !ebpf {
		c.add(Finding{ID: "bypass-unused", Severity: Notice, Message: "acknowledge-bypass: without engine: ebpf nothing is passed by", Advice: "leave it out"}, []any{"acknowledge-bypass"})
	}
	if ebpf && !c.config.Interfaces.WAN.divided() { // which asks for all bits
		c.everyRule(func(o one) {
			o.markBits(Bits(c.config.marks().bypass()), "engine: ebpf hands packets to the stack", "marks")
		})
	}
}

// Qdisc is a queueing discipline at the root of an interface that it does not have by itself.
type Qdisc struct {
	Interface string `json:"interface"`
	Kind      string `json:"kind"`
}

// Filter is a classifier at tc that is not natkit's.
type Filter struct {
	Interface string `json:"interface"`
	Way       string `json:"way"`  // ingress or egress
	Kind      string `json:"kind"` // tc's word; "bpf" has the name of its program behind it
}

// Bypassed is something of a host that packets which EngineEBPF forwards pass by, besides the tracker.
type Bypassed struct {
	Kind BypassKind `json:"kind"`
	What string     `json:"what"`
}

// BypassKind is what something is that is passed by.
type BypassKind string

// The values of BypassKind.
const (
	BypassChain      BypassKind = "chain"
	BypassIPsec      BypassKind = "ipsec"
	BypassQdisc      BypassKind = "qdisc"
	BypassFilter     BypassKind = "filter"
	BypassAccounting BypassKind = "accounting"
)

// Bypassed is what a host has that packets of a plan which EngineEBPF forwards pass by; nothing where it forwards none.
func (p *Plan) Bypassed(f *Facts) (all []Bypassed) {
	if len(p.Assigned[EngineEBPF]) == 0 {
		return nil
	}
	add := func(kind BypassKind, format string, args ...any) {
		all = append(all, Bypassed{kind, fmt.Sprintf(format, args...)})
	}
	for i := range f.Foreign {
		if c := &f.Foreign[i]; p.passesBy(c) {
			add(BypassChain, "%s, %s, policy %s", c.words(), units.Plural(int64(c.Rules), "rule", "rules"), cmp.Or(c.Policy, "accept"))
		}
	}
	if f.IPsecPolicies > 0 {
		add(BypassIPsec, "%s", units.Plural(int64(f.IPsecPolicies), "IPsec policy", "IPsec policies"))
	}
	for _, q := range f.Qdiscs {
		add(BypassQdisc, "queueing discipline %s of %s", q.Kind, q.Interface)
	}
	for _, x := range f.Filters {
		add(BypassFilter, "filter at tc: %s, %s of %s", x.Kind, x.Way, x.Interface)
	}
	if p.Accounting {
		add(BypassAccounting, "accounting: what the programs forward belongs to no connection, and is not counted for one")
	}
	return all
}

// passesBy reports whether packets that are forwarded by the programs would otherwise come to a chain, and that might do
// something to them.
func (p *Plan) passesBy(c *Foreign) bool {
	family := map[string]bool{"ip": p.IPv4, "ip6": p.IPv6, "inet": true, "netdev": true}[c.Family]
	hook := slices.Contains([]string{"ingress", "prerouting", "forward", "postrouting", "egress"}, c.Hook)
	return family && hook && (c.Rules > 0 || cmp.Or(c.Policy, "accept") != "accept")
}

// Unacknowledged is the finding about a file that lets EngineEBPF carry out rules of its plan without saying that this is
// known; nil where there is none.
func Unacknowledged(f *File, p *Plan, facts *Facts) *Finding {
	rules := len(p.Assigned[EngineEBPF])
	if rules == 0 || bool(f.Config.AcknowledgeBypass) {
		return nil
	}
	here := ""
	if all := p.Bypassed(facts); len(all) > 0 {
		here = ": here " + all[0].What
		if len(all) > 1 {
			here += fmt.Sprintf(", and %d more", len(all)-1)
		}
	}
	found := Finding{ID: "bypass-unacknowledged", Severity: Refuse,
		Message: fmt.Sprintf("engine: ebpf: packets of %s pass by the tracker, other programs' rules, IPsec policies and queueing disciplines%s", units.Plural(int64(rules), "rule", "rules"), here),
		Advice:  "look at what 'natkit gateway plan' lists, and write acknowledge-bypass: on"}
	found.stand(f, f.place("engine"))
	return &found
}
