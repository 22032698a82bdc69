package diagnose

import (
	_ "embed"
	"slices"
	"sync"

	"go.yaml.in/yaml/v4"
)

// ModesSchema names the JSON form of the list of failure modes.
const ModesSchema = "natkit.failure-modes/1"

// Mode is one way in which NAT, or what is mistaken for it, fails.
type Mode struct {
	// Name is stable, kebab-case. It is not the ID of a finding: a mode may have several.
	Name   string     `json:"name" yaml:"mode"`
	Title  string     `json:"title"`
	Status ModeStatus `json:"status"`
	// Findings are the IDs of the rules that report it; Scenarios the names of the lab's that
	// make it.
	Findings  []string `json:"findings"`
	Scenarios []string `json:"scenarios"`
	// VM and Recording are the file, from the root of the source, that shows a mode which no
	// scenario makes: a test in a VM, or a rule's cases.
	VM        string `json:"vm_test,omitempty"`
	Recording string `json:"recording,omitempty"`
	// Note is why no scenario makes it, or what shows it where no rule does.
	Note string `json:"note,omitempty"`
}

// ModeStatus is how a mode is reported.
type ModeStatus string

const (
	// ByScenario: a rule reports it, and a scenario of the lab makes it on a real kernel.
	ByScenario ModeStatus = "scenario"
	// ByVM: a rule reports it, and a test in a VM makes it, on a kernel that still has it.
	ByVM ModeStatus = "vm"
	// ByRecording: a rule reports it, and only recordings show that.
	ByRecording ModeStatus = "recording"
	// NotVisible: nothing that can be read on the host shows it.
	NotVisible ModeStatus = "not-visible"
	// NotReported: it could be read, and no rule reports it yet.
	NotReported ModeStatus = "not-reported"
)

//go:embed modes.yaml
var modesYAML []byte

// allModes are those of modes.yaml, with their status.
var allModes = sync.OnceValue(func() (all []Mode) {
	if err := yaml.Load(modesYAML, &all, yaml.WithKnownFields()); err != nil {
		panic(err) // the file is part of the program
	}
	for i := range all {
		m := &all[i]
		m.Findings, m.Scenarios = append([]string{}, m.Findings...), append([]string{}, m.Scenarios...)
		if m.Status == "" {
			m.Status = m.shownBy()
		}
	}
	return all
})

// shownBy is the status of a mode that a rule reports.
func (m *Mode) shownBy() ModeStatus {
	switch {
	case len(m.Scenarios) > 0:
		return ByScenario
	case m.VM != "":
		return ByVM
	}
	return ByRecording
}

// Modes are the failure modes that natkit knows, with the rules that report them.
func Modes() []Mode { return slices.Clone(allModes()) }
