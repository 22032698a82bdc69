package anonymize

import (
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// ranges are the fields of structs that bound addresses.
var ranges = map[reflect.Type][2]string{
	reflect.TypeFor[nat.AddrRange]():           {"First", "Last"},
	reflect.TypeFor[snapshot.NATRule]():        {"First", "Last"},
	reflect.TypeFor[snapshot.GivenElsewhere](): {"Address", "Last"},
}

// fields are those whose strings are not replaced as texts, by their name.
var fields = map[string]func(*Anonymizer, string) string{
	"Schema": asIs,
	// The kernel's own modules and reasons for drops.
	"Module": asIs, "Reason": asIs,
	"Function": symbol, "Functions": symbol,
	"Comment": (*Anonymizer).Comment,
	"Release": (*Anonymizer).Release,
	"BootID":  (*Anonymizer).BootID,
}

func asIs(_ *Anonymizer, text string) string { return text }

// bpfProgram is what the symbols of eBPF programs begin with; people name these (bpf_get_prog_name,
// kernel/bpf/core.c).
const bpfProgram = "bpf_prog_"

// symbol keeps a function of the kernel or of a module.
func symbol(a *Anonymizer, name string) string {
	program, isProgram := strings.CutPrefix(name, bpfProgram)
	if !isProgram {
		return name
	}
	program, offset, _ := strings.Cut(program, "+")
	return bpfProgram + a.tag(program) + strings.TrimSuffix("+"+offset, "+")
}

// Value replaces in what v points to: addresses, and strings as Text does, keys of maps included.
func (a *Anonymizer) Value(v any) { a.value(reflect.ValueOf(v).Elem(), (*Anonymizer).Text) }

func (a *Anonymizer) value(v reflect.Value, text func(*Anonymizer, string) string) {
	switch is := v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(a.Addr(is)))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(a.Prefix(is)))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(a.AddrPort(is)))
		return
	case time.Time:
		return
	case snapshot.Name:
		v.Set(reflect.ValueOf(a.called(is)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(a, v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			a.value(v.Elem(), text)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			a.value(v.Index(i), text)
		}
	case reflect.Map:
		a.mapping(v, text)
	case reflect.Struct:
		a.structure(v)
	}
}

// called replaces a name as a whole, whatever its words: people gave it. Interfaces are kept as in other texts. Sources
// are natkit's own words.
func (a *Anonymizer) called(n snapshot.Name) snapshot.Name {
	switch n.Kind {
	case snapshot.NameInterface:
		n.Text = a.Text(n.Text)
	case snapshot.NameHost: // natkit's own word
		n.Text = "host"
	default:
		n.Kind, n.Text = snapshot.NameKind(a.Text(string(n.Kind))), a.tag(n.Text)
	}
	if n.Unit != "" {
		n.Unit = a.tag(n.Unit)
	}
	n.Source = a.Text(n.Source)
	return n
}

func (a *Anonymizer) mapping(v reflect.Value, text func(*Anonymizer, string) string) {
	if v.IsNil() {
		return
	}
	replaced := reflect.MakeMapWithSize(v.Type(), v.Len())
	for each := v.MapRange(); each.Next(); {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(each.Key())
		value.Set(each.Value())
		a.value(key, (*Anonymizer).Text)
		a.value(value, text)
		replaced.SetMapIndex(key, value)
	}
	v.Set(replaced)
}

func (a *Anonymizer) structure(v reflect.Value) {
	bounds, isRange := ranges[v.Type()]
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || isRange && (f.Name == bounds[0] || f.Name == bounds[1]) {
			continue
		}
		text := fields[f.Name]
		if text == nil {
			text = (*Anonymizer).Text
		}
		a.value(v.Field(i), text)
	}
	if isRange {
		first, last := v.FieldByName(bounds[0]), v.FieldByName(bounds[1])
		f, l := a.Range(first.Interface().(netip.Addr), last.Interface().(netip.Addr))
		first.Set(reflect.ValueOf(f))
		last.Set(reflect.ValueOf(l))
	}
}
