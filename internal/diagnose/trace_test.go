package diagnose

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/profile"
	"github.com/natkit/natkit/internal/snapshot"
)

// A bundle may come from anybody: whatever its trace says, there is a report of it,
// which has a JSON form.
func TestHostileTraces(t *testing.T) {
	const most = math.MaxUint64
	text := "\x1b]0;owned\x07\n"
	for name, seconds := range map[string]float64{
		"no time": 0, "negative time": -1, "hardly any time": math.SmallestNonzeroFloat64, "all time": math.MaxFloat64,
	} {
		rec := &snapshot.Recording{
			Snapshots: []*snapshot.Snapshot{{}, {UptimeSeconds: 1, Sysctls: snapshot.Sysctls{
				snapshot.ConntrackCount: "5", snapshot.ConntrackMax: "5"}}},
			Drops: &snapshot.Drops{
				Seconds: seconds, Packets: 1, FlowSample: -3, Lost: most, NAT: "fexit",
				Sites:  []snapshot.DropSite{{Function: text, Reason: text, Packets: most}, {Function: text, Packets: most}, {Function: "nf_hook_slow", Packets: 3}, {Reason: "IP_RPFILTER", Packets: most}},
				Flows:  []snapshot.DropFlow{{Source: text, Destination: text, Packets: most}, {Source: "x", Packets: most}},
				Causes: []snapshot.DropCause{{Cause: snapshot.CauseTableFull, Packets: most}, {Cause: text, Packets: most}, {Cause: snapshot.CauseRule, Packets: most}},
			},
			Profile: &snapshot.Profile{Seconds: seconds, Hz: 1, CPUs: 1, Samples: 1, Receive: most,
				Classes: []snapshot.ProfileClass{{Name: "rules", Samples: most}, {Name: "rules", Receive: true, Samples: most}}},
		}
		rec.Snapshots[0].Sysctls = rec.Snapshots[1].Sysctls
		report := Run(rec, Rules())
		if len(report.Checks) != len(Rules()) {
			t.Errorf("%s: %d checks", name, len(report.Checks))
		}
		if _, err := json.Marshal(report); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every reason has a meaning, and those that may become a finding say where to look.
func TestDropReasons(t *testing.T) {
	for name, r := range texts().Drops {
		finding := r.Kind == dropLoss || r.Kind == dropNoise || r.Kind == dropQueue
		if r.Means == "" || name != notSpecified && finding != (r.Hint != "") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for function, name := range reasonByFunction {
		if _, ok := texts().Drops[name]; !ok && name != netfilterDrop {
			t.Errorf("%s: %s is no reason", function, name)
		}
	}
}

// The kinds of work that are evidence have the names that a profile has.
func TestNATWorkIsInProfiles(t *testing.T) {
	classes := (&profile.Stacks{}).Summarize().Classes
	for _, name := range natWork {
		if !slices.ContainsFunc(classes, func(c snapshot.ProfileClass) bool { return c.Name == name }) {
			t.Errorf("no profile has a class %q", name)
		}
	}
}

// TestTogether: talks to many ports of few addresses are those to the addresses.
func TestTogether(t *testing.T) {
	talks := map[talk]uint64{}
	for i := range 60 {
		talks[talk{"tcp", "192.168.1.10", fmt.Sprintf("203.0.113.%d:%d", 10+i%2, 40000+i)}] = 2
	}
	if got := together(talks, 120); len(got) != 2 || got[talk{"tcp", "192.168.1.10", "203.0.113.11"}] != 60 {
		t.Error(got)
	}
}
