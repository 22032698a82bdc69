package bench

import (
	"context"
	"testing"
)

func TestJudge(t *testing.T) {
	// a is twice b, to within a few percent; c has not all that they have.
	f := newFake(0, 4).
		yields("a", func(run int) (Sample, error) {
			return Sample{Values: Values{rate: 200 + float64(run%4), size: 10 << 20}}, nil
		}).
		yields("b", func(run int) (Sample, error) {
			return Sample{Values: Values{rate: 100 - float64(run%4), size: 20 << 20}}, nil
		}).
		yields("c", func(run int) (Sample, error) {
			return Sample{Values: Values{rate: []float64{1, 50, 300, 2}[run%4]}}, nil
		})
	for i, calls := range []float64{5, 10} {
		f.Subjects[i].Count = func(context.Context) (Values, error) { return Values{call: calls}, nil }
	}
	for _, tt := range []struct {
		claim      Claim
		text, seen string
		want       Outcome
	}{
		{Claim{"a", rate, "b", 1.5, false}, "a: requests/s ≥ 1.5 × b", "2.046 (1.983 to 2.110)", Met},
		{Claim{"a", rate, "b", 2.05, false}, "a: requests/s ≥ 2.05 × b", "2.046 (1.983 to 2.110)", Undecided},
		{Claim{"a", rate, "b", 2.2, false}, "a: requests/s ≥ 2.2 × b", "2.046 (1.983 to 2.110)", NotMet},
		{Claim{"a", rate, "c", 0.0001, false}, "a: requests/s ≥ 0.0001 × c", "too uncertain to compare (0.211 to 1108.790)", Undecided},
		{Claim{"a", size, "b", 0.5, false}, "a: peak memory ≤ 0.5 × b", "0.500 (0.500 to 0.500)", Met},
		{Claim{"a", size, "b", 0.5, true}, "a: peak memory < 0.5 × b", "0.500 (0.500 to 0.500)", NotMet},
		{Claim{"b", rate, "", 97, false}, "b: requests/s ≥ 97.0", "97.0, the worst of 4", Met},
		{Claim{"b", rate, "", 97, true}, "b: requests/s > 97.0", "97.0, the worst of 4", NotMet},
		{Claim{"b", size, "", 10 << 20, false}, "b: peak memory ≤ 10 MiB", "20 MiB, the worst of 4", NotMet},
		{Claim{"a", call, "b", 0.5, false}, "a: system calls ≤ 0.5 × b", "5 against 10", Met},
		{Claim{"a", call, "b", 0.4, false}, "a: system calls ≤ 0.4 × b", "5 against 10", NotMet},
		{Claim{"a", call, "", 5, false}, "a: system calls ≤ 5", "5", Met},
		{Claim{"a", call, "", 5, true}, "a: system calls < 5", "5", NotMet},
	} {
		f.Claims = append(f.Claims, tt.claim)
		r, err := f.Run(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := r.Verdicts[0], Verdict{tt.claim, tt.text, tt.seen, tt.want}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		f.Claims = nil
	}
	for _, c := range []Claim{{Subject: "c", Quantity: size, Bound: 1}, {Subject: "c", Quantity: call, Bound: 1}, {Subject: "a", Quantity: call, Than: "c", Bound: 1}} {
		f.Claims = []Claim{c}
		if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil {
			t.Errorf("a claim on what was not measured (%+v) gave %v, %v", c, r, err)
		}
	}
}
