package text

import "github.com/natkit/natkit/internal/conntrack"

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
