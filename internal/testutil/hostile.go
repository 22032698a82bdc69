package testutil

import (
	"reflect"
	"slices"

	"golang.org/x/net/html"
)

// Fill sets every string that can be reached from the value that to points to: of maps with strings as keys one more key, with the
// value of another. Values of the types except are left as they are.
func Fill(to any, text string, except ...reflect.Type) {
	fill(reflect.ValueOf(to).Elem(), text, except)
}

func fill(v reflect.Value, text string, except []reflect.Type) {
	if slices.Contains(except, v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem(), text, except)
		}
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(text))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text, except)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), text, except)
		}
	case reflect.Map:
		fillMap(v, text)
	}
}

func fillMap(v reflect.Value, text string) {
	if v.IsNil() || v.Type().Key().Kind() != reflect.String {
		return
	}
	value := reflect.Zero(v.Type().Elem())
	for entries := v.MapRange(); entries.Next(); {
		value = entries.Value()
	}
	v.SetMapIndex(reflect.ValueOf(text).Convert(v.Type().Key()), value)
}

// Elements are those of a page, with the names of their attributes, and its comments: what hostile texts must not change.
func Elements(root *html.Node) (all []string) {
	for n := range root.Descendants() {
		switch n.Type {
		case html.ElementNode:
			entry := n.Data
			for _, a := range n.Attr {
				entry += " " + a.Key
			}
			all = append(all, entry)
		case html.CommentNode:
			all = append(all, "<!---->")
		}
	}
	return all
}
