package snapshot

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// DefaultBudget is what a bundle may take in memory, in bytes.
const DefaultBudget = 256 << 20

// Budget bounds what a bundle becomes in memory: a small file unpacks to a large one,
// and three bytes of JSON to a struct of hundreds.
type Budget struct{ most, left int64 }

// NewBudget is one of so many bytes.
func NewBudget(most int64) *Budget { return &Budget{most, most} }

// ErrBudget is what Charge's errors are.
var ErrBudget = errors.New("takes more memory than a bundle may")

// Charge takes bytes that are about to be allocated from the budget.
func (b *Budget) Charge(n int64) error {
	if b.left -= n; b.left < 0 {
		return fmt.Errorf("%w: %d MiB; if you trust its origin, natkit doctor --max-memory allows more", ErrBudget, b.most>>20)
	}
	return nil
}

// Unmarshal is json.Unmarshal that charges beforehand what v will take.
func (b *Budget) Unmarshal(data []byte, v any) error {
	if err := b.Charge(int64(len(data))); err != nil {
		return err
	}
	if json.Valid(data) { // not so deep that it overflows the stack, then
		m := meter{data, b, map[reflect.Type][]structField{}}
		if err := m.value(reflect.TypeOf(v)); err != nil {
			return err
		}
	}
	return json.Unmarshal(data, v)
}

// meter walks through valid JSON and its type together and charges what each value takes.
type meter struct {
	left   []byte
	budget *Budget
	fields map[reflect.Type][]structField
}

type structField struct {
	name string
	t    reflect.Type
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value passes over the next value, which is read into t; nil where nothing is.
func (m *meter) value(t reflect.Type) error {
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
		if err := m.budget.Charge(int64(t.Size())); err != nil {
			return err
		}
	}
	switch m.peek() {
	case '[':
		return m.list(t)
	case '{':
		return m.object(t)
	}
	text := m.scalar()
	if t != nil && t.Kind() == reflect.String {
		return m.budget.Charge(int64(len(text)))
	}
	return nil
}

// peek is the first byte of what comes next. Commas and colons say no more than spaces
// in JSON that is valid.
func (m *meter) peek() byte {
	for bytes.IndexByte([]byte(" \t\r\n,:"), m.left[0]) >= 0 {
		m.left = m.left[1:]
	}
	return m.left[0]
}

// scalar passes over text, a number, true, false or null.
func (m *meter) scalar() []byte {
	n := 1
	if m.left[0] == '"' {
		for ; m.left[n] != '"'; n++ {
			if m.left[n] == '\\' {
				n++
			}
		}
		n++
	}
	for n < len(m.left) && bytes.IndexByte([]byte(" \t\r\n,:]}"), m.left[n]) < 0 {
		n++
	}
	text := m.left[:n]
	m.left = m.left[n:]
	return text
}

// list charges items twice: what holds them grows by being copied.
func (m *meter) list(t reflect.Type) error {
	var item reflect.Type
	var size int64
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		item = t.Elem()
		size = 2 * int64(item.Size())
	}
	for m.left = m.left[1:]; m.peek() != ']'; {
		if err := m.budget.Charge(size); err != nil {
			return err
		}
		if err := m.value(item); err != nil {
			return err
		}
	}
	m.left = m.left[1:]
	return nil
}

func (m *meter) object(t reflect.Type) error {
	if t != nil && (reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler)) {
		t = nil
	}
	for m.left = m.left[1:]; m.peek() != '}'; {
		inner, size := m.key(t, m.scalar())
		if err := m.budget.Charge(size); err != nil {
			return err
		}
		if err := m.value(inner); err != nil {
			return err
		}
	}
	m.left = m.left[1:]
	return nil
}

// key is the type of what a key leads to, and what the key itself takes.
func (m *meter) key(t reflect.Type, quoted []byte) (reflect.Type, int64) {
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		return t.Elem(), 2*int64(t.Key().Size()+t.Elem().Size()) + int64(len(quoted))
	case t.Kind() == reflect.Struct:
		var key string
		if json.Unmarshal(quoted, &key) != nil {
			return nil, 0
		}
		for _, f := range m.structFields(t) {
			if strings.EqualFold(f.name, key) {
				return f.t, 0
			}
		}
	}
	return nil, 0
}

func (m *meter) structFields(t reflect.Type) []structField {
	known, met := m.fields[t]
	if !met {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			known = append(known, structField{cmp.Or(name, f.Name), f.Type})
		}
		m.fields[t] = known
	}
	return known
}
