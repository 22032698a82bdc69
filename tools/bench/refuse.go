package bench

import (
	"fmt"

	"github.com/natkit/natkit/internal/units"
)

// limitedShare is the share of a subject's runs in which the generator may have
// been the limit. One of fifteen runs may have met a busy moment; more say that
// the generator was measured.
const limitedShare = 0.1

// Refusal is why a benchmark has no result.
type Refusal struct {
	Suite, Subject, Reason string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("benchmark %s: %s: %s: no figure is given", r.Suite, r.Subject, r.Reason)
}

// refuse judges a subject after its last run, so that runs whose result could not
// be used are not made.
func (s Suite) refuse(m Measured, rounds int) error {
	last := m.Samples[len(m.Samples)-1]
	if last.Failures > 0 {
		return &Refusal{s.Name, m.Name, fmt.Sprintf("%s in round %d, and none was expected", units.Plural(last.Failures, "failure", "failures"), last.Round)}
	}
	if n := m.limited(); last.GeneratorLimit != "" && float64(n) > limitedShare*float64(rounds) {
		return &Refusal{s.Name, m.Name, fmt.Sprintf("the generator was the limit in %d of %d runs (%s)", n, last.Round, last.GeneratorLimit)}
	}
	return nil
}

// limited counts the runs in which the generator was the limit.
func (m Measured) limited() int {
	n := 0
	for _, sample := range m.Samples {
		if sample.GeneratorLimit != "" {
			n++
		}
	}
	return n
}
