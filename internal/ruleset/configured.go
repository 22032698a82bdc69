package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// options are those of a rule that a configuration stands for, as iptables has them.
type options []string

// add adds a condition; a value with an exclamation mark is negated, one that is empty or means all is none.
func (o *options) add(option, value string) {
	value, not := strings.CutPrefix(strings.TrimSpace(value), "!")
	switch value {
	case "", "all", "any", "*":
		return
	}
	if not {
		*o = append(*o, "!")
	}
	*o = append(*o, option, strings.TrimSpace(value))
}

// other is a condition that natkit has no word for.
func (o *options) other(key, value string) {
	*o = append(*o, "--"+key, strings.ReplaceAll(value, " ", ","))
}

// protocolsOf are the protocols of a word or a list; one that is empty for all.
func protocolsOf(list []string) (all []string) {
	for _, word := range list {
		switch word {
		case "tcpudp", "tcp_udp", "tcp-udp":
			all = append(all, "tcp", "udp")
		case "all", "any", "*", "":
			return []string{""}
		default:
			all = append(all, word)
		}
	}
	return all
}

// configured adds rules to a table as its line of a configuration says.
type configured struct {
	parser
	tables map[string]*Table
	// off: the rules that are disabled are read, and no others.
	off bool
}

// withOff adds to the rules of a configuration those that are disabled, by the lines that they are on.
func withOff(set, off *Ruleset) *Ruleset {
	of := map[int]*Ruleset{}
	for _, t := range off.Tables {
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				if of[r.Line] == nil {
					of[r.Line] = &Ruleset{}
					set.Off = append(set.Off, of[r.Line])
				}
				of[r.Line].one(t, c, r)
			}
		}
	}
	return set
}

// one adds a rule in a chain like one of another table.
func (s *Ruleset) one(t *Table, c *Chain, r *Rule) {
	i := slices.IndexFunc(s.Tables, func(own *Table) bool { return own.Family == t.Family && own.Name == t.Name })
	if i < 0 {
		i, s.Tables = len(s.Tables), append(s.Tables, &Table{Family: t.Family, Name: t.Name})
	}
	own := s.Tables[i].Chain(c.Name)
	own.Hook, own.Type, own.Priority = c.Hook, c.Type, c.Priority
	own.Rules = append(own.Rules, r)
}

// setting is what a configuration says of a rule beside its conditions and its target.
type setting struct {
	line int
	text string
	// name is what people call it; log is nil where it logs nothing.
	name string
	log  *Log
}

// rule adds one of the table nat for each of its addresses; the rest of the words is the target.
func (p *configured) rule(of setting, version int, chain string, words options) []*Rule {
	c := p.chain("nat", version, chain)
	before := len(c.Rules)
	p.line, p.version = of.line, version
	p.add(of.text, words, c)
	for _, r := range c.Rules[before:] {
		r.Comment, r.Log = of.name, of.log
	}
	return c.Rules[before:]
}

// clamp adds rules that bound the MSS of what passes through by an interface.
func (p *configured) clamp(of setting, version int, device, size string) {
	words := options{"-p", "tcp", "--tcp-flags", "SYN,RST", "SYN", "-o", device, "-j", "TCPMSS"}
	if size == "" {
		words = append(words, "--clamp-mss-to-pmtu")
	} else {
		words = append(words, "--set-mss", size)
	}
	p.line, p.version = of.line, version
	p.add(of.text, words, p.chain("mangle", version, "FORWARD"))
}

// chain is one that iptables has in a table.
func (p *configured) chain(table string, version int, chain string) *Chain {
	key := fmt.Sprint(table, version)
	if p.tables == nil {
		p.tables = map[string]*Table{}
	}
	if p.tables[key] == nil {
		p.tables[key] = &Table{Family: map[int]string{4: "ip", 6: "ip6"}[version], Name: table}
		p.set.Tables = append(p.set.Tables, p.tables[key])
	}
	return p.tables[key].builtin(chain)
}

// target is what an address, a range or a prefix becomes: SNAT or DNAT, or NETMAP of a prefix for one as long.
func target(kind, address, port string, flags ...string) options {
	if p, err := netip.ParsePrefix(address); err == nil && !p.IsSingleIP() {
		return append(options{"-j", "NETMAP", "--to", address}, flags...)
	} else if err == nil {
		address = p.Addr().String()
	}
	if port != "" {
		if strings.Contains(address, ":") {
			address = "[" + address + "]"
		}
		address += ":" + port
	}
	return append(options{"-j", kind, map[string]string{"SNAT": "--to-source", "DNAT": "--to-destination"}[kind], address}, flags...)
}
