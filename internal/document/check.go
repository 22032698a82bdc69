package document

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Rule returns what is expected of a value; empty where the value is that.
type Rule func(v any) string

// OneOf is the rule of a word out of a list.
func OneOf[T ~string](words ...T) Rule {
	return func(v any) string {
		texts := make([]string, len(words))
		for i, w := range words {
			if texts[i] = string(w); texts[i] == fmt.Sprint(v) {
				return ""
			}
		}
		return "one of: " + strings.Join(texts, ", ")
	}
}

// Check returns the first value in a struct that is not what the tag `check` of its field
// says. A tag has words:
//
//	required     the value must not be the zero value, which passes otherwise
//	len=1..64    bounds of the length of a list
//	keys=NAME    a rule for the keys of a mapping; keys=NAME,NAME also for those of its values
//	1..1000      bounds of a number or a duration; one of them may be left out
//	NAME         another rule
//
// The last two are for each item of a list and each value of a mapping.
func Check(v any, rules map[string]Rule) *Problem {
	c := checker{rules}
	return c.check(reflect.Indirect(reflect.ValueOf(v)), tag{}, nil)
}

type checker struct{ rules map[string]Rule }

// tag is a field's, taken apart.
type tag struct {
	required     bool
	always       bool // of an item: the zero value is checked, too
	length, keys string
	rule         string
}

func parseTag(text string) (t tag) {
	for word := range strings.FieldsSeq(text) {
		if name, value, _ := strings.Cut(word, "="); word == "required" {
			t.required = true
		} else if name == "len" {
			t.length = value
		} else if name == "keys" {
			t.keys = value
		} else {
			t.rule = word
		}
	}
	return t
}

func (c checker) check(v reflect.Value, t tag, path []any) *Problem {
	switch {
	case v.Kind() == reflect.Struct && hasFields(v.Type()):
		return c.fields(v, path)
	case t.length != "" && c.bounds(t.length)(v.Len()) != "":
		return NewProblem(path, "%s: expected %s in the list, found %d", Field(path), c.bounds(t.length)(v.Len()), v.Len())
	case v.IsZero() && t.always && t.rule != "":
		return c.scalar(v, t.rule, "", path)
	case v.IsZero() && !t.required:
		return nil
	case v.IsZero():
		return c.missing(t, v, path)
	}
	switch v.Kind() {
	case reflect.Pointer:
		return c.check(v.Elem(), t, path)
	case reflect.Slice, reflect.Array:
		return c.items(v, t, path)
	case reflect.Map:
		return c.entries(v, t, path)
	}
	return c.scalar(v, t.rule, "", path)
}

func (c checker) missing(t tag, v reflect.Value, path []any) *Problem {
	message := Field(path) + " is required"
	if t.rule != "" && v.Kind() != reflect.Slice && v.Kind() != reflect.Map {
		message += ": " + c.rule(t.rule)(v.Interface())
	}
	return NewProblem(path, "%s", strings.TrimSuffix(message, ": "))
}

// field is one of a struct that is checked; one without a name is inline.
type field struct {
	index int
	name  string
	tag   tag
}

// checked are the fields of structs, by type: a file of ten thousand rules has few types.
var checked sync.Map

func checkedFields(t reflect.Type) []field {
	if known, ok := checked.Load(t); ok {
		return known.([]field)
	}
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" {
			name = ""
		}
		if name != "" || options == "inline" {
			list = append(list, field{i, name, parseTag(f.Tag.Get("check"))})
		}
	}
	checked.Store(t, list)
	return list
}

func (c checker) fields(v reflect.Value, path []any) *Problem {
	for _, f := range checkedFields(v.Type()) {
		value := v.Field(f.index)
		if !f.tag.required && f.tag.length == "" && value.Kind() != reflect.Struct && value.IsZero() {
			continue
		}
		here := path
		if f.name != "" {
			here = append(path[:len(path):len(path)], f.name)
		}
		if p := c.check(value, f.tag, here); p != nil {
			return p
		}
	}
	return nil
}

func (c checker) items(v reflect.Value, t tag, path []any) *Problem {
	for i := range v.Len() {
		if p := c.check(v.Index(i), tag{always: true, rule: t.rule}, append(path[:len(path):len(path)], i)); p != nil {
			return p
		}
	}
	return nil
}

func (c checker) entries(v reflect.Value, t tag, path []any) *Problem {
	rule, inner, _ := strings.Cut(t.keys, ",")
	value := tag{always: true, rule: t.rule, keys: inner}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		here := append(path[:len(path):len(path)], key.String())
		if p := c.scalar(key, rule, "key", here); p != nil {
			return p
		}
		if p := c.check(v.MapIndex(key), value, here); p != nil {
			return p
		}
	}
	return nil
}

// scalar applies a rule to a value, which name stands for in errors; without one that is the
// field.
func (c checker) scalar(v reflect.Value, rule, name string, path []any) *Problem {
	if rule == "" {
		return nil
	}
	what := c.rule(rule)(v.Interface())
	if what == "" {
		return nil
	}
	if name == "" {
		name = Field(path)
	}
	if v.Kind() == reflect.String {
		return NewProblem(path, "%s %q: expected %s", name, v.String(), what)
	}
	return NewProblem(path, "%s %v: expected %s", name, v.Interface(), what)
}

func (c checker) rule(name string) Rule {
	if strings.Contains(name, "..") {
		return c.bounds(name)
	}
	if r := c.rules[name]; r != nil {
		return r
	}
	panic("a field of a document has an unknown check: " + name + " (known: " + strings.Join(slices.Sorted(maps.Keys(c.rules)), ", ") + ")")
}

// bounds is the rule LOW..HIGH.
func (checker) bounds(text string) Rule {
	low, high, _ := strings.Cut(text, "..")
	first, last := bound(low, math.Inf(-1)), bound(high, math.Inf(1))
	return func(v any) string {
		n := reflect.ValueOf(v)
		value := 0.0
		d, isDuration := v.(interface{ Nanoseconds() int64 })
		switch {
		case isDuration:
			value = float64(d.Nanoseconds())
		case n.CanInt():
			value = float64(n.Int())
		case n.CanUint():
			value = float64(n.Uint())
		default:
			value = n.Float()
		}
		switch {
		case value >= first && value <= last:
			return ""
		case low == "":
			return "at most " + high
		case high == "":
			return low + " or more"
		}
		return low + " to " + high
	}
}

// bound reads a number, or a duration as its nanoseconds.
func bound(text string, otherwise float64) float64 {
	if text == "" {
		return otherwise
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return n
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic("a field of a document has the bound " + text)
	}
	return float64(d)
}

func hasFields(t reflect.Type) bool {
	for i := range t.NumField() {
		if _, has := t.Field(i).Tag.Lookup("yaml"); has {
			return true
		}
	}
	return false
}

// Field names the last two keys of a path: load.from.
func Field(path []any) string {
	var keys []string
	for _, step := range path {
		if key, ok := step.(string); ok {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys[max(0, len(keys)-2):], ".")
}

// Given returns the names of a struct's fields that are not zero, in their order.
func Given(v any) (names []string) {
	s := reflect.Indirect(reflect.ValueOf(v))
	for i := range s.NumField() {
		if name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("yaml"), ","); name != "" && name != "-" && !s.Field(i).IsZero() {
			names = append(names, name)
		}
	}
	return names
}
