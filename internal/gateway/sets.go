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
)

// Sets are those of a file, by their names.
type Sets map[string]SetSource

// SetSource is where the elements of a set come from: exactly one of these.
type SetSource struct {
	// Addresses are addresses, ranges and prefixes, Ports services of protocols that have ports.
	Addresses Ranges   `yaml:"addresses" json:"addresses,omitempty"`
	Ports     Services `yaml:"ports" json:"ports,omitempty"`
	// File has one element, of either kind, on each line; Directory has such files.
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
			return document.NewProblem(path, "expected one of addresses, ports, file, directory")
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

// setUse is the name of a set in a rule: at is its place in the list of of items that stands below key. Services are
// meant, or addresses.
type setUse struct {
	name     string
	services bool
	key      string
	at, of   int
}

// setUses are all of a rule, in an order that does not change.
func (r Rule) setUses() (all []setUse) {
	addresses := func(key string, list Prefixes) {
		for i := range list {
			if list[i].Set != "" {
				all = append(all, setUse{list[i].Set, false, key, i, len(list)})
			}
		}
	}
	services := func(key string, list Services) {
		for i := range list {
			if name, is := list[i].set(); is {
				all = append(all, setUse{name, true, key, i, len(list)})
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
				case u.services && len(s.Addresses) > 0, !u.services && len(s.Ports) > 0:
					return document.NewProblem(path, "%s", otherKind(u.name, u.services))
				}
			}
		}
	}
	return nil
}

func otherKind(name string, services bool) string {
	if services {
		return fmt.Sprintf("$%s is a set of addresses: port takes sets of ports", name)
	}
	return fmt.Sprintf("$%s is a set of ports: it stands in port or except-port", name)
}

// readSets fills the sets, from the files that they name.
func (f *File) readSets(files Files) error {
	left := reader{files: files, elements: mostElements, bytes: mostSetText, names: mostSetFiles}
	for _, called := range slices.Sorted(maps.Keys(f.Config.Sets)) {
		s := f.Config.Sets[called]
		var addresses nat.AddrRanges
		var services []nat.Service
		var err error
		if name := s.File + s.Directory; name == "" {
			addresses, services = slices.Clone(nat.AddrRanges(s.Addresses)), s.Ports.services()
			err = left.take(len(addresses) + len(services))
		} else {
			err = left.open(document.Beside(f.place("sets", called).File, name), s.Directory != "")
			addresses, services, left.addresses, left.services = left.addresses, left.services, nil, nil
		}
		var syntax *document.SyntaxError
		if errors.As(err, &syntax) {
			return err
		}
		if err != nil {
			return f.tree.Fault(fmt.Sprintf("set %s: %v", called, err), "gateway", "sets", called)
		}
		s.set = nat.NewSet(called, addresses, services)
		f.Config.Sets[called] = s
	}
	for _, l := range f.Config.lists() {
		for i, r := range l.rules {
			for _, u := range r.setUses() {
				if s := f.Config.Sets.named(u.name); u.services && len(s.Addresses) > 0 || !u.services && len(s.Services) > 0 {
					return f.tree.Fault(otherKind(u.name, u.services), "gateway", l.name, i, r.Kind(), u.key, u.at)
				}
			}
		}
	}
	return nil
}

// reader collects the elements of a set from files, of which all sets together may have so many.
type reader struct {
	files                  Files
	elements, bytes, names int
	addresses              nat.AddrRanges
	services               []nat.Service
}

func (r *reader) take(n int) error {
	if r.elements -= n; r.elements < 0 {
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
	if len(r.services) == 0 { // addresses mostly have lines of their own
		r.addresses = slices.Grow(r.addresses, min(strings.Count(text, "\n"), r.elements))
	}
	number := 0
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
	}
	return nil
}

func (r *reader) element(text string) error {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() && len(r.services) == 0 { // nearly all are
		r.addresses = append(r.addresses, nat.OneAddr(a))
		return nil
	}
	protocol, _, _ := strings.Cut(text, "/")
	if _, err := nat.ParseProtocol(protocol); err == nil && protocol != text && !strings.ContainsAny(protocol, "0123456789") {
		p, err := parsePort(text)
		switch {
		case err == nil && len(r.addresses) > 0:
			err = errors.New("a set has addresses, or ports")
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
	if err == nil && len(r.services) > 0 {
		err = document.Advice("a set has addresses, or ports")
	}
	if err != nil {
		return errors.New(document.Misfit(rangeWords, text, err))
	}
	r.addresses = append(r.addresses, a)
	return nil
}
