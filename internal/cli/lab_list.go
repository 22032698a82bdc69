package cli

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/report"
)

// labListSchema names the JSON form of labList.
const labListSchema = "natkit.lab-list/1"

// runDirEnv replaces build.DefaultDir, for tests and for more than one user of a
// machine.
const runDirEnv = "NATKIT_RUN_DIR"

type labList struct {
	Schema    string        `json:"schema"`
	Scenarios []labScenario `json:"scenarios"`
	Up        []build.State `json:"up"`
}

type labScenario struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	About  string   `json:"about"`
	Stages []string `json:"stages"`
	// Topology is one line per link, for people.
	Topology []string `json:"topology"`
	Bridge   bool     `json:"bridge"`
	// Finding is the fault; Healthy scenarios have none. NeedsHost ones change values of
	// the whole host.
	Finding   string `json:"expected_finding,omitempty"`
	Healthy   bool   `json:"healthy"`
	NeedsHost bool   `json:"needs_allow_host"`
}

func newLabList(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "list the scenarios that natkit brings along, faults and healthy ones, and the labs that are up",
		Example: "  natkit lab list\n  natkit lab list --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			up, err := build.States(env.Getenv(runDirEnv))
			return errors.Join(describeLabs(up).print(env, asJSON), err)
		},
	}
	addJSON(cmd, &asJSON, labListSchema)
	return cmd
}

func describeLabs(up []build.State) labList {
	list := labList{Schema: labListSchema, Up: append([]build.State{}, up...)}
	for _, s := range lab.Matrix(lab.Scenarios()) {
		d := labScenario{
			Name: s.Name, Title: s.Title, About: s.About,
			Topology: s.Lines(), Bridge: s.Topology.Bridge != nil, Finding: s.Expect.Finding,
			Healthy: s.Healthy(), NeedsHost: s.NeedsHost(),
		}
		for _, st := range s.Stages {
			d.Stages = append(d.Stages, st.Name)
		}
		list.Scenarios = append(list.Scenarios, d)
	}
	return list
}

func (l labList) print(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, l)
	}
	scenarios := &report.Table{Columns: []report.Column{{Head: "scenario"}, {Head: "fault"}, {Head: "what it shows", Wrap: true}}}
	for _, s := range l.Scenarios {
		fault := cmp.Or(s.Finding, "-")
		if s.Healthy {
			fault = "none"
		}
		scenarios.Row(s.Name, fault, s.Title)
	}
	if err := scenarios.Write(env.Stdout, env.style()); err != nil || len(l.Up) == 0 {
		return err
	}
	fmt.Fprintln(env.Stdout)
	up := &report.Table{Columns: []report.Column{{Head: "up"}, {Head: "stage"}, {Head: "server"}, {Head: "pid", Right: true}, {Head: "since"}}}
	for _, s := range l.Up {
		up.Row(s.Name, cmp.Or(s.Stage, "-"), s.Server, fmt.Sprint(s.PID), s.Started.Local().Format(time.DateTime))
	}
	return up.Write(env.Stdout, env.style())
}
