package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"github.com/natkit/natkit/internal/nat"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/document"
)

// MaxSource bounds the text of a file with those that it includes, in bytes: some 50,000 rules.
const MaxSource = 8 << 20

// File is a Config and where its parts stand.
type File struct {
	Name   string
	Config Config
	tree   *document.Tree
}

// fileText is what a file is read into.
type fileText struct {
	Gateway *Config `yaml:"gateway" check:"required"`
}

// Files reads what a file names: other files, by their paths.
type Files interface {
	// Read returns the text of a file, or a little more than limit bytes of it.
	Read(path string, limit int) ([]byte, error)
	// List returns the names of the files in a directory, in order.
	List(dir string) ([]string, error)
}

// Parse reads a file, strictly: a key that is not known, a value that does not fit, a
// rule without its parts is a *document.SyntaxError with line and column. What the
// rules mean together is Check's to say.
func Parse(file string, text []byte) (*File, error) { return ParseWith(nil, file, text) }

// ParseWith is Parse of a file that may name others, which files reads; nil where it can name none.
func ParseWith(files Files, file string, text []byte) (*File, error) {
	var read fileText
	s := source(file, text)
	if files != nil {
		s.Compose.Read = files.Read
	}
	tree, err := s.DecodeTree(&read, func() *document.Problem {
		if read.Gateway == nil {
			return &document.Problem{Path: []any{"gateway"}, Message: "expected a mapping below the key gateway"}
		}
		return read.Gateway.whole()
	})
	if err != nil {
		return nil, err
	}
	f := &File{Name: file, Config: *read.Gateway, tree: tree}
	return f, f.readSets(files)
}

func source(file string, text []byte) document.Source {
	return document.Source{File: file, What: "gateway file", Text: text, Limit: MaxSource, Whole: true,
		Compose: &document.Compose{Key: "gateway", Lists: []string{"nat", "ipv6"}, Mappings: []string{"define", "sets"}, Names: []string{"sets"}}}
}

// Schema is the JSON Schema of a gateway file, for editors. It is made of what Parse reads files into: a word or a
// value that Parse knows is in it.
func Schema() *document.Schema {
	s := document.Describe(reflect.TypeFor[fileText](), source("", nil).Compose)
	s.Title = "natkit gateway file"
	rule := s.Defs["rule"].AnyOf[0] // the other form is a variable
	for _, kind := range kindWords {
		rule.OneOf = append(rule.OneOf, &document.Schema{Required: []string{kind}})
	}
	static := s.Defs["static"].AnyOf[0]
	static.OneOf = []*document.Schema{{Required: []string{inside, outside}}, {Required: []string{"pairs"}}}
	return s
}

// place returns the position of a part of the file; the zero Place if the Config was
// not read from one.
func (f *File) place(path ...any) document.Place {
	if f.tree == nil {
		return document.Place{}
	}
	return f.tree.At(append([]any{"gateway"}, path...)...)
}

// Line names where a rule stands: "line 3", or "other.yaml line 3" of one that is included; empty where the file is not
// known to have it.
func (f *File) Line(r Ref) string {
	for _, l := range f.Config.lists() {
		if l.name == r.List && r.Index < len(l.rules) {
			return f.words(f.place(r.List, r.Index))
		}
	}
	return ""
}

// words is a place in a sentence.
func (f *File) words(p document.Place) string {
	switch {
	case p.Line == 0:
		return ""
	case p.File != f.Name:
		return fmt.Sprintf("%s line %d", p.File, p.Line)
	}
	return fmt.Sprintf("line %d", p.Line)
}

// Beside are the names of other files that stand in it without a whole path, and so are relative to it.
func (f *File) Beside() []string {
	if f.tree == nil {
		return nil
	}
	names := f.tree.Beside()
	for called, s := range f.Config.Sets {
		if name := s.File + s.Directory; name != "" && !path.IsAbs(name) && f.place("sets", called).File == f.Name {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Others are the files that it includes.
func (f *File) Others() []string {
	if f.tree == nil {
		return nil
	}
	return f.tree.Files()[1:]
}

// whole returns the first part that a rule lacks or the limit that is exceeded; nil if none.
func (c *Config) whole() *document.Problem {
	for _, l := range c.lists() {
		for i, r := range l.rules {
			if p := r.whole(); p != nil {
				p.Path = append([]any{"gateway", l.name, i}, p.Path...)
				return p
			}
		}
	}
	if p := cmp.Or(c.setsUsed(), c.zonesUsed()); p != nil {
		return p
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
	named, pairs, checked, places := map[string]bool{}, 0, 0, 0
	role := func(name string) int {
		return map[string]int{RoleWAN: len(c.Interfaces.WAN), RoleLAN: len(c.Interfaces.LAN)}[name]
	}
	c.each(func(r Rule, ref Ref) {
		for _, name := range r.interfaces() {
			named[name] = true
		}
		tooMany := ""
		if r.DNAT != nil {
			pairs += role(r.DNAT.On.Name)
			tooMany = r.DNAT.tooManyHosts(&checked, &places)
		}
		path := []any{"gateway", ref.List, ref.Index}
		switch {
		case p != nil:
		case len(named) > mostInterfaces:
			p = &document.Problem{Path: path, Message: tooManyInterfaces + ": leave out, so that rules hold for the role wan, or write several files for several namespaces"}
		case tooMany != "":
			p = &document.Problem{Path: path, Message: tooMany}
		case pairs > mostOn:
			p = &document.Problem{Path: path, Message: fmt.Sprintf("dnat on a role times the interfaces of the role is more than %d: name an address, or fewer interfaces", mostOn)}
		}
	})
	return p
}

// interfaces are the names that a rule has for interfaces and roles.
func (r Rule) interfaces() []string {
	var names []string
	if c := r.conditions(); c != nil {
		names = slices.Concat(c.In, c.ExceptIn)
	}
	switch {
	case r.Masquerade != nil:
		return append(append(names, r.Masquerade.Out...), r.Masquerade.ExceptOut...)
	case r.SNAT != nil:
		return append(append(names, r.SNAT.Out...), r.SNAT.ExceptOut...)
	case r.Netmap != nil:
		return append(names, r.Netmap.Out...)
	case r.DNAT != nil && r.DNAT.On.Name != "" && r.DNAT.On.Name != OnAny:
		return append(names, r.DNAT.On.Name)
	case r.Static != nil:
		return append(append(names, r.Static.Out...), r.Static.ExceptOut...)
	}
	return names
}

// conditions returns those of masquerade, snat, dnat and static, nil of other kinds.
func (r Rule) conditions() *Conditions {
	switch {
	case r.Masquerade != nil:
		return &r.Masquerade.Conditions
	case r.SNAT != nil:
		return &r.SNAT.Conditions
	case r.DNAT != nil:
		return &r.DNAT.Conditions
	case r.Static != nil:
		return &r.Static.Conditions
	}
	return nil
}

// kindWords are the words of rules.
var kindWords = []string{"masquerade", "snat", "dnat", "static", "netmap", "notrack", "nat64", "nat46"}

// mostLabel bounds the bytes of a rule's name and note: with its place they are the comment of its rules in the
// kernel, of which nft(8) reads 127 bytes.
const mostLabel = 100

// whole finds what keeps a rule from being one.
func (r Rule) whole() *document.Problem {
	used := slices.DeleteFunc(document.Given(r), func(key string) bool { return !slices.Contains(kindWords, key) })
	if len(r.Name)+len(r.Note) > mostLabel {
		return document.NewProblem([]any{"note"}, "note: it has %d bytes, with the name: at most %d are kept with the kernel's rules", len(r.Name)+len(r.Note), mostLabel)
	}
	switch len(used) {
	case 1:
		p := document.Check(r, nil)
		if p == nil && r.DNAT != nil {
			p = r.DNAT.balanced()
		}
		if p == nil && r.Static != nil {
			p = r.Static.sides()
		}
		return p
	case 0:
		return &document.Problem{Message: "expected one of " + strings.Join(kindWords, ", ") + " and a mapping after it"}
	default:
		return &document.Problem{Message: fmt.Sprintf("expected one kind in a rule, found %s; begin another rule with -", strings.Join(used, " and "))}
	}
}

// sides finds what a static lacks: its two addresses, or pairs in their place.
func (s *Static) sides() *document.Problem {
	for _, one := range []struct {
		key     string
		address Address
	}{{inside, s.Inside}, {outside, s.Outside}} {
		path := []any{"static", one.key}
		switch {
		case s.Pairs != "" && one.address.IsValid():
			return document.NewProblem(path, "%s is one address, and pairs stands for many: write it in a static of its own", one.key)
		case s.Pairs == "" && !one.address.IsValid():
			return document.NewProblem(path, "%s is required", document.Field(path))
		}
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
	// Name and Note are the rule's, where it has some.
	Name Name   `json:"name,omitempty"`
	Note Remark `json:"note,omitempty"`
}

// String is "nat[3] snat", or "nat[3] snat web" of a rule with a name.
func (r Ref) String() string {
	text := fmt.Sprintf("%s[%d] %s", r.List, r.Index, r.Kind)
	if r.Name != "" {
		text += " " + string(r.Name)
	}
	return text
}

// Label is String with the note: "nat[3] snat web (moves in May)". It is the comment of an engine's rules.
func (r Ref) Label() string {
	if r.Note == "" {
		return r.String()
	}
	return r.String() + " (" + string(r.Note) + ")"
}

// called is Label without the place, which findings have besides: "snat web (moves in May)".
func (r Ref) called() string {
	_, text, _ := strings.Cut(r.Label(), " ")
	return text
}

// ref names the rule at a place of a list.
func (r Rule) ref(list string, index int) Ref {
	return Ref{List: list, Index: index, Kind: r.Kind(), Name: r.Name, Note: r.Note}
}

// ParseRef reads what Ref.Label writes.
func ParseRef(text string) (Ref, bool) {
	place, kind, ok := strings.Cut(text, " ")
	kind, note, noted := strings.Cut(kind, " (")
	if noted {
		note, noted = strings.CutSuffix(note, ")")
		ok = ok && noted
	}
	kind, name, _ := strings.Cut(kind, " ")
	list, rest, ok2 := strings.Cut(place, "[")
	number, ok3 := strings.CutSuffix(rest, "]")
	index, err := strconv.Atoi(number)
	r := Ref{List: list, Index: index, Kind: kind, Name: Name(name), Note: Remark(note)}
	return r, ok && ok2 && ok3 && err == nil && r.Label() == text
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
	var b bytes.Buffer
	eachField(reflect.ValueOf(*c), func(key string, v reflect.Value) {
		rules, isList := v.Interface().([]Rule)
		if !isList {
			fmt.Fprintf(&b, "  %s: %s\n", key, textOf(v))
			return
		}
		fmt.Fprintf(&b, "  %s:\n", key)
		for _, r := range rules {
			fmt.Fprintf(&b, "    - %s\n", MarshalRule(r))
		}
	})
	if b.Len() == 0 {
		return []byte("gateway: {}\n")
	}
	return append([]byte("gateway:\n"), b.Bytes()...)
}

// MarshalRule writes a rule as it stands in a list: "snat: {from: 10.0.0.1, to: …}", in braces where it has a name
// or another word besides.
func MarshalRule(r Rule) string {
	text := mappingOf(reflect.ValueOf(r))
	if r.Name != "" || r.Note != "" || r.Log != (Log{}) || r.Prefer != 0 || r.Enabled != nil {
		return "{" + text + "}"
	}
	return text
}

// eachField calls do for the fields of a struct that are not zero, by their keys in a file.
func eachField(v reflect.Value, do func(key string, v reflect.Value)) {
	for i := range v.NumField() {
		key, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case key == "" && options == "": // no word of the file
		case options == "inline":
			eachField(v.Field(i), do)
		case key != "" && key != "-" && !v.Field(i).IsZero():
			do(key, reflect.Indirect(v.Field(i)))
		}
	}
}

func mappingOf(v reflect.Value) string {
	var parts []string
	eachField(v, func(key string, v reflect.Value) { parts = append(parts, key+": "+textOf(v)) })
	return strings.Join(parts, ", ")
}

// textOf is a value on one line: of a list of one without the list.
func textOf(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case nat.AddrRange:
		if p := x.Prefix(); p.IsValid() {
			return nat.PrefixString(p)
		}
	case nat.Backend:
		return backendText(x)
	case Prefix:
		if x.Set != "" {
			return `"$` + x.Set + `"`
		}
	case Port:
		if name, is := x.set(); is {
			return `"$` + name + `"`
		}
	case SetName:
		return strconv.Quote(x.String())
	case Sets:
		return x.text()
	case WAN:
		if !x.Mapping {
			return quoted(x.Interface)
		}
	case LAN:
		if !x.Mapping {
			return quoted(x.Interface)
		}
	case Log:
		if x == (Log{On: true}) {
			return "on"
		}
	case PCP:
		if x.isPlain() {
			return "on"
		}
	}
	_, writesItself := v.Interface().(fmt.Stringer)
	switch {
	case v.Kind() == reflect.Slice && v.Len() == 1:
		return textOf(v.Index(0))
	case v.Kind() == reflect.Slice:
		texts := make([]string, v.Len())
		for i := range texts {
			texts[i] = textOf(v.Index(i))
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case v.Kind() == reflect.Struct && !writesItself:
		return "{" + mappingOf(v) + "}"
	}
	return quoted(fmt.Sprint(v.Interface()))
}

// quoted is a value in quotes where YAML would take it for something else.
func quoted(value string) string {
	value = strings.ReplaceAll(value, "$", "$$") // otherwise a name begins
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
