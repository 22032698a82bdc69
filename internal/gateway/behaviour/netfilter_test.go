package behaviour

import (
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// carried is a set of engines as worlds want it.
type carried struct{ engine.Set }

func (c carried) Apply(ns *netns.Handle, p *gateway.Plan) error {
	p, _, err := c.Assign(p, gateway.Facts{})
	if err != nil {
		return err
	}
	return c.Set.Apply(ns, p, nil)
}

// alone is netfilter without another engine.
var alone = carried{engine.Set{netfilter.Engine{}}}

// atATime is how many cases are played at one time. Most of a case's time is waiting:
// for namespaces to be made and for timers.
const atATime = 16

// patience is for frames that come in any case, on a machine that others keep busy.
const patience = 30 * time.Second

func worlds(e Engine) Maker { return Namespaces(e, testutil.Patience(patience), Pairs) }

// slow is what the times of cases are stretched by where the machine is known to be slow.
func slow() int { return min(3, int(testutil.Patience(1))) }

// optional are what plans have that some kernels cannot carry out.
var optional = []struct {
	feature testutil.Feature
	has     func(*gateway.Plan) bool
}{
	{testutil.Hairpin, func(p *gateway.Plan) bool {
		return slices.ContainsFunc(p.Sources, func(e gateway.Entry) bool { return e.IsHairpin() || len(e.In)+len(e.NotIn) > 0 })
	}},
	{testutil.NATHelpers, func(p *gateway.Plan) bool { return len(p.Helpers) > 0 }},
	{testutil.EarlyReject, func(p *gateway.Plan) bool {
		return slices.ContainsFunc(p.Destinations, func(e gateway.Entry) bool { return e.Action.AllDown == nat.AllDownReject })
	}},
}

// playable are those of the cases whose file the kernel can carry out; the others are
// skipped.
func playable(t *testing.T, cases []Case) []Case {
	t.Helper()
	for _, o := range optional {
		if o.feature.Probe() == nil {
			continue
		}
		cases = slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
			plan, err := c.Plan()
			has := err == nil && o.has(plan)
			if has {
				t.Run(c.ID, func(t *testing.T) { testutil.NeedFeature(t, o.feature) })
			}
			return has
		})
	}
	return cases
}

func TestNetfilter(t *testing.T) {
	playSuite(t, Netfilter, alone, func(Case) bool { return false })
}

// playSuite plays all cases with an engine, on this kernel. On the one of the engine's
// record it must find the same. Left reports which cases the engine leaves to another.
func playSuite(t *testing.T, name string, e Engine, left func(Case) bool) {
	testutil.NeedRoot(t)
	if !*update { // TestPage reads what is written here
		t.Parallel()
	}
	cases, start := playable(t, All()), time.Now()
	results := Run(name, cases, worlds(e), slow(), atATime)
	took := time.Since(start)
	for i := range results {
		results[i].Left = left(cases[i])
	}
	if *update {
		writeRecord(t, Record{name, series(t), results})
	}
	asRecorded(t, name, results)
	failed := slices.IndexFunc(results, func(r Result) bool { return r.Err != nil }) >= 0
	t.Logf("%d cases in %v; failures: %v", len(cases), took.Round(10*time.Millisecond), failed)
}

// asRecorded compares results with an engine's record, if that is of this kernel.
func asRecorded(t *testing.T, engine string, results []Result) {
	t.Helper()
	recorded := readRecord(t, engine)
	for _, r := range results {
		t.Run(r.ID, func(t *testing.T) {
			t.Logf("%s: %s", r.Status, r.Outcome)
			if r.Err != nil {
				t.Error(r.Err)
			}
			if old := recorded.of(r.ID); recorded.Kernel == series(t) && r.Err == nil && (old.Status != r.Status || old.Outcome != r.Outcome) {
				t.Errorf("recorded as %s, %q: -update records what is now", old.Status, old.Outcome)
			}
		})
	}
}

// TestEnginesBesideOneAnother plays the cases with static rules with a second engine that
// carries out these before netfilter does, and netfilter the whole files. What is
// seen is the same.
func TestEnginesBesideOneAnother(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	t.Parallel()
	static := &fake.Static{Engine: fake.Engine{Word: "static"}}
	both := carried{engine.Set{static, netfilter.Engine{}}}
	mixed := 0
	cases := slices.DeleteFunc(All(), func(c Case) bool {
		p, err := c.Plan()
		if err == nil {
			p, _, err = both.Assign(p, gateway.Facts{})
		}
		if err != nil || p.Part("static") == nil {
			return true
		}
		if len(p.Refs()) > len(p.Assigned["static"]) {
			mixed++
		}
		return false
	})
	if len(cases) < 5 || mixed == 0 {
		t.Errorf("only %d cases, %d of them with rules of both engines", len(cases), mixed)
	}
	t.Logf("%d cases, %d of them with rules of both engines", len(cases), mixed)
	cases = playable(t, cases)
	for i, r := range Run(Netfilter, cases, worlds(both), slow(), atATime) {
		if r.Err != nil {
			t.Errorf("%s: %s, %s: %v", cases[i].ID, r.Status, r.Outcome, r.Err)
		}
	}
}
