package bench

import (
	"fmt"
	"slices"
	"time"
)

// Schema names the JSON form of a Result.
const Schema = "natkit.benchmark/1"

// Result is what a benchmark found, and all that was measured.
type Result struct {
	Schema string `json:"schema"`
	Suite  string `json:"suite"`
	Title  string `json:"title"`
	Origin
	// Programs have a name and a version each.
	Programs   []string       `json:"programs"`
	Parameters map[string]any `json:"parameters,omitempty"`
	Seed       uint64         `json:"seed"`
	Rounds     int            `json:"rounds"`
	WarmUp     int            `json:"warm_up_rounds"`
	Quantities []Quantity     `json:"quantities"`
	Subjects   []Measured     `json:"subjects"`
	Ratios     []Comparison   `json:"ratios"`
	Verdicts   []Verdict      `json:"verdicts"`

	suite Suite
}

// Origin is when, from what and where figures were taken.
type Origin struct {
	Date time.Time `json:"date"`
	// Commit is that of the source; "-dirty" follows where it was changed since.
	Commit  string  `json:"commit"`
	Machine Machine `json:"machine"`
}

// Measured is what one subject yielded.
type Measured struct {
	Name string `json:"name"`
	// Median and Worst of each quantity, over the rounds.
	Median  Values  `json:"median"`
	Worst   Values  `json:"worst"`
	Counted Values  `json:"counted,omitempty"`
	Samples []Taken `json:"samples"`
}

// Taken is a sample and when it was taken.
type Taken struct {
	Round int `json:"round"`
	// Position in the round, from 1.
	Position int `json:"position"`
	Sample
}

// Comparison is the ratio of a quantity of two subjects.
type Comparison struct {
	Quantity string `json:"quantity"`
	Subject  string `json:"subject"`
	Than     string `json:"than"`
	Ratio
}

// compare makes figures of the samples.
func (r *Result) compare() error {
	for i := range r.Subjects {
		if err := r.Subjects[i].summarize(r.Quantities); err != nil {
			return fmt.Errorf("benchmark %s: %s: %w", r.Suite, r.Subjects[i].Name, err)
		}
	}
	for _, c := range r.suite.comparisons() {
		ratio, err := pairedRatio(r.subject(c.Subject).series(c.Quantity), r.subject(c.Than).series(c.Quantity))
		if err != nil {
			return fmt.Errorf("benchmark %s: %s of %s and %s: %w", r.Suite, c.Quantity, c.Subject, c.Than, err)
		}
		c.Ratio = ratio
		r.Ratios = append(r.Ratios, c)
	}
	for _, c := range r.suite.Claims {
		v, err := r.judge(c)
		if err != nil {
			return fmt.Errorf("benchmark %s: %w", r.Suite, err)
		}
		r.Verdicts = append(r.Verdicts, v)
	}
	return nil
}

// comparisons are those that the claims need and those with the baseline.
func (s Suite) comparisons() []Comparison {
	var all []Comparison
	add := func(quantity, subject, than string) {
		c := Comparison{Quantity: quantity, Subject: subject, Than: than}
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	for _, sub := range s.Subjects {
		if s.Baseline != "" && sub.Name != s.Baseline {
			add(s.Quantities[0].Name, sub.Name, s.Baseline)
		}
	}
	for _, c := range s.Claims {
		if q, _ := s.quantity(c.Quantity); c.Than != "" && !q.Counted {
			add(c.Quantity, c.Subject, c.Than)
		}
	}
	return all
}

func (m *Measured) summarize(quantities []Quantity) error {
	m.Median, m.Worst = Values{}, Values{}
	for _, q := range quantities {
		series := m.series(q.Name)
		if len(series) == 0 {
			continue
		}
		if len(series) != len(m.Samples) {
			return fmt.Errorf("only %d of %d runs yielded %s", len(series), len(m.Samples), q.Label)
		}
		m.Median[q.Name] = median(series)
		if q.Better == Higher {
			m.Worst[q.Name] = slices.Min(series)
		} else {
			m.Worst[q.Name] = slices.Max(series)
		}
	}
	return nil
}

// series has a quantity's values in the order of the rounds.
func (m *Measured) series(quantity string) []float64 {
	var series []float64
	for _, sample := range m.Samples {
		if v, ok := sample.Values[quantity]; ok {
			series = append(series, v)
		}
	}
	return series
}

// subject is one that Check has found to be there.
func (r *Result) subject(name string) *Measured {
	return &r.Subjects[slices.IndexFunc(r.Subjects, func(m Measured) bool { return m.Name == name })]
}

// ratio is one of comparisons.
func (r *Result) ratio(quantity, subject, than string) Ratio {
	for _, c := range r.Ratios {
		if c.Quantity == quantity && c.Subject == subject && c.Than == than {
			return c.Ratio
		}
	}
	return Ratio{}
}
