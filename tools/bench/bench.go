// Package bench is the harness that all benchmarks share. It runs the subjects of
// a suite in turn, compares them pair by pair, and says nothing rather than
// something that the runs do not show.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
)

// Suite is a benchmark: what is compared, by what, and what is claimed of it.
type Suite struct {
	// Name marks the section in the document and names the JSON file: kebab-case.
	Name string
	// Title and About, Markdown, begin the section where the document lacks it.
	Title, About string
	// Method describes one run; it is printed after the number of rounds.
	Method string
	// Quantities are what a run yields; the first is what the suite is about.
	Quantities []Quantity
	Subjects   []Subject
	// Baseline is the subject that the others are compared with in the table; with
	// none, only claims compare.
	Baseline string
	Claims   []Claim
	// Rounds in which every subject runs once, after WarmUp rounds that do not
	// count.
	Rounds, WarmUp int
	// Parameters and Seed are what it takes to repeat a run.
	Parameters map[string]any
	Seed       uint64
	// Programs are commands that print the versions of the programs that take part.
	Programs [][]string
	// Setup, if set, prepares the runs. The harness calls teardown at the end, also
	// after an interruption; a Setup that fails cleans up after itself.
	Setup func(context.Context) (teardown func(context.Context) error, err error)
}

// Quantity is one thing that is measured.
type Quantity struct {
	// Name is its key in JSON, with the unit: requests_per_second.
	Name string `json:"name"`
	// Label is what people call it: requests/s.
	Label  string    `json:"label"`
	Better Direction `json:"better"`
	// Counted is set if the machine's load does not change it, as a number of
	// system calls: it is taken once, by Subject.Count, and has no interval.
	Counted bool `json:"counted"`
	// Text writes a value for people, with its unit.
	Text func(float64) string `json:"-"`
}

// Direction is which values of a quantity are better.
type Direction string

// The directions.
const (
	Higher Direction = "higher"
	Lower  Direction = "lower"
)

// Subject is one of the things that are compared.
type Subject struct {
	Name string
	// Run makes one run. It must end on its own, or be limited in time by Program.
	Run func(context.Context) (Sample, error)
	// Count takes the counted quantities, after all rounds; nil where it has none.
	Count func(context.Context) (Values, error)
}

// Values are by the Name of their quantity.
type Values map[string]float64

// Sample is what one run yields. A subject need not have every quantity, but has
// the same ones in each run, the first among them.
type Sample struct {
	Values Values `json:"values"`
	// Failures is how much failed that should not have: the run is worth nothing.
	Failures int64 `json:"failures"`
	// GeneratorLimit is the reason why the load generator, not the subject, was the limit;
	// empty where it was not.
	GeneratorLimit string `json:"generator_limit,omitempty"`
}

var kebab = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// Check validates a suite and the number of rounds (0: the suite's own) before anything
// runs.
func (s Suite) Check(rounds int) error {
	rounds = cmp.Or(rounds, s.Rounds)
	switch {
	case !kebab.MatchString(s.Name):
		return fmt.Errorf("benchmark %q: the name is not in kebab-case", s.Name)
	case len(s.Subjects) == 0 || len(s.Quantities) == 0 || s.Quantities[0].Counted:
		return fmt.Errorf("benchmark %s: needs a subject and, first, a quantity that each run measures", s.Name)
	case rounds < 1 || s.WarmUp < 0:
		return fmt.Errorf("benchmark %s: %d rounds after %d to warm up: give at least one", s.Name, rounds, s.WarmUp)
	case rounds < 2 && len(s.comparisons()) > 0:
		return fmt.Errorf("benchmark %s: one round has no interval to compare subjects by: give at least two", s.Name)
	case s.Baseline != "" && !s.hasSubject(s.Baseline):
		return fmt.Errorf("benchmark %s: the baseline %q is none of its subjects", s.Name, s.Baseline)
	}
	for _, c := range s.Claims {
		if _, ok := s.quantity(c.Quantity); !ok || !s.hasSubject(c.Subject) || c.Than != "" && !s.hasSubject(c.Than) {
			return fmt.Errorf("benchmark %s: the claim %+v names an unknown subject or quantity", s.Name, c)
		}
	}
	return nil
}

func (s Suite) hasSubject(name string) bool {
	return slices.ContainsFunc(s.Subjects, func(sub Subject) bool { return sub.Name == name })
}

func (s Suite) quantity(name string) (Quantity, bool) {
	i := slices.IndexFunc(s.Quantities, func(q Quantity) bool { return q.Name == name })
	if i < 0 {
		return Quantity{}, false
	}
	return s.Quantities[i], true
}

// checkValues finds values that the suite did not announce and numbers that are
// none.
func (s Suite) checkValues(v Values, counted bool) error {
	for name, value := range v {
		q, ok := s.quantity(name)
		if !ok || q.Counted != counted {
			return fmt.Errorf("yielded %q, which is no quantity of the suite of that kind", name)
		}
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return fmt.Errorf("yielded %v %s", value, q.Label)
		}
	}
	if _, ok := v[s.Quantities[0].Name]; !ok && !counted {
		return errors.New("yielded no " + s.Quantities[0].Label)
	}
	return nil
}
