package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
)

// stateless is the scenario that compares stages.
func stateless(t *testing.T) *Scenario {
	t.Helper()
	s, err := Find("stateless")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRounds: the stages that are compared run in each round, the others in the last one.
func TestRounds(t *testing.T) {
	s := stateless(t)
	c := *s
	c.Compare = &Compare{With: "conntrack", Alone: "alone", Rounds: 2}
	var names []string
	for _, st := range c.Rounds() {
		names = append(names, st.Name)
	}
	round := "conntrack notrack nftables tc xdp limit alone"
	if got, want := strings.Join(names, " "), round+" "+round+" watched"; got != want {
		t.Errorf("stages run as %s, want %s", got, want)
	}
	c.Compare = nil
	if got := c.Rounds(); len(got) != len(c.Stages) || got[0] != &c.Stages[0] {
		t.Errorf("a scenario that compares nothing runs %d stages", len(got))
	}
	if _, err := s.With(Overrides{Engine: gateway.EngineEBPF}); err == nil {
		t.Error("the engines of a scenario that compares them can be changed")
	}
}

// round is the report of one round of a stage.
func round(s *Scenario, name string, perSecond float64, lost int64) StageReport {
	st, _ := s.Stage(name)
	l := s.LoadsOf(st)[0]
	if l.Arrive == nil { // requests
		return StageReport{Name: name, Loads: []LoadReport{{Kind: LoadHTTP, Sent: 100, Seconds: 1}}}
	}
	r := &packets.Result{Delivery: packets.Delivery{Sent: 100, Received: 100 - lost, Lost: lost, Reordered: 1}, Corrupted: packets.Corrupted{Partial: 2}, ReceivedPerSecond: perSecond}
	return StageReport{Name: name, Result: load.Result{Seconds: 1, Completed: 100}, Counters: map[string]uint64{"drop": 1},
		Loads: []LoadReport{{Kind: LoadPackets, Sent: 100, Seconds: 1, Delivery: DeliveryOf(l, r)}}}
}

// TestCompareStages: packets of all rounds add up, rates and times are medians.
func TestCompareStages(t *testing.T) {
	s, r := stateless(t), &Report{}
	for i := range 3 {
		r.AddRound(round(s, "conntrack", []float64{1e6, 5e5, 1e6}[i], 1))
		r.AddRound(round(s, "xdp", []float64{4e6, 2e6, 5e6}[i], 0))
		r.AddRound(round(s, "limit", []float64{5e6, 5e6, 5e6}[i], 0))
		r.AddRound(round(s, "alone", []float64{1e7, 5e6, 1e7}[i], 0))
	}
	r.AddRound(round(s, "watched", 100, 0))
	s.CompareStages(r)
	if len(r.Stages) != 5 || r.Compared == nil {
		t.Fatalf("%d stages, compared %v", len(r.Stages), r.Compared)
	}
	want := map[string]Comparison{
		"conntrack": {1e6, 900, 1},
		"xdp":       {4e6, 150, 4},
		"limit":     {5e6, 100, 5},
		"alone":     {1e7, 0, 10},
	}
	for i := range r.Stages {
		st := &r.Stages[i]
		d := st.Delivery()
		if st.Name == "watched" {
			if st.Comparison != nil {
				t.Errorf("the stage with doctor is compared: %+v", st.Comparison)
			}
			continue
		}
		if c := st.Comparison; c == nil || *c != want[st.Name] || st.RequestsPerSecond != c.PerSecond {
			t.Errorf("%s: %+v at %f/s, want %+v", st.Name, c, st.RequestsPerSecond, want[st.Name])
		}
		if d.Sent != 300 || d.Wrong() != 9 || len(d.PerSecond) != 3 || st.Loads[0].Sent != 300 || st.Completed != 300 || st.Counters["drop"] != 3 {
			t.Errorf("%s: %+v of %+v", st.Name, d, st)
		}
		if d.Translates != slices.Contains([]string{"conntrack", "xdp"}, st.Name) {
			t.Errorf("%s translates: %v", st.Name, d.Translates)
		}
	}
	if d := r.Stage("conntrack").Delivery(); d.Lost != 3 {
		t.Errorf("%d lost, want 3", d.Lost)
	}
}

// TestSameMapping: what is compared translates the same, and the packets are the same.
func TestSameMapping(t *testing.T) {
	s := stateless(t)
	outside, to := s.Stages[0].Gateway.NAT[0].Static.Outside, s.Load.To.Addr()
	for i := range s.Stages {
		st := &s.Stages[i]
		l := s.LoadsOf(st)[0]
		if s.Compared(st) && (l.Flows != s.Load.Flows || l.For != s.Load.For || l.Workers != 1) {
			t.Errorf("%s sends %+v, others %+v", st.Name, l, s.Load)
		}
		if g := st.Gateway; g != nil && (g.NAT[0].Static == nil || g.NAT[0].Static.Outside != outside || outside.Addr != to) {
			t.Errorf("%s translates %+v", st.Name, g.NAT[0])
		}
	}
}
