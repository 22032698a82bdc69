package tune

import (
	"strings"
	"testing"
)

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
		if !strings.HasPrefix(lowered, "lowers the value from 1 to 0; the kernel also") || !strings.HasSuffix(lowered, "which an undo puts back") {
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
