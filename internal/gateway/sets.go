package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"go.yaml.in/yaml/v4"
)

// Sets are those of a file, by their names.
type Sets map[string]SetSource

// SetSource is where the elements of a set come from: exactly one of these.
type SetSource struct {
	// Addresses are addresses, ranges and prefixes, Ports services of protocols that have ports, Pairs addresses outside with
	// those inside.
	Addresses Ranges   `yaml:"addresses" json:"addresses,omitempty"`
	Ports     Services `yaml:"ports" json:"ports,omitempty"`
	Pairs     Pairs    `yaml:"pairs" json:"pairs,omitempty"`
	// File has one element, all of one kind, on each line; Directory has such files.
	File      string `yaml:"file" json:"file,omitempty"`
	Directory string `yaml:"directory" json:"directory,omitempty"`

	// set has the elements.
	set *nat.Set
}

const (
	// mostElements bounds the elements of all sets of a file, mostSetText the bytes of the files that they are read from.
	mostElements = 2_000_000
	mostSetText  = 128 << 20
	mostSetFiles = 1000
)

// text is the written form.
func (s Sets) text() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, name+": {"+mappingOf(reflect.ValueOf(s[name]))+"}")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// whole finds a set that does not have its parts.
func (s Sets) whole() *document.Problem {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		one, path := s[name], []any{"gateway", "sets", name}
		if given := document.Given(one); len(given) != 1 {
			return document.NewProblem(path, "expected one of addresses, ports, pairs, file, directory")
		}
		for i, p := range one.Ports {
			if p.First == 0 {
				return document.NewProblem(append(path, "ports", i), "%s: a set has protocols with ports, such as tcp/443 or udp/5000-5100", p)
			}
		}
	}
	return nil
}

// named are the elements of a set; nil where there is no such set, or its file was not read.
func (s Sets) named(name string) *nat.Set { return s[name].set }

// setKind is what a set has elements of.
type setKind string

const (
	setOfAddresses setKind = "addresses"
	setOfPorts     setKind = "ports"
	setOfPairs     setKind = "pairs"
)

// standsIn are the words of rules that sets of a kind stand in.
var standsIn = map[setKind]string{
	setOfAddresses: "from, only-to, except-from or except-to",
	setOfPorts:     "port or except-port",
	setOfPairs:     "pairs of a static",
}

// written is the kind of what stands in the file itself; empty where others have it.
func (s *SetSource) written() setKind {
	switch {
	case len(s.Addresses) > 0:
		return setOfAddresses
	case len(s.Ports) > 0:
		return setOfPorts
	case len(s.Pairs) > 0:
		return setOfPairs
	}
	return ""
}

// kindOf is that of a set's elements; empty where it has none.
func kindOf(s *nat.Set) setKind {
	switch {
	case s.HasPairs():
		return setOfPairs
	case len(s.Services) > 0:
		return setOfPorts
	case len(s.Addresses) > 0:
		return setOfAddresses
	}
	return ""
}

// setUse is the name of a set of some kind in a rule: at is its place in the list of of items that stands below key.
type setUse struct {
	name   string
	kind   setKind
	key    string
	at, of int
}

// setUses are all of a rule, in an order that does not change.
func (r Rule) setUses() (all []setUse) {
	addresses := func(key string, list Prefixes) {
		for i := range list {
			if list[i].Set != "" {
				all = append(all, setUse{list[i].Set, setOfAddresses, key, i, len(list)})
			}
		}
	}
	services := func(key string, list Services) {
		for i := range list {
			if name, is := list[i].set(); is {
				all = append(all, setUse{name, setOfPorts, key, i, len(list)})
			}
		}
	}
	fields := func(c *Conditions, from, onlyTo, exceptTo Prefixes, port Services) {
		addresses("except-from", c.ExceptFrom)
		addresses("except-to", exceptTo)
		addresses("from", from)
		addresses("only-to", onlyTo)
		services("except-port", c.ExceptPort)
		services("port", port)
	}
	switch m, s, static, d := r.Masquerade, r.SNAT, r.Static, r.DNAT; {
	case m != nil:
		fields(&m.Conditions, m.From, m.OnlyTo, m.ExceptTo, m.Port)
	case s != nil:
		fields(&s.Conditions, s.From, s.OnlyTo, s.ExceptTo, s.Port)
	case static != nil:
		if static.Pairs != "" {
			all = append(all, setUse{string(static.Pairs), setOfPairs, "pairs", 0, 1})
		}
		fields(&static.Conditions, nil, static.OnlyTo, static.ExceptTo, static.Port)
	case d != nil:
		fields(&d.Conditions, d.From, d.OnlyTo, d.ExceptTo, d.Port)
	}
	return all
}

// setsUsed finds a rule that names a set that is none, or an inline set of the other kind.
func (c *Config) setsUsed() *document.Problem {
	if p := c.Sets.whole(); p != nil {
		return p
	}
	for _, l := range c.lists() {
		for i, r := range l.rules {
			for _, u := range r.setUses() {
				s, known := c.Sets[u.name]
				path := []any{"gateway", l.name, i, r.Kind(), u.key, u.at}
				switch {
				case !known:
					return document.NewProblem(path, "$%s is not a set: name it below sets", u.name)
				case s.written() != "" && s.written() != u.kind:
					return document.NewProblem(path, "%s", otherKind(u.name, s.written()))
				}
			}
		}
	}
	return nil
}

func otherKind(name string, kind setKind) string {
	return fmt.Sprintf("$%s is a set of %s: it stands in %s", name, kind, standsIn[kind])
}

// readSets fills the sets, from the files that they name.
func (f *File) readSets(files Files) error {
	left := reader{files: files, left: mostElements, bytes: mostSetText, names: mostSetFiles}
	for _, called := range slices.Sorted(maps.Keys(f.Config.Sets)) {
		s := f.Config.Sets[called]
		var err error
		left.elements = elements{}
		if name := s.File + s.Directory; name == "" {
			left.elements = elements{addresses: slices.Clone(nat.AddrRanges(s.Addresses)), services: s.Ports.services(), pairs: s.Pairs}
			err = left.take(left.len())
		} else {
			err = left.open(document.Beside(f.place("sets", called).File, name), s.Directory != "")
		}
		if err == nil {
			s.set, err = left.set(called)
		}
		if err == nil && s.set.Len() > manyElements {
			go s.set.Digest() // plans ask for it later: of a million pairs it takes 60 ms
		}
		var syntax *document.SyntaxError
		if errors.As(err, &syntax) {
			return err
		}
		if err != nil {
			return f.tree.Fault(fmt.Sprintf("set %s: %v", called, err), "gateway", "sets", called)
		}
		f.Config.Sets[called] = s
	}
	for _, l := range f.Config.lists() {
		for i, r := range l.rules {
			for _, u := range r.setUses() {
				if kind := kindOf(f.Config.Sets.named(u.name)); kind != "" && kind != u.kind {
					return f.tree.Fault(otherKind(u.name, kind), "gateway", l.name, i, r.Kind(), u.key, u.at)
				}
			}
		}
	}
	return nil
}

// manyElements is the number from which on a digest takes a millisecond.
const manyElements = 10_000

// elements are those of one set, all of one kind.
type elements struct {
	addresses nat.AddrRanges
	services  []nat.Service
	pairs     []nat.AddrPair
	// at are the lines that pairs stand in, of the files that begin with the pairs of these numbers.
	at    []int32
	files []pairFile
}

type pairFile struct {
	name  string
	first int
}

func (e *elements) len() int { return len(e.addresses) + len(e.services) + len(e.pairs) }

// set is the set that has the elements.
func (e *elements) set(called string) (*nat.Set, error) {
	if len(e.pairs) == 0 {
		return nat.NewSet(called, e.addresses, e.services), nil
	}
	s, twice := nat.NewPairs(called, e.pairs)
	if twice == nil {
		return s, nil
	}
	side := map[bool]string{true: outside, false: inside}[twice.Outside]
	if len(e.files) == 0 {
		return nil, fmt.Errorf("%s is %s of two pairs: %s, and %s", twice.Address, side, e.pairs[twice.First], e.pairs[twice.Second])
	}
	before, line := e.place(twice.First)
	file, again := e.place(twice.Second)
	where := fmt.Sprintf("line %d", line)
	if before != file {
		where = fmt.Sprintf("%s line %d", before, line)
	}
	return nil, &document.SyntaxError{File: file, Line: again, Column: 1,
		Message: fmt.Sprintf("%s is %s of the pair in %s already: leave one of them out", twice.Address, side, where)}
}

// place is where a pair stands.
func (e *elements) place(pair int) (file string, line int) {
	i, found := slices.BinarySearchFunc(e.files, pair, func(f pairFile, pair int) int { return cmp.Compare(f.first, pair) })
	if !found {
		i--
	}
	return e.files[i].name, int(e.at[pair])
}

// Pairs is one pair, or a list.
type Pairs []nat.AddrPair

// pairWords is what a pair is written as.
const pairWords = "an address outside and the one inside that it stands for, such as 198.51.100.7 10.0.0.7"

// parsePair reads the two addresses of a pair.
func parsePair(text string) (p nat.AddrPair, err error) {
	first, rest, two := cutWord(text)
	if !two {
		return p, document.Advice("the second address is missing")
	}
	if p.Outside, err = parseAddr(first); err != nil {
		return p, err
	}
	second, _, three := cutWord(rest)
	if three {
		return p, document.Advice("a pair has two addresses")
	}
	if p.Inside, err = parseAddr(second); err != nil {
		return p, err
	}
	switch {
	case p.Outside.BitLen() != p.Inside.BitLen():
		return p, document.Advice("one of them is IPv4, the other one IPv6")
	case p.Outside == p.Inside:
		return p, document.Advice("it would become itself")
	}
	return p, nil
}

// cutWord returns what is before the first blank, and what is behind it and those that follow; false where there is none.
func cutWord(text string) (word, rest string, found bool) {
	for i := range len(text) {
		if isBlank(text[i]) {
			for rest = text[i+1:]; rest != "" && isBlank(rest[0]); rest = rest[1:] {
			}
			return text[:i], rest, true
		}
	}
	return text, "", false
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Pairs) UnmarshalYAML(n *yaml.Node) error {
	return list(n, p, func(item *yaml.Node, one *nat.AddrPair) error { return scalar(item, pairWords, one, parsePair) })
}

// SetName is $name, which stands for a set.
type SetName string

// UnmarshalYAML is yaml.Unmarshaler.
func (s *SetName) UnmarshalYAML(n *yaml.Node) error {
	if name, is := document.SetName(n); is {
		*s = SetName(name)
		return nil
	}
	return scalar(n, "the name of a set, such as $floating", s, func(string) (SetName, error) {
		return "", document.Advice("name it below sets, and write $ before its name")
	})
}

// name is that of the set.
func (s SetName) name() string { return string(s) }

// String is the written form.
func (s SetName) String() string { return "$" + string(s) }

// reader collects the elements of a set from files; of all sets together so many are left.
type reader struct {
	files              Files
	left, bytes, names int
	elements
}

func (r *reader) take(n int) error {
	if r.left -= n; r.left < 0 {
		return fmt.Errorf("the sets of a gateway file have at most %d elements together", mostElements)
	}
	return nil
}

// open reads a file, or those of a directory, without what is hidden or an editor's copy.
func (r *reader) open(name string, directory bool) error {
	if r.files == nil {
		return fmt.Errorf("%s: files cannot be read here", document.Shown(name))
	}
	if !directory {
		return r.file(name)
	}
	names, err := r.files.List(name)
	if err != nil {
		return fmt.Errorf("%s: %w", document.Shown(name), err)
	}
	for _, one := range names {
		if strings.HasPrefix(one, ".") || strings.HasSuffix(one, "~") {
			continue
		}
		if err := r.file(path.Join(name, one)); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) file(name string) error {
	if r.names--; r.names < 0 {
		return fmt.Errorf("the sets of a gateway file are read from at most %d files", mostSetFiles)
	}
	text, err := r.files.Read(name, r.bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", document.Shown(name), err)
	}
	if r.bytes -= len(text); r.bytes < 0 {
		return fmt.Errorf("the files of sets have at most %d bytes together", mostSetText)
	}
	return r.lines(name, string(document.Unmarked(text)))
}

// lines reads one element from each line; # begins a comment.
func (r *reader) lines(name, text string) error {
	begin, _, _ := strings.Cut(text, "\n")
	switch n := min(strings.Count(text, "\n"), r.left); {
	case len(r.pairs) > 0 || isPair(strings.TrimSpace(begin)):
		r.pairs, r.at = slices.Grow(r.pairs, n), slices.Grow(r.at, n)
	case len(r.services) == 0: // addresses mostly have lines of their own
		r.addresses = slices.Grow(r.addresses, n)
	}
	first, number := len(r.pairs), 0
	for line := range strings.Lines(text) {
		number++
		if at := strings.IndexByte(line, '#'); at >= 0 {
			line = line[:at]
		}
		element := strings.TrimSpace(line)
		if element == "" {
			continue
		}
		if err := cmp.Or(r.element(element), r.take(1)); err != nil {
			return &document.SyntaxError{File: name, Line: number, Column: 1 + strings.Index(line, element), Message: document.OneLine(err.Error())}
		}
		if len(r.pairs) > len(r.at) {
			r.at = append(r.at, int32(number))
		}
	}
	if len(r.pairs) > first {
		r.elements.files = append(r.elements.files, pairFile{name, first})
	}
	return nil
}

// isPair reports whether an element has two words, as a pair has.
func isPair(text string) bool {
	_, _, two := cutWord(text)
	return two
}

const setKinds = "a set has addresses, ports or pairs"

func (r *reader) element(text string) error {
	if isPair(text) {
		p, err := parsePair(text)
		if err == nil && len(r.addresses)+len(r.services) > 0 {
			err = document.Advice(setKinds)
		}
		if err != nil {
			return errors.New(document.Misfit(pairWords, text, err))
		}
		r.pairs = append(r.pairs, p)
		return nil
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() && len(r.services)+len(r.pairs) == 0 { // nearly all are
		r.addresses = append(r.addresses, nat.OneAddr(a))
		return nil
	}
	protocol, _, _ := strings.Cut(text, "/")
	if _, err := nat.ParseProtocol(protocol); err == nil && protocol != text && !strings.ContainsAny(protocol, "0123456789") {
		p, err := parsePort(text)
		switch {
		case err == nil && len(r.addresses)+len(r.pairs) > 0:
			err = document.Advice(setKinds)
		case err == nil && p.First == 0:
			err = document.Advice("a set has protocols with ports")
		}
		if err != nil {
			return errors.New(document.Misfit(portWords, text, err))
		}
		r.services = append(r.services, Services{p}.services()...)
		return nil
	}
	a, err := parseRange(text)
	if err == nil && len(r.services)+len(r.pairs) > 0 {
		err = document.Advice(setKinds)
	}
	if err != nil {
		return errors.New(document.Misfit(rangeWords, text, err))
	}
	r.addresses = append(r.addresses, a)
	return nil
}
