package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/simulate"
)

// simulator is the verb simulate.
type simulator struct {
	env         *Env
	preset      string
	list        bool
	printConfig bool
	knobs       simulateKnobs
	outputs     simulateOutputs
	asJSON      bool
}

func newSimulate(env *Env) *cobra.Command {
	s := &simulator{env: env}
	cmd := &cobra.Command{
		Use:   "simulate [CONFIG.yaml]",
		Short: "predict what port reuse, TIME_WAIT, timestamps and a balancer's sessions do to connections",
		Long: `Compute, connection by connection, what becomes of the load of many clients behind
one NAT: which ports the NAT gives them, whether the server still has a TIME_WAIT
for that port, whether it takes the SYN or answers it with the former connection's
ACK, since the timestamp or the sequence number went back, and to which server a
load balancer sends it. Nothing is measured and nothing on this host is read or
changed; it needs no privilege.

The first lines say from which rate on SYNs are refused, how many, and what the
limit is: ports divided by the time for which they are in use. Below are the curves.

What is simulated is a configuration file (docs/simulate.md has its language), or a
preset: --list names them, among them the case of an old kernel's TIME_WAIT of
112.5 s, what was tried against it, and what the lab's scenario port-reuse-paws sends.
--print-config prints one to begin with. Flags change what the configuration says.

The same configuration and seed give the same result, byte by byte. An interrupt
(Ctrl-C) ends the simulation without a result.`,
		Example: `  natkit simulate --list
  natkit simulate --preset old-kernel
  natkit simulate --preset old-kernel --addresses 3 --html page.html
  natkit simulate --rate 800 --kernel 3.10 --lb          # without a file
  natkit simulate --preset mixed --print-config > mine.yaml && natkit simulate mine.yaml
  natkit simulate --arrivals rates.csv --csv - > curves.csv
  natkit simulate --preset lab --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.run(cmd, args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.preset, "preset", "", "simulate the preset `NAME`")
	flags.BoolVar(&s.list, "list", false, "list the presets")
	flags.BoolVar(&s.printConfig, "print-config", false, "print the configuration as YAML instead of simulating it")
	s.knobs.addFlags(cmd)
	s.outputs.addFlags(cmd)
	addJSON(cmd, &s.asJSON, simulate.Schema)
	cmd.MarkFlagsMutuallyExclusive("rate", "arrivals")
	cmd.MarkFlagsMutuallyExclusive("list", "preset")
	cmd.MarkFlagsMutuallyExclusive("list", "print-config")
	cmd.MarkFlagsMutuallyExclusive("print-config", "json")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"preset": completePresets})
	return cmd
}

func completePresets(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range simulate.Presets() {
		names = append(names, p.Name+"\t"+p.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (s *simulator) run(cmd *cobra.Command, args []string) error {
	if err := s.check(args); err != nil {
		return err
	}
	if s.list {
		return s.printList()
	}
	c, text, err := s.config(cmd, args)
	if err != nil {
		return err
	}
	if s.printConfig {
		return printConfig(s.env.Stdout, c, text)
	}
	// Better now than after the simulation.
	if err := s.outputs.mayWrite(); err != nil {
		return err
	}
	r, err := s.simulate(cmd.Context(), c)
	if err != nil {
		return err
	}
	return s.print(r)
}

func (s *simulator) check(args []string) error {
	switch {
	case s.preset != "" && len(args) > 0:
		return usagef("--preset %s and %s: give one of them", s.preset, args[0])
	case s.list && len(args) > 0:
		return usagef("--list goes alone, or with --json")
	}
	return s.outputs.check(s.asJSON)
}

// simulate shows how far it is.
func (s *simulator) simulate(ctx context.Context, c *simulate.Config) (*simulate.Result, error) {
	progress := s.env.progress()
	defer progress.Clear()
	r, err := simulate.Run(ctx, *c, func(p simulate.Progress) { progress.Show(report.SimulateProgress(p)) })
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("simulate: interrupted; there is no result")
	}
	return r, err
}

// print writes the report even where a file finds no room.
func (s *simulator) print(r *simulate.Result) error {
	err := s.outputs.write(s.env, r)
	switch {
	case s.outputs.usesStdout():
		return err
	case s.asJSON:
		return errors.Join(err, report.JSON(s.env.Stdout, report.NamedSimulation(r)))
	}
	return errors.Join(err, report.Simulate(s.env.Stdout, s.env.style(), r))
}

// simulateListSchema names the JSON form of the list of presets.
const simulateListSchema = "natkit.simulate-list/1"

type simulatePreset struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`
}

func (s *simulator) printList() error {
	t := &report.Table{Columns: []report.Column{{Head: "preset"}, {Head: "what it simulates", Wrap: true}}}
	var list []simulatePreset
	for _, p := range simulate.Presets() {
		list = append(list, simulatePreset{p.Name, p.Title, p.About})
		t.Row(p.Name, p.Title)
	}
	if s.asJSON {
		return report.JSON(s.env.Stdout, struct {
			Schema  string           `json:"schema"`
			Presets []simulatePreset `json:"presets"`
		}{simulateListSchema, list})
	}
	return t.Write(s.env.Stdout, s.env.style())
}

// printConfig prints the text where there is one, with its comments.
func printConfig(w io.Writer, c *simulate.Config, text string) error {
	if text == "" {
		yaml, err := simulate.YAML(c)
		if err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		text = yaml
	}
	_, err := io.WriteString(w, text)
	return err
}
