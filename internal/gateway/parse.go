package gateway

import (
	"fmt"
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
