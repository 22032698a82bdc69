package ruleset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// nftText is a line that a script of nft, or what 'nft list ruleset' prints, has. Tables without a family are ip's.
var nftText = lazyregexp.New(`(?m)^\s*(?:(?:add|create|insert|flush|delete|destroy)\s+(?:table|chain|rule|set|map|element|ruleset)\b|` +
	`(?:table|chain|rule)\s+(?:ip|ip6|inet|arp|bridge|netdev)\s+\S|define\s+\S+\s*=)|^table\s+[A-Za-z_]\S*\s*\{`)

// nftParser reads a script of nft: first what tables, chains, sets and rules there are, wherever they stand, then the
// rules. What it does not know makes the rule one that is not translated; it never makes a rule match more.
type nftParser struct {
	parser
	definitions definitions
	todo        []statement
	tables      []*nftTable
	byName      map[[2]string]*nftTable
}

// nftTable is a table, with what its rules are read by.
type nftTable struct {
	*Table
	// sets are the elements of its sets, by their names behind an @.
	sets map[string][]string
	// vary are those of which elements come and go; they are none of sets in the end.
	vary  map[string]bool
	rules map[*Chain][]nftLine
	// dormant tables have no effect.
	dormant bool
}

// nftLine is a rule that is not read yet.
type nftLine struct {
	words []string
	text  string
	line  int
	// handle is the kernel's number where nft -a printed it.
	handle uint64
	err    error
}

// nftFamilies are those of tables, and the versions of IP that they are about.
var nftFamilies = map[string][]int{"ip": {4}, "ip6": {6}, "inet": {4, 6}, "arp": nil, "bridge": nil, "netdev": nil}

func parseNft(text string) *Ruleset {
	p := nftParser{}
	p.script(text, 1)
	p.finish()
	return &p.set
}

// script takes the commands of a script.
func (p *nftParser) script(text string, line int) {
	p.todo = statementsOf(text, line)
	for len(p.todo) > 0 {
		p.command(p.next())
	}
}

func (p *nftParser) next() statement {
	s := p.todo[0]
	p.todo, p.line = p.todo[1:], s.line
	return s
}

// block hands each statement up to the closing bracket to read, which takes the block that it opens; it skips all if
// there is no read. It reports whether the block ends.
func (p *nftParser) block(read func(statement)) bool {
	for len(p.todo) > 0 {
		switch s := p.next(); {
		case s.closes:
			return true
		case read != nil:
			read(s)
		case s.opens && !p.block(nil):
			return false
		}
	}
	return false
}

// words are those of a statement with its definitions put in.
func (p *nftParser) words(s statement) ([]string, error) {
	text, err := p.definitions.resolve(s.text)
	if err != nil {
		return nil, err
	}
	return nftWords(text)
}

// defines takes a definition, or another file; it reports whether the statement is one of these.
func (p *nftParser) defines(s statement) bool {
	is, err := p.definitions.take(s.text)
	if strings.HasPrefix(s.text, "include ") {
		is, err = true, errors.New("is another file: import what 'nft list ruleset' prints")
	}
	if err != nil {
		p.note(Untranslated, s.text, err.Error())
	}
	return is
}

// command is a statement outside of blocks.
func (p *nftParser) command(s statement) {
	words, err := p.words(s)
	switch {
	case s.closes || err == nil && len(words) == 0:
		err = errors.New("is not a line of nft")
	case p.defines(s):
		return
	}
	verb := "add"
	if err == nil && slices.Contains(nftVerbs, words[0]) {
		verb, words = words[0], words[1:]
	}
	if err == nil {
		err = p.object(s, verb, words)
	}
	if err != nil {
		if p.note(Untranslated, s.text, err.Error()); s.opens {
			p.block(nil)
		}
	}
}

// object does what a command says of something: words begin with what that is.
func (p *nftParser) object(s statement, verb string, words []string) error {
	if len(words) == 1 && words[0] == "ruleset" && verb == "flush" {
		p.tables, p.byName = nil, nil
		return nil
	}
	if verb == "list" || verb == "monitor" || verb == "reset" {
		return nil
	}
	if len(words) < 2 || !slices.Contains([]string{"table", "chain", "rule", "set", "map", "element", "counter", "quota", "limit", "ct", "flowtable", "secmark", "synproxy"}, words[0]) {
		return errors.New("is not a line of nft")
	}
	kind, family, rest := words[0], "ip", words[1:]
	if _, is := nftFamilies[rest[0]]; is {
		family, rest = rest[0], rest[1:]
	}
	switch {
	case len(rest) == 0:
		return errors.New("names no table")
	case nftFamilies[family] == nil:
		if kind == "table" {
			p.note(LeftAlone, s.text, "is of the family "+family+", where nothing of IP is translated")
		}
		if s.opens {
			p.block(nil)
		}
		return nil
	case verb != "add" && verb != "create" && verb != "insert":
		return p.removes(s, verb, kind, family, rest)
	}
	t := p.table(family, rest[0])
	switch rest = rest[1:]; {
	case kind == "table" && s.opens:
		p.tableBlock(t)
	case kind == "chain" && len(rest) > 0:
		if c := t.Chain(rest[0]); s.opens {
			p.chainBlock(t, c)
		}
	case (kind == "set" || kind == "map") && s.opens && len(rest) > 0:
		p.setBlock(t, rest[0])
	case kind == "element" && len(rest) > 1:
		t.sets["@"+rest[0]] = append(t.sets["@"+rest[0]], elements(rest[1:])...)
	case kind == "rule" && len(rest) > 0:
		return p.addRule(t, s, verb, rest)
	case s.opens:
		p.block(nil)
	}
	return nil
}

// table continues a table, or adds it.
func (p *nftParser) table(family, name string) *nftTable {
	key := [2]string{family, name}
	if t := p.byName[key]; t != nil {
		return t
	}
	t := &nftTable{Table: &Table{Family: family, Name: name}, sets: map[string][]string{}, vary: map[string]bool{}, rules: map[*Chain][]nftLine{}}
	if p.byName == nil {
		p.byName = map[[2]string]*nftTable{}
	}
	p.byName[key], p.tables = t, append(p.tables, t)
	return t
}

// removes takes away what is in the text already; what it does to the rest is not known.
func (p *nftParser) removes(s statement, verb, kind, family string, rest []string) error {
	t := p.byName[[2]string{family, rest[0]}]
	switch {
	case t == nil: // of an earlier text
	case kind == "table":
		if clear(t.rules); verb != "flush" {
			clear(t.sets)
			clear(t.vary)
		}
	case kind == "chain" && len(rest) > 1:
		delete(t.rules, t.Chain(rest[1]))
	case kind == "rule" && len(rest) > 1:
		c := t.Chain(rest[1])
		t.rules[c] = slices.Insert(t.rules[c], 0, nftLine{text: s.text, line: s.line, err: errors.New("changes rules that are there already: import what 'nft list ruleset' prints afterwards")})
	case len(rest) > 1:
		delete(t.sets, "@"+rest[1])
		t.vary["@"+rest[1]] = kind == "element" // the others are there still
	}
	if s.opens {
		p.block(nil)
	}
	return nil
}

// addRule is one of a command, behind the name of its table.
func (p *nftParser) addRule(t *nftTable, s statement, verb string, rest []string) error {
	c, line := t.Chain(rest[0]), nftLine{words: rest[1:], text: s.text, line: s.line}
	if len(rest) > 2 && slices.Contains([]string{"handle", "position", "index"}, rest[1]) {
		line.err, verb = errors.New("is put between rules that are there already: import what 'nft list ruleset' prints afterwards"), "insert"
	}
	if verb == "insert" {
		t.rules[c] = slices.Insert(t.rules[c], 0, line)
		return nil
	}
	t.rules[c] = append(t.rules[c], line)
	return nil
}

func (p *nftParser) tableBlock(t *nftTable) {
	ends := p.block(func(s statement) {
		words, err := p.words(s)
		switch {
		case p.defines(s):
		case err != nil:
			p.note(Untranslated, s.text, err.Error())
		case len(words) == 2 && words[0] == "flags" && strings.Contains(words[1], "dormant"):
			t.dormant = true
		case s.opens && len(words) == 2 && words[0] == "chain":
			p.chainBlock(t, t.Chain(words[1]))
			return
		case s.opens && len(words) == 2 && (words[0] == "set" || words[0] == "map"):
			p.setBlock(t, words[1])
			return
		}
		if s.opens { // counters and others
			p.block(nil)
		}
	})
	if !ends {
		p.note(Untranslated, "table "+t.Family+" "+t.Name, "does not end: "+CutShort)
	}
}

func (p *nftParser) setBlock(t *nftTable, name string) {
	p.block(func(s statement) {
		words, err := p.words(s)
		switch {
		case p.defines(s):
		case err != nil:
			p.note(Untranslated, s.text, err.Error())
		case len(words) > 1 && (words[0] == "timeout" || words[0] == "flags" && (strings.Contains(words[1], "timeout") || strings.Contains(words[1], "dynamic"))):
			t.vary["@"+name] = true
		case len(words) > 1 && words[0] == "elements=":
			t.sets["@"+name] = append(t.sets["@"+name], elements(words[1:])...)
		case len(words) > 2 && words[0] == "elements" && words[1] == "=":
			t.sets["@"+name] = append(t.sets["@"+name], elements(words[2:])...)
		}
	})
}

var baseChain = lazyregexp.New(`^type (\w+) hook (\w+)(?: devices? .*)? priority (.+)$`)

func (p *nftParser) chainBlock(t *nftTable, c *Chain) {
	p.block(func(s statement) {
		words, err := p.words(s)
		m := baseChain.FindStringSubmatch(strings.Join(words, " "))
		switch {
		case m != nil:
			c.Hook, c.Type, c.Priority, c.Policy = m[2], m[1], priorityOf(m[3]), "accept" // NF_ACCEPT unless the next line says otherwise
			return
		case err == nil && len(words) == 0:
			err = errors.New("is not a line of nft")
		case err == nil && words[0] == "policy" && len(words) == 2:
			c.Policy = words[1]
			return
		case err == nil && (words[0] == "policy" || words[0] == "comment" || words[0] == "devices" || words[0] == "flags"):
			return
		case err != nil && strings.HasPrefix(s.text, "type "):
			p.note(Untranslated, s.text, err.Error())
			return
		case strings.HasPrefix(s.text, "include "):
			err = errors.New("is another file: import what 'nft list ruleset' prints")
		case p.defines(s):
			return
		}
		text := fmt.Sprintf("%s %s %s: %s", t.Family, t.Name, c.Name, s.text)
		t.rules[c] = append(t.rules[c], nftLine{words, text, s.line, s.handle, err})
	})
}

// finish reads the rules of all tables.
func (p *nftParser) finish() {
	for _, t := range p.tables {
		if t.dormant {
			p.line = 0
			p.note(LeftAlone, "table "+t.Family+" "+t.Name, "is dormant, and has no effect")
			continue
		}
		p.set.Tables = append(p.set.Tables, t.Table)
		maps.DeleteFunc(t.sets, func(name string, _ []string) bool { return t.vary[name] })
		translates := t.IsNAT()
		for _, c := range t.Chains {
			for _, line := range t.rules[c] {
				for _, version := range nftFamilies[t.Family] {
					c.Rules = append(c.Rules, p.rule(t, c, line, version, translates)...)
				}
			}
		}
	}
}

// priorityNames are nft's words for the priorities of IP.
var priorityNames = map[string]int32{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

// priorityOf reads -100, dstnat and "srcnat + 10".
func priorityOf(text string) int32 {
	words := strings.Fields(text)
	base := int32(0)
	if len(words) > 0 {
		if named, is := priorityNames[words[0]]; is {
			base, words = named, words[1:]
		}
	}
	n, _ := strconv.ParseInt(strings.Join(words, ""), 10, 32)
	return base + int32(n)
}

// rule is a line of a chain for one version of IP: none if it is not about that one,
// several if it has sets of addresses or interfaces.
func (p *nftParser) rule(t *nftTable, c *Chain, line nftLine, version int, translates bool) (rules []*Rule) {
	words, err := line.words, line.err
	r := nftReader{t.sets, &p.budget}
	lists := [][]string{words}
	if err == nil {
		lists, err = r.expand(words)
	}
	for _, words := range lists {
		if err != nil {
			break
		}
		var some []*Rule
		if some, err = r.rules(words, version); errors.Is(err, errOtherVersion) {
			err = nil
		}
		rules = append(rules, some...)
	}
	switch {
	case err == nil:
	case (!translates || c.Type != "nat" && c.Hook != "") && !concerning.MatchString(line.text):
		rules = []*Rule{unreadFilter(line.text)}
	default:
		p.line = line.line
		p.note(Untranslated, line.text, err.Error())
		rules = []*Rule{{Target: Target{Kind: Ends, Name: Unread}}}
	}
	for _, one := range rules {
		one.Line, one.Text, one.Handle = line.line, line.text, line.handle
		if t.Family == "inet" {
			one.Match.of(version)
		}
	}
	return rules
}

// nftReader reads rules by the sets of their table.
type nftReader struct {
	sets   map[string][]string
	budget *Budget
}

// rules are those of a rule without maps.
func (p *nftReader) rules(words []string, version int) ([]*Rule, error) {
	r := nftRule{textRule: textRule{words: words, version: version, budget: p.budget}, sets: p.sets}
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
		"meta iifname": condition(0, (*textRule).inward), "meta oifname": condition(0, (*textRule).outward),
		"meta iif": condition(0, (*textRule).inward), "meta oif": condition(0, (*textRule).outward),
		"meta l4proto": condition(0, (*textRule).protocol), "ip protocol": condition(4, (*textRule).protocol), "ip6 nexthdr": condition(6, (*textRule).protocol),
		"meta mark": (*nftRule).marked, "meta skuid": owned(false), "meta skgid": owned(true),
		"mark": (*nftRule).marked, "skuid": owned(false), "skgid": owned(true),
		"meta hour": (*nftRule).hour, "meta day": (*nftRule).day, "hour": (*nftRule).hour, "day": (*nftRule).day,
		"ip dscp": classed(4), "ip6 dscp": classed(6), "ct state": (*nftRule).state, "ct mark": (*nftRule).marksConnection,
		"fib daddr type local":    func(r *nftRule) error { r.rule.Match.ToLocal = true; return nil },
		"tcp flags syn / syn,rst": syn, "tcp flags & (syn | rst) == syn": syn, "tcp flags & (syn|rst) == syn": syn, "tcp flags syn": syn,
		"accept": verdict(Accept), "drop": verdict(Drop), "return": verdict(Return), "notrack": verdict(Notrack),
		"continue": func(*nftRule) error { return nil },
		"jump":     lead(Jump), "goto": lead(Goto),
		"masquerade": ports(Masquerade), "redirect": ports(Redirect), "snat": addresses46(SNAT), "dnat": addresses46(DNAT),
		"tcp option maxseg size set": (*nftRule).mss, "xt target": (*nftRule).xt, "xt match": (*nftRule).xtMatch,
	}
	for _, word := range []string{"reject", "queue", "tproxy", "synproxy", "fwd", "dup"} {
		statements[word] = func(r *nftRule) error { return r.end(word) }
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
	case w == "":
		return nil, not, errors.New("compares with an empty text")
	case w[0] == '@':
		known := false
		if list, known = r.sets[w]; !known {
			return nil, not, fmt.Errorf("%sthe set %s: its elements are not in the text, or come and go", NoWord, w[1:])
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
		if n, err := strconv.ParseUint(r.words[1], 10, 64); err == nil && r.words[0] == "packets" {
			r.rule.Packets, r.rule.Counted = n, true
		}
		r.words = r.words[2:]
	}
	return nil
}

func (r *nftRule) comment() error {
	r.rule.Comment = strings.Join(r.words, " ")
	r.words = nil
	return nil
}

// hour is a condition on the time of the day; nft reads and prints it in the time zone of its machine, the kernel has UTC.
func (r *nftRule) hour() error {
	r.unknown("meta hour " + r.rest() + ", which is of the time zone of the machine that nft runs on (import the kernel's rules instead)")
	return nil
}

func (r *nftRule) day() error {
	list, not, err := r.values()
	if err != nil {
		return err
	}
	days, err := weekdaysOf(list)
	r.rule.Match.times(TimeCondition{Days: days, Not: not}, "meta day "+notText(not)+strings.Join(list, ", "))
	return err
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

func (r *nftRule) end(word string) error {
	t := &r.rule.Target
	t.does(Ends)
	words := r.words
	if at := slices.Index(words, "comment"); at >= 0 {
		words, r.rule.Comment = words[:at], strings.Join(words[at+1:], " ")
	}
	t.Name = strings.TrimSpace(word + " " + strings.Join(words, " "))
	t.Unknown, r.words = []string{"the statement " + t.Name}, nil
	return nil
}

// xt is a target of iptables that this nft does not print.
func (r *nftRule) xt() error {
	return fmt.Errorf("is of iptables (%s), and nft does not print what it does: import what iptables-save prints", strings.Join(r.words, " "))
}

// xtMatch is a match of iptables that this nft does not print, but for comments, which are none.
func (r *nftRule) xtMatch() error {
	if len(r.words) == 0 {
		return errors.New("ends after xt match")
	}
	if name := r.next(); name != "comment" {
		r.unknown("of iptables, which nft does not print (" + name + ")")
	}
	return nil
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
