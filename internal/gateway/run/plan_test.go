package run

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

func examplePlan(edit func(*gateway.Plan)) *gateway.Plan {
	p := &gateway.Plan{
		Schema: gateway.PlanSchema, Engine: gateway.EngineNetfilter, IPv4: true,
		Sources: []gateway.Source{{Rule: gateway.Ref{List: "nat", Kind: "masquerade"}, From: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}, Masquerade: true}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// freshHost is one that forwards nothing, with a table of 262,144 entries of which ten
// are used.
func freshHost(edit func(*Present)) Present {
	now := Present{
		Netns: 42, Initial: true, Value: tune.GatewayNone, SlabKnown: true, Held: map[string]bool{},
		Sysctls: snapshot.Sysctls{Forward4: "0", Forward6: "0", Accounting: "0", timeWait: "120",
			snapshot.ConntrackMax: "262144", snapshot.ConntrackBuckets: "262144"},
		Facts: tune.Facts{Entries: 10, Max: 262144, Buckets: 262144, MemoryBytes: 64 << 30, Cost: capacity.Cost{EntryBytes: 448, BucketBytes: 8}},
	}
	if edit != nil {
		edit(&now)
	}
	return now
}

// steps are changes as text, digests cut short.
func steps(p Prepared) []string {
	var out []string
	for _, c := range p.Plan.Changes {
		out = append(out, fmt.Sprintf("%s %s %s → %s", c.Kind, c.Target, c.Shown(c.Before), c.Shown(c.After)))
	}
	return out
}

func TestPlanInOrder(t *testing.T) {
	p := examplePlan(func(p *gateway.Plan) {
		p.IPv6, p.Accounting, p.Expect = true, true, gateway.Expect{Flows: 200000, Rate: 5000}
	})
	digest := gateway.Digest(p)
	in := func(edit func(*Present)) Present { return freshHost(edit) }
	all := []string{
		"sysctl net.netfilter.nf_conntrack_acct 0 → 1",
		"sysctl net.netfilter.nf_conntrack_max 262144 → 1048576",
		"sysctl net.netfilter.nf_conntrack_buckets 262144 → 1048576",
		"gateway netns 42 inet natkit none → " + digest[:12],
		"sysctl net.ipv4.ip_forward 0 → 1",
		"sysctl net.ipv6.conf.all.forwarding 0 → 1",
	}
	without := func(words ...string) []string {
		var out []string
		for _, line := range all {
			keep := true
			for _, w := range words {
				keep = keep && !strings.Contains(line, w)
			}
			if keep {
				out = append(out, line)
			}
		}
		return out
	}
	cases := []struct {
		name string
		now  Present
		want []string
		note string
	}{
		{"fresh", in(nil), all, ""},
		{"forwards already", in(func(n *Present) { n.Sysctls[Forward4] = "1" }), without("ip_forward"), ""},
		{"the resize would stall", in(func(n *Present) { n.Facts.Entries = 1_000_000 }), without("buckets"),
			"nf_conntrack_buckets stays: a resize would hold up all packets of the host for 450 ms; when it is idle, 'natkit tune apply net.netfilter.nf_conntrack_buckets=1048576'"},
		{"entries elsewhere are not known", in(func(n *Present) { n.SlabKnown = false }), without("buckets"), "is not known"},
		{"not the host's own namespace", in(func(n *Present) { n.Initial = false }), without("_max", "buckets"),
			"net.netfilter.nf_conntrack_max = 1048576, which can only be written in the host's own network namespace"},
		{"little memory", in(func(n *Present) { n.Facts.MemoryBytes = 1 << 30 }), []string{all[0], "sysctl net.netfilter.nf_conntrack_max 262144 → 524288", all[3], all[4], all[5]},
			"would need a larger table than a quarter of the memory can hold; its limit is 524,288"},
		{"no tracker", in(func(n *Present) {
			delete(n.Sysctls, snapshot.ConntrackMax)
			delete(n.Sysctls, Accounting)
			n.Facts.Max = 0
		}),
			without("_max", "buckets", "acct"), "nf_conntrack_max is missing"},
		{"large enough", in(func(n *Present) {
			n.Facts.Max, n.Facts.Buckets = 2<<20, 2<<20
			n.Sysctls[snapshot.ConntrackMax], n.Sysctls[snapshot.ConntrackBuckets] = "2097152", "2097152"
		}), without("_max", "buckets"), ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Plan(p, gateway.Digest(p), c.now, Origin)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, steps(got)); d != "" {
				t.Error(d)
			}
			if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
			if err := got.Plan.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPlanOverAnother(t *testing.T) {
	p := examplePlan(nil)
	digest, other := gateway.Digest(p), strings.Repeat("ab", 32)
	forwards := func(value string, held bool) Present {
		return freshHost(func(n *Present) { n.Value, n.Sysctls[Forward4], n.Held[Forward4] = value, "1", held })
	}
	cases := []struct {
		name string
		now  Present
		want []string
	}{
		{"the same", forwards(digest, false), nil},
		{"the same, and natkit set the sysctl", forwards(digest, true), nil},
		{"another's, and natkit set the sysctl", forwards(other, true), []string{
			"gateway netns 42 inet natkit abababababab → " + digest[:12], "sysctl net.ipv4.ip_forward 1 → 1"}},
		{"another's, and the administrator set it", forwards(other, false), []string{"gateway netns 42 inet natkit abababababab → " + digest[:12]}},
		{"another's, which counted", freshHost(func(n *Present) {
			n.Value, n.Sysctls[Forward4], n.Sysctls[Accounting], n.Sysctls[Forward6] = other, "1", "1", "1"
			n.Held = map[string]bool{Forward4: true, Accounting: true}
			n.Original = map[string]string{Forward4: "0", Accounting: "0"}
		}), []string{"sysctl net.netfilter.nf_conntrack_acct 1 → 0",
			"gateway netns 42 inet natkit abababababab → " + digest[:12], "sysctl net.ipv4.ip_forward 1 → 1"}},
		{"changed by hand", forwards(tune.GatewayChanged(digest), false), []string{
			"gateway netns 42 inet natkit " + digest[:12] + " changed → " + digest[:12]}},
		{"the same, and somebody turned forwarding off", freshHost(func(n *Present) { n.Value = digest }), []string{
			"gateway netns 42 inet natkit " + digest[:12] + " → " + digest[:12], "sysctl net.ipv4.ip_forward 0 → 1"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Plan(p, gateway.Digest(p), c.now, Origin)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, steps(got)); d != "" {
				t.Error(d)
			}
		})
	}
	if _, err := Plan(p, gateway.Digest(p), freshHost(func(n *Present) { n.Value = tune.GatewayForeign }), Origin); err == nil {
		t.Error("a table of another program is overwritten")
	}
}

func TestDurableKeepsForwardingOut(t *testing.T) {
	p := examplePlan(func(p *gateway.Plan) { p.Accounting, p.Expect = true, gateway.Expect{Flows: 800000} })
	got, err := Plan(p, gateway.Digest(p), freshHost(nil), Origin)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, c := range tune.Persistent(got.lasting) {
		files = append(files, string(c.Kind)+" "+c.Target)
	}
	want := []string{"sysctl.d net.netfilter.nf_conntrack_max", "sysctl.d net.netfilter.nf_conntrack_buckets", "modprobe.d nf_conntrack.hashsize", "modules-load.d nf_conntrack"}
	if d := cmp.Diff(want, files); d != "" {
		t.Error(d)
	}
}
