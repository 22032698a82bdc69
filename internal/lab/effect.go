package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/units"
)

// Effect is what a remedy did to a fault.
type Effect string

// What a remedy can do.
const (
	// Cures: connections are neither late nor failed any more.
	Cures Effect = "cures"
	// Reduces: clearly fewer are.
	Reduces Effect = "reduces"
	// HidesCounter: the counter that tells of the fault stands still, and connections
	// are late or fail as before.
	HidesCounter Effect = "hides-counter"
	// Trades: the rejections are gone, and connections fail in another way.
	Trades Effect = "trades"
	// NoEffect: as before.
	NoEffect Effect = "no-effect"
)

// Effects are all.
var Effects = []Effect{Cures, Reduces, HidesCounter, Trades, NoEffect}

// Words are a few, for people.
func (e Effect) Words() string { return effectText[e] }

var effectText = map[Effect]string{
	Cures: "cures", Reduces: "reduces", HidesCounter: "hides the counter only",
	Trades: "trades it for another failure", NoEffect: "no effect",
}

// Shares of the fault's trouble, or of its rejections, at which an effect ends.
const (
	curedShare  = 0.02
	hiddenShare = 0.05
	halfShare   = 0.5
	lessShare   = 0.75
	// tradedShare of all requests fail more often than with the fault.
	tradedShare = 0.05
)

// fewestTroubles is how many SYNs were sent again, or requests failed, in a stage with a
// fault before a remedy can be compared with it: fewer may be chance.
const fewestTroubles = 20

// WeighRemedies tells in a report what each stage with a remedy did to the fault.
func WeighRemedies(s *Scenario, r *Report) {
	for _, st := range s.Stages {
		tried := r.Stage(st.Name)
		if st.Remedy == nil || tried == nil {
			continue
		}
		tried.Remedy = &RemedyReport{Against: st.Remedy.Against, Cost: st.Remedy.Cost, Risk: st.Remedy.Risk}
		fault := r.Stage(st.Remedy.Against)
		if fault == nil || fault.Handshakes == nil || tried.Handshakes == nil {
			tried.Remedy.Words = "nothing to compare: a stage has no load of kind http, or did not run"
			continue
		}
		if n := troubles(fault); n < fewestTroubles {
			tried.Remedy.Words = fmt.Sprintf("nothing to compare: in stage %s %s sent again or requests failed; -n and -c give it more",
				fault.Name, units.Plural(n, "SYN was", "SYNs were"))
			continue
		}
		tried.Remedy.Effect = effectOf(fault, tried)
		tried.Remedy.Words = effectWords(fault, tried, tried.Remedy.Effect)
	}
}

// effectOf compares by request: a remedy may be to open fewer connections.
func effectOf(fault, tried *StageReport) Effect {
	was, is := trouble(fault), trouble(tried)
	rejectedWas, rejected := perRequest(fault, fault.Handshakes.Rejected), perRequest(tried, tried.Handshakes.Rejected)
	failedMore := perRequest(tried, uint64(tried.Failed)) - perRequest(fault, uint64(fault.Failed))
	switch {
	case is <= curedShare*was:
		return Cures
	case rejectedWas > 0 && failedMore > tradedShare && rejected <= halfShare*rejectedWas:
		return Trades
	case rejectedWas > 0 && rejected <= hiddenShare*rejectedWas && is > halfShare*was:
		return HidesCounter
	case is <= lessShare*was:
		return Reduces
	}
	return NoEffect
}

// troubles is how many SYNs were sent again, or requests failed; trouble is how many for
// each request.
func troubles(s *StageReport) uint64 { return s.Handshakes.SYNRetransmits + uint64(s.Failed) }

func trouble(s *StageReport) float64 { return perRequest(s, troubles(s)) }

func perRequest(s *StageReport, n uint64) float64 {
	if all := s.Completed + s.Failed; all > 0 {
		return float64(n) / float64(all)
	}
	return 0
}

// effectWords are the figures that the effect was read from, those of the fault in
// parentheses.
func effectWords(fault, tried *StageReport, e Effect) string {
	f, t := fault.Handshakes, tried.Handshakes
	words := []string{
		compared(t.SYNRetransmits, f.SYNRetransmits, "SYNs sent again"),
		compared(uint64(t.Late+tried.Failed), uint64(f.Late+fault.Failed), "connections late or failed"),
	}
	if t.Opened*2 < f.Opened {
		words = append(words, compared(t.Opened, f.Opened, "connections in all"))
	}
	if t.TimeWait*2 < f.TimeWait || t.TimeWait > f.TimeWait*2 {
		words = append(words, compared(uint64(t.TimeWait), uint64(f.TimeWait), "in TIME_WAIT at the end"))
	}
	text := strings.Join(words, ", ")
	if e == HidesCounter {
		text += fmt.Sprintf("; %s grew by %s (%s)", t.RejectedBy, units.Count(t.Rejected), units.Count(f.Rejected))
		if float64(t.Reset) > halfShare*float64(t.SYNRetransmits) {
			text += fmt.Sprintf(", and the clients answered %s ACKs of other connections with RST: TIME_WAIT still rejects SYNs, by a test that nothing counts", units.Count(t.Reset))
		}
	}
	if b := tried.Batches; e == NoEffect && b != nil && b.OutOfPatience > 0 && t.Reset > 0 {
		text += fmt.Sprintf("; %s batches began with ports still held, and the NAT gave these away before their time", units.Count(b.OutOfPatience))
	}
	return text
}

func compared(is, was uint64, what string) string {
	return fmt.Sprintf("%s (%s) %s", units.Count(is), units.Count(was), what)
}

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

// Remedy is what a stage tries against the fault of another one. What it does is what
// is different in the stage.
type Remedy struct {
	// Against is the stage with the fault.
	Against string `yaml:"against"`
	// Cost and Risk are a sentence each.
	Cost string `yaml:"cost"`
	Risk string `yaml:"risk"`
	// Expect are the effects that it may have; where it is empty, any.
	Expect []Effect `yaml:"expect"`
}

// maxApart bounds the labs that stand at the same time.
const maxApart = 16

// apart refuses what stages that run at the same time would share: the host's values,
// and what others have left.
func (c *checker) apart(path []any, st Stage) {
	if !st.Apart {
		return
	}
	for _, given := range []struct {
		key string
		set bool
	}{
		{"fill", st.Fill != nil}, {"keep_entries", st.KeepEntries}, {"host", len(st.Host) > 0},
		{"apply", st.Apply != ""}, {"trace", len(st.Trace) > 0},
	} {
		if given.set {
			c.fail(append(path, given.key), "stage %q is apart: expected no %s, which stages that run at the same time would share", st.Name, given.key)
		}
	}
	if n := c.apartFrom(st.Name); n > maxApart {
		c.fail(append(path, "apart"), "expected at most %d stages that are apart after each other, found %d", maxApart, n)
	}
}

// apartFrom is how many stages that are apart follow each other from this one on.
func (c *checker) apartFrom(name string) (n int) {
	began := false
	for _, st := range c.s.Stages {
		if began = began || st.Name == name; !began {
			continue
		}
		if !st.Apart {
			break
		}
		n++
	}
	return n
}

func (c *checker) remedy(path []any, stage int, r *Remedy) {
	c.stageName(append(path, "against"), r.Against)
	if i := slices.IndexFunc(c.s.Stages, func(s Stage) bool { return s.Name == r.Against }); i >= stage {
		c.fail(append(path, "against"), "against %q: expected a stage before this one", r.Against)
	}
	if strings.TrimSpace(r.Cost) == "" {
		c.fail(append(path, "cost"), "expected remedy.cost: a sentence")
	}
	if strings.TrimSpace(r.Risk) == "" {
		c.fail(append(path, "risk"), "expected remedy.risk: a sentence")
	}
	for i, e := range r.Expect {
		if !slices.Contains(Effects, e) {
			c.fail(append(path, "expect", i), "effect %q: expected one of: %s", e, effectNames())
		}
	}
}

func effectNames() string {
	names := make([]string, len(Effects))
	for i, e := range Effects {
		names[i] = string(e)
	}
	return strings.Join(names, ", ")
}
