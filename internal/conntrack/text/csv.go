package text

import "github.com/natkit/natkit/internal/conntrack"

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
