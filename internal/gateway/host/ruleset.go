package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
)

// Ruleset reads the NAT rules of a namespace (nil: this one), of nftables, iptables-nft
// and iptables-legacy, and those that keep the tracker off or bound segments, in the
// form in which they can be imported.
func Ruleset(ns *netns.Handle) (*convert.Ruleset, error) {
	tables, err := read.Tables(ns)
	if err != nil {
		return nil, err
	}
	set := &convert.Ruleset{}
	for _, t := range tables {
		for _, version := range versions[t.Family] {
			set.Tables = append(set.Tables, tableOf(&t, version))
		}
	}
	return set, nil
}

// versions of IP that a family's rules are about.
var versions = map[string][]int{"ip": {4}, "ip6": {6}, "inet": {4, 6}}

func tableOf(t *read.NATTable, version int) *convert.Table {
	out := &convert.Table{Version: version, Name: t.Name, Owner: convert.OwnerOfTable(t.Name)}
	if t.Source == "iptables-legacy" || t.Name == "nat" && t.Family != "inet" {
		out.Owner = ""
	}
	for _, c := range t.Chains {
		rules := rulesOf(t, &c, version)
		if len(c.Hooks) == 0 {
			out.Chains = append(out.Chains, &convert.Chain{Name: c.Name, Rules: rules})
		}
		for _, h := range c.Hooks {
			out.Chains = append(out.Chains, &convert.Chain{Name: c.Name, Hook: h.Hook, Priority: h.Priority, Filter: !h.NAT, Rules: rules})
		}
	}
	return out
}

func rulesOf(t *read.NATTable, c *read.NATChain, version int) (rules []*convert.Rule) {
	for i := range c.Steps {
		s := &c.Steps[i]
		if !concerns(s, version) {
			continue
		}
		r := &convert.Rule{Handle: s.Rule.Handle, Comment: s.Comment, Match: matchOf(s), Target: targetOf(s)}
		r.Text = textOf(t, c, s, r, version)
		rules = append(rules, r)
	}
	return rules
}

// textOf is a rule in the words of the program that it is of.
func textOf(t *read.NATTable, c *read.NATChain, s *read.NATStep, r *convert.Rule, version int) string {
	words := []string{t.Family, t.Name, c.Name + ":", r.Match.Nft(version), cmp.Or(s.Rule.Text, s.Other)}
	if r.Comment != "" {
		words = append(words, fmt.Sprintf("comment %q", r.Comment))
	}
	if t.IsIptables() {
		words = []string{map[int]string{4: "iptables", 6: "ip6tables"}[version], "-t", t.Name, "-A", c.Name, r.Match.String(), r.Target.String()}
		if r.Comment != "" {
			words = append(words, fmt.Sprintf("-m comment --comment %q", r.Comment))
		}
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// concerns reports whether a rule can be met by packets of that version of IP.
func concerns(s *read.NATStep, version int) bool {
	if s.Version != 0 && int(s.Version) != version {
		return false
	}
	addrs := []netip.Addr{s.Rule.FromSource.Addr(), s.Rule.ToDestination.Addr(), s.Rule.First}
	for _, p := range append(s.Further.NotFrom, s.Further.NotTo...) {
		addrs = append(addrs, p.Addr())
	}
	for _, a := range addrs {
		if a.IsValid() && a.Is4() != (version == 4) {
			return false
		}
	}
	return true
}

func matchOf(s *read.NATStep) convert.Match {
	m := convert.Match{
		From: real(s.Rule.FromSource), To: real(s.Rule.ToDestination),
		NotFrom: s.Further.NotFrom, NotTo: s.Further.NotTo,
		In: s.Rule.InInterface, Out: s.Rule.OutInterface, NotIn: s.Further.NotIn, NotOut: s.Further.NotOut,
		Protocol: s.Rule.Protocol, ToLocal: s.Rule.LocalDestination, SYN: s.Further.SYN, SourcePorts: s.Further.SourcePorts,
	}
	if p := s.Rule.DestinationPort; p != 0 {
		m.Ports = []nat.Ports{{First: p, Last: p}}
	}
	m.Ports = append(m.Ports, s.Further.Ports...)
	switch {
	case s.Rule.DestinationPort != 0 && len(s.Further.Ports) > 0, len(m.Ports)+len(m.SourcePorts) > 0 && m.Protocol == "":
		m.Unknown = append(m.Unknown, "ports of several protocols")
	case s.Unknown && s.Cause != "":
		m.Unknown = append(m.Unknown, "("+s.Cause+")")
	case s.Unknown:
		m.Unknown = append(m.Unknown, "(one that natkit does not know)")
	}
	return m
}

// real is the prefix, or none where it is of any address.
func real(p netip.Prefix) netip.Prefix {
	if p.IsValid() && p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

var kinds = map[string]convert.Kind{
	snapshot.NATMasquerade: convert.Masquerade, snapshot.NATSource: convert.SNAT,
	snapshot.NATDest: convert.DNAT, snapshot.NATRedirect: convert.Redirect,
}

func targetOf(s *read.NATStep) convert.Target {
	r := &s.Rule
	t := convert.Target{Kind: convert.Pass, Name: s.Other, Chains: s.To, First: r.First, Last: r.Last,
		Ports: nat.Ports{First: r.FirstPort, Last: r.LastPort}, Random: r.Random, RandomFully: r.FullyRandom, Persistent: r.Persistent}
	switch {
	case s.Translates:
		t.Kind, t.Name = kinds[r.Kind], strings.ToUpper(r.Kind)
	case len(s.To) > 0 && s.Ends:
		// A verdict map: who goes where its elements say, and those may end the way.
		t.Kind, t.Unknown = convert.Ends, []string{"a verdict map"}
	case len(s.To) > 0 && s.Leaves:
		t.Kind = convert.Goto
	case len(s.To) > 0:
		t.Kind = convert.Jump
	case s.Refuses:
		t.Kind = convert.Drop
	case s.Ends:
		t.Kind = convert.Accept
	case s.Leaves:
		t.Kind = convert.Return
	case s.Notrack:
		t.Kind = convert.Notrack
	case s.ClampMSS, s.MSS != 0:
		t.Kind, t.Clamp, t.Bytes = convert.MSS, s.ClampMSS, s.MSS
	}
	if s.Translates && s.Prefix {
		t.Kind = convert.Netmap
		t.Prefix = nat.AddrRange{First: r.First, Last: r.Last}.Prefix()
	}
	if s.Shifts {
		t.Unknown = append(t.Unknown, "ports that are shifted")
	}
	if s.Translates && r.PortsFromMap {
		t.Unknown = append(t.Unknown, "ports that are not fixed")
	}
	return t
}

// Foreign are the base chains of a namespace that are not natkit's.
func Foreign(ns *netns.Handle) ([]gateway.Foreign, error) {
	chains, err := read.BaseChains(ns)
	if err != nil {
		return nil, err
	}
	var all []gateway.Foreign
	for _, c := range chains {
		all = append(all, gateway.Foreign{
			Source: c.Source, Owner: owner(append([]string{c.Table, c.Name}, c.Chains...)),
			Family: c.Family, Table: c.Table, Chain: c.Name, Type: c.Type, Hook: c.Hook,
			Priority: c.Priority, Policy: c.Policy, Accepts: c.Accepts, Rules: c.Rules, NAT: c.NAT, TooMany: c.TooMany,
		})
	}
	return all, nil
}

// owners are known by how the names of their tables and chains begin.
var owners = []struct{ prefix, name string }{
	{"DOCKER", "docker"}, {"docker-", "docker"},
	{"KUBE-", "kubernetes"}, {"kube-", "kubernetes"},
	{"cali-", "calico"}, {"CILIUM_", "cilium"}, {"FLANNEL-", "flannel"}, {"CNI-", "cni"},
	{"firewalld", "firewalld"},
	{"LIBVIRT_", "libvirt"}, {"libvirt_", "libvirt"},
	{"ufw-", "ufw"}, {"ufw6-", "ufw"},
	{"NETAVARK", "podman"}, {"netavark", "podman"},
	{"lxd", "lxd"}, {"incus", "incus"},
}

// owner is a guess by names: who has the most of them, of equals the one that comes
// first.
func owner(names []string) string {
	count := map[string]int{}
	best := ""
	for _, name := range names {
		i := slices.IndexFunc(owners, func(o struct{ prefix, name string }) bool { return strings.HasPrefix(name, o.prefix) })
		if i < 0 {
			continue
		}
		o := owners[i].name
		if count[o]++; count[o] > count[best] {
			best = o
		}
	}
	return best
}

// Forwarding adds to the facts of a namespace (nil: this one) the sysctls by which it
// forwards, those of its interfaces too.
func Forwarding(ns *netns.Handle, f *gateway.Facts) error {
	names := []string{gateway.Forward4, gateway.Forward6}
	for _, i := range f.Interfaces {
		names = append(names, gateway.ForwardSysctl(false, i.Name), gateway.ForwardSysctl(true, i.Name))
	}
	read := snapshot.Sysctls{}
	maps.Copy(read, f.Sysctls)
	f.Sysctls = read
	return ns.Do(func() error { return ReadSysctls("/proc", names, f.Sysctls) })
}

// ReadSysctls reads those of the thread's namespace that exist.
func ReadSysctls(proc string, names []string, into snapshot.Sysctls) error {
	for _, name := range names {
		value, err := apply.ReadSysctl(proc, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		into[name] = value
	}
	return nil
}
