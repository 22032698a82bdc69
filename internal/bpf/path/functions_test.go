package path

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/bpf"
)

func TestParseSections(t *testing.T) {
	s := parseSections("# what\nprofile a\n  one two* # three\n\n  four\nnever\n\tfive\n")
	if got := strings.Join(s.profiles["a"], " "); got != "one two* four" {
		t.Errorf("profile a is %q", got)
	}
	if got := strings.Join(s.lists["never"], " "); got != "five" {
		t.Errorf("never is %q", got)
	}
}

// TestKnownSections: the program reads these.
func TestKnownSections(t *testing.T) {
	for _, name := range []string{"nat", "rx", "all", few} {
		if len(known.profiles[name]) == 0 {
			t.Errorf("no profile %s", name)
		}
	}
	for _, name := range []string{"never", "delivered", "sent", "copied", "freed", "decide"} {
		if len(known.lists[name]) == 0 {
			t.Errorf("no list %s", name)
		}
	}
	for name, patterns := range known.profiles {
		if err := checkPatterns(patterns); err != nil || strings.ContainsAny(name, " \t") {
			t.Errorf("profile %q: %v", name, err)
		}
	}
	for name, patterns := range known.lists {
		if err := checkPatterns(patterns); err != nil {
			t.Errorf("list %q: %v", name, err)
		}
	}
	// Few are taken of nat, so that it has all of them.
	nat, never := newMatcher(known.profiles["nat"]), newMatcher(known.lists["never"])
	for _, f := range known.profiles[few] {
		if !nat.match(f) {
			t.Errorf("%s is in few and not in nat", f)
		}
		if never.match(f) {
			t.Errorf("%s is in few and in never", f)
		}
	}
	// What takes an sk_buff apart must not begin one.
	for _, f := range known.lists["freed"] {
		if !never.match(f) {
			t.Errorf("%s is not in never", f)
		}
	}
}

func TestPatternsOf(t *testing.T) {
	for functions, want := range map[string]string{
		"all":                  "*",
		"few":                  "few", // no profile to choose
		"ip_rcv":               "ip_rcv",
		" ip_rcv , nf_*,,":     "ip_rcv nf_*",
		"":                     "error",
		",":                    "error",
		"ip_rcv,nf_[":          "error",
		"tcp_v?_rcv,[a-c]*bar": "tcp_v?_rcv [a-c]*bar",
	} {
		got, err := patternsOf(functions)
		text := strings.Join(got, " ")
		if err != nil {
			text = "error"
		}
		if text != want {
			t.Errorf("%q: %q, want %q", functions, text, want)
		}
	}
}

func TestMatcher(t *testing.T) {
	m := newMatcher([]string{"ip_rcv", "nf_nat_*", "*_gro_receive", "tcp_v?_rcv"})
	for name, want := range map[string]bool{
		"ip_rcv": true, "ip_rcv_core": false, "nf_nat_": true, "nf_nat_packet": true, "nf_na": false, "": false,
		"inet_gro_receive": true, "tcp_v4_rcv": true, "tcp_v44_rcv": false,
	} {
		if m.match(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestReadTraceable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "available_filter_functions")
	if err := os.WriteFile(file, []byte("ip_rcv\nnf_nat_packet [nf_nat]\n\n__ftrace_invalid_address___64\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"ip_rcv": true, "nf_nat_packet": true, "": true, "__ftrace_invalid_address___64": true}
	if d := cmp.Diff(want, readTraceable([]string{file + ".absent", file})); d != "" {
		t.Error(d)
	}
	if got := readTraceable([]string{file + ".absent"}); got == nil || len(got) != 0 {
		t.Errorf("where there is none: %v", got)
	}
}

func TestOffered(t *testing.T) {
	list := []target{{bpf.Function{Name: "ip_rcv"}, 1}, {bpf.Function{Name: "noinstr"}, 1}}
	a := attachment{}
	if got := a.offered(list); len(got) != 2 || len(a.skipped) != 0 {
		t.Errorf("%d are kept where the kernel says nothing", len(got))
	}
	a.traceable = map[string]bool{"ip_rcv": true}
	if got := a.offered(list); len(got) != 1 || got[0].Name != "ip_rcv" || len(a.skipped) != 1 {
		t.Errorf("offered %v, refused %v", got, a.skipped)
	}
}
