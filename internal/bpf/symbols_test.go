package bpf

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
)

const sample = `0000000000000000 A fixed_percpu_data
0000000000001000 D cpu_number
ffffffff81000000 T srso_alias_untrain_ret
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t local
ffffffff810001f0 t __pfx_nf_hook_slow
ffffffff81000200 T nf_hook_slow
ffffffff81000200 T alias_of_nf_hook_slow
ffffffff81000300 W weak
ffffffff81000400 T _etext
ffffffff81001000 R rodata
ffffffff81002000 D data
ffffffff81003000 T init_function
ffffffff81003100 T _einittext
ffffffffc0300000 d ct_data	[nf_conntrack]
ffffffffc0200040 t second	[nf_conntrack]
ffffffffc0200000 t first	[nf_conntrack]
ffffffffc0201000 t local	[nf_nat]
ffffffffc0400000 t bpf_prog_6deef7357e7b4530_filter	[bpf]
`

func mustParseSymbols(t testing.TB, text string) *Table {
	t.Helper()
	table, err := parseSymbols(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestLookup(t *testing.T) {
	table := mustParseSymbols(t, sample)
	for _, tt := range []struct {
		addr uint64
		want Symbol
		ok   bool
	}{
		{0, Symbol{}, false},
		{0x1000, Symbol{}, false},
		{0xffffffff80ffffff, Symbol{}, false},
		{0xffffffff81000000, Symbol{Name: "srso_alias_untrain_ret"}, true},
		{0xffffffff810000ff, Symbol{Name: "srso_alias_untrain_ret", Offset: 0xff}, true},
		{0xffffffff81000200, Symbol{Name: "nf_hook_slow"}, true},
		{0xffffffff81000248, Symbol{Name: "nf_hook_slow", Offset: 0x48}, true},
		{0xffffffff810003ff, Symbol{Name: "weak", Offset: 0xff}, true},
		{0xffffffff81000400, Symbol{}, false}, // behind the text
		{0xffffffff81001800, Symbol{}, false},
		{0xffffffff81002800, Symbol{}, false},
		{0xffffffff81003010, Symbol{Name: "init_function", Offset: 0x10}, true},
		{0xffffffff81003200, Symbol{}, false},
		{0xffffffffc0200041, Symbol{Name: "second", Module: "nf_conntrack", Offset: 1}, true},
		{0xffffffffc020003f, Symbol{Name: "first", Module: "nf_conntrack", Offset: 0x3f}, true},
		{0xffffffffc0201fff, Symbol{Name: "local", Module: "nf_nat", Offset: 0xfff}, true},
		{0xffffffffc0300001, Symbol{}, false}, // a module's data
		{0xffffffffc0400004, Symbol{Name: "bpf_prog_6deef7357e7b4530_filter", Module: "bpf", Offset: 4}, true},
		{0xffffffffc0400000 + maxFunction, Symbol{}, false}, // behind the last
		{^uint64(0), Symbol{}, false},
	} {
		got, ok := table.Lookup(tt.addr)
		if ok != tt.ok || got != tt.want {
			t.Errorf("Lookup(%#x) = %+v, %v; want %+v, %v", tt.addr, got, ok, tt.want, tt.ok)
		}
	}
}

func TestNamed(t *testing.T) {
	got := mustParseSymbols(t, sample).Named("local", "alias_of_nf_hook_slow", "_etext", "data", "absent")
	want := map[string][]Function{
		"local":                 {{"local", "", 0xffffffff81000100}, {"local", "nf_nat", 0xffffffffc0201000}},
		"alias_of_nf_hook_slow": {{"alias_of_nf_hook_slow", "", 0xffffffff81000200}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestGarbled(t *testing.T) {
	text := strings.Join([]string{
		"", " ", "ffffffff81000000", "ffffffff81000000 T", "ffffffff81000000 T ", "xyz T name", " T name",
		"fffffffff81000000 T too_many_digits", "ffffffff81000000 Tt name", "ffffffff81000000 T bad\x1b[2Jname",
		"ffffffff81000010 T good\t[mod] [0123]", "ffffffff81000020 T last",
	}, "\n")
	got := slices.Collect(mustParseSymbols(t, text).All())
	want := []Function{{"good", "mod", 0xffffffff81000010}, {"last", "", 0xffffffff81000020}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNothingThere(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		hidden     bool
	}{
		{"empty", "", false},
		{"data only", "ffffffff81000000 D data\n", false},
		{"hidden", "0000000000000000 T _stext\n0000000000000000 t f\n", true},
	} {
		_, err := parseSymbols(strings.NewReader(tt.text))
		if err == nil || errors.Is(err, ErrHidden) != tt.hidden {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSymbols(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kallsyms"), []byte("0000000000000000 T f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSymbols(dir); !errors.Is(err, ErrHidden) {
		t.Errorf("with hidden addresses: %v", err)
	}
	_, err := parseSymbols(io.MultiReader(strings.NewReader("ffffffff81000000 T f\n"), failing{}))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("failing reader: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestReadRunningSymbols reads this kernel's table and holds its memory.
func TestReadRunningSymbols(t *testing.T) {
	testutil.NeedRoot(t)
	before := heap()
	table, err := ReadSymbols("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if used := heap() - before; used > 20<<20 {
		t.Errorf("%d functions in %d bytes", len(slices.Collect(table.All())), used)
	}
	found := table.Named("__netif_receive_skb_core", "schedule", "net_rx_action")
	for name, list := range found {
		got, ok := table.Lookup(list[0].Addr + 1)
		if !ok || got.Offset != 1 {
			t.Errorf("%s+1: %+v, %v", name, got, ok)
		}
	}
	if len(found["net_rx_action"]) != 1 {
		t.Errorf("net_rx_action: %v", found)
	}
	runtime.KeepAlive(table)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func FuzzParseSymbols(f *testing.F) {
	f.Add(sample)
	f.Add("0000000000000000 T f\n")
	f.Add("ffffffffffffffff t f\t[m]\nffffffffffffffff d f")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		table, err := parseSymbols(strings.NewReader(text))
		if err != nil {
			return
		}
		for fn := range table.All() {
			got, ok := table.Lookup(fn.Addr)
			if !ok || got.Offset != 0 {
				t.Fatalf("Lookup(%#x) of %s: %+v, %v", fn.Addr, fn.Name, got, ok)
			}
			if len(table.Named(fn.Name)) != 1 {
				t.Fatalf("%s is not found by its name", fn.Name)
			}
		}
		table.Lookup(0)
		table.Lookup(^uint64(0))
	})
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		if _, err := ReadSymbols("/proc"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	table := mustParseSymbols(b, sample)
	for b.Loop() {
		table.Lookup(0xffffffff81000248)
	}
}
