package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
)

// made is a rule of the file, and what it stands for.
type made struct {
	version int
	rule    gateway.Rule
	from    []*entry
	// parts are what Compile is to make of it, each with the entry that it is of.
	parts []part
}

// part is one entry of a plan as it has to be.
type part struct {
	of          *entry
	match       Match
	source      *gateway.Source
	destination *gateway.Destination
	// at is where the plan has it.
	at int
}

// build makes rules of the entries, pairs first.
func (t *translator) build(open []*entry) {
	for _, version := range []int{4, 6} {
		later := slices.DeleteFunc(slices.Clone(open), func(x *entry) bool { return x.version != version })
		for len(later) > 0 {
			e := later[0]
			m, reason := t.make(e, later[1:])
			later = later[1:]
			if reason != "" {
				t.refused[e], t.again = reason, true // what comes after it has to be judged anew
			}
			if m == nil {
				continue
			}
			if len(m.from) > 1 {
				later = slices.DeleteFunc(later, func(x *entry) bool { return slices.Contains(m.from, x) })
			}
			t.rules = append(t.rules, spread(*m)...)
		}
	}
	slices.SortStableFunc(t.rules, func(a, b made) int { return cmp.Compare(firstLine(a), firstLine(b)) })
}

func firstLine(m made) int {
	first := m.from[0].rule.Line
	for _, e := range m.from {
		first = min(first, e.rule.Line)
	}
	return first
}

// make makes one rule of an entry and, where that is one of several that belong
// together, of those, which come later.
func (t *translator) make(e *entry, later []*entry) (*made, string) {
	switch e.rule.Target.Kind {
	case MSS:
		return nil, t.takeMSS(e)
	case Notrack:
		return t.makeNotrack(e, later)
	case Netmap:
		return t.makeNetmap(e, later)
	}
	if m := t.makeStatic(e, later); m != nil {
		return m, ""
	}
	switch e.rule.Target.Kind {
	case Masquerade, SNAT:
		if d := t.hairpinOf(e); d != nil {
			return nil, "belongs to " + where(d.rule) + ", which is not translated"
		}
		return makeSource(e), ""
	}
	m, reason := makeDestination(e, later)
	if m != nil {
		t.addHairpin(m, later)
	}
	return m, reason
}

func (t *translator) takeMSS(e *entry) string {
	if len(t.mss) > 0 {
		first := t.mss[0].rule.Target
		if first.Clamp != e.rule.Target.Clamp || first.Bytes != e.rule.Target.Bytes {
			return "the file has one mss, and " + where(t.mss[0].rule) + " has another"
		}
	}
	t.mss = append(t.mss, e)
	return ""
}

func (t *translator) makeNetmap(e *entry, later []*entry) (*made, string) {
	i := slices.IndexFunc(later, func(x *entry) bool { return mirrored(e, x) })
	if i < 0 {
		return nil, "is for one direction; natkit's netmap is for both, with NETMAP in PREROUTING and in POSTROUTING"
	}
	out, in := e, later[i]
	if e.hook == "prerouting" {
		out, in = in, e
	}
	inside, outside := out.match.From, in.match.To
	d := gateway.Destination{On: outside, Prefix: inside, In: names(in.match.In)}
	s := gateway.Source{From: prefixes(inside), Prefix: outside, Out: names(out.match.Out)}
	return &made{version: e.version, from: []*entry{e, later[i]},
		rule: gateway.Rule{Netmap: &gateway.Netmap{Inside: gateway.Prefix{Prefix: inside}, Outside: gateway.Prefix{Prefix: outside}}},
		parts: []part{
			{of: in, match: in.match, destination: &d},
			{of: out, match: out.match, source: &s},
		}}, ""
}

// mirrored reports whether one NETMAP takes back what the other does.
func mirrored(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" &&
		a.rule.Target.Kind == Netmap && b.rule.Target.Kind == Netmap &&
		a.match.From == b.rule.Target.Prefix && b.match.To == a.rule.Target.Prefix &&
		a.match.Out == b.match.In
}

// makeStatic is for a SNAT and a DNAT of one address for one; nil where there is none.
func (t *translator) makeStatic(e *entry, later []*entry) *made {
	if t.apart[e] || !wholeHost(e) {
		return nil
	}
	i := slices.IndexFunc(later, func(x *entry) bool { return !t.apart[x] && wholeHost(x) && counterpart(e, x) })
	if i < 0 {
		return nil
	}
	out, in := e, later[i]
	if e.hook == "prerouting" {
		out, in = in, e
	}
	inside, outside := out.match.From.Addr(), in.match.To.Addr()
	r := &gateway.Static{Inside: gateway.Address{Addr: inside}, Outside: gateway.Address{Addr: outside}}
	m := &made{version: e.version, rule: gateway.Rule{Static: r}, from: []*entry{e, later[i]}}
	d := gateway.Destination{On: in.match.To, To: gateway.Endpoint{Address: inside}, In: names(in.match.In)}
	if twin := localTwin(in, later); twin != nil {
		r.Local, d.Local = true, true
		m.from = append(m.from, twin)
	}
	s := sourceOf(out)
	m.parts = []part{{of: in, match: in.match, destination: &d}, {of: out, match: out.match, source: &s}}
	return m
}

// wholeHost reports whether an entry is about all that one host sends, or gets.
func wholeHost(e *entry) bool {
	m, g := &e.match, &e.rule.Target
	if g.Ports != (nat.Ports{}) || !g.First.IsValid() || g.First != g.Last || g.Random || g.RandomFully || m.Protocol != "" {
		return false
	}
	switch e.hook {
	case "postrouting":
		except, _ := e.exceptTo()
		return g.Kind == SNAT && m.From.IsValid() && m.From.IsSingleIP() && len(except) == 0
	case "prerouting":
		return g.Kind == DNAT && !m.From.IsValid()
	}
	return false
}

func counterpart(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" && a.match.Out == b.match.In &&
		a.match.From.Addr() == b.rule.Target.First && b.match.To.Addr() == a.rule.Target.First
}

// localTwin is the same rule in OUTPUT.
func localTwin(e *entry, later []*entry) *entry {
	i := slices.IndexFunc(later, func(x *entry) bool {
		return x.hook == "output" && sameTarget(&x.rule.Target, &e.rule.Target) && sameDestination(&x.match, &e.match)
	})
	if i < 0 {
		return nil
	}
	return later[i]
}

func sameTarget(a, b *Target) bool {
	return a.Kind == b.Kind && a.First == b.First && a.Last == b.Last && a.Ports == b.Ports
}

func sameDestination(a, b *Match) bool {
	return a.From == b.From && a.To == b.To && a.Protocol == b.Protocol && slices.Equal(a.Ports, b.Ports)
}

func names(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func prefixes(p netip.Prefix) []netip.Prefix {
	if !p.IsValid() {
		return nil
	}
	return []netip.Prefix{p}
}

// YAML is the gateway file, with the rules that each rule of it stands for above it.
func (r *Result) YAML() string {
	var b strings.Builder
	head := r.Config
	head.NAT, head.IPv6 = nil, nil
	if text := string(gateway.Marshal(&head)); len(r.Config.NAT)+len(r.Config.IPv6) == 0 {
		b.WriteString(withMSS(text, r.MSS))
	} else {
		b.WriteString(strings.Replace(withMSS(text, r.MSS), "gateway: {}", "gateway:", 1))
	}
	ruleList(&b, "nat", r.Config.NAT, r.NAT)
	ruleList(&b, "ipv6", r.Config.IPv6, r.IPv6)
	return b.String()
}

// withMSS puts comments above the line of mss.
func withMSS(text string, origins []string) string {
	var b strings.Builder
	comments(&b, "  ", origins)
	return strings.Replace(text, "  mss:", b.String()+"  mss:", 1)
}

func ruleList(b *strings.Builder, name string, rules []gateway.Rule, origins [][]string) {
	if len(rules) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s:\n", name)
	for i, r := range rules {
		if i == 0 || !slices.Equal(origins[i], origins[i-1]) { // of several ports, once
			comments(b, "    ", origins[i])
		}
		fmt.Fprintf(b, "    - %s\n", gateway.MarshalRule(r))
	}
}

func comments(b *strings.Builder, indent string, texts []string) {
	for _, text := range texts {
		fmt.Fprintf(b, "%s# %s\n", indent, report.Clean(text))
	}
}

// String is the conditions in iptables' words.
func (m Match) String() string {
	var w []string
	add := func(option, value string) {
		if value != "" {
			w = append(w, option+" "+strings.Replace(value, "*", "+", 1))
		}
	}
	if m.From.IsValid() {
		add("-s", m.From.String())
	}
	if m.To.IsValid() {
		add("-d", m.To.String())
	}
	for _, p := range m.NotFrom {
		add("! -s", p.String())
	}
	for _, p := range m.NotTo {
		add("! -d", p.String())
	}
	add("-i", m.In)
	add("-o", m.Out)
	for _, n := range m.NotIn {
		add("! -i", n)
	}
	for _, n := range m.NotOut {
		add("! -o", n)
	}
	add("-p", m.Protocol)
	add(portOption("--sport", m.SourcePorts), portsWords(m.SourcePorts))
	add(portOption("--dport", m.Ports), portsWords(m.Ports))
	w = append(w, m.Unknown...)
	return strings.Join(w, " ")
}

// portOption is iptables' own option for one port or range, that of its module for several.
func portOption(one string, list []nat.Ports) string {
	if len(list) > 1 {
		return "-m multiport " + one + "s"
	}
	return one
}

func portsWords(list []nat.Ports) string {
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
func (t Target) String() string {
	text := "-j " + t.Name
	switch t.Kind {
	case Pass, Ends:
		if t.Name == "" {
			return ""
		}
	case Accept, Drop, Return:
		return "-j " + strings.ToUpper(string(t.Kind))
	case Jump, Goto:
		return map[Kind]string{Jump: "-j ", Goto: "-g "}[t.Kind] + strings.Join(t.Chains, ",")
	case Masquerade, Redirect:
		text += option("--to-ports", t.Ports.String())
	case SNAT:
		text += option("--to-source", t.given())
	case DNAT:
		text += option("--to-destination", t.given())
	case Netmap:
		text = "-j NETMAP --to " + t.Prefix.String()
	case Notrack:
		return "-j CT --notrack"
	case MSS:
		if t.Clamp {
			return "-j TCPMSS --clamp-mss-to-pmtu"
		}
		return fmt.Sprintf("-j TCPMSS --set-mss %d", t.Bytes)
	}
	for _, flag := range []struct {
		on   bool
		word string
	}{{t.Random, " --random"}, {t.RandomFully, " --random-fully"}, {t.Persistent, " --persistent"}} {
		if flag.on {
			text += flag.word
		}
	}
	return text
}

func option(name, value string) string {
	if value == "" {
		return ""
	}
	return " " + name + " " + value
}

// given is what the target gives: an address, ports, or both.
func (t *Target) given() string {
	text, ports := "", t.Ports.String()
	if t.First.IsValid() {
		text = t.First.String()
		if t.First.Is6() && ports != "" {
			text = "[" + text + "]"
		}
		if t.Last != t.First {
			text += "-" + t.Last.String()
		}
	}
	if ports != "" {
		text += ":" + ports
	}
	return text
}

// Nft is the conditions in nft's words.
func (m Match) Nft(version int) string {
	ip, transport := map[int]string{4: "ip", 6: "ip6"}[version], m.Protocol
	if transport == "" {
		transport = "th"
	}
	var w []string
	add := func(words, value string) {
		if value != "" {
			w = append(w, words+" "+value)
		}
	}
	add("iifname", m.In)
	add("oifname", m.Out)
	add("iifname !=", oneOf(m.NotIn))
	add("oifname !=", oneOf(m.NotOut))
	if m.From.IsValid() {
		add(ip+" saddr", nat.PrefixString(m.From))
	}
	add(ip+" saddr !=", oneOf(texts(m.NotFrom)))
	if m.To.IsValid() {
		add(ip+" daddr", nat.PrefixString(m.To))
	}
	add(ip+" daddr !=", oneOf(texts(m.NotTo)))
	if len(m.Ports)+len(m.SourcePorts) == 0 {
		add("meta l4proto", m.Protocol)
	}
	add(transport+" sport", oneOf(rangesOf(m.SourcePorts)))
	add(transport+" dport", oneOf(rangesOf(m.Ports)))
	if m.ToLocal {
		w = append(w, "fib daddr type local")
	}
	if m.SYN {
		w = append(w, "tcp flags syn")
	}
	return strings.Join(append(w, m.Unknown...), " ")
}

// oneOf is one value, or several as a set.
func oneOf(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

func texts(list []netip.Prefix) (all []string) {
	for _, p := range list {
		all = append(all, nat.PrefixString(p))
	}
	return all
}

func rangesOf(list []nat.Ports) (all []string) {
	for _, p := range list {
		all = append(all, p.String())
	}
	return all
}
