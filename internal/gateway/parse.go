package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/document"
)

// MaxSource bounds the text of a file, in bytes: some 50,000 rules.
const MaxSource = 8 << 20

// File is a Config and where its parts stand.
type File struct {
	Name   string
	Config Config
	tree   *document.Tree
}

// Parse reads a file, strictly: a key that is not known, a value that does not fit, a
// rule without its parts is a *document.SyntaxError with line and column. What the
// rules mean together is Check's to say.
func Parse(file string, text []byte) (*File, error) {
	var read struct {
		Gateway *Config `yaml:"gateway"`
	}
	s := document.Source{File: file, What: "gateway file", Text: text, Limit: MaxSource, Whole: true}
	tree, err := s.DecodeTree(&read, func() *document.Problem {
		if read.Gateway == nil {
			return &document.Problem{Path: []any{"gateway"}, Message: "expected a mapping below the key gateway"}
		}
		return read.Gateway.whole()
	})
	if err != nil {
		return nil, err
	}
	return &File{Name: file, Config: *read.Gateway, tree: tree}, nil
}

// place tells where a part of the file stands; the zero Place where the Config was
// not read from one.
func (f *File) place(path ...any) document.Place {
	if f.tree == nil {
		return document.Place{}
	}
	return f.tree.At(append([]any{"gateway"}, path...)...)
}

// Line is where a rule stands in the file; 0 where the file is not known to have it.
func (f *File) Line(r Ref) int {
	for _, l := range f.Config.lists() {
		if l.name == r.List && r.Index < len(l.rules) {
			return f.place(r.List, r.Index).Line
		}
	}
	return 0
}

// whole tells what is missing for rules to be rules.
func (c *Config) whole() *document.Problem {
	for _, l := range c.lists() {
		for i, r := range l.rules {
			if p := r.whole(); p != nil {
				p.Path = append([]any{"gateway", l.name, i}, p.Path...)
				return p
			}
		}
	}
	return c.bounded()
}

const (
	// mostInterfaces bounds the interfaces that a file names, in all.
	mostInterfaces = 1000
	// mostOn bounds the pairs of a dnat and an interface of the role that it is on: each
	// becomes an entry for each address.
	mostOn            = 100_000
	tooManyInterfaces = "a file names at most 1000 interfaces"
)

// bounded finds the rule with which a file names more than anybody can carry out.
func (c *Config) bounded() (p *document.Problem) {
	named, pairs := map[string]bool{}, 0
	role := func(name string) int {
		return map[string]int{RoleWAN: len(c.Interfaces.WAN), RoleLAN: len(c.Interfaces.LAN)}[name]
	}
	c.each(func(r Rule, ref Ref) {
		for _, name := range r.interfaces() {
			named[name] = true
		}
		if r.DNAT != nil {
			pairs += role(r.DNAT.On.Name)
		}
		path := []any{"gateway", ref.List, ref.Index}
		switch {
		case p != nil:
		case len(named) > mostInterfaces:
			p = &document.Problem{Path: path, Message: tooManyInterfaces + ": leave out, so that rules hold for the role wan, or write several files for several namespaces"}
		case pairs > mostOn:
			p = &document.Problem{Path: path, Message: fmt.Sprintf("dnat on a role times the interfaces of the role is more than %d: name an address, or fewer interfaces", mostOn)}
		}
	})
	return p
}

// interfaces are the names that a rule has for interfaces and roles.
func (r Rule) interfaces() []string {
	switch {
	case r.Masquerade != nil:
		return r.Masquerade.Out
	case r.SNAT != nil:
		return r.SNAT.Out
	case r.DNAT != nil && r.DNAT.On.Name != "":
		return []string{r.DNAT.On.Name}
	}
	return nil
}

// kindWords are the words of rules.
var kindWords = []string{"masquerade", "snat", "dnat", "static", "netmap", "notrack"}

// kinds are the words that a rule uses.
func (r Rule) kinds() (used []string) {
	for i, there := range []bool{r.Masquerade != nil, r.SNAT != nil, r.DNAT != nil, r.Static != nil, r.Netmap != nil, r.Notrack != nil} {
		if there {
			used = append(used, kindWords[i])
		}
	}
	return used
}

func (r Rule) whole() *document.Problem {
	switch used := r.kinds(); len(used) {
	case 1:
	case 0:
		return &document.Problem{Message: "expected one of " + strings.Join(kindWords, ", ") + " and a mapping after it"}
	default:
		return &document.Problem{Message: fmt.Sprintf("expected one kind in a rule, found %s; begin another rule with -", strings.Join(used, " and "))}
	}
	for _, part := range r.parts() {
		if !part.there {
			return &document.Problem{Path: []any{r.Kind()}, Message: fmt.Sprintf("expected %s, which a rule %s must have", part.key, r.Kind())}
		}
	}
	return nil
}

// part is what a rule cannot do without.
type part struct {
	key   string
	there bool
}

func (r Rule) parts() []part {
	switch {
	case r.SNAT != nil:
		return []part{{"to", len(r.SNAT.To) > 0}}
	case r.DNAT != nil:
		return []part{{"on", r.DNAT.On != On{}}, {"to", r.DNAT.To.Address.IsValid()}}
	case r.Static != nil:
		return []part{{"inside", r.Static.Inside.IsValid()}, {"outside", r.Static.Outside.IsValid()}}
	case r.Netmap != nil:
		return []part{{"inside", r.Netmap.Inside.IsValid()}, {"outside", r.Netmap.Outside.IsValid()}}
	case r.Notrack != nil:
		return []part{{"on", r.Notrack.On.IsValid()}}
	}
	return nil
}

// Ref names the rule of the file that something comes from: "nat[3]", "ipv6[0]",
// counted from 0 as in the file.
type Ref struct {
	List  string `json:"list"`
	Index int    `json:"index"`
	// Kind is the rule's word: "snat".
	Kind string `json:"kind"`
}

func (r Ref) String() string { return fmt.Sprintf("%s[%d] %s", r.List, r.Index, r.Kind) }

// ParseRef reads what Ref.String writes, as it stands in the comments of an engine's
// rules.
func ParseRef(text string) (Ref, bool) {
	place, kind, ok := strings.Cut(text, " ")
	list, rest, ok2 := strings.Cut(place, "[")
	number, ok3 := strings.CutSuffix(rest, "]")
	index, err := strconv.Atoi(number)
	r := Ref{List: list, Index: index, Kind: kind}
	return r, ok && ok2 && ok3 && err == nil && r.String() == text
}

// Compare orders rules as the file has them, nat before ipv6.
func (r Ref) Compare(s Ref) int {
	return cmp.Or(strings.Compare(s.List, r.List), cmp.Compare(r.Index, s.Index))
}

// BitLen is the length of an address of the list's family: 32 or 128.
func (r Ref) BitLen() int {
	if r.List == "ipv6" {
		return 128
	}
	return 32
}

// Marshal writes a Config as the file that Parse reads it from: what is empty is left
// out, each rule takes one line.
func Marshal(c *Config) []byte {
	w := &writer{}
	w.top(c)
	if w.Len() == 0 {
		return []byte("gateway: {}\n")
	}
	return append([]byte("gateway:\n"), w.Bytes()...)
}

// MarshalRule writes a rule as it stands in a list: "snat: {from: 10.0.0.1, to: …}".
func MarshalRule(r Rule) string {
	var f fields
	switch {
	case r.Masquerade != nil:
		f.sources(&r.Masquerade.Sources)
		f.choice(&r.Masquerade.Choice)
	case r.SNAT != nil:
		f.sources(&r.SNAT.Sources)
		f.list("to", rangeTexts(r.SNAT.To))
		f.choice(&r.SNAT.Choice)
		if r.SNAT.Persistent != nil {
			f.add("persistent", r.SNAT.Persistent.String())
		}
	case r.DNAT != nil:
		f.dnat(r.DNAT)
	case r.Static != nil:
		f.add("inside", r.Static.Inside.String())
		f.add("outside", r.Static.Outside.String())
		f.on("stateless", r.Static.Stateless)
		f.on("hairpin", r.Static.Hairpin)
		f.on("local", r.Static.Local)
	case r.Netmap != nil:
		f.add("inside", r.Netmap.Inside.String())
		f.add("outside", r.Netmap.Outside.String())
		f.on("stateless", r.Netmap.Stateless)
	case r.Notrack != nil:
		f.add("on", r.Notrack.On.String())
		f.add("port", r.Notrack.Port.String())
	}
	return r.Kind() + ": " + f.String()
}

type writer struct{ bytes.Buffer }

func (w *writer) top(c *Config) {
	if c.Engine != "" {
		w.line("engine", string(c.Engine))
	}
	var expect, interfaces, limits fields
	if c.Expect.Flows != 0 {
		expect.add("flows", c.Expect.Flows.String())
	}
	if c.Expect.Rate != 0 {
		expect.add("rate", c.Expect.Rate.String())
	}
	interfaces.list(RoleWAN, c.Interfaces.WAN)
	interfaces.list(RoleLAN, c.Interfaces.LAN)
	if c.Limits.ConnectionsPerSource != 0 {
		limits.add("connections-per-source", c.Limits.ConnectionsPerSource.String())
	}
	w.mapping("expect", expect)
	w.mapping("interfaces", interfaces)
	if c.MSS != (MSS{}) {
		w.line("mss", c.MSS.String())
	}
	w.on("flowtable", c.Flowtable)
	w.on("accounting", c.Accounting)
	w.mapping("limits", limits)
	for _, l := range c.lists() {
		w.rules(l)
	}
}

func (w *writer) line(key, value string) { fmt.Fprintf(w, "  %s: %s\n", key, value) }

func (w *writer) on(key string, s Switch) {
	if s {
		w.line(key, s.String())
	}
}

func (w *writer) mapping(key string, f fields) {
	if len(f) > 0 {
		w.line(key, f.String())
	}
}

func (w *writer) rules(l ruleList) {
	if len(l.rules) == 0 {
		return
	}
	fmt.Fprintf(w, "  %s:\n", l.name)
	for _, r := range l.rules {
		fmt.Fprintf(w, "    - %s\n", MarshalRule(r))
	}
}

// fields are those of a mapping on one line.
type fields []string

func (f fields) String() string { return "{" + strings.Join(f, ", ") + "}" }

func (f *fields) add(key, value string) {
	if value != "" {
		*f = append(*f, key+": "+quoted(value))
	}
}

func (f *fields) on(key string, s Switch) {
	if s {
		f.add(key, s.String())
	}
}

func (f *fields) list(key string, values []string) {
	if len(values) == 1 {
		f.add(key, values[0])
		return
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = quoted(v)
	}
	if len(texts) > 0 {
		*f = append(*f, key+": ["+strings.Join(texts, ", ")+"]")
	}
}

func (f *fields) sources(s *Sources) {
	f.list("from", prefixTexts(s.From))
	f.list("except-to", prefixTexts(s.ExceptTo))
	f.list("out", s.Out)
}

func (f *fields) choice(c *Choice) {
	f.add("ports", c.Ports.String())
	if c.Random != "" {
		f.add("random", c.Random.String())
	}
}

func (f *fields) dnat(d *DNAT) {
	f.add("on", d.On.String())
	f.add("port", d.Port.String())
	f.list("from", prefixTexts(d.From))
	f.add("to", d.To.String())
	f.on("hairpin", d.Hairpin)
	f.on("local", d.Local)
}

func prefixTexts(prefixes Prefixes) (texts []string) {
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return texts
}

// rangeTexts writes ranges, as prefixes where they are some.
func rangeTexts(ranges Ranges) (texts []string) {
	for _, r := range ranges {
		text := r.String()
		if p := r.Prefix(); p.IsValid() {
			text = Prefix{p}.String()
		}
		texts = append(texts, text)
	}
	return texts
}

// quoted is a value in quotes where YAML would take it for something else.
func quoted(value string) string {
	switch strings.ToLower(value) {
	case "null", "~":
		return `"` + value + `"`
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:", r)
	}
	first, last := value[0], value[len(value)-1]
	if strings.TrimFunc(value, plain) == "" && first != '-' && first != ':' && first != '.' && last != ':' && last != '-' {
		return value
	}
	return `"` + value + `"`
}
