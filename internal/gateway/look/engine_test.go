package look

import (
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
)

// TestAnyEngine: what an engine returns is reported, of rules and of all else.
func TestAnyEngine(t *testing.T) {
	w := newWorld(t)
	p := w.apply(example, w.facts())
	e := &fake.Engine{Counts: []gateway.Counted{
		{Rule: &p.Sources[0].Rule, Packets: 3}, {Rule: &p.Sources[0].Rule, Packets: 4},
		{What: "too many", Dropped: true, Packets: 5}, {What: "fast", Packets: 6}, {What: "fast", Packets: 7},
	}}
	if _, err := e.Apply(w.gateway, p, gateway.Digest(p)); err != nil {
		t.Fatal(err)
	}
	o := w.options()
	o.Engines = engine.Set{e}
	s, err := New(o).Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Plan != gateway.Digest(p) || s.Integrity != gateway.RulesIntact || s.Engine != gateway.EngineNetfilter {
		t.Errorf("plan %s, %s, of %s", s.Plan, s.Integrity, s.Engine)
	}
	for _, r := range s.Rules {
		if of := r.Rule == p.Sources[0].Rule; of != (r.New != nil) || of && *r.New != 7 {
			t.Errorf("%s: %v new connections", r.Rule, r.New)
		}
	}
	if len(s.Drops.Counters) != 1 || s.Drops.Counters[0].Packets != 5 || len(s.Counters) != 1 || s.Counters[0].Packets != 13 {
		t.Errorf("drops %+v, counters %+v", s.Drops.Counters, s.Counters)
	}
}
