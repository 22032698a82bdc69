package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// JSON writes v as one indented document that ends with a newline. Nothing is
// written where v cannot be encoded.
func JSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // "<" and "&" are for people to read here
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	_, err := text.WriteTo(w)
	return err
}
