// Package behaviour is the suite that says how a NAT gateway behaves: the
// requirements of RFC 4787, 5382, 5508, 6888 and 7857 and what else users rely on,
// as data, each with packets that show it. Every engine runs the same cases; how the
// packets reach it is a World's matter.
package behaviour

import (
	"errors"
	"fmt"
	"slices"
)

// Level is how strongly an RFC demands something (RFC 2119).
type Level string

const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
	May    Level = "MAY"
	// Natkit is what no RFC demands, and this gateway promises.
	Natkit Level = "natkit"
)

// Case is one requirement and its test.
type Case struct {
	// ID is stable kebab-case: "rfc4787-req-1".
	ID string
	// RFC is 0 for what no RFC demands; Requirement its name there: "REQ-1", "REQ-9 a".
	RFC         int
	Requirement string
	Level       Level
	// Asks is the demand in one sentence.
	Asks string
	// Gateway is the file that the engine carries out, without its first line
	// ("gateway:") and one level out. Empty is DefaultGateway.
	Gateway string
	// Run sends packets and says what it saw, in words that Want and Expect compare:
	// "endpoint-independent". The error is for what kept it from seeing. It is nil where
	// there is nothing that packets show, or no engine has it.
	Run func(*Play) (Outcome, error)
	// Want are the outcomes that meet the demand.
	Want []Outcome
	// Expect are the engines that are known to do otherwise, or to do without. An
	// engine that has no entry is expected to do as the one behind it, or to meet the
	// demand.
	Expect map[string]Expectation
	// Untranslated allows packets to leave with addresses from inside: where the file
	// leaves some alone, or where the case is about just that. Elsewhere one such packet
	// is a failure, whatever the outcome.
	Untranslated bool
	// Untestable is why there is no test, where Run is nil.
	Untestable string
}

// Outcome is what was observed.
type Outcome string

// Expectation is how an engine deviates.
type Expectation struct {
	// Outcome is what it does instead; empty where it does not offer this at all, and
	// the case is not run.
	Outcome Outcome
	// Meets is that an engine meets the demand where the one behind it deviates.
	Meets bool
	// Reason is why, for a reader of the table.
	Reason string
	// Where, if not nil, probes whether this machine's engine deviates; where it does
	// not, it is expected to meet the demand. Kernels differ by it.
	Where func() bool
}

// behind are the engines that carry out what others leave.
var behind = map[string]string{EBPF: Netfilter}

// expectation is how the engine deviates on this machine, if it does: as is declared of it, or of the
// one behind it.
func (c *Case) expectation(engine string) (declared Expectation, deviates bool) {
	for ; engine != "" && !deviates; engine = behind[engine] {
		declared, deviates = c.Expect[engine]
	}
	return declared, deviates && !declared.Meets && (declared.Where == nil || declared.Where())
}

// Status is how a result stands to the demand.
type Status string

const (
	// Meets the demand, as expected.
	Meets Status = "meets"
	// Deviates from the demand, as declared.
	Deviates Status = "deviates"
	// NotOffered by the engine, as declared.
	NotOffered Status = "not offered"
	// NotTestable by packets.
	NotTestable Status = "not testable"
	// Unexpected is a failure: the engine does otherwise than declared, for better
	// or for worse, or the case could not be played.
	Unexpected Status = "unexpected"
)

// Result is what became of a case.
type Result struct {
	ID      string  `json:"id"`
	Status  Status  `json:"status"`
	Outcome Outcome `json:"outcome,omitempty"`
	// Left is that the engine left all rules of the case to the one behind it.
	Left bool `json:"left,omitempty"`
	// Err is nil except where Status is Unexpected.
	Err error `json:"-"`
}

// judge compares what was seen with the demand and with what was declared.
func (c *Case) judge(engine string, got Outcome) Result {
	r := Result{ID: c.ID, Outcome: got, Status: Unexpected}
	declared, deviates := c.expectation(engine)
	meets := slices.Contains(c.Want, got)
	switch {
	case deviates && got == declared.Outcome:
		r.Status = Deviates
	case !deviates && meets:
		r.Status = Meets
	case deviates && meets:
		r.Err = fmt.Errorf("%s meets the demand (%s), but is declared to do otherwise: %q; take the declaration back", engine, got, declared.Outcome)
	case deviates:
		r.Err = fmt.Errorf("%s: got %q, declared %q, demanded %q", engine, got, declared.Outcome, c.Want)
	default:
		r.Err = fmt.Errorf("%s: got %q, demanded %q", engine, got, c.Want)
	}
	return r
}

// nowhere reports whether no engine offers this, so that there is nothing to run.
func (c *Case) nowhere() bool {
	for _, e := range c.Expect {
		if e.Outcome != "" {
			return false
		}
	}
	return len(c.Expect) > 0
}

// Check finds mistakes in a case itself.
func (c *Case) Check() error {
	switch {
	case c.ID == "" || c.Asks == "" || c.Level == "":
		return fmt.Errorf("case %q: needs ID, Asks and Level", c.ID)
	case c.Run == nil && c.Untestable == "" && !c.nowhere():
		return fmt.Errorf("case %s: needs Run, or Untestable, or engines that do not offer it", c.ID)
	case c.Run != nil && c.Untestable != "":
		return fmt.Errorf("case %s: has both Run and Untestable", c.ID)
	case c.Run != nil && len(c.Want) == 0:
		return fmt.Errorf("case %s: says no outcome that meets the demand", c.ID)
	}
	var errs []error
	for engine, e := range c.Expect {
		if e.Reason == "" {
			errs = append(errs, fmt.Errorf("case %s: %s deviates without a reason", c.ID, engine))
		}
		if e.Meets && (e.Outcome != "" || behind[engine] == "") {
			errs = append(errs, fmt.Errorf("case %s: %s meets the demand, which is what is expected, or deviates", c.ID, engine))
		}
		if slices.Contains(c.Want, e.Outcome) {
			errs = append(errs, fmt.Errorf("case %s: %s is said to deviate by what is demanded: %q", c.ID, engine, e.Outcome))
		}
	}
	return errors.Join(errs...)
}
