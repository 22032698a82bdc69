package tune

import (
	"github.com/natkit/natkit/internal/testutil"
	"strings"
	"testing"
)

func TestConf(t *testing.T) {
	const maxName = "net.netfilter.nf_conntrack_max"
	cases := []struct {
		name          string
		kind          Kind
		text, target  string
		value, result string // result without natkit's heading
	}{
		{"new file", SysctlConf, "", maxName, "2", maxName + " = 2\n"},
		{"replace", SysctlConf, "# mine\nnet.a = 1\n" + maxName + "=1\nnet.b=2\n", maxName, "2", "# mine\nnet.a = 1\n" + maxName + " = 2\nnet.b=2\n"},
		{"other spelling", SysctlConf, "-net/netfilter/nf_conntrack_max = 1\n", maxName, "2", maxName + " = 2\n"},
		{"twice", SysctlConf, maxName + "=1\n" + maxName + "=3\n", maxName, "2", maxName + " = 2\n"},
		{"comments are no values", SysctlConf, "#" + maxName + "=1\n;" + maxName + "=1\n", maxName, "2", "#" + maxName + "=1\n;" + maxName + "=1\n" + maxName + " = 2\n"},
		{"no newline at the end", SysctlConf, "net.a = 1", maxName, "2", "net.a = 1\n" + maxName + " = 2\n"},
		{"remove", SysctlConf, "net.a = 1\n" + maxName + "=1\n", maxName, "", "net.a = 1\n"},
		{"module", ModulesLoad, "br_netfilter\n", "nf_conntrack", "nf_conntrack", "br_netfilter\nnf_conntrack\n"},
		{"module is there", ModulesLoad, "nf_conntrack\n", "nf_conntrack", "nf_conntrack", "nf_conntrack\n"},
		{"option beside others", ModuleOption, "options nf_conntrack acct=1 hashsize=5\n", "nf_conntrack.hashsize", "7", "options nf_conntrack acct=1 hashsize=7\n"},
		{"option of another module", ModuleOption, "options other hashsize=5\n", "nf_conntrack.hashsize", "7", "options other hashsize=5\noptions nf_conntrack hashsize=7\n"},
		{"remove one option", ModuleOption, "options nf_conntrack acct=1 hashsize=5\n", "nf_conntrack.hashsize", "", "options nf_conntrack acct=1\n"},
		{"remove last option", ModuleOption, "options nf_conntrack hashsize=5\ninstall x y\n", "nf_conntrack.hashsize", "", "install x y\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := ConfSet(c.kind, c.text, c.target, c.value)
			if without := strings.TrimPrefix(got, confHeader); without != c.result {
				t.Errorf("got\n%swant\n%s", without, c.result)
			}
			if value := ConfGet(c.kind, got, c.target); value != c.value {
				t.Errorf("reads back %q, want %q", value, c.value)
			}
		})
	}
}

func TestConfRemovesItsOwnFile(t *testing.T) {
	text := ConfSet(SysctlConf, "", "net.a", "1")
	text = ConfSet(SysctlConf, text, "net.b", "2")
	text = ConfSet(SysctlConf, text, "net.a", "")
	if got := ConfSet(SysctlConf, text, "net.b", ""); got != "" {
		t.Errorf("nothing is persisted any more, but the file holds %q", got)
	}
}

// Whatever stands in the file: a value that was set reads back, taking it out
// leaves none, and other values stay.
func FuzzConf(f *testing.F) {
	f.Add("net.a = 1\n# c\noptions m a=1 b=2\nm\n", "7")
	f.Add("-net/a=1\r\n\n\n;", "1 2 3")
	f.Fuzz(func(t *testing.T, text, value string) {
		defer testutil.Bounded(t, len(text)+len(value))()
		value = NormalValue(value)
		word := "w" + strings.Map(func(r rune) rune {
			if r <= ' ' || r == 0x7f || r == '#' || r == '\\' || r > 'z' {
				return -1
			}
			return r
		}, value)
		for kind, set := range map[Kind][3]string{
			SysctlConf:   {"net.a", value, "net.b"},
			ModulesLoad:  {"m", "m", "n"},
			ModuleOption: {"m.a", word, "m.b"},
		} {
			target, value, other := set[0], set[1], set[2]
			if kind == SysctlConf && checkValue(value) != nil {
				continue
			}
			before := ConfGet(kind, text, other)
			with := ConfSet(kind, text, target, value)
			if got := ConfGet(kind, with, target); got != value {
				t.Fatalf("%s: set %q, got %q from %q", kind, value, got, with)
			}
			without := ConfSet(kind, with, target, "")
			if got := ConfGet(kind, without, target); got != "" {
				t.Fatalf("%s: taken out, got %q from %q", kind, got, without)
			}
			for _, result := range []string{with, without} {
				if got := ConfGet(kind, result, other); got != before {
					t.Fatalf("%s: %s was %q, is %q in %q", kind, other, before, got, result)
				}
			}
		}
	})
}
