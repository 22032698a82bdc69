package diagnose

import (
	"strings"
	"testing"
)

// TestTraceKeepsWhatIsKnown: what a trace saw of a service does not replace a cause that rules and
// addresses prove.
func TestTraceKeepsWhatIsKnown(t *testing.T) {
	for name, known := range map[string]bool{"clients-on-the-servers-network": true, "its-answers-are-not-tracked": true, "clients-from-outside-too": false} {
		rec := recorded(t, "service-unanswered", name)
		s := &rec.Flows.Services.All[0]
		f := judgeService(rec, s)
		f.explain(rec, s)
		before := f.cause
		got := traceAdded([]failing{f}, []failing{{key: f.key, cause: "seen"}})
		if len(got) != 1 || !strings.Contains(got[0].cause, "seen") || strings.Contains(got[0].cause, before) != known {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
