package gateway

import (
	"reflect"

	"github.com/natkit/natkit/internal/document"
)

// Schema is the JSON Schema of a gateway file, for editors. It is made of what Parse reads files into: a word or a
// value that Parse knows is in it.
func Schema() *document.Schema {
	s := document.Describe(reflect.TypeFor[fileText](), source("", nil).Compose)
	s.Title = "natkit gateway file"
	rule := s.Defs["rule"].AnyOf[0] // the other form is a variable
	for _, kind := range kindWords {
		rule.OneOf = append(rule.OneOf, &document.Schema{Required: []string{kind}})
	}
	return s
}
