package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// JSON writes v as one indented document that ends with a newline. Nothing is
// written where v cannot be encoded.
func JSON(w io.Writer, v any) error { return encode(w, v, "  ") }

// JSONLine writes v as one line, for a stream of documents.
func JSONLine(w io.Writer, v any) error { return encode(w, v, "") }

func encode(w io.Writer, v any, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false) // "<" and "&" are for people to read here
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	_, err := w.Write(escapeControls(text.Bytes()))
	return err
}

// escapeControls escapes what package json leaves as it is and a terminal acts on: DEL,
// C1 and what reorders text. They stand in strings only.
func escapeControls(text []byte) []byte {
	acts := func(r rune) bool { return r == 0x7f || r >= 0x80 && r < 0xa0 || isBidiControl(r) }
	if !bytes.ContainsFunc(text, acts) {
		return text
	}
	safe := make([]byte, 0, len(text)+64)
	for _, r := range string(text) {
		if acts(r) {
			safe = fmt.Appendf(safe, `\u%04x`, r)
		} else {
			safe = utf8.AppendRune(safe, r)
		}
	}
	return safe
}
