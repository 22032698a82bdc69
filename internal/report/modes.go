package report

import (
	"io"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
)

// Modes are the failure modes that doctor knows.
type Modes struct {
	Schema string          `json:"schema"`
	Modes  []diagnose.Mode `json:"modes"`
}

// NewModes returns all of them.
func NewModes() Modes { return Modes{Schema: diagnose.ModesSchema, Modes: diagnose.Modes()} }

// modeTones has those of modes that doctor cannot report.
var modeTones = map[diagnose.ModeStatus]Tone{diagnose.NotVisible: Dim, diagnose.NotReported: Warn}

// Text writes a table.
func (d Modes) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	t := &Table{Columns: []Column{{Head: "mode"}, {Head: "status"}, {Head: "findings"}, {Head: "fault, and what shows it", Below: true}}}
	for _, m := range d.Modes {
		t.Cells(Cell{Text: m.Name}, Cell{string(m.Status), modeTones[m.Status]}, Cell{Text: strings.Join(m.Findings, " ")}, Cell{m.Title + "; " + shownBy(m), Dim})
	}
	p.table(t)
	return p.err
}

// shownBy names the scenarios, or the test or recording, and why there is no scenario.
func shownBy(m diagnose.Mode) string {
	if len(m.Scenarios) > 0 {
		return "natkit lab run " + strings.Join(m.Scenarios, ", ")
	}
	shown := slices.DeleteFunc([]string{m.VM, m.Recording, m.Note}, func(s string) bool { return s == "" })
	return strings.Join(shown, ": ")
}
