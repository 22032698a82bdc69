package text

import (
	"bytes"

	"github.com/natkit/natkit/internal/conntrack"
)

// AppendJSON adds e as one line of JSON, without its line feed: one flat object
// with the names of field. e must pass Check.
func AppendJSON(b []byte, e *conntrack.Entry) []byte {
	b = append(b, '{')
	for i := range fields {
		f := &fields[i]
		if !f.has(e) {
			continue
		}
		b = append(b, jsonKeys[i]...)
		b = f.add(b, e)
		if f.quoted {
			b = append(b, '"')
		}
		b = append(b, ',')
	}
	b[len(b)-1] = '}' // there is always a field before
	return b
}

// jsonKeys are the fields' names with what stands before a value.
var jsonKeys = func() []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = `"` + f.name + `":`
		if f.quoted {
			keys[i] += `"`
		}
	}
	return keys
}()

const (
	whyJSON = "its JSON is no flat object of names and values on one line"
)

// json reads an object of one line, with its fields in any order.
func (p *parser) json(s *scanner, e *conntrack.Entry) string {
	p.text = p.text[:0]
	s.i++ // the brace
	if s.end() {
		return whyJSON
	}
	for n := 0; s.b[s.i] != '}'; n++ {
		name, value, ok := p.member(s)
		if !ok {
			return whyJSON
		}
		if why := p.set(n, name, value, e); why != "" {
			return why
		}
		if s.end() {
			return whyJSON
		}
		if s.b[s.i] == ',' {
			s.i++
			if s.end() || s.b[s.i] != '"' {
				return whyJSON
			}
		} else if s.b[s.i] != '}' {
			return whyJSON
		}
	}
	if s.i++; !s.end() {
		return whyJSON
	}
	return ""
}

// member takes a name and its value; the value is without its quotes, and nil
// where it is null.
func (p *parser) member(s *scanner) (name, value []byte, ok bool) {
	if name, ok = p.quoted(s); !ok || s.end() || s.b[s.i] != ':' {
		return nil, nil, false
	}
	if s.i++; s.end() {
		return nil, nil, false
	}
	if s.b[s.i] == '"' {
		value, ok = p.quoted(s)
		return name, value, ok
	}
	start := s.i
	for s.i < len(s.b) && !isBlank(s.b[s.i]) && s.b[s.i] != ',' && s.b[s.i] != '}' {
		if c := s.b[s.i]; c == '{' || c == '[' || c == '"' {
			return nil, nil, false
		}
		s.i++
	}
	if value = s.b[start:s.i]; string(value) == "null" {
		return name, nil, true
	}
	return name, value, len(value) > 0
}

// quoted takes a string.
func (p *parser) quoted(s *scanner) ([]byte, bool) {
	if s.i == len(s.b) || s.b[s.i] != '"' {
		return nil, false
	}
	start := s.i + 1
	end := bytes.IndexByte(s.b[start:], '"')
	if end < 0 {
		return nil, false
	}
	if v := s.b[start : start+end]; bytes.IndexByte(v, '\\') < 0 {
		s.i = start + end + 1
		return v, true
	}
	return p.unescape(s)
}

// unescape takes a string with backslashes. What is no ASCII in it is kept as
// it is, or a question mark where it was escaped.
func (p *parser) unescape(s *scanner) ([]byte, bool) {
	from := len(p.text)
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case '"':
			s.i++
			return p.text[from:], true
		case '\\':
			s.i++
			c, ok := s.escape()
			if !ok {
				return nil, false
			}
			p.text = append(p.text, c)
		default:
			p.text = append(p.text, c)
		}
	}
	return nil, false
}

// escape reads what stands behind a backslash, up to its last byte.
func (s *scanner) escape() (byte, bool) {
	if s.i >= len(s.b) {
		return 0, false
	}
	switch c := s.b[s.i]; c {
	case '"', '\\', '/':
		return c, true
	case 'b', 'f', 'n', 'r', 't':
		return ' ', true
	case 'u':
		if len(s.b)-s.i < 5 {
			return 0, false
		}
		v, ok := hexadecimal(s.b[s.i+1:s.i+5], 1<<16-1)
		s.i += 4
		if v >= 0x7f {
			v = '?'
		}
		return byte(v), ok
	}
	return 0, false
}

// set gives a value to the n-th field of an object.
func (p *parser) set(n int, name, value []byte, e *conntrack.Entry) string {
	if n < len(p.order) {
		if i := p.order[n]; fields[i].name == string(name) {
			return p.setField(i, value, e)
		}
		p.order = p.order[:n]
	}
	i, ok := fieldIndex[string(name)]
	if !ok {
		p.unknown(name, "an unknown field")
		return ""
	}
	if n == len(p.order) && n < len(fields) {
		p.order = append(p.order, i)
	}
	return p.setField(i, value, e)
}

// setField gives a field its value; an empty one, as of CSV, is none.
func (p *parser) setField(i int, value []byte, e *conntrack.Entry) string {
	if len(value) == 0 || fields[i].set(p, e, value) {
		return ""
	}
	return whyValue[i]
}

var whyValue = func() []string {
	why := make([]string, len(fields))
	for i, f := range fields {
		why[i] = f.name + " has a value that it cannot have"
	}
	return why
}()
