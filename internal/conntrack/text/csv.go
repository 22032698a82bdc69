package text

import (
	"bytes"

	"github.com/natkit/natkit/internal/conntrack"
)

// AppendCSVHeader adds the names of the columns, without a line feed.
func AppendCSVHeader(b []byte) []byte {
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.name...)
	}
	return b
}

// AppendCSV adds e as one line of CSV (RFC 4180), without its line feed. e must
// pass Check.
func AppendCSV(b []byte, e *conntrack.Entry) []byte {
	for i := range fields {
		f := &fields[i]
		if i > 0 {
			b = append(b, ',')
		}
		if !f.has(e) {
			continue
		}
		start := len(b)
		b = f.add(b, e)
		b = quoteCSV(b, start)
	}
	return b
}

// quoteCSV puts quotes around the value from start on where it has a comma. It
// has no quotes itself (appendName).
func quoteCSV(b []byte, start int) []byte {
	for _, c := range b[start:] {
		if c == ',' {
			b = append(b, "\"\""...)
			copy(b[start+1:], b[start:len(b)-2])
			b[start] = '"'
			return b
		}
	}
	return b
}

// isHeader knows the names of the columns of CSV, in any order.
func isHeader(line []byte) bool {
	return bytes.IndexByte(line, ',') > 0 && bytes.Contains(line, []byte("orig_src")) && bytes.IndexByte(line, '=') < 0
}

// header learns which column is what.
func (p *parser) header(line []byte) string {
	p.columns = p.columns[:0]
	for rest, more := line, true; more; {
		var name []byte
		name, rest, more = bytes.Cut(rest, []byte{','})
		name = bytes.Trim(name, "\" ")
		i, ok := fieldIndex[string(name)]
		if !ok {
			i = -1
			p.unknown(name, "an unknown column")
		}
		p.columns = append(p.columns, i)
	}
	return ""
}

const (
	whyQuotes  = "a quote of its CSV is not closed"
	whyColumns = "it has not as many columns as the header"
)

// csv reads a line by the header that came.
func (p *parser) csv(line []byte, e *conntrack.Entry) string {
	p.text = p.text[:0]
	column := 0
	for rest, more := line, true; more; column++ {
		var value []byte
		var ok bool
		if value, rest, more, ok = p.cell(rest); !ok {
			return whyQuotes
		}
		if column == len(p.columns) {
			return whyColumns
		}
		if i := p.columns[column]; i >= 0 {
			if why := p.setField(i, value, e); why != "" {
				return why
			}
		}
	}
	if column != len(p.columns) {
		return whyColumns
	}
	return ""
}

// cell takes a value and the comma behind it; more reports whether there was one.
func (p *parser) cell(line []byte) (value, rest []byte, more, ok bool) {
	if len(line) == 0 || line[0] != '"' {
		value, rest, more = bytes.Cut(line, []byte{','})
		return value, rest, more, true
	}
	from := len(p.text)
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] != '"':
			p.text = append(p.text, line[i])
		case i+1 < len(line) && line[i+1] == '"': // a quote in a value is doubled
			p.text = append(p.text, '"')
			i++
		case i+1 == len(line):
			return p.text[from:], nil, false, true
		default:
			return p.text[from:], line[i+2:], true, line[i+1] == ','
		}
	}
	return nil, nil, false, false
}
