package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/report"
)

func newLabUp(env *Env) *cobra.Command {
	hold := build.Hold{}
	var server string
	cmd := &cobra.Command{
		Use:   "up SCENARIO|FILE.yaml",
		Short: "build a scenario's network and keep it, to play in",
		Long: `Builds the scenario's network, starts its web server, sets the NAT rules and the
fill of one of its stages, and keeps all that in the background until 'natkit lab
down'. The first stage with NAT rules is taken unless --stage names another.

A small process named natkit-lab-hold keeps the lab; when it ends, also by
kill -9, every namespace, link and process of the lab is gone. Needs root.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit lab exec client -- curl -s http://198.18.0.1:8080/
  sudo natkit lab up table-full --stage fault --bridge`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hold.Dir, hold.Server = env.Getenv(runDirEnv), build.ServerKind(server)
			scenario, err := nameHold(&hold, args[0], cmd.Flags().Changed("stage"))
			if err != nil {
				return err
			}
			state, err := hold.Start(cmd.Context())
			if err != nil {
				return err
			}
			return printUp(env.Stdout, howCalled(env.Getenv), scenario, state)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&hold.Bridge, "bridge", false, "put the server behind a bridge with br_netfilter, as Docker does")
	flags.StringVar(&server, "server", string(build.Auto), "web server: nginx, builtin, or auto (nginx if installed)")
	flags.StringVar(&hold.Stage, "stage", "", "`STAGE` whose NAT rules and fill the lab gets; empty for none")
	return cmd
}

// nameHold fills in which scenario is meant, and which stage where none was named.
func nameHold(hold *build.Hold, arg string, stageNamed bool) (*lab.Scenario, error) {
	if isScenarioFile(arg) {
		text, err := readFile("scenario", arg, lab.MaxSource)
		if err != nil {
			return nil, err
		}
		hold.File, hold.Text = arg, string(text)
	} else {
		hold.Name = arg
	}
	scenario, err := hold.Scenario()
	if err != nil && hold.File == "" {
		return nil, usageError{err}
	}
	if err != nil || stageNamed {
		return scenario, malformed(err)
	}
	for _, stage := range scenario.Stages {
		if len(stage.NAT) > 0 && len(stage.Host) == 0 {
			hold.Stage = stage.Name
			break
		}
	}
	return scenario, nil
}

// howCalled is what calls natkit again: by its path where it is not in PATH, and
// with sudo where that was used now.
func howCalled(getenv func(string) string) string {
	natkit := "natkit"
	if _, err := exec.LookPath(natkit); err != nil {
		if path, err := os.Executable(); err == nil {
			natkit = path
		}
	}
	if getenv("SUDO_USER") != "" {
		natkit = "sudo " + natkit
	}
	return natkit
}

// printUp says what stands and what to try.
func printUp(w io.Writer, natkit string, s *lab.Scenario, state build.State) error {
	var b strings.Builder
	fmt.Fprintf(&b, "lab %s is up, kept by pid %d\n", state.Name, state.PID)
	for _, line := range state.Topology {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	fmt.Fprintf(&b, "  %s on %s in %s\n", state.Server, s.ServerAddr(), s.Topology.Server.Node)
	from, router := s.Client(), s.Topology.Server.Node
	url := "http://" + s.ServerAddr().String() + "/"
	if stage, ok := s.Stage(state.Stage); ok {
		fmt.Fprintf(&b, "  stage %s: %s\n", stage.Name, report.Clean(stage.About))
		url = cmp.Or(stage.URL, url)
		for _, rule := range stage.NAT {
			fmt.Fprintf(&b, "  %s\n", rule)
			router = rule.Node
		}
	}
	fmt.Fprintf(&b, "\ntry:\n")
	try := func(format string, args ...any) { fmt.Fprintf(&b, "  "+natkit+" lab "+format+"\n", args...) }
	try("exec %s -- curl -s %s", from, url)
	try("exec %s -- natkit bench http -c 100 -n 10000 %s", from, url)
	try("exec %s -- natkit doctor", router)
	try("exec %s -- bash", router)
	try("down %s", state.Name)
	_, err := io.WriteString(w, b.String())
	return err
}
