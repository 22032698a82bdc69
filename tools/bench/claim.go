package bench

import (
	"fmt"
	"strconv"
)

// Claim is something that a benchmark has to show. Whether the value must be at
// least or at most the bound follows from the quantity's better direction.
type Claim struct {
	Subject  string `json:"subject"`
	Quantity string `json:"quantity"`
	// Than is the other subject, whose value times Bound is what is compared with.
	// With none, Bound is a limit in the quantity's unit, and holds for every run.
	Than  string  `json:"than,omitempty"`
	Bound float64 `json:"bound"`
	// Strict does not accept the bound itself.
	Strict bool `json:"strict,omitempty"`
}

// Outcome is what became of a claim.
type Outcome string

// The outcomes. A ratio whose interval is wide or holds the bound decides nothing:
// more rounds or a quieter machine might.
const (
	Met       Outcome = "met"
	NotMet    Outcome = "not met"
	Undecided Outcome = "not decided"
)

// Verdict is a claim and what was seen.
type Verdict struct {
	Claim
	Text    string  `json:"claim"`
	Seen    string  `json:"seen"`
	Outcome Outcome `json:"outcome"`
}

func (r *Result) judge(c Claim) (Verdict, error) {
	q, _ := r.suite.quantity(c.Quantity)
	v := Verdict{Claim: c, Text: c.text(q)}
	switch {
	case c.Than == "":
		value, ok := r.subject(c.Subject).judged(q)
		if !ok {
			return v, c.lacks(c.Subject)
		}
		v.Seen, v.Outcome = q.Text(value), outcome(c.holds(q, value))
		if n := r.Rounds; n > 1 && !q.Counted {
			v.Seen += fmt.Sprintf(", the worst of %d", n)
		}
	case q.Counted:
		own, ok := r.subject(c.Subject).Counted[q.Name]
		other, okOther := r.subject(c.Than).Counted[q.Name]
		if !ok || !okOther {
			return v, c.lacks(c.Subject + " or " + c.Than)
		}
		v.Seen = q.Text(own) + " against " + q.Text(other)
		scaled := c
		scaled.Bound *= other
		v.Outcome = outcome(scaled.holds(q, own))
	default:
		ratio := r.ratio(c.Quantity, c.Subject, c.Than)
		v.Seen, v.Outcome = ratio.String(), c.decide(q, ratio)
	}
	return v, nil
}

func (c Claim) lacks(subject string) error {
	return fmt.Errorf("the claim on %s of %s: %s yielded none", c.Quantity, c.Subject, subject)
}

// judged is the value that a limit is held against.
func (m *Measured) judged(q Quantity) (float64, bool) {
	values := m.Worst
	if q.Counted {
		values = m.Counted
	}
	v, ok := values[q.Name]
	return v, ok
}

// decide asks the whole interval.
func (c Claim) decide(q Quantity, r Ratio) Outcome {
	low, high := c.holds(q, r.Low), c.holds(q, r.High)
	if low != high || r.wide() {
		return Undecided
	}
	return outcome(low)
}

func (c Claim) holds(q Quantity, value float64) bool {
	switch {
	case value == c.Bound:
		return !c.Strict
	case q.Better == Higher:
		return value > c.Bound
	}
	return value < c.Bound
}

func outcome(holds bool) Outcome {
	if holds {
		return Met
	}
	return NotMet
}

func (c Claim) text(q Quantity) string {
	relation := "≤"
	switch {
	case c.Strict && q.Better == Higher:
		relation = ">"
	case c.Strict:
		relation = "<"
	case q.Better == Higher:
		relation = "≥"
	}
	bound := q.Text(c.Bound)
	if c.Than != "" {
		bound = strconv.FormatFloat(c.Bound, 'g', -1, 64) + " × " + c.Than
	}
	return fmt.Sprintf("%s: %s %s %s", c.Subject, q.Label, relation, bound)
}
