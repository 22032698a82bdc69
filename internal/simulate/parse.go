package simulate

import "github.com/natkit/natkit/internal/document"

// MaxSource bounds the text of a configuration, in bytes.
const MaxSource = 256 << 10

// Parse reads a configuration, strictly: a key that is not known, a value that does
// not fit or makes no sense is a *document.SyntaxError with line and column.
func Parse(filename string, source []byte) (*Config, error) {
	c := new(Config)
	s := document.Source{File: filename, What: "simulation", Text: source, Limit: MaxSource}
	if err := s.Decode(c, nil); err != nil {
		return nil, err
	}
	return c, nil
}
