package host

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/gateway/iptables"
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/prefix"
	"github.com/natkit/natkit/internal/snapshot"
)

// Ruleset reads the NAT rules of a namespace (nil: this one), of nftables, iptables-nft
// and iptables-legacy, and those that keep the tracker off or bound segments, in the
// form in which they can be imported.
func Ruleset(ns *netns.Handle) (*iptables.Ruleset, error) {
	tables, err := natrules.Chains(ns)
	if err != nil {
		return nil, err
	}
	set := &iptables.Ruleset{}
	for _, t := range tables {
		for _, version := range versions[t.Family] {
			set.Tables = append(set.Tables, tableOf(&t, version))
		}
	}
	return set, nil
}

// versions of IP that a family's rules are about.
var versions = map[string][]int{"ip": {4}, "ip6": {6}, "inet": {4, 6}}

func tableOf(t *natrules.NATTable, version int) *iptables.Table {
	out := &iptables.Table{Version: version, Name: t.Name, Owner: iptables.OwnerOfTable(t.Name)}
	if t.Source == "iptables-legacy" || t.Name == "nat" && t.Family != "inet" {
		out.Owner = ""
	}
	for _, c := range t.Chains {
		rules := rulesOf(t, &c, version)
		if len(c.Hooks) == 0 {
			out.Chains = append(out.Chains, &iptables.Chain{Name: c.Name, Rules: rules})
		}
		for _, h := range c.Hooks {
			out.Chains = append(out.Chains, &iptables.Chain{Name: c.Name, Hook: h.Hook, Priority: h.Priority, Filter: !h.NAT, Rules: rules})
		}
	}
	return out
}

func rulesOf(t *natrules.NATTable, c *natrules.NATChain, version int) (rules []*iptables.Rule) {
	for i := range c.Steps {
		s := &c.Steps[i]
		if !concerns(s, version) {
			continue
		}
		r := &iptables.Rule{Handle: s.Rule.Handle, Comment: s.Comment, Match: matchOf(s), Target: targetOf(s)}
		r.Text = textOf(t, c, s, r, version)
		rules = append(rules, r)
	}
	return rules
}

// textOf is a rule in the words of the program that it is of.
func textOf(t *natrules.NATTable, c *natrules.NATChain, s *natrules.NATStep, r *iptables.Rule, version int) string {
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
func concerns(s *natrules.NATStep, version int) bool {
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

func matchOf(s *natrules.NATStep) iptables.Match {
	m := iptables.Match{
		From: real(s.Rule.FromSource), To: real(s.Rule.ToDestination),
		NotFrom: s.Further.NotFrom, NotTo: s.Further.NotTo,
		In: s.Rule.InInterface, Out: s.Rule.OutInterface, NotIn: s.Further.NotIn, NotOut: s.Further.NotOut,
		Protocol: s.Rule.Protocol, ToLocal: s.Rule.LocalDestination, SYN: s.Further.SYN, SourcePorts: portsOf(s.Further.SourcePorts),
	}
	if p := s.Rule.DestinationPort; p != 0 {
		m.Ports = []iptables.Ports{{First: p, Last: p}}
	}
	m.Ports = append(m.Ports, portsOf(s.Further.Ports)...)
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

func portsOf(list [][2]uint16) (all []iptables.Ports) {
	for _, p := range list {
		all = append(all, iptables.Ports{First: p[0], Last: p[1]})
	}
	return all
}

// real is the prefix, or none where it is of any address.
func real(p netip.Prefix) netip.Prefix {
	if p.IsValid() && p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

var kinds = map[string]iptables.Kind{
	snapshot.NATMasquerade: iptables.Masquerade, snapshot.NATSource: iptables.SNAT,
	snapshot.NATDest: iptables.DNAT, snapshot.NATRedirect: iptables.Redirect,
}

func targetOf(s *natrules.NATStep) iptables.Target {
	r := &s.Rule
	t := iptables.Target{Kind: iptables.Pass, Name: s.Other, Chains: s.To, First: r.First, Last: r.Last,
		Ports: iptables.Ports{First: r.FirstPort, Last: r.LastPort}, Random: r.Random, RandomFully: r.FullyRandom, Persistent: r.Persistent}
	switch {
	case s.Translates:
		t.Kind, t.Name = kinds[r.Kind], strings.ToUpper(r.Kind)
	case len(s.To) > 0 && s.Ends:
		// A verdict map: who goes where its elements say, and those may end the way.
		t.Kind, t.Unknown = iptables.Ends, []string{"a verdict map"}
	case len(s.To) > 0 && s.Leaves:
		t.Kind = iptables.Goto
	case len(s.To) > 0:
		t.Kind = iptables.Jump
	case s.Refuses:
		t.Kind = iptables.Drop
	case s.Ends:
		t.Kind = iptables.Accept
	case s.Leaves:
		t.Kind = iptables.Return
	case s.Notrack:
		t.Kind = iptables.Notrack
	case s.ClampMSS, s.MSS != 0:
		t.Kind, t.Clamp, t.Bytes = iptables.MSS, s.ClampMSS, s.MSS
	}
	if s.Translates && s.Prefix {
		t.Kind = iptables.Netmap
		t.Prefix = prefix.Between(r.First, r.Last)
	}
	if s.Shifts {
		t.Unknown = append(t.Unknown, "ports that are shifted")
	}
	if s.Translates && r.PortsFromMap {
		t.Unknown = append(t.Unknown, "ports that are not fixed")
	}
	return t
}
