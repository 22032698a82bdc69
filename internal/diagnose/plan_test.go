package diagnose

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

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
