package main

import "testing"

func TestRatioOfFixed(t *testing.T) {
	for report, want := range map[string]float64{
		`{"stages": [{"name": "nat", "requests_per_second": 4000}, {"name": "fixed", "requests_per_second": 3000}]}`: 0.75,
		`{"stages": [{"name": "nat", "requests_per_second": 4000}]}`:                                                 -1,
		`{"stages": [{"name": "nat"}, {"name": "fixed", "requests_per_second": 3000}]}`:                              -1,
		`no report`: -1,
	} {
		got, err := ratioOfFixed([]byte(report))
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%s: %v, %v", report, got, err)
		}
	}
}
