package run

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

// TestNATKinds runs every kind of NAT from one gateway file, with traffic both ways, by each engine.
func TestNATKinds(t *testing.T) {
	hostUnchanged(t)
	testutil.NeedFeature(t, testutil.IPv6)
	found, err := lab.Find("nat-kinds")
	if err != nil {
		t.Fatal(err)
	}
	for _, engine := range []gateway.Engine{gateway.EngineNetfilter, gateway.EngineEBPF} {
		t.Run(string(engine), func(t *testing.T) {
			sc, err := found.With(lab.Overrides{Engine: engine})
			if err != nil {
				t.Fatal(err)
			}
			o := options(t)
			o.Server = build.Builtin
			r, err := Run(t.Context(), sc, o)
			if err != nil {
				t.Fatal(err)
			}
			if !r.ExpectationMet {
				t.Errorf("%+v", r.Verdict)
			}
			for _, st := range sc.Stages {
				exchanged(t, r.Stage(st.Name), len(st.Loads))
			}
			ofPrograms := func(c gateway.Carrier) bool { return c.Engine == gateway.EngineEBPF }
			fixed := r.Stage("fixed").Carriers
			if engine == gateway.EngineEBPF && (len(fixed) == 0 || slices.ContainsFunc(fixed, func(c gateway.Carrier) bool { return !ofPrograms(c) })) {
				t.Errorf("rules with a fixed mapping: %+v", fixed)
			}
			if engine == gateway.EngineNetfilter && len(fixed) > 0 {
				t.Errorf("rules by several engines: %+v", fixed)
			}
		})
	}
}

// exchanged wants a number of exchanges, all of them as expected.
func exchanged(t *testing.T, s *lab.StageReport, n int) {
	t.Helper()
	if len(s.Loads) != n {
		t.Fatalf("%d loads in %s, want %d", len(s.Loads), s.Name, n)
	}
	for _, l := range s.Loads {
		if x := l.Exchange; x == nil || len(x.Faults) > 0 || l.Answered != l.Sent || len(x.Seen) == 0 {
			t.Errorf("%s: %+v", l.Kind, x)
		}
	}
}

// TestFarEndSeesAnotherAddress: the verdict of exchanges fails where it has to, and a
// stage without the gateway file has none of its rules.
func TestFarEndSeesAnotherAddress(t *testing.T) {
	hostUnchanged(t)
	testutil.NeedFeature(t, testutil.IPv6)
	found, err := lab.Find("nat-kinds")
	if err != nil {
		t.Fatal(err)
	}
	sc := *found
	with := sc.Stages[0]
	with.Doctor, with.Loads = nil, []lab.Load{with.Loads[0]}
	without := with
	without.Name, without.Gateway = "without", nil
	sc.Stages, sc.Expect = []lab.Stage{with, without}, lab.Expect{}
	o := options(t)
	o.Server = build.Builtin
	r, err := Run(t.Context(), &sc, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Verdict) != 2 || !r.Verdict[0].Met || r.Verdict[1].Met || r.ExpectationMet {
		t.Fatalf("verdict %+v", r.Verdict)
	}
	x := r.Stages[1].Loads[0].Exchange
	if len(x.Seen) != 1 || x.Seen[0].Address != netip.MustParseAddr("198.18.0.2") || !strings.Contains(strings.Join(x.Faults, " "), "was seen as 198.18.0.2") {
		t.Errorf("without the gateway file: %+v", x)
	}
}
