package document

import (
	"bytes"
	"encoding"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// decoder puts a document into Go values. The library's own says of a fault neither
// what was expected nor, of a key, where it stands, and looks at the type of each item
// of a list anew.
type decoder struct {
	// whole is Source.Whole.
	whole bool
	// fields are those of structs that were met: a list has thousands of one type.
	fields map[reflect.Type]structFields
	// left is how many values may still be read: aliases multiply them.
	left int
	// files are the document's, to name lines; nil for a part of it.
	files origins
}

// mostValues returns a limit of values for a text of the given size: more than it can have
// without aliases, and enough for some texts with aliases.
func mostValues(bytes int) int { return 2*bytes + 10_000 }

type structFields struct {
	at    map[string][]int
	names []string
}

func (d *decoder) value(n *yaml.Node, v reflect.Value) error {
	here := n
	n = resolve(n)
	if d.left -= 1 + len(n.Content); d.left < 0 {
		return at(here, "too many values: aliases (*name) repeat what they stand for too often")
	}
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	if own, ok := v.Addr().Interface().(yaml.Unmarshaler); ok {
		switch {
		case null && d.whole:
			return at(n, "expected a value, found nothing")
		case null:
			return nil
		}
		return own.UnmarshalYAML(n)
	}
	switch {
	case null && d.whole && v.Kind() != reflect.Pointer:
		return at(n, "expected %s, found nothing: leave the key out where there is none", kindWords(v.Type()))
	case null:
		return nil
	}
	if own, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return Scalar(n, written(v), func(text string) error { return own.UnmarshalText([]byte(text)) })
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return d.value(n, v.Elem())
	case reflect.Struct:
		return d.mapping(n, v)
	case reflect.Map:
		return d.anyKeys(n, v)
	case reflect.Slice, reflect.Array:
		return d.list(n, v)
	}
	return scalar(n, v)
}

// written is the form of a value that reads itself: its method Expected returns it, but
// for the library's types.
func written(v reflect.Value) string {
	if own, ok := v.Interface().(interface{ Expected() string }); ok {
		return own.Expected()
	}
	return map[reflect.Type]string{
		reflect.TypeFor[netip.Addr]():     "an address such as 198.18.0.1",
		reflect.TypeFor[netip.AddrPort](): "an address and port such as 198.19.0.2:80",
		reflect.TypeFor[netip.Prefix]():   "an address with prefix length such as 198.18.0.1/24",
	}[v.Type()]
}

func (d *decoder) list(n *yaml.Node, v reflect.Value) error {
	items := n.Content
	switch {
	case n.Kind != yaml.SequenceNode:
		return at(n, "expected %s, found %s", kindWords(v.Type()), nodeWords(n))
	case v.Kind() == reflect.Array && len(items) != v.Len():
		return at(n, "expected a list of %d, found %d", v.Len(), len(items))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	}
	for i, item := range items {
		if err := d.value(item, v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value) error {
	known, met := d.fields[v.Type()]
	if !met {
		known.at, known.names = yamlFields(v.Type(), nil)
		d.fields[v.Type()] = known
	}
	return d.eachKey(n, v, func(key, value *yaml.Node) error {
		field, there := known.at[key.Value]
		if own, is := v.Interface().(interface{ Misplaced(key string) string }); is && !there {
			if where := own.Misplaced(key.Value); where != "" {
				return at(key, "%s", where)
			}
		}
		if !there {
			return at(key, "unknown field %q%s; expected one of: %s", key.Value, meant(key.Value, known.names), strings.Join(known.names, ", "))
		}
		return d.value(value, v.FieldByIndex(field))
	})
}

// meant asks about the known word that is next to an unknown one, if one is.
func meant(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

// anyKeys reads a mapping whose keys the document chooses.
func (d *decoder) anyKeys(n *yaml.Node, v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	return d.eachKey(n, v, func(key, value *yaml.Node) error {
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(value, element); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key.Value), element)
		return nil
	})
}

// eachKey goes through a mapping, in which no key may come twice.
func (d *decoder) eachKey(n *yaml.Node, v reflect.Value, read func(key, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return at(n, "expected %s, found %s", kindWords(v.Type()), nodeWords(n))
	}
	seen := make(map[string]int, len(n.Content)/2)
	for key, value := range pairs(n) {
		if key.Kind != yaml.ScalarNode {
			return at(key, "expected a key, found %s", nodeWords(key))
		}
		switch line := seen[key.Value]; {
		case line > 0 && len(d.files) == 0:
			return at(key, "the key %q is there twice", key.Value)
		case line > 0:
			return at(key, "the key %q is in %s already", key.Value, d.files.where(line, key.Line))
		}
		seen[key.Value] = key.Line
		if err := read(key, value); err != nil {
			return err
		}
	}
	return nil
}

// Words are the keys that a struct is read from, in order.
func Words(t reflect.Type) []string {
	_, names := yamlFields(t, nil)
	return names
}

func yamlFields(t reflect.Type, path []int) (fields map[string][]int, names []string) {
	fields = make(map[string][]int, t.NumField())
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		here := append(path[:len(path):len(path)], i)
		switch {
		case options == "inline":
			inner, more := yamlFields(t.Field(i).Type, here)
			maps.Copy(fields, inner)
			names = append(names, more...)
		case name != "" && name != "-":
			fields[name] = here
			names = append(names, name)
		}
	}
	return fields, names
}

// scalar reads text, numbers and switches.
func scalar(n *yaml.Node, v reflect.Value) error {
	if n.Kind != yaml.ScalarNode {
		return at(n, "expected %s, found %s", kindWords(v.Type()), nodeWords(n))
	}
	if n.Tag == setTag {
		return setMisplaced(n, kindWords(v.Type()))
	}
	var err error
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(n.Value)
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(n.Value)
	case v.Kind() == reflect.Bool:
		if n.Value != "true" && n.Value != "false" {
			err = strconv.ErrSyntax
		}
		v.SetBool(n.Value == "true")
	case v.CanInt():
		var i int64
		i, err = strconv.ParseInt(n.Value, 0, v.Type().Bits())
		v.SetInt(i)
	case v.CanUint():
		var u uint64
		u, err = strconv.ParseUint(n.Value, 0, v.Type().Bits())
		v.SetUint(u)
	case v.CanFloat():
		var f float64
		f, err = strconv.ParseFloat(n.Value, v.Type().Bits())
		v.SetFloat(f)
	default:
		return at(n, "nothing can be read into %s", v.Type())
	}
	switch {
	case err == nil:
		return nil
	case v.Kind() != reflect.Bool && n.Tag == "!!int" && v.Type() != reflect.TypeFor[time.Duration]():
		return at(n, "expected %s, found %s, which is out of range", kindWords(v.Type()), n.Value)
	}
	return at(n, "expected %s, found %q", kindWords(v.Type()), n.Value)
}

func kindWords(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration such as 500ms, 2s or 1m"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a mapping (key: value)"
	default:
		return "text"
	}
}

func nodeWords(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping (key: value)"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	}
	return "text"
}

// at is a fault of a node.
func at(n *yaml.Node, format string, args ...any) *located {
	return &located{n.Line, n.Column, fmt.Sprintf(format, args...)}
}

// What may be in a document. The YAML library keeps some 200 bytes for each value, and
// until a bracket is closed 600 for each word and sign in it.
const (
	// deepest is how many brackets, lists and mappings may be in each other.
	deepest = 500
	// mostParts is how many values there may be, as separates counts: those of 50,000
	// rules of a gateway.
	mostParts = 800_000
	// mostInBrackets is how many words and signs may be in one pair of brackets.
	mostInBrackets = 300_000
)

// meter hands a text to the YAML library and counts, while it reads, what it will keep: no
// value begins without a sign that counts. The library asks for a few hundred bytes at
// a time, so that it is stopped before it has kept more than it may.
type meter struct {
	text     []byte
	at       int
	brackets bool
	parts    int
	// within is counted from where the last outermost bracket was opened.
	within int
	over   error
}

// Read is io.Reader's.
func (m *meter) Read(p []byte) (int, error) {
	if m.at == len(m.text) {
		return 0, io.EOF
	}
	n := copy(p, m.text[m.at:])
	for i, c := range p[:n] {
		if (c == '-' || c == ':' || c == '?') && !m.endsWord(m.at+i+1) {
			continue
		}
		m.parts += int(separates[c])
		m.within += int(separates[c] | delimits[c])
	}
	m.at += n
	switch {
	case m.parts > mostParts:
		m.over = m.stop("too many values: at most %d are read, each sign that separates two counted", mostParts)
	case m.brackets && m.within > mostInBrackets:
		m.over = m.stop("too many values in one pair of brackets: at most %d words and signs; write lists as lines that begin with a hyphen", mostInBrackets)
	}
	return n, m.over
}

// endsWord reports whether a blank, a line break or the end may be there. Without one
// behind it, a hyphen, a colon or a question mark begins nothing, or only what another
// sign counts for.
func (m *meter) endsWord(at int) bool {
	return at >= len(m.text) || m.text[at] <= ' ' || m.text[at] >= 0x80
}

// nested is called where a bracket, a list or a mapping begins in those around it.
func (m *meter) nested(depth int, of *yaml.DepthContext) error {
	if depth > deepest {
		return fmt.Errorf("exceeded max depth of %d", deepest)
	}
	if m.brackets = of.Kind == yaml.DepthKindFlow; !m.brackets || depth == 1 {
		m.within = 0
	}
	return nil
}

func (m *meter) stop(format string, most int) error {
	return &located{1 + bytes.Count(m.text[:m.at], []byte("\n")), 1, fmt.Sprintf(format, most)}
}

// separates is how many values may begin with a sign: two behind the comma of {a, b}. A
// comment takes as much room, and the library compares each directive with all others.
var separates = [256]uint8{'-': 1, ':': 2, '?': 2, '[': 1, '{': 1, ',': 2, '#': 2, '%': 100}

// delimits are the other signs with which a word may begin or end in brackets, among
// them the last bytes of line breaks (YAML 1.1, 5.4).
var delimits = [256]uint8{']': 1, '}': 1, '"': 1, '\'': 1, '&': 1, '*': 1, '!': 1, '\n': 1, '\r': 1, 0x85: 1, 0xa8: 1, 0xa9: 1}
