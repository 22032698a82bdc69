package convert

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// entry is a rule with all the conditions under which packets come to it.
type entry struct {
	rule *Rule
	side
	table string
	// priority is the base chain's, base which one it is of all.
	priority int32
	base     int
	match    Match
	// except are those that leave the chain, or the hook, before it.
	except []*exception
	// owner is the program that keeps it, where that is another's.
	owner string
}

// side is what the order of entries matters in.
type side struct {
	version int
	hook    string
	// filter is true where the base chain is not one of NAT.
	filter bool
	// translates is true of rules after which no other is asked.
	translates bool
}

type exception struct {
	match Match
	rule  *Rule
	// drops is true where the packets go no further at all.
	drops bool
}

// hookOrder is that of NF_INET_*.
var hookOrder = []string{"prerouting", "input", "forward", "output", "postrouting"}

// deepest bounds jumps within jumps; the kernel refuses loops, texts do not.
const deepest = 64

type flattener struct {
	table *Table
	base  *Chain
	index int
	out   []*entry
	work  *budget
	// full is true where it had to stop.
	full bool
}

// flatten follows packets through all tables: entries by hook and priority, in the
// order in which packets meet them. full tells that there are more: filters come last.
func flatten(set *Ruleset, work *budget) (all []*entry, full bool) {
	var bases []*flattener
	for _, t := range set.Tables {
		for _, c := range t.Chains {
			if c.Hook != "" {
				bases = append(bases, &flattener{table: t, base: c, index: len(bases), work: work})
			}
		}
	}
	for _, filter := range []bool{false, true} {
		for _, f := range bases {
			if f.base.Filter == filter {
				f.walk(f.base, Match{}, nil, f.table.Owner, 0)
				full = full || f.full
			}
		}
	}
	for _, f := range bases {
		all = append(all, f.out...)
	}
	slices.SortStableFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(slices.Index(hookOrder, a.hook), slices.Index(hookOrder, b.hook)), cmp.Compare(a.priority, b.priority))
	})
	return all, full
}

// walk goes through a chain for packets that meet outer, and returns who of them
// leaves the base chain there.
func (f *flattener) walk(c *Chain, outer Match, except []*exception, owner string, depth int) (left []*exception) {
	if depth > deepest {
		f.full = true
		return nil
	}
	owner = cmp.Or(owner, ownerOfChain(c.Name))
	for _, r := range c.Rules {
		// To copy 64 exceptions takes as long as one rule.
		if !f.work.makes(1+len(except)/64+outer.size()/8) || !f.work.takes(r.Match.size()*(outer.size()+sizeOf(except))) {
			f.full = true
			return left
		}
		m, possible := and(outer, r.Match)
		if !possible {
			continue
		}
		f.add(r, m, except, cmp.Or(owner, f.table.ownerOfRule(r)))
		switch r.Target.Kind {
		case Accept, Drop:
			e := &exception{m, r, r.Target.Kind == Drop}
			left, except = append(left, e), append(slices.Clip(except), e)
		case Return:
			except = append(slices.Clip(except), &exception{match: m, rule: r})
			if depth == 0 {
				left = append(left, &exception{match: m, rule: r})
			}
		case Jump, Goto:
			gone := f.jump(r, m, except, owner, depth)
			left, except = append(left, gone...), append(slices.Clip(except), gone...)
			if r.Target.Kind == Goto {
				except = append(slices.Clip(except), &exception{match: m, rule: r})
			}
		}
	}
	return left
}

func (f *flattener) jump(r *Rule, m Match, except []*exception, owner string, depth int) (left []*exception) {
	for _, name := range r.Target.Chains {
		next := f.table.find(name)
		if next == nil {
			// Where it leads is not in the text: it may translate what it gets.
			missing := *r
			missing.Target = Target{Kind: Ends, Name: name, Chains: r.Target.Chains}
			f.add(&missing, m, except, cmp.Or(owner, ownerOfChain(name)))
			continue
		}
		left = append(left, f.walk(next, m, except, cmp.Or(owner, f.table.ownerOfRule(r)), depth+1)...)
	}
	return left
}

// add notes a rule that is of interest itself: not one that only leads on.
func (f *flattener) add(r *Rule, m Match, except []*exception, owner string) {
	switch r.Target.Kind {
	case Accept, Return, Jump, Goto:
		return
	}
	e := &entry{rule: r, side: side{f.table.Version, f.base.Hook, f.base.Filter, r.Target.translates()}, table: f.table.Name,
		priority: f.base.Priority, base: f.index, match: m, owner: owner}
	for _, x := range except {
		if !disjoint(&x.match, &m) {
			e.except = append(e.except, x)
		}
	}
	f.out = append(f.out, e.perPort()...)
}

// and is the condition that both are met; false where no packet meets both.
func and(a, b Match) (Match, bool) {
	if disjoint(&a, &b) {
		return Match{}, false
	}
	m := Match{
		From: narrower(a.From, b.From), To: narrower(a.To, b.To),
		In: narrowerName(a.In, b.In), Out: narrowerName(a.Out, b.Out),
		Protocol: a.Protocol, Ports: commonPorts(a.Ports, b.Ports), SourcePorts: commonPorts(a.SourcePorts, b.SourcePorts),
		ToLocal: a.ToLocal || b.ToLocal, SYN: a.SYN || b.SYN,
	}
	if m.Protocol == "" {
		m.Protocol = b.Protocol
	}
	m.NotFrom = union(a.NotFrom, b.NotFrom)
	m.NotTo = union(a.NotTo, b.NotTo)
	m.NotIn = union(a.NotIn, b.NotIn)
	m.NotOut = union(a.NotOut, b.NotOut)
	m.Unknown = union(a.Unknown, b.Unknown)
	return m, true
}

// union shares a where b adds nothing.
func union[T comparable](a, b []T) []T {
	if len(b) == 0 {
		return a
	}
	all, seen := make([]T, 0, len(a)+len(b)), map[T]bool{}
	for _, list := range [][]T{a, b} {
		for _, x := range list {
			if !seen[x] {
				all, seen[x] = append(all, x), true
			}
		}
	}
	return all
}

func narrower(a, b netip.Prefix) netip.Prefix {
	if !a.IsValid() || b.IsValid() && b.Bits() > a.Bits() {
		return b
	}
	return a
}

func narrowerName(a, b string) string {
	if a == "" || strings.HasSuffix(a, "*") && b != "" && !(strings.HasSuffix(b, "*") && len(b) < len(a)) {
		return b
	}
	return a
}

// disjoint reports whether it is sure that no packet meets both. What is unknown is
// never a reason.
func disjoint(a, b *Match) bool {
	return apart(a.From, b.From) || apart(a.To, b.To) ||
		excluded(a.From, b.NotFrom) || excluded(b.From, a.NotFrom) ||
		excluded(a.To, b.NotTo) || excluded(b.To, a.NotTo) ||
		apartNames(a.In, b.In) || apartNames(a.Out, b.Out) ||
		excludedName(a.In, b.NotIn) || excludedName(b.In, a.NotIn) ||
		excludedName(a.Out, b.NotOut) || excludedName(b.Out, a.NotOut) ||
		a.Protocol != "" && b.Protocol != "" && (a.Protocol != b.Protocol || apartPorts(a.Ports, b.Ports) || apartPorts(a.SourcePorts, b.SourcePorts))
}

func apart(a, b netip.Prefix) bool { return a.IsValid() && b.IsValid() && !a.Overlaps(b) }

// excluded reports whether all of p is excepted.
func excluded(p netip.Prefix, except []netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(except, func(e netip.Prefix) bool { return within(p, e) })
}

func within(inner, outer netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func apartNames(a, b string) bool {
	return a != "" && b != "" && !nameWithin(a, b) && !nameWithin(b, a)
}

func excludedName(name string, except []string) bool {
	return name != "" && slices.ContainsFunc(except, func(e string) bool { return nameWithin(name, e) })
}

// nameWithin reports whether every interface that is inner is outer as well.
func nameWithin(inner, outer string) bool {
	begin, wild := strings.CutSuffix(outer, "*")
	return inner == outer || wild && strings.HasPrefix(inner, begin)
}

func apartPorts(a, b []nat.Ports) bool {
	return len(a) > 0 && len(b) > 0 && len(commonPorts(a, b)) == 0
}

func commonPorts(a, b []nat.Ports) []nat.Ports {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	var all []nat.Ports
	for _, x := range a {
		for _, y := range b {
			if c, meet := x.Common(y); meet {
				all = append(all, c)
			}
		}
	}
	return all
}

// covers reports whether it is sure that whatever meets b meets a.
func covers(a, b *Match) bool {
	return len(a.Unknown) == 0 && (!a.ToLocal || b.ToLocal) && (!a.SYN || b.SYN) &&
		coversPrefix(a.From, b.From) && coversPrefix(a.To, b.To) &&
		exceptsLess(a.NotFrom, b.From, b.NotFrom) && exceptsLess(a.NotTo, b.To, b.NotTo) &&
		coversName(a.In, b.In) && coversName(a.Out, b.Out) &&
		exceptsLessNames(a.NotIn, b.In, b.NotIn) && exceptsLessNames(a.NotOut, b.Out, b.NotOut) &&
		(a.Protocol == "" || a.Protocol == b.Protocol) && coversPorts(a.Ports, b.Ports) && coversPorts(a.SourcePorts, b.SourcePorts)
}

func coversPrefix(a, b netip.Prefix) bool { return !a.IsValid() || b.IsValid() && within(b, a) }

func coversName(a, b string) bool { return a == "" || b != "" && nameWithin(b, a) }

// exceptsLess reports whether all that a excepts is not among b anyway.
func exceptsLess(a []netip.Prefix, b netip.Prefix, notB []netip.Prefix) bool {
	for _, e := range a {
		if !apart(e, b) && !excluded(e, notB) {
			return false
		}
	}
	return true
}

func exceptsLessNames(a []string, b string, notB []string) bool {
	for _, e := range a {
		if !apartNames(e, b) && !excludedName(e, notB) {
			return false
		}
	}
	return true
}

func coversPorts(a, b []nat.Ports) bool {
	if len(a) == 0 {
		return true
	}
	for _, y := range b {
		if !slices.ContainsFunc(a, func(x nat.Ports) bool { return x.Covers(y) }) {
			return false
		}
	}
	return len(b) > 0
}

// ownerPrefixes are what names of chains begin with, by the program that makes them.
var ownerPrefixes = []struct{ prefix, owner string }{
	{"DOCKER", "Docker"}, {"KUBE-", "Kubernetes"}, {"CNI-", "Kubernetes' CNI plugins"}, {"CNI_", "Kubernetes' CNI plugins"},
	{"cali-", "Calico"}, {"CILIUM_", "Cilium"}, {"OLD_CILIUM_", "Cilium"}, {"FLANNEL-", "flannel"}, {"WEAVE", "Weave"},
	{"ISTIO_", "Istio"}, {"LIBVIRT_", "libvirt"}, {"NETAVARK", "Podman"}, {"HOSTPORT", "Podman"}, {"ts-", "Tailscale"},
	{"f2b-", "fail2ban"}, {"MINIUPNPD", "miniupnpd"}, {"IP-MASQ", "ip-masq-agent"},
}

// firewalldChain are those of firewalld's iptables backend.
var firewalldChain = regexp.MustCompile(`^(PRE|POST|INPUT|OUTPUT|FORWARD|FWDI|FWDO|IN)(ROUTING)?_(ZONES|ZONES_SOURCE|direct|POLICIES_(pre|post)|[a-z]+(_(log|deny|allow|pre|post))?)$`)

func ownerOfChain(name string) string {
	for _, o := range ownerPrefixes {
		if strings.HasPrefix(name, o.prefix) {
			return o.owner
		}
	}
	if firewalldChain.MatchString(name) {
		return "firewalld"
	}
	return ""
}

// OwnerOfTable is the program that keeps a whole table of nftables, or empty.
func OwnerOfTable(name string) string {
	switch {
	case name == "natkit":
		return "natkit"
	case name == "firewalld":
		return "firewalld"
	case name == "docker-bridges":
		return "Docker"
	case name == "kube-proxy":
		return "Kubernetes"
	case name == "libvirt_network":
		return "libvirt"
	case name == "lxd":
		return "LXD"
	case name == "incus":
		return "Incus"
	case name == "netavark":
		return "Podman"
	}
	return ownerOfChain(name)
}

// bridge is what Docker calls its bridges.
var bridge = regexp.MustCompile(`^(docker\d+|docker_gwbridge|br-[0-9a-f]{12})$`)

// ownerOf is the program that keeps a rule of a chain, where one does.
func (t *Table) ownerOf(c *Chain, r *Rule) string {
	return cmp.Or(t.Owner, ownerOfChain(c.Name), t.ownerOfRule(r))
}

// ownerOfRule knows what programs put into iptables' own chains.
func (t *Table) ownerOfRule(r *Rule) string {
	if owner := ownerOfRule(r); owner != "" {
		return owner
	}
	if t.find("DOCKER") != nil && r.Target.Kind == Masquerade && (reachesItself(&r.Match) || bridge.MatchString(r.Match.Out)) {
		return "Docker"
	}
	return ""
}

// reachesItself is for a container that asks for its own published port. Where Docker has
// no proxy, it does the same for whatever the host itself sends to a bridge.
func reachesItself(m *Match) bool {
	return m.From.IsValid() && m.From == m.To && m.From.IsSingleIP() && len(m.Ports) > 0
}

func ownerOfRule(r *Rule) string {
	m, t := &r.Match, &r.Target
	switch {
	case t.Kind == Masquerade && slices.ContainsFunc(m.NotOut, bridge.MatchString):
		return "Docker"
	case strings.HasPrefix(r.Comment, "kubernetes "), strings.HasPrefix(r.Comment, "cali:"):
		return "Kubernetes"
	case strings.HasPrefix(r.Comment, "generated for LXD "):
		return "LXD"
	case strings.HasPrefix(r.Comment, "generated for Incus "):
		return "Incus"
	case strings.HasPrefix(r.Comment, "flanneld "):
		return "flannel"
	case strings.HasPrefix(r.Comment, `name: "`) && strings.Contains(r.Comment, `" id: "`):
		return "Kubernetes' CNI plugins"
	}
	return ""
}
