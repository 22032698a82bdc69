package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
	// HidesCounter: the counter of the fault does not grow, and connections are late or
	// fail as before.
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

// WeighRemedies adds to a report what each stage with a remedy did to the fault.
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

// troubles returns the number of SYNs sent again plus failed requests; trouble is the number for
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

// Doctor runs at a node For some time: After the stage's start, and once When holds.
type Doctor struct {
	Node  string        `yaml:"node" check:"required node"`
	After time.Duration `yaml:"after" check:"0s..10m"`
	For   time.Duration `yaml:"for" check:"required 0s..10m"`
	When  *When         `yaml:"when"`
	// Trace lets it count drops and profile the CPUs meanwhile.
	Trace bool `yaml:"trace"`
	// Others lets it read the other nodes as it reads a host's other network namespaces.
	Others bool `yaml:"others"`
}

// When are the conditions on which doctor begins: all that are given. It begins in any
// case when the load is over.
type When struct {
	// Entries are in the node's connection table.
	Entries int64 `yaml:"entries" check:"1.."`
	// Requests, datagrams and packets that were answered or failed; of those that need no
	// answer, sent.
	Requests int64 `yaml:"requests" check:"1.."`
	// Counters of the node's connection tracker have grown by at least this.
	Counters map[string]int64 `yaml:"counters" check:"keys=counter 1.."`
}

// Counters are the names that When.Counters may have.
var Counters = []string{"drop", "early_drop", "insert_failed", "chaintoolong", "clash_resolve", "invalid", "error", "search_restart"}

// Expect is what a run must show.
type Expect struct {
	// Finding is the id that doctor must name: the fault of the scenario.
	Finding string `yaml:"finding" check:"finding"`
	// Findings, where set, are all that doctor may name, Finding included. A scenario
	// with an empty list is healthy.
	Findings *[]string `yaml:"findings" check:"finding"`
	// Cured is the stage in which doctor must not name Finding any more.
	Cured string `yaml:"cured" check:"stage"`
	// Complete is the stage that must complete all its requests.
	Complete string `yaml:"complete" check:"stage"`
	// Hold are the stages in which all connections must stand, and those that are verified be alive.
	Hold []string `yaml:"hold" check:"stage"`
	Rate *Rate    `yaml:"rate"`
}

// Rate: the requests per second of Stage are at least AtLeast times those of Of.
type Rate struct {
	Stage   string  `yaml:"stage" check:"required stage"`
	AtLeast float64 `yaml:"at_least" check:"required 0..100"`
	Of      string  `yaml:"of" check:"required stage"`
}

// Healthy reports whether the scenario has no fault.
func (s *Scenario) Healthy() bool {
	return s.Expect.Finding == "" && s.Expect.Findings != nil && len(*s.Expect.Findings) == 0
}

// Allows reports whether doctor may name a rule.
func (e *Expect) Allows(id string) bool {
	return id == e.Finding || e.Findings != nil && slices.Contains(*e.Findings, id)
}

// allowsListed reports whether Findings, where set, have an id.
func (e *Expect) allowsListed(id string) bool {
	return e.Findings == nil || slices.Contains(*e.Findings, id)
}

// Remedy is what a stage tries against the fault of another one. What it does is what
// is different in the stage.
type Remedy struct {
	// Against is the stage with the fault.
	Against string `yaml:"against" check:"required stage"`
	// Cost and Risk are a sentence each.
	Cost string `yaml:"cost" check:"required"`
	Risk string `yaml:"risk" check:"required"`
	// Expect are the effects that it may have; where it is empty, any.
	Expect []Effect `yaml:"expect" check:"effect"`
}
