package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// The priorities of natkit's chains (dataplane: after those of Docker, firewalld and
// hand-made rules, so that others keep what they had).
const (
	destinationPriority = -80
	sourcePriority      = 120
)

// foreign finds rules of others that come before ours, or drop what we forward.
func (c *checker) foreign() {
	for i := range c.facts.Foreign {
		switch f := &c.facts.Foreign[i]; {
		case f.Type == "filter" && f.Hook == "forward":
			c.refuses(f)
		case f.Hook == "prerouting" && f.Priority < destinationPriority:
			c.followed(f, len(c.plan.Destinations))
		case f.Hook == "postrouting" && f.Priority < sourcePriority:
			c.followed(f, len(c.plan.Sources))
		}
	}
	for _, p := range c.precedences() {
		o := c.ruleOf(p.Rule)
		o.warn("foreign-rule-first", p.Message, p.Advice, o.subject(p.side)...)
	}
}

// Precedence is another program's rule that translates packets of one of ours before it.
type Precedence struct {
	Rule    Ref    `json:"rule"`
	Message string `json:"message"`
	Advice  string `json:"advice"`
	// side is the field of our rule that it is about.
	side string
}

// Precedences returns the rules of other programs, among the facts, that precede a plan's.
func (f *Facts) Precedences(p *Plan) []Precedence {
	return (&checker{facts: f, plan: p}).precedences()
}

func (c *checker) precedences() (all []Precedence) {
	for i := range c.facts.Foreign {
		switch f := &c.facts.Foreign[i]; {
		case f.Hook == "prerouting" && f.Priority < destinationPriority:
			all = append(all, c.before(f, c.destinationFirst, outside)...)
		case f.Hook == "postrouting" && f.Priority < sourcePriority:
			all = append(all, c.before(f, c.sourceFirst, inside)...)
		}
	}
	return all
}

// followed warns of a chain before ours, where there are some, that leads to more than
// natkit follows.
func (c *checker) followed(f *Foreign, ours int) {
	if f.TooMany && ours > 0 && c.forwards(f.Family) {
		c.add(Finding{ID: "foreign-too-many", Severity: Warn,
			Message: f.words() + " comes first and leads to its rules by more jumps and elements of sets than natkit follows: any of them may translate what this file is for",
			Advice:  "have fewer rules jump to the same chains, or fewer rules look into sets"}, nil)
	}
}

// words are a chain and whose it is.
func (f *Foreign) words() string {
	whose := ""
	if f.Owner != "" {
		whose = f.Owner + "'s "
	}
	return fmt.Sprintf("%schain %s of table %s %s (%s)", whose, f.Chain, f.Family, f.Table, f.Source)
}

// rule names a rule that comes first.
func (f *Foreign) rule(n *snapshot.NATRule) string {
	whose := "a rule"
	if f.Owner != "" {
		whose = f.Owner + "'s rule"
	}
	return fmt.Sprintf("%s in %s (%s: %s) comes first", whose, strings.Join([]string{n.Family, n.Table, n.Chain}, " "), f.Source, n.Text)
}

// may chooses the word for a rule with conditions that natkit does not know.
func may(n *snapshot.NATRule, does, may string) string {
	if n.Partial {
		return may
	}
	return does
}

// before compares a chain's translations with ours; one for each of ours that it is in
// the way of.
func (c *checker) before(f *Foreign, first func(*Foreign, *snapshot.NATRule) (Ref, string, string), side string) (all []Precedence) {
	seen := map[Ref]bool{}
	for i := range f.NAT {
		ref, message, advice := first(f, &f.NAT[i])
		if message != "" && !seen[ref] {
			seen[ref] = true
			all = append(all, Precedence{ref, message, advice, side})
		}
	}
	return all
}

// destinationFirst is the rule of ours whose packets a foreign dnat or redirect takes.
func (c *checker) destinationFirst(f *Foreign, n *snapshot.NATRule) (Ref, string, string) {
	if n.Kind != snapshot.NATDest && n.Kind != snapshot.NATRedirect {
		return Ref{}, "", ""
	}
	theirs := MatchOf(n.NATCondition)
	for _, i := range c.destinationsFor(&theirs) {
		d := &c.plan.Destinations[i]
		if sameFamily(n, d.On().Addr()) && c.meets(n, &d.Match) && !sameDestination(n, d) {
			return d.Rule, fmt.Sprintf("%s and %s %s of %s to %s", f.rule(n), may(n, "takes", "may take"), cmp.Or(common(&theirs, &d.Match), "everything"), d.onText(), takenTo(n)),
				c.remove(f, n)
		}
	}
	return Ref{}, "", ""
}

// portKey is a protocol and one port; the zero value stands for more than that.
type portKey struct {
	protocol uint8
	port     uint16
}

func keyOf(m *nat.Match) portKey {
	if len(m.Ports) == 1 && m.Ports[0].Len() == 1 {
		return portKey{m.Protocol, m.Ports[0].First}
	}
	return portKey{}
}

// destinationsFor are the entries that may be for some of a match: both they and the rules
// of others are thousands where a cluster or a carrier is.
func (c *checker) destinationsFor(m *nat.Match) []int {
	if c.byPort == nil {
		c.byPort = map[portKey][]int{}
		for i := range c.plan.Destinations {
			key := keyOf(&c.plan.Destinations[i].Match)
			c.byPort[key] = append(c.byPort[key], i)
			c.everyPort = append(c.everyPort, i)
		}
	}
	if keyOf(m) == (portKey{}) {
		return c.everyPort
	}
	return slices.Concat(c.byPort[keyOf(m)], c.byPort[portKey{}])
}

// onText is what a destination is on.
func (e *Entry) onText() string {
	if e.Action.Pairs != "" {
		return "$" + e.Action.Pairs
	}
	return nat.PrefixString(e.On())
}

// sameDestination reports whether both rules do the same.
func sameDestination(n *snapshot.NATRule, d *Entry) bool {
	if s := d.Pairs(); s != nil {
		on := MatchOf(n.NATCondition).To
		return len(on) == 1 && on[0].IsSingleIP() && n.First == n.Last && n.FirstPort == 0 && s.Inward(on[0].Addr()) == n.First
	}
	to := d.Action.Backends
	return len(to) == 1 && n.First == to[0].Address && n.Last == to[0].Address && n.FirstPort == to[0].Port
}

func takenTo(n *snapshot.NATRule) string {
	if !n.First.IsValid() {
		return "another port of this host"
	}
	return nat.Backend{Address: n.First, Port: n.FirstPort}.String()
}

// ofPairs is the condition on the pairs by which an entry translates.
func (e *Entry) ofPairs() []nat.Member {
	return slices.DeleteFunc(slices.Clone(e.Members), func(x nat.Member) bool { return !x.Pairs })
}

// sourceFirst is the rule of ours whose connections a foreign snat or masquerade takes.
func (c *checker) sourceFirst(f *Foreign, n *snapshot.NATRule) (Ref, string, string) {
	if n.Kind != snapshot.NATMasquerade && n.Kind != snapshot.NATSource || n.Marked {
		return Ref{}, "", "" // what is marked is meant by whoever marked it
	}
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if s.IsHairpin() || !sameFamily(n, nat.Anywhere(s.Rule.BitLen()).Addr()) {
			continue
		}
		if c.meets(n, &nat.Match{From: s.From, Out: s.Out, Members: s.ofPairs()}) && !sameSource(n, s) {
			return s.Rule, fmt.Sprintf("%s and %s connections from %s %s", f.rule(n), may(n, "gives", "may give"), foreignFrom(n), foreignGives(n)),
				c.remove(f, n)
		}
	}
	return Ref{}, "", ""
}

// sameSource reports whether it makes no difference which of the two is first.
func sameSource(n *snapshot.NATRule, e *Entry) bool {
	a := &e.Action
	same := !a.Keep && a.Ports == nat.Ports{First: n.FirstPort, Last: n.LastPort} && a.Random == randomOf(n)
	if n.Kind == snapshot.NATMasquerade {
		return same && a.Kind == nat.Masquerade
	}
	if s := e.Pairs(); s != nil {
		from := MatchOf(n.NATCondition).From
		return same && len(from) == 1 && from[0].IsSingleIP() && n.First == n.Last && s.Outward(from[0].Addr()) == n.First
	}
	return same && slices.Equal(a.To, nat.AddrRanges{{First: n.First, Last: n.Last}})
}

func randomOf(n *snapshot.NATRule) nat.Random {
	switch {
	case n.FullyRandom:
		return nat.RandomFully
	case n.Random:
		return nat.RandomPorts
	}
	return ""
}

func foreignFrom(n *snapshot.NATRule) string {
	if !n.FromSource.IsValid() || n.FromSource.Bits() == 0 {
		return "everybody"
	}
	return nat.PrefixString(n.FromSource)
}

func foreignGives(n *snapshot.NATRule) string {
	if n.Kind == snapshot.NATMasquerade || !n.First.IsValid() {
		return "the interface's address"
	}
	return nat.AddrRange{First: n.First, Last: n.Last}.String()
}

// sameFamily reports whether a foreign rule sees packets of an address's family.
func sameFamily(n *snapshot.NATRule, a netip.Addr) bool {
	return n.Family == "inet" || (n.Family == "ip") == a.Is4()
}

func commands(list ...string) string { return strings.Join(list, "\n") }

// maxAdvised is for how many pairs of interfaces commands are written out.
const maxAdvised = 4

// admit are the commands with which the owner's own means let through what we forward:
// what begins inside, and from outside answers and what we send on to hosts inside.
func (f *Foreign) admit(p *Plan) string {
	lans, wans := p.LAN, p.WAN
	if len(lans) == 0 {
		lans = []string{"LAN"}
	}
	if len(wans) == 0 {
		wans = []string{"WAN"}
	}
	var all []string
	for _, lan := range lans {
		for _, wan := range wans {
			for _, command := range f.admitPair(p, lan, wan) {
				if !slices.Contains(all, command) { // some name one of the two interfaces
					all = append(all, command)
				}
			}
			if len(lans)*len(wans) > maxAdvised {
				return commands(append(all, "# and so for the other interfaces")...)
			}
		}
	}
	if f.Owner == "firewalld" {
		all = append(append([]string{"firewall-cmd --permanent --new-policy=natkit"}, all...),
			"firewall-cmd --permanent --policy=natkit --set-target=ACCEPT", "firewall-cmd --reload")
	}
	return commands(all...)
}

func (f *Foreign) admitPair(p *Plan, lan, wan string) []string {
	switch {
	case f.Owner == "firewalld":
		return admitByPolicy(lan, wan)
	case f.Owner == "ufw":
		return admitByRoute(p, lan, wan)
	case f.Source == "nftables":
		rule := fmt.Sprintf("nft insert rule %s %s %s ", f.Family, f.Table, f.Chain)
		return []string{
			rule + fmt.Sprintf("iifname %s oifname %s accept", lan, wan),
			rule + fmt.Sprintf("oifname %s ct state established,related%s accept", lan, untracked(p, ",untracked")),
			rule + fmt.Sprintf("oifname %s ct status dnat accept", lan),
		}
	}
	return f.admitByIPTables(p, lan, wan)
}

// admitByIPTables: DNAT is a state of xt_conntrack, as ESTABLISHED is.
func (f *Foreign) admitByIPTables(p *Plan, lan, wan string) []string {
	program, chain := "iptables", f.Chain
	if f.Family == "ip6" {
		program = "ip6tables"
	}
	if f.Owner == "docker" {
		chain = "DOCKER-USER"
	}
	rule := fmt.Sprintf("%s -I %s ", program, chain)
	return []string{
		rule + fmt.Sprintf("-i %s -o %s -j ACCEPT", lan, wan),
		rule + fmt.Sprintf("-o %s -m conntrack --ctstate RELATED,ESTABLISHED,DNAT%s -j ACCEPT", lan, untracked(p, ",UNTRACKED")),
	}
}

// untracked is the word for what stateless rules and notrack keep from the tracker.
func untracked(p *Plan, word string) string {
	if len(p.Stateless)+len(p.Untracked) > 0 {
		return word
	}
	return ""
}

// admitByPolicy: firewalld itself accepts answers, and what is sent on to another
// destination (ct status dnat).
func admitByPolicy(lan, wan string) []string {
	const policy = "firewall-cmd --permanent --policy=natkit "
	return []string{policy + "--add-ingress-zone=" + zoneOf(lan), policy + "--add-egress-zone=" + zoneOf(wan)}
}

// admitByRoute: ufw itself accepts answers.
func admitByRoute(p *Plan, lan, wan string) []string {
	all := []string{fmt.Sprintf("ufw route allow in on %s out on %s", lan, wan)}
	on := slices.DeleteFunc(slices.Clone(p.Destinations), func(e Entry) bool { return e.Action.Kind == nat.Redirect }) // these are forwarded
	if len(on) > 0 {
		all = append(all, fmt.Sprintf("ufw route allow in on %s out on %s to %s", wan, lan, on[0].target()))
	}
	if len(on) > 1 || len(on) == 1 && len(on[0].Action.Backends) > 1 {
		all = append(all, "# and so for what other rules lead to")
	}
	return all
}

// target is where an entry leads, in ufw's words.
func (e *Entry) target() string {
	switch {
	case e.Action.Prefix.IsValid():
		return nat.PrefixString(e.Action.Prefix)
	case e.Action.Pairs != "":
		return "any"
	}
	to := e.Action.Backends[0]
	text := to.Address.String()
	if len(e.Ports) == 0 {
		return text
	}
	to.Port, to.Last = to.PortOf(e.Ports[0].First, e.Ports), to.PortOf(e.Ports[0].Last, e.Ports)
	ports := strings.ReplaceAll(nat.Ports{First: to.Port, Last: to.Last}.String(), "-", ":")
	return fmt.Sprintf("%s port %s proto %s", text, ports, nat.ProtocolName(e.Protocol))
}

// remove says what to do about a rule that comes first.
func (c *checker) remove(f *Foreign, n *snapshot.NATRule) string {
	switch {
	case f.Owner == "docker" && n.TranslatesSource():
		return "its containers keep it unless their network has com.docker.network.bridge.enable_ip_masquerade=false"
	case f.Owner == "docker":
		return "use another port, or publish the container's on another address: docker run -p ADDRESS:PORT:PORT"
	case f.Owner == "firewalld" && len(c.facts.concrete(c.plan.WAN)) > 0:
		return c.facts.Commands(unzone(n, c.facts.concrete(c.plan.WAN)[0]))
	case f.Owner == "":
		return "remove it where it was made, or leave this one out"
	}
	return fmt.Sprintf("have %s not make it, or leave this one out", f.Owner)
}

// unzone has firewalld translate no more in an interface's zone.
func unzone(n *snapshot.NATRule, wan string) string {
	what := "--remove-masquerade"
	if !n.TranslatesSource() {
		port := strconv.Itoa(int(n.DestinationPort))
		if n.LastDestinationPort != 0 {
			port += fmt.Sprintf("-%d", n.LastDestinationPort)
		}
		what = fmt.Sprintf("--remove-forward-port=port=%s:proto=%s", port, n.Protocol)
		if n.FirstPort != 0 {
			what += fmt.Sprintf(":toport=%d", n.FirstPort)
		}
		if n.First.IsValid() {
			what += fmt.Sprintf(":toaddr=%s", n.First)
		}
	}
	return commands(fmt.Sprintf("firewall-cmd --permanent --zone=%s %s", zoneOf(wan), what), "firewall-cmd --reload")
}

func zoneOf(name string) string {
	return fmt.Sprintf(`"$(firewall-cmd --get-zone-of-interface=%s)"`, name)
}
