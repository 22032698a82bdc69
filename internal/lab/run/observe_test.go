package run

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestCaptureNames: no two captures of a run have the same file.
func TestCaptureNames(t *testing.T) {
	c := &conductor{report: &lab.Report{}}
	seen := map[string]bool{}
	for _, stage := range []string{"fault", "fault-2", "fault", "fixed", "fault"} {
		round := c.round(stage)
		for _, v := range []lab.Vantage{{Node: "gateway", Side: lab.Inside}, {Node: "gateway", Side: lab.Outside}, {Node: "server"}} {
			one := lab.Capture{Stage: stage, Round: round, Node: v.Node, Side: v.Side}
			if name := captureName(one); seen[name] {
				t.Errorf("%s is there twice", name)
			} else {
				seen[name] = true
			}
			c.report.Captures = append(c.report.Captures, one)
		}
	}
	for _, name := range []string{"fault-gateway-inside.pcapng", "fault.3-gateway-outside.pcapng", "fault-2-server.pcapng"} {
		if !seen[name] {
			t.Errorf("no %s in %v", name, seen)
		}
	}
}

// TestRingBytes keeps rings that are in use at the same time within their bound.
func TestRingBytes(t *testing.T) {
	sc := &lab.Scenario{Stages: make([]lab.Stage, 20)}
	if got := ringBytes(sc, &sc.Stages[0], 4); got != DefaultRingBytes {
		t.Errorf("4 rings of %d bytes", got)
	}
	for i := range sc.Stages {
		sc.Stages[i].Apart = true
	}
	if got := ringBytes(sc, &sc.Stages[0], 4); got > mostRings/80 || got < 2<<20 {
		t.Errorf("80 rings of %d bytes", got)
	}
}

// checkTraces: the fault's drops match conntrack's own counter and are of the client's
// packets, and the shares of a profile add up.
func checkTraces(t *testing.T, r *lab.Report, sc *lab.Scenario) {
	t.Helper()
	testutil.NeedFeature(t, testutil.BTF)
	for _, s := range r.Stages {
		for _, u := range s.Untraced {
			t.Errorf("%s: %s: %s", s.Name, u.What, u.Why)
		}
	}
	checkDrops(t, r.Stage("fault"), sc)
	base, nat := r.Stage("baseline").Profile, r.Stage("nat").Profile
	if base == nil || nat == nil {
		t.Fatalf("profiles: %v, %v", base, nat)
	}
	checkProfile(t, base)
	checkProfile(t, nat)
	if r.Stage("fault").Profile != nil || r.Stage("fixed").Drops != nil {
		t.Error("more was traced than the scenario says")
	}
}

func checkDrops(t *testing.T, fault *lab.StageReport, sc *lab.Scenario) {
	t.Helper()
	d := fault.Drops
	if d == nil || len(d.Sites) == 0 || len(d.Flows) == 0 {
		t.Fatalf("fault: drops %+v", d)
	}
	counted := fault.Counters["drop"]
	// The tracer begins before the counter is first read and ends after it is read again.
	within := func(what string, got uint64) {
		if got < counted || got >= 2*counted {
			t.Errorf("%s: %d packets, and the counter drop grew by %d", what, got, counted)
		}
	}
	if s := d.Sites[0]; s.Function != "nf_hook_slow" || s.Reason != "NETFILTER_DROP" || s.Protocol != "tcp" {
		t.Errorf("fault: most packets were dropped in %+v", s)
	}
	var hooks, full uint64
	for _, s := range d.Sites {
		if s.Function == "nf_hook_slow" {
			hooks += s.Packets
		}
	}
	for _, c := range d.Causes {
		if c.Cause == snapshot.CauseTableFull {
			full += c.Packets
		}
	}
	within("nf_hook_slow", hooks)
	within(snapshot.CauseTableFull, full)
	client := sc.StageSources(2)[0].String()
	if f := d.Flows[0]; f.Source != client || f.Destination != "198.18.0.1:8080" || f.Protocol != "tcp" {
		t.Errorf("fault: most drops are of %+v, not of the client %s", f, client)
	}
}

func checkProfile(t *testing.T, p *snapshot.Profile) {
	t.Helper()
	var all, receive uint64
	for _, c := range p.Classes {
		all += c.Samples
		if c.Receive {
			receive += c.Samples
		}
	}
	if all != p.Samples || receive != p.Receive || p.Receive > p.Samples || p.Receive == 0 {
		t.Errorf("profile: %d of %d samples in classes, %d of %d in packet receive", all, p.Samples, receive, p.Receive)
	}
}

func TestJoinPorts(t *testing.T) {
	flow := func(source, destination string, packets uint64) snapshot.DropFlow {
		return snapshot.DropFlow{Function: "nf_hook_slow", Protocol: "tcp", Source: source, Destination: destination, Packets: packets}
	}
	got := joinPorts([]snapshot.DropFlow{
		flow("198.18.0.9", "198.18.0.1", 4),
		flow("198.18.0.2:1024", "198.18.0.1:8080", 1), flow("198.18.0.2:1025", "198.18.0.1:8080", 2), flow("198.18.0.2:1025", "198.18.0.1:8081", 1),
		flow("[2001:db8::1]:1", "[2001:db8::2]:80", 1), flow("[2001:db8::1]:2", "[2001:db8::2]:80", 4),
	})
	want := []snapshot.DropFlow{
		flow("2001:db8::1", "[2001:db8::2]:80", 5), flow("198.18.0.9", "198.18.0.1", 4),
		flow("198.18.0.2", "198.18.0.1:8080", 3), flow("198.18.0.2", "198.18.0.1:8081", 1),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A kernel that lacks something still runs the lab: the report says what is missing.
func TestUntraced(t *testing.T) {
	r := &lab.StageReport{}
	addTrace(r, snapshot.Trace{
		Profile: &snapshot.Profile{Functions: make([]snapshot.ProfileSymbol, 2*mostFunctions)},
		Parts:   []snapshot.Part{{Name: snapshot.PartDrops, Error: "needs BTF"}, {Name: snapshot.PartProfile}},
	})
	want := []diagnose.Unread{{What: "drops", Why: "needs BTF"}}
	if diff := cmp.Diff(want, r.Untraced); diff != "" || r.Drops != nil {
		t.Errorf("untraced (-want +got):\n%s", diff)
	}
	if n := len(r.Profile.Functions); n != mostFunctions {
		t.Errorf("the report keeps %d functions", n)
	}
}
