package tune

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
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

func TestSideEffectsAreRisks(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":                       "every interface's own forwarding",
		"net.ipv4.conf.all.forwarding":              "every interface's own forwarding",
		"net.ipv6.conf.all.forwarding":              "router advertisements",
		"net.ipv6.conf.all.disable_ipv6":            "do not come back",
		"net.ipv4.conf.all.rp_filter":               "undo restores only net.ipv4.conf.all.rp_filter",
		"net.ipv4.conf.default.rp_filter":           "never set",
		"net.ipv4.conf.eth0.rp_filter":              "",
		"net.ipv4.tcp_keepalive_time":               "",
		"net.ipv4.conf.all/x.forwarding":            "",
		"net.netfilter.nf_conntrack_tcp_be_liberal": "",
	} {
		got := Assess([]Change{{Kind: Sysctl, Target: name, Before: "0", After: "1"}}, Facts{})[0].Risk
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		lowered := Assess([]Change{{Kind: Sysctl, Target: name, Before: "1", After: "0"}}, Facts{})[0].Risk
		if !strings.HasPrefix(lowered, "turns it off for everything that relies on it; the kernel also") || !strings.HasSuffix(lowered, "which an undo puts back") {
			t.Errorf("%s: %q", name, lowered)
		}
	}
}

func TestWhatCannotBeSetBackIsRefused(t *testing.T) {
	cases := []struct {
		name, before, after string
		ok                  bool
	}{
		{"kernel.modules_disabled", "0", "1", false},
		{"kernel.modules_disabled", "0", "0x1", false},
		{"kernel.modules_disabled", "1", "1", true},
		{"kernel.kexec_load_disabled", "0", "1", false},
		{"kernel.unprivileged_bpf_disabled", "0", "1", false},
		{"kernel.unprivileged_bpf_disabled", "0", "2", true},
		{"kernel.yama.ptrace_scope", "1", "3", false},
		{"kernel.yama.ptrace_scope", "1", "2", true},
		{"vm.drop_caches", "0", "3", false},
	}
	for _, c := range cases {
		err := Plan{Origin: "test", Changes: []Change{{Kind: Sysctl, Target: c.name, Before: c.before, After: c.after}}}.Validate()
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "set back") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestMaximumOfZeroIsNoLimit(t *testing.T) {
	max := func(before, after string) Change {
		return Assess([]Change{{Kind: Sysctl, Target: "net.netfilter.nf_conntrack_max", Before: before, After: after}}, Facts{Entries: 600})[0]
	}
	if c := max("1000", "0"); !strings.Contains(c.Risk, "0 means no limit") || strings.Contains(c.Risk, "dropped") || !strings.Contains(c.Cost, "no bound") {
		t.Errorf("%+v", c)
	}
	if c := max("0", "500"); !strings.Contains(c.Risk, "where there was none") || !strings.Contains(c.Risk, "new connections are dropped") || c.Cost != "" {
		t.Errorf("%+v", c)
	}
}
