package main

import (
	"testing"

	"github.com/natkit/natkit/internal/simulate"
)

// The days that are measured are simulations, and as long as is said.
func TestSimulatedDays(t *testing.T) {
	for _, day := range simulatedDays {
		c, err := simulate.Parse(day.name, []byte(simulatedDay+day.text))
		if err != nil {
			t.Fatal(err)
		}
		if n := c.Arrivals.Rate * c.Duration.Seconds(); n != dayConnections {
			t.Errorf("%s: %.0f connections", day.name, n)
		}
		c.Duration.Duration /= 1000
		r, err := simulate.Run(t.Context(), *c, nil)
		if err != nil || r.Totals.Connections < dayConnections/1100 {
			t.Errorf("%s: error %v, %+v", day.name, err, r)
		}
	}
}
