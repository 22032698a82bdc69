package bench

import (
	"errors"
	"testing"
)

func TestRefusal(t *testing.T) {
	limitedIn := func(runs ...int) func(int) (Sample, error) {
		return func(run int) (Sample, error) {
			s := Sample{Values: Values{rate: 1}}
			for _, limited := range runs {
				if run == limited {
					s.GeneratorLimit = "no free port"
				}
			}
			return s, nil
		}
	}
	failsIn := func(failing int) func(int) (Sample, error) {
		return func(run int) (Sample, error) {
			if run == failing {
				return Sample{Values: Values{rate: 1}, Failures: 17}, nil
			}
			return Sample{Values: Values{rate: 1}}, nil
		}
	}
	for _, tt := range []struct {
		name   string
		rounds int
		yields func(int) (Sample, error)
		want   string // empty for a result
		runs   int    // of the subject
	}{
		{"quiet", 10, limitedIn(), "", 10},
		{"one limited run of ten", 10, limitedIn(9), "", 10},
		{"one of nine", 9, limitedIn(8), "benchmark fake: peer: the generator was the limit in 1 of 9 runs (no free port): no figure is given", 9},
		{"two of ten, at once", 10, limitedIn(0, 2), "benchmark fake: peer: the generator was the limit in 2 of 3 runs (no free port): no figure is given", 3},
		{"failures, at once", 10, failsIn(1), "benchmark fake: peer: 17 failures in round 2, and none was expected: no figure is given", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runs := 0
			f := newFake(0, tt.rounds, "first").yields("peer", func(run int) (Sample, error) {
				runs++
				return tt.yields(run)
			})
			r, err := f.Run(t.Context(), Options{})
			if runs != tt.runs {
				t.Errorf("%d runs, want %d", runs, tt.runs)
			}
			if tt.want == "" {
				if err != nil || r == nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var refusal *Refusal
			if r != nil || !errors.As(err, &refusal) || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// TestRefusesWhatHasNoRatio: a zero cannot be a share of anything.
func TestRefusesWhatHasNoRatio(t *testing.T) {
	f := newFake(0, 2, "a").yields("b", func(run int) (Sample, error) { return Sample{Values: Values{rate: float64(run)}}, nil })
	f.Baseline = "a"
	const want = "benchmark fake: requests_per_second of b and a: compare pair 1: 0 and 1 are not both positive"
	if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil || err.Error() != want {
		t.Errorf("got %v, %v", r, err)
	}
}

// TestRefusesHalfAQuantity: a median over some of the runs would be another one.
func TestRefusesHalfAQuantity(t *testing.T) {
	f := newFake(0, 2).yields("a", func(run int) (Sample, error) {
		if run == 1 {
			return Sample{Values: Values{rate: 1}}, nil
		}
		return Sample{Values: Values{rate: 1, size: 1}}, nil
	})
	if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil || err.Error() != "benchmark fake: a: only 1 of 2 runs yielded peak memory" {
		t.Errorf("got %v, %v", r, err)
	}
}
