package snapshot

import (
	"bytes"
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
	m := meter{json.NewDecoder(bytes.NewReader(data)), b}
	if err := m.value(reflect.TypeOf(v)); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// meter walks through JSON and its type together and charges what each value takes.
type meter struct {
	*json.Decoder
	budget *Budget
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value passes over the next value, which is read into t; nil where nothing is.
func (m meter) value(t reflect.Type) error {
	token, err := m.Token()
	if err != nil {
		return err
	}
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
		if err := m.budget.Charge(int64(t.Size())); err != nil {
			return err
		}
	}
	if t != nil && (reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler)) {
		t = nil
	}
	switch token {
	case json.Delim('['):
		return m.list(t)
	case json.Delim('{'):
		return m.object(t)
	}
	return nil
}

// list charges items twice: what holds them grows by being copied.
func (m meter) list(t reflect.Type) error {
	if t != nil && t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
		t = nil
	}
	for m.More() {
		var item reflect.Type
		if t != nil {
			item = t.Elem()
			if err := m.budget.Charge(2 * int64(item.Size())); err != nil {
				return err
			}
		}
		if err := m.value(item); err != nil {
			return err
		}
	}
	_, err := m.Token()
	return err
}

func (m meter) object(t reflect.Type) error {
	for m.More() {
		key, err := m.Token()
		if err != nil {
			return err
		}
		inner, size := field(t, key.(string))
		if err := m.budget.Charge(size); err != nil {
			return err
		}
		if err := m.value(inner); err != nil {
			return err
		}
	}
	_, err := m.Token()
	return err
}

// field is the type of what a key leads to, and what the key itself takes.
func field(t reflect.Type, key string) (reflect.Type, int64) {
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		return t.Elem(), 2 * int64(t.Key().Size()+t.Elem().Size())
	case t.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if strings.EqualFold(name, key) || name == "" && strings.EqualFold(f.Name, key) {
				return f.Type, 0
			}
		}
	}
	return nil, 0
}
