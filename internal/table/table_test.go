package table

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
)

var update = flag.Bool("update", false, "write the golden files")

// fill sets every field to a value of its own.
func fill(v reflect.Value, n *int64) {
	for i := range v.NumField() {
		*n++
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			fill(f, n)
		case reflect.String:
			f.SetString(strings.Repeat("x", int(*n%5)) + "é\x00\n'\"")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int32, reflect.Int64:
			f.SetInt(*n)
		case reflect.Float64:
			f.SetFloat(float64(*n) / 3)
		case reflect.Pointer:
			p := reflect.New(f.Type().Elem())
			if p.Elem().Kind() == reflect.Float64 {
				p.Elem().SetFloat(float64(*n) / 7)
			} else {
				p.Elem().SetInt(-*n)
			}
			f.Set(p)
		default:
			panic(f.Kind())
		}
	}
}

func write[T Row](t *testing.T, rows []T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter[T](&b, "1.2.3")
	if err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Rows() != int64(len(rows)) {
		t.Errorf("%d rows, want %d", w.Rows(), len(rows))
	}
	return b.Bytes()
}

// roundTrip writes rows full of values and of nulls and zeros, and reads them back.
func roundTrip[T Row](t *testing.T) string {
	var full, zero T
	var n int64
	fill(reflect.ValueOf(&full).Elem(), &n)
	zeros := full
	v := reflect.ValueOf(&zeros).Elem()
	for i := range v.NumField() { // a number that is known to be 0 is not null
		if f := v.Field(i); f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
	rows := []T{full, zero, zeros, full}
	file := write(t, rows)
	back, err := parquet.Read[T](bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rows, back); d != "" {
		t.Errorf("%s: what was read differs from what was written (-written +read):\n%s", Name[T](), d)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{MetaSchema: Schema, MetaTable: Name[T](), MetaVersion: "1.2.3"} {
		if got, _ := f.Lookup(key); got != want {
			t.Errorf("%s: metadata %s is %q, want %q", Name[T](), key, got, want)
		}
	}
	schema := f.Schema().String()
	columns := Columns[T]()
	if len(columns) != len(f.Schema().Columns()) {
		t.Fatalf("%s: %d columns described, %d in the file", Name[T](), len(columns), len(f.Schema().Columns()))
	}
	for i, path := range f.Schema().Columns() {
		c := columns[i]
		if len(path) != 1 || path[0] != c.Name {
			t.Errorf("%s: column %d is %v in the file, %s in the description", Name[T](), i, path, c.Name)
		}
		if leaf, _ := f.Schema().Lookup(path...); leaf.Node.Optional() != c.Null {
			t.Errorf("%s.%s: optional is %t, described as %t", Name[T](), c.Name, leaf.Node.Optional(), c.Null)
		}
		if c.Doc == "" {
			t.Errorf("%s.%s has no description", Name[T](), c.Name)
		}
	}
	return strings.Replace(schema, "message ", "message "+Name[T]()+" of ", 1) + "\n"
}

// The types and names of all columns are those of the golden file: other programs rely on them. Under one version columns are
// added alone.
func TestSchema(t *testing.T) {
	got := "version " + Schema + "\n" + roundTrip[Entry](t) + roundTrip[NATLog](t) + roundTrip[Connection](t) + roundTrip[Incident](t) +
		roundTrip[Flow](t) + roundTrip[Finding](t) + roundTrip[Sample](t) + roundTrip[Service](t)
	const golden = "testdata/schema.txt"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	d := cmp.Diff(string(want), got)
	switch {
	case d == "":
	case !addsAlone(string(want), got):
		t.Errorf("columns changed or are gone, which needs a new version (Schema):\n%s", d)
	case *update:
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("there are new columns: run 'make generate':\n%s", d)
	}
}

// addsAlone reports whether a schema is of another version than the one before, or has all of its lines in their order.
func addsAlone(before, after string) bool {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	if old[0] != now[0] {
		return true
	}
	for _, line := range now {
		if len(old) > 0 && old[0] == line {
			old = old[1:]
		}
	}
	return len(old) == 0
}

func TestAddsAlone(t *testing.T) {
	const before = "version 1\nmessage a {\n\trequired int32 x;\n\toptional int32 y;\n}\n"
	for after, want := range map[string]bool{
		before: true,
		strings.Replace(before, "x;\n", "x;\n\toptional int32 z;\n", 1):                      true,
		strings.Replace(before, "\toptional int32 y;\n", "", 1):                              false,
		strings.Replace(before, "optional int32 y", "optional int64 y", 1):                   false,
		strings.Replace(before, "\toptional int32 y;\n", "\toptional int32 w;\n", 1):         false,
		strings.Replace(strings.Replace(before, "optional", "required", 1), "1\n", "2\n", 1): true,
	} {
		if got := addsAlone(before, after); got != want {
			t.Errorf("%t, want %t:\n%s", got, want, after)
		}
	}
}

func TestTime(t *testing.T) {
	at := time.Date(2026, 11, 30, 23, 59, 59, 999_999_999, time.FixedZone("", -3600))
	if got, want := TimeOf(at).Time(), at.UTC().Truncate(time.Microsecond); !got.Equal(want) {
		t.Errorf("time is %s, want %s", got, want)
	}
	if got := TimeOf(at).Day(); got != "2026-12-01" {
		t.Errorf("day is %s: must be that of UTC", got)
	}
	if TimeOf(time.Time{}) != 0 {
		t.Error("no time is not null")
	}
}
