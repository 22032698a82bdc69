package main

import (
	"context"
	"math"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// What natkit computes is what the kernel's allocator does, on the kernel at hand.
func TestPortChance(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	// Too few buckets refuse connections, too.
	testutil.ShareHost(t)
	for _, p := range portPoints {
		flows := max(4*p.batch(), 200)
		t.Run(p.name, func(t *testing.T) {
			s, err := p.run(context.Background(), flows)
			if err != nil {
				t.Fatal(err)
			}
			computed, measured := s.Values[chanceComputed], s.Values[chanceMeasured]
			t.Logf("computed %.4f, measured %.4f of %d", computed, measured, flows)
			// Five standard deviations, and what an estimate of how many own ports are
			// taken adds where they are mixed.
			bound := 5*math.Sqrt(computed*(1-computed)/float64(flows)) + 2/float64(flows)
			if p.mixed {
				bound += 0.08
			}
			if math.Abs(computed-measured) > bound {
				t.Errorf("computed %.4f, measured %.4f (± %.4f)", computed, measured, bound)
			}
		})
	}
}
