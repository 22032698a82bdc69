package run

import (
	"testing"
	"time"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/testutil"
)

// TestStateless: every way of the scenario delivers what it should, with and without entries in the table, and leaves
// no program. How fast is not tested.
func TestStateless(t *testing.T) {
	hostUnchanged(t)
	testutil.NeedFeature(t, testutil.BTF)
	sc, err := lab.Find("stateless")
	if err != nil {
		t.Fatal(err)
	}
	short := *sc
	short.Compare = &lab.Compare{With: "conntrack", Alone: "alone", Rounds: 2}
	short.Load.For = 50 * time.Millisecond
	short.Stages = nil
	for _, st := range sc.Stages {
		if len(st.Loads) == 1 {
			one := st.Loads[0]
			one.For = min(one.For, testutil.Patience(500*time.Millisecond))
			st.Loads = []lab.Load{one}
		}
		if st.Doctor == nil { // another test has doctor's part: what it finds here depends on the machine
			short.Stages = append(short.Stages, st)
		}
	}
	short.Expect = lab.Expect{}
	r, err := Run(t.Context(), &short, options(t))
	if err != nil {
		t.Fatal(err)
	}
	if !r.ExpectationMet || r.Compared == nil || len(r.Stages) != len(short.Stages) {
		t.Errorf("%d stages: %+v", len(r.Stages), r.Verdict)
	}
	for i := range r.Stages {
		s := &r.Stages[i]
		d := s.Delivery()
		tracked := s.TableEntries == 0
		if s.Name == "conntrack" { // of as many flows as there were packets for
			tracked = s.TableEntries > 0 && s.TableEntries <= int64(sc.Load.Flows)
		}
		if d == nil || s.Comparison == nil {
			t.Errorf("stage %s is not compared", s.Name)
			continue
		}
		if d.Wrong() != 0 || d.Received == 0 || d.Received+d.Lost != d.Sent || len(d.PerSecond) != 2 || !tracked {
			t.Errorf("stage %s: %+v, %d entries", s.Name, d, s.TableEntries)
		}
	}
	if left, err := plane.Sweep(func(string) bool { return true }); err != nil || len(left) > 0 {
		t.Errorf("programs are left in %v, error %v", left, err)
	}
}
