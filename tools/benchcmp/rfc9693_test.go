package main

import (
	"testing"

	"github.com/natkit/natkit/internal/load/rfc9693"
)

func TestRFCSample(t *testing.T) {
	summary := func(v float64, l rfc9693.Limit) *rfc9693.Summary {
		return &rfc9693.Summary{Repetitions: 1, Median: v, Limit: l}
	}
	r := &rfc9693.Result{Rate: summary(3, rfc9693.ByGateway), TearDown: summary(2, rfc9693.ByGateway), Capacity: summary(1, rfc9693.ByGateway)}
	s, err := rfcSample(r)
	if err != nil || s.Values[establishmentRate] != 3 || s.Values[tearDownRate] != 2 || s.Values[tableCapacity] != 1 || s.GeneratorLimit != "" {
		t.Errorf("%+v, %v", s, err)
	}
	r.Rate.Limit = rfc9693.ByGenerator
	if s, err := rfcSample(r); err != nil || s.GeneratorLimit == "" {
		t.Errorf("%+v, %v", s, err)
	}
	r.Capacity = nil
	if _, err := rfcSample(r); err == nil {
		t.Error("no error without a capacity")
	}
}
