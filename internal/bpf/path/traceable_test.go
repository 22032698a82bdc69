package path

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/kallsyms"
)

func TestReadTraceable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "available_filter_functions")
	if err := os.WriteFile(file, []byte("ip_rcv\nnf_nat_packet [nf_nat]\n\n__ftrace_invalid_address___64\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"ip_rcv": true, "nf_nat_packet": true, "__ftrace_invalid_address___64": true}
	if d := cmp.Diff(want, readTraceable([]string{file + ".absent", file})); d != "" {
		t.Error(d)
	}
	if got := readTraceable([]string{file + ".absent"}); got == nil || len(got) != 0 {
		t.Errorf("where there is none: %v", got)
	}
	if _, err := parseTraceable(strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
		t.Error("a line without an end is taken")
	}
}

func TestOffered(t *testing.T) {
	list := []target{{kallsyms.Function{Name: "ip_rcv"}, 1}, {kallsyms.Function{Name: "noinstr"}, 1}}
	a := attachment{traceable: map[string]bool{}}
	if got := a.offered(list); len(got) != 2 || len(a.skipped) != 0 {
		t.Errorf("%d are kept where the kernel says nothing", len(got))
	}
	a.traceable["ip_rcv"] = true
	if got := a.offered(list); len(got) != 1 || got[0].Name != "ip_rcv" || len(a.skipped) != 1 {
		t.Errorf("offered %v, refused %v", got, a.skipped)
	}
}
