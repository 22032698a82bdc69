package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// teardownLimit bounds what follows the runs, also after an interruption.
const teardownLimit = 30 * time.Second

// Options of Run.
type Options struct {
	// Rounds replaces the suite's own number; 0 keeps it.
	Rounds int
	// Origin goes into the result as it is.
	Origin Origin
	// Progress is called for each run, with one line.
	Progress func(format string, args ...any)
}

// Run takes a benchmark. It returns a *Refusal where the runs do not show what
// they are for.
func (s Suite) Run(ctx context.Context, o Options) (*Result, error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if err := s.Check(o.Rounds); err != nil {
		return nil, err
	}
	rounds := cmp.Or(o.Rounds, s.Rounds)
	programs, err := versions(ctx, s.Programs)
	if err != nil {
		return nil, fmt.Errorf("benchmark %s: %w", s.Name, err)
	}
	subjects, err := s.measure(ctx, rounds, o.Progress)
	if err != nil {
		return nil, err
	}
	r := &Result{
		Schema: Schema, Suite: s.Name, Title: s.Title, Origin: o.Origin, Programs: programs,
		Parameters: s.Parameters, Seed: s.Seed, Rounds: rounds, WarmUp: s.WarmUp,
		Quantities: s.Quantities, Subjects: subjects, suite: s,
	}
	if err := r.compare(); err != nil {
		return nil, err
	}
	return r, nil
}

// measure makes the runs between setup and teardown.
func (s Suite) measure(ctx context.Context, rounds int, progress func(string, ...any)) (all []Measured, err error) {
	if s.Setup != nil {
		teardown, failed := s.Setup(ctx)
		if failed != nil {
			return nil, fmt.Errorf("benchmark %s: set up: %w", s.Name, failed)
		}
		defer func() { all, err = s.tearDown(ctx, teardown, all, err) }()
	}
	all = make([]Measured, len(s.Subjects))
	for i, sub := range s.Subjects {
		all[i].Name = sub.Name
	}
	for number := 1 - s.WarmUp; number <= rounds; number++ {
		if err := s.round(ctx, number, rounds, all, progress); err != nil {
			return nil, err
		}
	}
	for i := range all {
		if err := s.count(ctx, i, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// round runs every subject once. Rounds to warm up have numbers below 1 and are not
// kept.
func (s Suite) round(ctx context.Context, number, rounds int, all []Measured, progress func(string, ...any)) error {
	for position, i := range order(max(number, 1), len(s.Subjects)) {
		name := s.Subjects[i].Name
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("benchmark %s: %w", s.Name, err)
		}
		sample, err := s.Subjects[i].Run(ctx)
		if err == nil {
			err = s.checkValues(sample.Values, false)
		}
		if err != nil {
			return fmt.Errorf("benchmark %s: %s: %w", s.Name, name, err)
		}
		progress("%s", s.progressLine(number, rounds, name, sample))
		if number < 1 {
			continue
		}
		all[i].Samples = append(all[i].Samples, Taken{Round: number, Position: position + 1, Sample: sample})
		if err := s.refuse(all[i], rounds); err != nil {
			return err
		}
	}
	return nil
}

func (s Suite) progressLine(number, rounds int, name string, sample Sample) string {
	line := fmt.Sprintf("%s: round %d/%d  %s ", s.Name, number, rounds, name)
	if number < 1 {
		line = fmt.Sprintf("%s: warm-up  %s ", s.Name, name)
	}
	for _, q := range s.Quantities {
		if v, ok := sample.Values[q.Name]; ok {
			line += fmt.Sprintf(" %s %s,", q.Label, q.Text(v))
		}
	}
	line += fmt.Sprintf(" %d failed", sample.Failures)
	if sample.GeneratorLimit != "" {
		line += "; the generator was the limit: " + sample.GeneratorLimit
	}
	return line
}

// order is the order of n subjects in a round, counted from 1. It turns and, every
// other round, runs backwards: of two subjects each comes first equally often, and
// of three every order comes once in six rounds.
func order(round, n int) []int {
	turned := make([]int, n)
	for i := range turned {
		turned[i] = ((round-1)/2 + i) % n
	}
	if round%2 == 0 {
		slices.Reverse(turned)
	}
	return turned
}

func (s Suite) count(ctx context.Context, i int, m *Measured) error {
	if s.Subjects[i].Count == nil {
		return nil
	}
	values, err := s.Subjects[i].Count(ctx)
	if err == nil {
		err = s.checkValues(values, true)
	}
	if err != nil {
		return fmt.Errorf("benchmark %s: count for %s: %w", s.Name, m.Name, err)
	}
	m.Counted = maps.Clone(values)
	return nil
}

// tearDown works after an interruption, too. What was measured on something that
// cannot be taken down is not trusted.
func (s Suite) tearDown(ctx context.Context, teardown func(context.Context) error, all []Measured, err error) ([]Measured, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownLimit)
	defer cancel()
	if failed := teardown(ctx); failed != nil {
		err = errors.Join(err, fmt.Errorf("benchmark %s: tear down: %w", s.Name, failed))
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}
