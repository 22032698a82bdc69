package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// JSON writes one indented document that ends with a newline: a value, or the members of
// several objects. Nothing is written where one cannot be encoded.
func JSON(w io.Writer, parts ...any) error { return encode(w, "  ", parts) }

// JSONLine writes the same as one line, for a stream of documents.
func JSONLine(w io.Writer, parts ...any) error { return encode(w, "", parts) }

func encode(w io.Writer, indent string, parts []any) error {
	var text bytes.Buffer
	for i, v := range parts {
		if i > 0 { // "}\n{" between two objects
			text.Truncate(text.Len() - 2)
			text.WriteByte(',')
		}
		begin := text.Len()
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false) // "<" and "&" are for people to read here
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("encode %T as JSON: %w", v, err)
		}
		if i > 0 {
			copy(text.Bytes()[begin:], text.Bytes()[begin+1:])
			text.Truncate(text.Len() - 1)
		}
	}
	if indent != "" {
		var indented bytes.Buffer
		if err := json.Indent(&indented, text.Bytes(), "", indent); err != nil {
			return err
		}
		text = indented
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

// CSV writes a line for each of rows, structs, the names of their JSON fields in the
// first one. Lists of texts are written with spaces between; what else has parts is in
// JSON only.
func CSV[T any](w io.Writer, rows []T) error {
	out := csv.NewWriter(w)
	fields := csvFields(reflect.TypeFor[T]())
	line := make([]string, len(fields))
	for i, f := range fields {
		line[i] = jsonName(f)
	}
	out.Write(line) // an error stays, and Error returns it
	for _, row := range rows {
		for i, f := range fields {
			text, err := csvText(reflect.ValueOf(row).FieldByIndex(f.Index).Interface())
			if err != nil {
				return err
			}
			line[i] = text
		}
		out.Write(line)
	}
	out.Flush()
	return out.Error()
}

func csvFields(row reflect.Type) (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(row) {
		if name := jsonName(f); name != "" && name != "-" && !hasParts(f.Type) {
			fields = append(fields, f)
		}
	}
	return fields
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func hasParts(t reflect.Type) bool {
	if t.Implements(reflect.TypeFor[json.Marshaler]()) { // a time
		return false
	}
	switch t.Kind() {
	case reflect.Pointer:
		return hasParts(t.Elem())
	case reflect.Slice:
		return t.Elem().Kind() != reflect.String
	}
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map
}

// csvText is a value as JSON has it, without quotes; empty where there is none.
func csvText(value any) (string, error) {
	if list, ok := value.([]string); ok {
		return clean(strings.Join(list, " ")), nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("encode %T as CSV: %w", value, err)
	}
	var unquoted string
	switch {
	case string(text) == "null":
		return "", nil
	case json.Unmarshal(text, &unquoted) == nil:
		return clean(unquoted), nil
	}
	return string(text), nil
}
