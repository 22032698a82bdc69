package lab

import (
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
)

// Doctor looks at a node, After the stage's start and once When holds, For so long.
type Doctor struct {
	Node  string   `yaml:"node"`
	After Duration `yaml:"after"`
	For   Duration `yaml:"for"`
	When  *When    `yaml:"when"`
	// Trace lets it count drops and profile the CPUs meanwhile.
	Trace bool `yaml:"trace"`
}

// When is what must have happened before doctor looks: all that is given. It looks
// in any case when the load is over.
type When struct {
	// Entries are in the node's connection table.
	Entries int64 `yaml:"entries"`
	// Requests, datagrams and packets were answered, failed, or, where nobody answers,
	// sent.
	Requests int64 `yaml:"requests"`
	// Counters of the node's connection tracker have grown by so much.
	Counters map[string]int64 `yaml:"counters"`
}

// Counters are the names that When.Counters may have.
var Counters = []string{"drop", "early_drop", "insert_failed", "chaintoolong", "clash_resolve", "invalid", "error", "search_restart"}

// Expect is what a run must show.
type Expect struct {
	// Finding is the id that doctor must name: the fault of the scenario.
	Finding string `yaml:"finding"`
	// Findings, where set, are all that doctor may name, Finding included. A scenario
	// with an empty list is healthy.
	Findings *[]string `yaml:"findings"`
	// Cured is the stage in which doctor must not name Finding any more.
	Cured string `yaml:"cured"`
	// Complete is the stage that must complete all its requests.
	Complete string `yaml:"complete"`
	Rate     *Rate  `yaml:"rate"`
}

// Rate: the requests per second of Stage are at least AtLeast times those of Of.
type Rate struct {
	Stage   string  `yaml:"stage"`
	AtLeast float64 `yaml:"at_least"`
	Of      string  `yaml:"of"`
}

// Healthy reports whether the scenario has no fault.
func (s *Scenario) Healthy() bool {
	return s.Expect.Finding == "" && s.Expect.Findings != nil && len(*s.Expect.Findings) == 0
}

// Allows reports whether doctor may name a rule.
func (e *Expect) Allows(id string) bool {
	return id == e.Finding || e.Findings != nil && slices.Contains(*e.Findings, id)
}

func (c *checker) expect() {
	e := c.s.Expect
	c.rule(at("expect", "finding"), e.Finding)
	if e.Findings != nil {
		for i, id := range *e.Findings {
			c.rule(at("expect", "findings", i), id)
		}
	}
	if e.Finding != "" && e.Findings != nil && !slices.Contains(*e.Findings, e.Finding) {
		c.fail(at("expect", "findings"), "expected findings with %s among them: they are all that doctor may name", e.Finding)
	}
	if e.Cured != "" {
		c.stageName(at("expect", "cured"), e.Cured)
		if st, ok := c.s.Stage(e.Cured); ok && (st.Doctor == nil && st.Apply == "" || e.Finding == "") {
			c.fail(at("expect", "cured"), "expected a finding, and doctor or a remedy in stage %q", e.Cured)
		}
	}
	if e.Complete != "" {
		c.stageName(at("expect", "complete"), e.Complete)
	}
	if r := e.Rate; r != nil {
		c.stageName(at("expect", "rate", "stage"), r.Stage)
		c.stageName(at("expect", "rate", "of"), r.Of)
		if !(r.AtLeast > 0 && r.AtLeast <= 100) {
			c.fail(at("expect", "rate", "at_least"), "expected rate.at_least: a number above 0 such as 0.8")
		}
	}
	examined := func(st Stage) bool { return st.Doctor != nil }
	switch {
	case slices.ContainsFunc(c.s.Stages, examined):
	case e.Finding != "":
		c.fail(at("expect", "finding"), "finding %q is expected, but no stage has a doctor", e.Finding)
	case e.Findings != nil:
		c.fail(at("expect", "findings"), "findings are expected, but no stage has a doctor")
	}
}

// rule checks the ID of a finding.
func (c *checker) rule(path []any, id string) {
	var known []string
	for _, r := range diagnose.Rules() {
		known = append(known, r.ID)
	}
	if id != "" && !slices.Contains(known, id) {
		c.fail(path, "unknown rule %q; expected one of: %s", id, strings.Join(known, ", "))
	}
}

func (c *checker) doctor(path []any, d *Doctor) {
	c.node(append(path, "node"), d.Node)
	c.duration(append(path, "after"), "doctor.after", d.After, false)
	c.duration(append(path, "for"), "doctor.for", d.For, true)
	w := d.When
	if w == nil {
		return
	}
	path = append(path, "when")
	if w.Entries < 0 || w.Requests < 0 || w.Entries == 0 && w.Requests == 0 && len(w.Counters) == 0 {
		c.fail(path, "expected when with one or more of: entries: 1000, requests: 1000, counters: {drop: 1}")
	}
	for _, name := range sortedKeys(w.Counters) {
		switch {
		case !slices.Contains(Counters, name):
			c.fail(append(path, "counters", name), "counter %q: expected one of: %s", name, strings.Join(Counters, ", "))
		case w.Counters[name] < 1:
			c.fail(append(path, "counters", name), "counter %s: expected 1 or more, found %d", name, w.Counters[name])
		}
	}
}
