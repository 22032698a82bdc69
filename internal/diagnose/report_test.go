package diagnose

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

// What was not asked for is not missing; what could not be read or told is, by reason.
func TestIncomplete(t *testing.T) {
	rec := func() *snapshot.Recording { return recorded(t, "ct-flood", "no-dump") }
	traceFailed := rec()
	traceFailed.Last().Parts = append(traceFailed.Last().Parts, snapshot.Part{Name: snapshot.PartDrops, Error: "needs CAP_BPF"})
	for name, tc := range map[string]struct {
		rec   *snapshot.Recording
		rules []Rule
		want  []Missing
	}{
		"no dump": {rec(), []Rule{ctTableFull, ctEstablishedLeak, ctFlood},
			[]Missing{{Why: "the connection table was not read", Checks: []string{"ct-established-leak", "ct-flood"}}}},
		"no trace asked for": {rec(), []Rule{dropsUnexplained}, []Missing{}},
		"the trace failed": {traceFailed, []Rule{dropsUnexplained},
			[]Missing{{Why: "needs CAP_BPF", Checks: []string{"drops-unexplained"}}}},
		"TIME_WAIT, and no trace asked for": {recorded(t, "tw-seq-reject", "without-a-trace"), []Rule{twSeqReject}, []Missing{}},
		"no connection tracking":            {recorded(t, "ct-flood", "not-loaded"), []Rule{ctTableFull, ctFlood, snatRace}, []Missing{}},
	} {
		r := Run(tc.rec, tc.rules)
		if d := cmp.Diff(tc.want, r.Incomplete); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	cut := Run(rec(), []Rule{ctFlood})
	cut.CutShort(time.Minute)
	if len(cut.Incomplete) != 2 || len(cut.Incomplete[0].Checks) != 0 {
		t.Errorf("cut short: %+v", cut.Incomplete)
	}
}
