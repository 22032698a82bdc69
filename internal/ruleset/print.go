package ruleset

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// Describe gives every rule its Text.
func (t *Table) Describe() {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			t.describe(c, r)
		}
	}
}

// describe gives a rule its Text, in the words of the program that keeps the table.
func (t *Table) describe(c *Chain, r *Rule) {
	words := []string{t.Family, t.Name, c.Name + ":", r.Match.nft(), r.Target.nft(r.Target.natKind(c.Hook), t.Family)}
	comment := "comment %q"
	if t.IsIptables() {
		words = []string{map[string]string{"ip": "iptables", "ip6": "ip6tables"}[t.Family], "-t", t.Name, "-A", c.Name, r.Match.String(), r.Target.String()}
		comment = "-m comment --comment %q"
	}
	if r.Comment != "" {
		words = append(words, fmt.Sprintf(comment, r.Comment))
	}
	r.Text = strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// String is the conditions in iptables' words.
func (m *Match) String() string {
	var w []string
	add := func(option, value string) {
		if value != "" {
			w = append(w, option+" "+strings.Replace(value, "*", "+", 1))
		}
	}
	each := func(option string, values []string) {
		for _, v := range values {
			add(option, v)
		}
	}
	each("-s", texts(Some(m.Source()), netip.Prefix.String))
	each("-d", texts(Some(m.Dest()), netip.Prefix.String))
	each("! -s", texts(m.NotFrom, netip.Prefix.String))
	each("! -d", texts(m.NotTo, netip.Prefix.String))
	each("-i", m.In)
	each("-o", m.Out)
	each("! -i", m.NotIn)
	each("! -o", m.NotOut)
	add("-p", m.protocol())
	add(portOption("--sport", m.SourcePorts), PortsString(m.SourcePorts))
	add(portOption("--dport", m.Ports), PortsString(m.Ports))
	for _, unknown := range m.Unknown {
		for _, c := range m.Flags {
			if unknown == "("+c.String()+")" {
				unknown = c.option()
			}
		}
		w = append(w, unknown)
	}
	return strings.Join(w, " ")
}

// portOption is iptables' own option for one port or range, that of its module for several.
func portOption(one string, list []nat.Ports) string {
	if len(list) > 1 {
		return "-m multiport " + one + "s"
	}
	return one
}

// PortsString is ports as iptables writes them: "80,8000:8100".
func PortsString(list []nat.Ports) string {
	var w []string
	for _, p := range list {
		if p.First == p.Last {
			w = append(w, fmt.Sprint(p.First))
		} else {
			w = append(w, fmt.Sprintf("%d:%d", p.First, p.Last))
		}
	}
	return strings.Join(w, ",")
}

// String is the target in iptables' words.
func (t *Target) String() string {
	text := "-j " + t.Name
	switch t.Kind {
	case Pass, Ends, Zone:
		if t.Name == "" {
			return ""
		}
	case Accept, Drop, Return:
		return "-j " + strings.ToUpper(t.verdict())
	case Jump, Goto:
		return map[Kind]string{Jump: "-j ", Goto: "-g "}[t.Kind] + strings.Join(t.Chains, ",")
	case Masquerade, Redirect:
		text += option("--to-ports", t.Ports.String())
	case SNAT:
		text += option("--to-source", t.given(false))
	case DNAT:
		text += option("--to-destination", t.given(false))
	case Netmap:
		text = "-j NETMAP --to " + t.Prefix().String()
	case Notrack:
		if t.Name == "NOTRACK" { // iptables -D finds it by the words it was given with alone
			return "-j NOTRACK"
		}
		return "-j CT --notrack"
	case MSS:
		if t.Clamp {
			return "-j TCPMSS --clamp-mss-to-pmtu"
		}
		return fmt.Sprintf("-j TCPMSS --set-mss %d", t.Bytes)
	}
	_, options := t.Words()
	return strings.Join(append([]string{text}, options...), " ")
}

func option(name, value string) string {
	if value == "" {
		return ""
	}
	return strings.TrimRight(" "+name, " ") + " " + value
}

// given returns the target's translation: an address, ports, or both. iptables puts brackets
// around a range of IPv6 addresses, nft around each address.
func (t *Target) given(each bool) string {
	text, ports, brackets := "", t.Ports.String(), t.First.Is6() && t.Ports != nat.Ports{}
	if t.First.IsValid() {
		text = t.First.String()
		if t.Last != t.First {
			text += "-" + t.Last.String()
		}
	}
	if brackets {
		text = "[" + text + "]"
		if each {
			text = strings.Replace(text, "-", "]-[", 1)
		}
	}
	if ports != "" {
		text += ":" + ports
	}
	return text
}

// nft is the conditions in nft's words.
func (m *Match) nft() string {
	transport := cmp.Or(m.protocol(), "th")
	var w []string
	add := func(words, value string) {
		if value != "" {
			w = append(w, words+" "+value)
		}
	}
	add("iifname", m.InName())
	add("oifname", m.OutName())
	add("iifname !=", oneOf(m.NotIn))
	add("oifname !=", oneOf(m.NotOut))
	for _, address := range []struct {
		field string
		is    netip.Prefix
		not   []netip.Prefix
	}{{"saddr", m.Source(), m.NotFrom}, {"daddr", m.Dest(), m.NotTo}} {
		if address.is.IsValid() {
			add(ipWord(address.is)+" "+address.field, nat.PrefixString(address.is))
		}
		if len(address.not) > 0 {
			add(ipWord(address.not[0])+" "+address.field+" !=", oneOf(texts(address.not, nat.PrefixString)))
		}
	}
	if len(m.Ports)+len(m.SourcePorts) == 0 {
		add("meta l4proto", m.protocol())
	}
	add(transport+" sport", oneOf(texts(m.SourcePorts, nat.Ports.String)))
	add(transport+" dport", oneOf(texts(m.Ports, nat.Ports.String)))
	if m.ToLocal {
		w = append(w, "fib daddr type local")
	}
	if m.SYN {
		w = append(w, "tcp flags syn")
	}
	return strings.Join(append(w, m.Unknown...), " ")
}

func ipWord(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ip"
	}
	return "ip6"
}

// oneOf is one value, or several as a set.
func oneOf(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

func texts[T any](list []T, text func(T) string) (all []string) {
	for _, x := range list {
		all = append(all, text(x))
	}
	return all
}

func (t *Target) verdict() string {
	if t.Rejects {
		return "reject"
	}
	return string(t.Kind)
}

// nft is the target in nft's words; kind is the snapshot's of a translation.
func (t *Target) nft(kind, family string) string {
	switch {
	case t.Kind == Accept, t.Kind == Drop, t.Kind == Return:
		return t.verdict()
	case t.Kind == Jump, t.Kind == Goto:
		return string(t.Kind) + " " + strings.Join(t.Chains, ",")
	case !t.Translates(), t.Kind == Ends:
		return t.Name
	}
	text := kind
	if family == "inet" && t.First.IsValid() {
		text += map[bool]string{true: " ip", false: " ip6"}[t.First.Is4()]
	}
	to := ""
	if !t.AddrsVary {
		to = t.given(true)
	}
	if t.Kind == Netmap {
		text += " prefix"
		if p := t.Prefix(); p.IsValid() {
			to = p.String()
		}
	}
	if t.AddrsVary || t.PortsVary {
		to += "…"
	}
	text += option("to", to)
	options, _ := t.Words()
	return text + option("", strings.Join(options, ","))
}
