// Package diagnose holds the rules that turn recordings into findings. Rules
// are pure: same recording, same findings.
package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/tune"
)

// Severity orders findings; the greater, the worse.
type Severity int

const (
	// Notice is worth knowing and needs no action.
	Notice Severity = iota + 1
	// Warning will become a failure if nothing changes.
	Warning
	// Critical: connections are being lost now.
	Critical
)

var severityNames = map[Severity]string{Notice: "notice", Warning: "warning", Critical: "critical"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText makes the JSON form the name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name back.
func (s *Severity) UnmarshalText(text []byte) error {
	for severity, name := range severityNames {
		if name == string(text) {
			*s = severity
			return nil
		}
	}
	return fmt.Errorf("severity %q: expected notice, warning or critical", text)
}

// Finding is one fault, or one that is coming.
type Finding struct {
	// ID is stable, kebab-case: ct-table-full.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Title    string   `json:"title"`
	// Confidence is "certain" (the kernel says so itself), "likely" or "possible".
	Confidence  string     `json:"confidence"`
	Evidence    []Evidence `json:"evidence"`
	Cause       string     `json:"cause"`
	Consequence string     `json:"consequence"`
	Remedies    []Remedy   `json:"remedies"`
}

// Evidence is one observed value and where it was read.
type Evidence struct {
	What string `json:"what"`
	// Value is a number (int64, float64) or a string.
	Value  any    `json:"value"`
	Unit   string `json:"unit,omitempty"`
	Source string `json:"source"`
}

// Remedy is one way out. Without Changes it is advice.
type Remedy struct {
	Title string `json:"title"`
	// Automatic remedies may be applied by --fix; the others are advice only.
	Automatic bool          `json:"automatic"`
	Changes   []tune.Change `json:"changes,omitempty"`
	Predicts  string        `json:"predicts,omitempty"`
	Cost      string        `json:"cost,omitempty"`
	Risk      string        `json:"risk,omitempty"`
}
