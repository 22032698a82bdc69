package tune

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/testutil"
)

func TestParseAssignment(t *testing.T) {
	cases := []struct{ in, name, value string }{
		{"net.netfilter.nf_conntrack_max=524288", "net.netfilter.nf_conntrack_max", "524288"},
		{" net.ipv4.tcp_rmem =  4096\t131072  6291456 ", "net.ipv4.tcp_rmem", "4096 131072 6291456"},
		{"net/ipv4/conf/eth0.100/rp_filter=2", "net.ipv4.conf.eth0/100.rp_filter", "2"},
		{"net.ipv4.conf.eth0/100.rp_filter=2", "net.ipv4.conf.eth0/100.rp_filter", "2"},
		{"net.ipv4.tcp_congestion_control=bbr", "net.ipv4.tcp_congestion_control", "bbr"},
		{"kernel.core_pattern=|/bin/x=y", "kernel.core_pattern", "|/bin/x=y"},
	}
	for _, c := range cases {
		name, value, err := ParseAssignment(c.in)
		if err != nil || name != c.name || value != c.value {
			t.Errorf("ParseAssignment(%q) = %q, %q, %v; want %q, %q", c.in, name, value, err, c.name, c.value)
		}
	}
	bad := map[string]string{
		"":                                   "expected NAME=VALUE",
		"net.netfilter.nf_conntrack":         "expected NAME=VALUE",
		"net.x=":                             "empty",
		"net.x= \t":                          "empty",
		"max=1":                              "too short",
		"=1":                                 "too short",
		"net..x=1":                           "empty or relative",
		".net.x=1":                           "empty or relative",
		"/net/x=1":                           "empty or relative",
		"net/../../etc/passwd=1":             "empty or relative",
		"net.//.x=1":                         "empty or relative", // '//' between dots is ".."
		"net.ipv4.conf./.x=1":                "empty or relative",
		"net.x y=1":                          "not allowed",
		"net.x\x00=1":                        "not allowed",
		"net.é=1":                            "not allowed",
		"net.x=a\x01b":                       "control character",
		"net.x=" + strings.Repeat("9", 5000): "at most 4096",
	}
	for in, want := range bad {
		name, value, err := ParseAssignment(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseAssignment(%q) = %v, want an error with %q", in, err, want)
		}
		if name != "" || value != "" {
			t.Errorf("ParseAssignment(%q) gives %q, %q with its error", in, name, value)
		}
	}
}

func FuzzParseAssignment(f *testing.F) {
	f.Add("net.netfilter.nf_conntrack_max=524288")
	f.Add("net/ipv4/conf/eth0.100/rp_filter=2")
	f.Add("net.ipv4.conf.//.x=1")
	f.Fuzz(func(t *testing.T, in string) {
		defer testutil.Bounded(t, len(in))()
		name, value, err := ParseAssignment(in)
		if err != nil {
			return
		}
		path, err := SysctlPath(name)
		if err != nil {
			t.Fatalf("%q: accepted name %q has no path: %v", in, name, err)
		}
		for _, part := range strings.Split(path, "/") {
			if part == "" || part == "." || part == ".." {
				t.Fatalf("%q leaves /proc/sys: %q", in, path)
			}
		}
		again, value2, err := ParseAssignment(name + "=" + value)
		if err != nil || again != name || value2 != value {
			t.Fatalf("%q → %q=%q → %q=%q, %v", in, name, value, again, value2, err)
		}
	})
}

func TestSameValue(t *testing.T) {
	cases := []struct {
		a, b string
		want bool
	}{
		{"1", "1\n", true}, {"32768 60999", "32768\t60999", true}, {"0x10", "16", true}, {"010", "8", true},
		{"-1", "-1", true}, {"18446744073709551615", "0xffffffffffffffff", true},
		{"1", "2", false}, {"1", "1 2", false}, {"", "0", false}, {"cubic", "bbr", false}, {"1", "one", false},
	}
	for _, c := range cases {
		if got := SameValue(c.a, c.b); got != c.want {
			t.Errorf("SameValue(%q, %q) = %v", c.a, c.b, got)
		}
		if got := SameValue(c.b, c.a); got != c.want {
			t.Errorf("SameValue(%q, %q) = %v", c.b, c.a, got)
		}
	}
}

func change(kind Kind, target, before, after string) Change {
	return Change{Kind: kind, Target: target, Before: before, After: after}
}

func TestPlanValidate(t *testing.T) {
	good := Plan{Origin: "tune", Changes: []Change{
		change(Sysctl, "net.netfilter.nf_conntrack_max", "1", "2"),
		change(SysctlConf, "net.netfilter.nf_conntrack_max", "", "2"),
		change(Sysctl, "net.ipv4.ip_local_reserved_ports", "", "8080"),
		change(ModuleOption, "nf_conntrack.hashsize", "", "2"),
		change(ModulesLoad, "nf_conntrack", "", "nf_conntrack"),
		change("nftables", "table inet natkit", "", "anything\nat all"),
	}}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good plan: %v", err)
	}
	bad := map[string]Plan{
		"origin":              {Changes: good.Changes},
		"nothing to change":   {Origin: "x"},
		"changed twice":       {Origin: "x", Changes: []Change{change(Sysctl, "net.netfilter.nf_conntrack_max", "1", "2"), change(Sysctl, "net.nf_conntrack_max", "1", "3")}},
		"kind and target":     {Origin: "x", Changes: []Change{change(Sysctl, "", "1", "2")}},
		"expected the dotted": {Origin: "x", Changes: []Change{change(Sysctl, "net/x/y", "1", "2")}},
		"relative":            {Origin: "x", Changes: []Change{change(SysctlConf, "net.//.y", "1", "2")}},
		"control character":   {Origin: "x", Changes: []Change{change(Sysctl, "net.x", "1", "2\x00")}},
		"not one word":        {Origin: "x", Changes: []Change{change(ModuleOption, "a.b", "", "1 install=x")}},
		"the only module":     {Origin: "x", Changes: []Change{change(ModuleOption, "firmware_class.path", "", "/tmp")}},
		"not of nf_conntrack": {Origin: "x", Changes: []Change{change(ModulesLoad, "vivid", "", "vivid")}},
		"starts programs":     {Origin: "x", Changes: []Change{change(SysctlConf, "kernel.modprobe", "", "/tmp/x")}},
		"expected MODULE":     {Origin: "x", Changes: []Change{change(ModuleOption, "hashsize", "", "1")}},
	}
	for want, plan := range bad {
		if err := plan.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", plan, err, want)
		}
	}
}

func TestUndoOfUndoIsThePlan(t *testing.T) {
	p := Plan{Origin: "tune", Changes: []Change{change(Sysctl, "net.a", "1", "2"), change(Sysctl, "net.b", "3", "4")}}
	back := Undo(p)
	want := []Change{change(Sysctl, "net.b", "4", "3"), change(Sysctl, "net.a", "2", "1")}
	if diff := cmp.Diff(want, back.Changes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(p, Undo(back)); diff != "" {
		t.Error(diff)
	}
}

func TestAssess(t *testing.T) {
	const maxName, bucketName = "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_buckets"
	facts := Facts{
		Entries: 200_000, OtherEntries: 800_000, Max: 262144, Buckets: 65536, MemoryBytes: 1 << 30,
		Cost: capacity.Cost{EntryBytes: 448, BucketBytes: 8, Source: "/proc/slabinfo"},
	}
	const chains = "hash chains of 40 entries on average in 65,536 buckets, which kernels from 5.15 on may refuse"
	cases := []struct {
		name       string
		changes    []Change
		cost, risk string // of the last one; must contain; "" must be empty
	}{
		{"raise", []Change{change(Sysctl, maxName, "262144", "524288")}, "up to 112 MiB more memory, 224 MiB in all (448 B per entry, /proc/slabinfo)", chains},
		{"buckets come too", []Change{change(Sysctl, bucketName, "65536", "1048576"), change(Sysctl, maxName, "262144", "524288")},
			"up to 112 MiB", "holds for all network namespaces; memory is taken only as entries come"},
		{"too much memory", []Change{change(Sysctl, maxName, "262144", "1000000")}, "MiB", "quarter of the machine"},
		{"any number", []Change{change(Sysctl, maxName, "1", "9223372036854775807")}, "TiB", "quarter"},
		{"below count", []Change{change(Sysctl, maxName, "262144", "1000")}, "", "200,000 connections are tracked now"},
		{"old name", []Change{change(Sysctl, "net.nf_conntrack_max", "262144", "1000")}, "", "dropped at once"},
		{"lower", []Change{change(Sysctl, maxName, "262144", "250000")}, "", "lowers a limit of the whole host"},
		{"buckets", []Change{change(Sysctl, bucketName, "65536", "1048576")}, "7.5 MiB more memory", "450 ms (estimate) while 1,000,000 entries"},
		{"few buckets", []Change{change(Sysctl, bucketName, "65536", "1024")}, "", "hash chains of 2,074 entries"},
		{"timeout", []Change{change(Sysctl, "net.netfilter.nf_conntrack_tcp_timeout_time_wait", "120", "30")}, "", "forgotten sooner"},
		{"no timeout", []Change{change(Sysctl, "net.netfilter.nf_conntrack_udp_timeout", "30", "-5")}, "", "as soon as they are made"},
		{"longer timeout", []Change{change(Sysctl, "net.netfilter.nf_conntrack_udp_timeout", "30", "60")}, "", "fills faster"},
		{"other", []Change{change(Sysctl, "net.core.somaxconn", "4096", "128")}, "", "lowers the value from 4,096 to 128"},
		{"text", []Change{change(Sysctl, "net.ipv4.tcp_congestion_control", "cubic", "bbr")}, "", ""},
		{"same", []Change{change(Sysctl, maxName, "5", "5")}, "", ""},
		{"file", []Change{change(SysctlConf, maxName, "", "5")}, "", ""},
	}
	for _, c := range cases {
		asked := slices.Clone(c.changes)
		all := Assess(c.changes, facts)
		if diff := cmp.Diff(asked, c.changes); diff != "" {
			t.Errorf("%s: the argument was changed:\n%s", c.name, diff)
		}
		got := all[len(all)-1]
		for _, pair := range [][2]string{{got.Cost, c.cost}, {got.Risk, c.risk}} {
			if (pair[1] == "") != (pair[0] == "") || !strings.Contains(pair[0], pair[1]) {
				t.Errorf("%s: %q, want %q", c.name, pair[0], pair[1])
			}
		}
	}
	if all := Assess(cases[1].changes, facts); strings.Contains(all[1].Risk, "chains") {
		t.Errorf("chains are judged by buckets that will be gone: %q", all[1].Risk)
	}
	if got := Assess([]Change{change(Sysctl, bucketName, "1", "2")}, Facts{}); !strings.Contains(got[0].Risk, "less than 1 ms") {
		t.Errorf("buckets of an empty table: %q", got[0].Risk)
	}
	kept := change(Sysctl, maxName, "1", "2")
	kept.Cost = "said by the rule"
	if got := Assess([]Change{kept}, facts); got[0] != kept {
		t.Errorf("what the change says is replaced: %+v", got)
	}
}

func TestPersistent(t *testing.T) {
	got := Persistent([]Change{
		change(Sysctl, "net.netfilter.nf_conntrack_max", "1", "524288"),
		change(Sysctl, "net.netfilter.nf_conntrack_buckets", "1", "262144"),
		change(Sysctl, "net.core.somaxconn", "1", "8192"),
	})
	want := []Change{
		change(SysctlConf, "net.netfilter.nf_conntrack_max", "", "524288"),
		change(SysctlConf, "net.netfilter.nf_conntrack_buckets", "", "262144"),
		change(ModuleOption, "nf_conntrack.hashsize", "", "262144"),
		change(SysctlConf, "net.core.somaxconn", "", "8192"),
		change(ModulesLoad, "nf_conntrack", "", "nf_conntrack"),
	}
	words := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Why" }, cmp.Ignore())
	if diff := cmp.Diff(want, got, words); diff != "" {
		t.Error(diff)
	}
	alone := Persistent([]Change{change(Sysctl, "net.netfilter.nf_conntrack_buckets", "1", "2")})
	if !strings.Contains(alone[1].Risk, "8 × hashsize") {
		t.Errorf("hashsize without max: risk %q", alone[1].Risk)
	}
	if got := Persistent([]Change{change(Sysctl, "net.core.somaxconn", "1", "2")}); len(got) != 1 {
		t.Errorf("a value that is no conntrack value: %+v", got)
	}
}

func TestAValueIsOneLine(t *testing.T) {
	if _, value, err := ParseAssignment("net.ipv4.tcp_rmem=1\n2\t3"); err == nil || !strings.Contains(err.Error(), "more than one line") {
		t.Errorf("%q, %v", value, err)
	}
	if err := (Change{Kind: Sysctl, Target: "net.a", Before: "1", After: "1\n2"}).Validate(); err == nil {
		t.Error("no error")
	}
	if _, value, err := ParseAssignment("net.ipv4.tcp_rmem=1 2\t3"); err != nil || value != "1 2 3" {
		t.Errorf("%q, %v", value, err)
	}
}
