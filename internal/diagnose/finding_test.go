package diagnose

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

// What was not requested is not missing; what could not be read or derived is, by reason.
func TestIncomplete(t *testing.T) {
	rec := func() *snapshot.Recording { return recorded(t, "ct-flood", "no-dump") }
	traceFailed := rec()
	traceFailed.Last().Parts = append(traceFailed.Last().Parts, snapshot.Part{Name: snapshot.PartDrops, Error: "needs CAP_BPF"})
	for name, tc := range map[string]struct {
		rec   *snapshot.Recording
		rules []Rule
		want  []Missing
	}{
		"no dump": {rec(), []Rule{rule("ct-table-full"), rule("ct-established-leak"), rule("ct-flood")},
			[]Missing{{Why: "the connection table was not read", Checks: []string{"ct-established-leak", "ct-flood"}}}},
		"no trace asked for": {rec(), []Rule{rule("drops-unexplained")}, []Missing{}},
		"the trace failed": {traceFailed, []Rule{rule("drops-unexplained")},
			[]Missing{{Why: "needs CAP_BPF", Checks: []string{"drops-unexplained"}}}},
		"TIME_WAIT, and no trace asked for": {recorded(t, "tw-seq-reject", "without-a-trace"), []Rule{rule("tw-seq-reject")}, []Missing{}},
		"no connection tracking":            {recorded(t, "ct-flood", "not-loaded"), []Rule{rule("ct-table-full"), rule("ct-flood"), rule("snat-race")}, []Missing{}},
	} {
		r := Run(tc.rec, tc.rules)
		if d := cmp.Diff(tc.want, r.Incomplete); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	short := rec()
	short.CutShortOf = 60
	cut := Run(short, []Rule{rule("ct-flood")})
	if len(cut.Incomplete) != 2 || len(cut.Incomplete[0].Checks) != 0 {
		t.Errorf("cut short: %+v", cut.Incomplete)
	}
}

func TestPlan(t *testing.T) {
	change := func(target, before, after string) tune.Change {
		return tune.Change{Kind: tune.Sysctl, Target: target, Before: before, After: after}
	}
	finding := func(automatic bool, c ...tune.Change) Finding {
		return Finding{Remedies: []Remedy{{Title: "advice"}, {Automatic: automatic, Changes: c}}}
	}
	r := Report{Findings: []Finding{
		finding(true, change(snapshot.ConntrackMax, "1000", "65536")),
		finding(true, change(snapshot.ConntrackMax, "1000", "131072"), change(snapshot.ConntrackBuckets, "512", "1024")),
		finding(true, change(snapshot.ConntrackMax, "1000", "2000")),
		finding(false, change("net.netfilter.nf_conntrack_tcp_loose", "1", "0")),
	}}
	want := tune.Plan{Origin: "doctor", Changes: []tune.Change{
		change(snapshot.ConntrackMax, "1000", "131072"), change(snapshot.ConntrackBuckets, "512", "1024"),
	}}
	if diff := cmp.Diff(want, r.Plan("doctor")); diff != "" {
		t.Errorf("Plan (-want +got):\n%s", diff)
	}
}

// A printed command goes into a shell: a namespace's name must not be more than one.
func TestNamespaceFlag(t *testing.T) {
	for name, want := range map[string]string{
		"":              "",
		"gw":            "--netns gw ",
		"pid 77":        "--pid 77 ",
		"gw; reboot":    "",
		"gw$(reboot)":   "",
		"/run/netns/x":  "",
		"held by pid 9": "",
	} {
		if got := NamespaceFlag(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func rule(id string) Rule {
	all := Rules()
	return all[slices.IndexFunc(all, func(r Rule) bool { return r.ID == id })]
}

// Of one entry the forecast speaks in the singular.
func TestPredictOne(t *testing.T) {
	one := capacity.Sizing{Entries: 1, Max: 100}
	for _, lowerBound := range []bool{false, true} {
		if text := (&table{}).predict(one, lowerBound); !strings.Contains(text, "1 entry, 1 % of the new limit") {
			t.Errorf("lower bound %v: %q", lowerBound, text)
		}
	}
}

// TestSettable: sysctl(8) takes the dots of an interface's name as slashes.
func TestSettable(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":                "net.ipv4.ip_forward",
		"net.ipv4.conf.lan0.forwarding":      "net.ipv4.conf.lan0.forwarding",
		"net.ipv4.conf.eth0.100.forwarding":  "net.ipv4.conf.eth0/100.forwarding",
		"net.ipv6.conf.all.forwarding":       "net.ipv6.conf.all.forwarding",
		"net.ipv4.conf.br0.1.200.forwarding": "net.ipv4.conf.br0/1/200.forwarding",
	} {
		if got := settable(name); got != want {
			t.Errorf("settable(%q) = %q, want %q", name, got, want)
		}
	}
}
