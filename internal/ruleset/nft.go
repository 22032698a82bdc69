package ruleset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// nftTable is the line that a table of `nft list ruleset` begins with.
var nftTable = regexp.MustCompile(`(?m)^table (ip|ip6|inet|arp|bridge|netdev) (\S+) \{(?: # handle \d+)?$`)

// nftParser goes through what `nft list ruleset` prints, line by line. What it does not
// know makes the rule one that is not translated; it never makes a rule match more.
type nftParser struct {
	parser
	lines  []string
	family string
	name   string
	// sets are the elements of the sets of a table; translates is set if it has a chain of NAT.
	sets       map[string][]string
	translates bool
	// nextEnd and nextNAT are lines at or behind this one: one that ends a table, and one that
	// begins a chain of NAT.
	nextEnd, nextNAT int
}

// versionsOf are those of IP that a family's rules are about.
var versionsOf = map[string][]int{"ip": {4}, "ip6": {6}, "inet": {4, 6}}

func parseNft(text string) *Ruleset {
	p := nftParser{lines: strings.Split(text, "\n")}
	for p.more() {
		line := p.next()
		m := nftTable.FindStringSubmatch(line)
		switch {
		case line == "" || line[0] == '#':
		case m == nil:
			p.note(Untranslated, line, "is not a line of 'nft list ruleset'")
		case versionsOf[m[1]] == nil:
			p.note(LeftAlone, line, "is of the family "+m[1]+", where nothing of IP is translated")
			p.block(nil)
		default:
			p.family, p.name, p.sets = m[1], m[2], map[string][]string{}
			p.table()
		}
	}
	return &p.set
}

func (p *nftParser) more() bool { return p.line < len(p.lines) }

// next is a line without its comment about handles, with those that its brackets go on in.
func (p *nftParser) next() string {
	last := p.raw()
	open := brackets(last)
	if open <= 0 {
		return last
	}
	line := strings.Builder{}
	for line.WriteString(last); open > 0 && !strings.HasSuffix(last, "{") && p.more(); open += brackets(last) {
		last = p.raw()
		line.WriteString(" " + last)
	}
	return line.String()
}

// quoted is what brackets mean nothing in.
var quoted = regexp.MustCompile(`"[^"]*"`)

// brackets returns the number of brackets that a line leaves open.
func brackets(line string) int {
	line = quoted.ReplaceAllString(line, "")
	return strings.Count(line, "{") - strings.Count(line, "}")
}

func (p *nftParser) raw() string {
	line, _, _ := strings.Cut(p.lines[p.line], " # handle ")
	p.line++
	return strings.TrimSpace(line)
}

// block hands each line up to the closing bracket to read, and skips blocks within.
func (p *nftParser) block(read func(line string)) {
	for depth := 0; p.more() && depth >= 0; {
		line := p.next()
		switch {
		case line == "}":
			depth--
		case strings.HasSuffix(line, "{"):
			depth++
		case read != nil && depth == 0 && line != "" && line[0] != '#':
			read(line)
		}
	}
}

// table reads sets first wherever they stand: nft prints them before chains.
func (p *nftParser) table() {
	t := &Table{Family: p.family, Name: p.name}
	p.set.Tables = append(p.set.Tables, t)
	p.nextEnd = p.find(p.nextEnd, func(l string) bool { return l == "}" })
	p.nextNAT = p.find(p.nextNAT, func(l string) bool { return strings.Contains(l, "type nat hook") })
	p.translates = p.nextNAT < p.nextEnd
	for p.more() {
		line := p.next()
		words := strings.Fields(line)
		switch {
		case line == "}":
			return
		case len(words) == 3 && words[0] == "chain":
			p.chain(t, words[1])
		case len(words) == 3 && (words[0] == "set" || words[0] == "map"):
			p.block(func(line string) {
				if list, ok := strings.CutPrefix(line, "elements = "); ok {
					p.sets["@"+words[1]] = elements(strings.Fields(list))
				}
			})
		case strings.HasSuffix(line, "{"): // counters and others
			p.block(nil)
		}
	}
	p.note(Untranslated, "table "+p.family+" "+p.name, "does not end: the rest of the text is missing")
}

// find is the next line that is such a one, known where it is still to come.
func (p *nftParser) find(known int, is func(line string) bool) int {
	if known < p.line {
		for known = p.line; known < len(p.lines) && !is(p.lines[known]); {
			known++
		}
	}
	return known
}

var baseChain = regexp.MustCompile(`^type (\w+) hook (\w+)(?: devices? .*)? priority ([^;]+);`)

func (p *nftParser) chain(t *Table, name string) {
	c := &Chain{Name: name}
	t.Chains = append(t.Chains, c)
	p.block(func(line string) {
		if m := baseChain.FindStringSubmatch(line); m != nil {
			c.Hook, c.Type, c.Priority = m[2], m[1], priorityOf(m[3])
			return
		}
		for _, version := range versionsOf[p.family] {
			c.Rules = append(c.Rules, p.rule(line, c, version)...)
		}
	})
}

// priorityNames are nft's words for the priorities of IP.
var priorityNames = map[string]int32{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

// priorityOf reads -100, dstnat and "srcnat + 10".
func priorityOf(text string) int32 {
	words := strings.Fields(text)
	base := priorityNames[words[0]]
	rest := strings.Join(words, "")
	if _, named := priorityNames[words[0]]; named {
		rest = strings.Join(words[1:], "")
	}
	n, _ := strconv.ParseInt(rest, 10, 32)
	return base + int32(n)
}

// rule is a line of a chain for one version of IP: none if it is not about that one,
// several if it has sets of addresses or interfaces.
func (p *nftParser) rule(line string, c *Chain, version int) (rules []*Rule) {
	text := fmt.Sprintf("%s %s %s: %s", p.family, p.name, c.Name, line)
	words, err := tokens(line)
	lists := [][]string{words}
	if err == nil {
		lists, err = p.expand(words)
	}
	for _, words := range lists {
		if err != nil {
			break
		}
		var some []*Rule
		if some, err = p.oneRule(words, version); errors.Is(err, errOtherVersion) {
			err = nil
		}
		rules = append(rules, some...)
	}
	switch {
	case err == nil:
	case (!p.translates || c.Type != "nat" && c.Hook != "") && !concerning.MatchString(line):
		rules = []*Rule{{}}
	default:
		p.note(Untranslated, text, err.Error())
		rules = []*Rule{{Target: Target{Kind: Ends, Name: Unread}}}
	}
	for _, one := range rules {
		one.Line, one.Text = p.line, text
		if p.family == "inet" {
			one.Match.of(version)
		}
	}
	return rules
}

// oneRule is a rule without maps.
func (p *nftParser) oneRule(words []string, version int) ([]*Rule, error) {
	r := nftRule{textRule: textRule{words: words, version: version, budget: &p.budget}, sets: p.sets}
	for len(r.words) > 0 {
		if err := r.statement(); err != nil {
			return nil, err
		}
	}
	if r.rule.Target.Kind == "" && !r.rule.Match.Opaque { // an unknown condition may be a statement
		r.rule.Target.Kind = Pass
	}
	return r.all()
}

var errMap = errors.New(NoWord + "such maps in a text of nft: import the kernel's rules ('natkit gateway import' without a file)")

var errOtherVersion = errors.New("of the other version of IP")

// nftRule reads one rule.
type nftRule struct {
	textRule
	sets map[string][]string
}

// statements are what a rule may have, by its first words; the longest that fits is
// taken. Anything else is a condition that natkit has no word for, up to the next one.
var statements map[string]func(r *nftRule) error

func init() {
	// condition compares with a value or a set; of a version of IP unless that is 0.
	condition := func(version int, take func(r *textRule, texts []string, not bool) error) func(r *nftRule) error {
		return func(r *nftRule) error {
			if err := r.only(version); err != nil {
				return err
			}
			list, not, err := r.values()
			return cmp.Or(err, take(&r.textRule, list, not))
		}
	}
	only := func(version int) func(r *nftRule) error {
		return func(r *nftRule) error { return r.only(version) }
	}
	verdict := func(kind Kind) func(r *nftRule) error {
		return func(r *nftRule) error { r.rule.Target.does(kind); return nil }
	}
	syn := func(r *nftRule) error {
		r.rule.Match.SYN = true
		return r.protocolsAre(unix.IPPROTO_TCP)
	}
	statements = map[string]func(r *nftRule) error{
		"counter": (*nftRule).counter, "comment": (*nftRule).comment, "log": (*nftRule).log,
		"meta nfproto ipv4": only(4), "meta nfproto ipv6": only(6),
		"ip saddr": condition(4, (*textRule).source), "ip daddr": condition(4, (*textRule).destination),
		"ip6 saddr": condition(6, (*textRule).source), "ip6 daddr": condition(6, (*textRule).destination),
		"iifname": condition(0, (*textRule).inward), "oifname": condition(0, (*textRule).outward),
		"iif": condition(0, (*textRule).inward), "oif": condition(0, (*textRule).outward),
		"meta l4proto": condition(0, (*textRule).protocol), "ip protocol": condition(4, (*textRule).protocol), "ip6 nexthdr": condition(6, (*textRule).protocol),
		"meta mark": (*nftRule).marked, "meta skuid": owned(false), "meta skgid": owned(true),
		"ip dscp": classed(4), "ip6 dscp": classed(6), "ct state": (*nftRule).state,
		"fib daddr type local":    func(r *nftRule) error { r.rule.Match.ToLocal = true; return nil },
		"tcp flags syn / syn,rst": syn, "tcp flags & (syn | rst) == syn": syn,
		"accept": verdict(Accept), "drop": verdict(Drop), "return": verdict(Return), "notrack": verdict(Notrack),
		"continue": func(*nftRule) error { return nil },
		"jump":     lead(Jump), "goto": lead(Goto),
		"masquerade": ports(Masquerade), "redirect": ports(Redirect), "snat": addresses46(SNAT), "dnat": addresses46(DNAT),
		"tcp option maxseg size set": (*nftRule).mss, "xt target": (*nftRule).xt,
	}
	for _, word := range []string{"reject", "queue", "tproxy", "synproxy", "fwd", "dup"} {
		statements[word] = (*nftRule).end
	}
	for _, name := range append([]string{"th"}, withPorts...) {
		ofProtocol := func(take func(r *textRule, texts []string, not bool) error) func(r *nftRule) error {
			return func(r *nftRule) error {
				if number, err := nat.ParseProtocol(name); err == nil { // not th
					if err := r.protocolsAre(number); err != nil {
						return err
					}
				}
				return condition(0, take)(r)
			}
		}
		statements[name+" dport"] = ofProtocol((*textRule).ports)
		statements[name+" sport"] = ofProtocol((*textRule).sourcePorts)
	}
	for b := range statements {
		begin[strings.Fields(b)[0]] = true
	}
	beginnings = slices.SortedFunc(maps.Keys(statements), func(a, b string) int { return len(b) - len(a) })
}

// beginnings are the keys of statements, the longest first, begin their first words.
var (
	beginnings []string
	begin      = map[string]bool{}
)

func (r *nftRule) begins() string {
	if !begin[r.words[0]] {
		return ""
	}
	text := strings.Join(r.words[:min(len(r.words), 8)], " ") + " "
	i := slices.IndexFunc(beginnings, func(b string) bool { return strings.HasPrefix(text, b+" ") })
	if i < 0 {
		return ""
	}
	return beginnings[i]
}

func (r *nftRule) statement() error {
	if b := r.begins(); b != "" {
		r.words = r.words[len(strings.Fields(b)):]
		return statements[b](r)
	}
	condition := r.rest()
	if slices.Contains(strings.Fields(condition), "vmap") {
		return r.verdictMap()
	}
	r.unknown(condition)
	return nil
}

// verdictMap is one whose keys natkit does not know.
func (r *nftRule) verdictMap() error {
	t := &r.rule.Target
	t.does(Ends)
	t.Name, t.Unknown, r.words = "vmap", []string{"a verdict map"}, nil
	return nil
}

// rest are the words up to the next statement: at least one.
func (r *nftRule) rest() string {
	var taken []string
	for depth := 0; len(r.words) > 0; r.words = r.words[1:] {
		if len(taken) > 0 && depth <= 0 && r.begins() != "" {
			break
		}
		w := r.words[0]
		depth += strings.Count(w, "{") - strings.Count(w, "}")
		taken = append(taken, w)
	}
	return strings.Join(taken, " ")
}

// values returns the values that a condition compares with: one, or a set of them.
func (r *nftRule) values() (list []string, not bool, err error) {
	if len(r.words) > 0 && r.words[0] == "!=" {
		not, r.words = true, r.words[1:]
	} else if len(r.words) > 0 && r.words[0] == "==" {
		r.words = r.words[1:]
	}
	if len(r.words) == 0 {
		return nil, not, errors.New("ends after a condition's name")
	}
	switch w := r.words[0]; {
	case w == "&", w == "." && len(r.words) > 1:
		return nil, not, errors.New(NoWord + "an address with a mask or together with another field")
	case isMap(w):
		return nil, not, errMap
	case w == "{":
		end := slices.Index(r.words, "}")
		if end < 0 {
			return nil, not, errors.New("has a set that does not end")
		}
		list, r.words = elements(r.words[:end+1]), r.words[end+1:]
	case w[0] == '@':
		known := false
		if list, known = r.sets[w]; !known {
			return nil, not, fmt.Errorf("%sthe set %s: its elements are not in the text", NoWord, w[1:])
		}
		if !r.budget.Makes(len(list)) {
			return nil, not, errSets
		}
		r.words = r.words[1:]
	default:
		list, r.words = []string{w}, r.words[1:]
	}
	if len(r.words) > 0 && isMap(r.words[0]) {
		return nil, not, errMap
	}
	if len(list) == 0 && !not { // an empty list stands for any
		return nil, not, errors.New(NoWord + "a set without elements, which nothing is in")
	}
	return list, not, nil
}

// isMap reports whether a word behind a condition's name looks it up instead of comparing it.
func isMap(word string) bool { return slices.Contains([]string{"map", "vmap", "."}, word) }

// elements are those of { 80, 443 }, without what the kernel counts of them.
func elements(words []string) (list []string) {
	text := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(strings.Join(words, " "), "{"), "}"))
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			list = append(list, strings.Trim(one, `"`))
		}
	}
	return list
}

// only returns an error if the rule is read for another version than this one; 0 is any.
func (r *nftRule) only(version int) error {
	if version != 0 && r.version != version {
		return errOtherVersion
	}
	return nil
}

// counter has what was counted after it.
func (r *nftRule) counter() error {
	for len(r.words) >= 2 && slices.Contains([]string{"packets", "bytes", "name"}, r.words[0]) {
		r.words = r.words[2:]
	}
	return nil
}

func (r *nftRule) comment() error {
	r.rule.Comment = strings.Join(r.words, " ")
	r.words = nil
	return nil
}

// log takes the options of log alone: what stands behind them is a condition.
func (r *nftRule) log() error {
	l := &Log{}
	for len(r.words) >= 2 && slices.Contains([]string{"prefix", "group", "snaplen", "queue-threshold", "level", "flags"}, r.words[0]) {
		option, value := r.next(), r.next()
		if option == "flags" && (value == "tcp" || value == "ip") && len(r.words) > 0 { // tcp sequence,options; ip options
			value += " " + r.next()
		}
		if option == "prefix" {
			l.Prefix = value
			continue
		}
		l.Options = append(l.Options, option+" "+value)
	}
	r.rule.Log = l
	return nil
}

func (r *nftRule) end() error {
	t := &r.rule.Target
	t.does(Ends)
	t.Name, t.Unknown = strings.Join(r.words, " "), []string{"the statement " + strings.Join(r.words, " ")}
	r.words = nil
	return nil
}

// xt is a target of iptables that this nft does not print.
func (r *nftRule) xt() error {
	return fmt.Errorf("is of iptables (%s), and nft does not print what it does: import what iptables-save prints", strings.Join(r.words, " "))
}

func lead(kind Kind) func(r *nftRule) error {
	return func(r *nftRule) error {
		if len(r.words) == 0 {
			return errors.New("leads to no chain")
		}
		r.rule.Target.does(kind)
		r.rule.Target.Name, r.rule.Target.Chains = r.words[0], r.words[:1]
		r.words = r.words[1:]
		return nil
	}
}

// ports is a translation to the host's own address: masquerade and redirect.
func ports(kind Kind) func(r *nftRule) error {
	return func(r *nftRule) (err error) {
		t := &r.rule.Target
		t.does(kind)
		t.Name = strings.ToUpper(string(kind))
		if len(r.words) > 1 && r.words[0] == "to" {
			if t.Ports, err = givenPorts(strings.TrimPrefix(r.words[1], ":")); err != nil {
				return err
			}
			r.words = r.words[2:]
		}
		return r.flagsOf(t)
	}
}

// addresses46 is snat and dnat: of addresses, ports or whole prefixes.
func addresses46(kind Kind) func(r *nftRule) error {
	return func(r *nftRule) error {
		t := &r.rule.Target
		t.does(kind)
		t.Name = strings.ToUpper(string(kind))
		if err := r.form(t); err != nil {
			return err
		}
		switch {
		case len(r.words) > 1 && kind == DNAT && slices.Contains(chances, r.words[1]):
			return errors.Join(r.drawn(t), r.flagsOf(t))
		case slices.Contains(r.words, "map"):
			return errMap
		case len(r.words) < 2:
			return errors.New("has no address to give")
		}
		to := r.words[1]
		r.words = r.words[2:]
		p, err := parsePrefix(to, r.version)
		switch {
		case t.Kind == Netmap:
			err = t.netmap(to, r.version)
		case err == nil: // 203.0.113.8/29 is a range
			t.First, t.Last = p.Masked().Addr(), nat.LastAddr(p)
		default:
			err = t.addresses(to, r.version)
		}
		return errors.Join(err, r.flagsOf(t))
	}
}

// form reads what stands between the name of a translation and "to".
func (r *nftRule) form(t *Target) error {
	for ; len(r.words) > 0 && r.words[0] != "to"; r.words = r.words[1:] {
		switch r.words[0] {
		case "ip", "ip6":
			if (r.words[0] == "ip") != (r.version == 4) {
				return errOtherVersion
			}
		case "prefix":
			t.Kind = Netmap
		case "addr", ".", "port": // what a map gives
		default:
			return errors.New(NoWord + r.rest())
		}
	}
	return nil
}

// flagsOf reads random, fully-random and persistent, with commas between them.
func (r *nftRule) flagsOf(t *Target) error {
	for ; len(r.words) > 0; r.words = r.words[1:] {
		for flag := range strings.SplitSeq(r.words[0], ",") {
			if flag != "" && !t.Set(flag) {
				return nil
			}
		}
	}
	return nil
}

func (r *nftRule) mss() error {
	t := &r.rule.Target
	t.does(MSS)
	t.Name = "TCPMSS"
	if len(r.words) >= 2 && r.words[0] == "rt" && r.words[1] == "mtu" {
		t.Clamp, r.words = true, r.words[2:]
		return nil
	}
	if len(r.words) == 0 {
		return errors.New("has no size")
	}
	return t.setMSS(r.next())
}
