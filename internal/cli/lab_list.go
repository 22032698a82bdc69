package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
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
	Finding  string   `json:"expected_finding,omitempty"`
}

func newLabList(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "list the scenarios that natkit brings along, and the labs that are up",
		Example: "  natkit lab list\n  natkit lab list --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			up, err := build.States(env.Getenv(runDirEnv))
			if err != nil {
				return err
			}
			return describeLabs(up).print(env.Stdout, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document ("+labListSchema+")")
	return cmd
}

func describeLabs(up []build.State) labList {
	list := labList{Schema: labListSchema, Up: append([]build.State{}, up...)}
	for _, s := range lab.Scenarios() {
		d := labScenario{
			Name: s.Name, Title: s.Title, About: s.About,
			Topology: s.Lines(), Bridge: s.Topology.Bridge != nil, Finding: s.Expect.Finding,
		}
		for _, st := range s.Stages {
			d.Stages = append(d.Stages, st.Name)
		}
		list.Scenarios = append(list.Scenarios, d)
	}
	return list
}

func (l labList) print(w io.Writer, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(l)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SCENARIO\tWHAT IT SHOWS")
	for _, s := range l.Scenarios {
		fmt.Fprintf(table, "%s\t%s\n", s.Name, s.Title)
	}
	if len(l.Up) > 0 {
		fmt.Fprintln(table, "\nUP\tSTAGE\tSERVER\tPID\tSINCE")
	}
	for _, s := range l.Up {
		stage := s.Stage
		if stage == "" {
			stage = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", s.Name, stage, s.Server, s.PID, s.Started.Local().Format("2006-01-02 15:04:05"))
	}
	return table.Flush()
}
