//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

func newLab(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "reproduce NAT's failure modes on this kernel, in network namespaces",
		Long: `Build small networks of network namespaces, with a real web server and the real
netfilter of this kernel, and reproduce failure modes in them, to demonstrate, test and
measure.`,
		Example: `  natkit lab list
  sudo natkit lab run table-full
  sudo natkit lab up table-full && sudo natkit lab exec client -- ping -c 3 198.19.0.2`,
	}
	cmd.AddCommand(newLabRun(env), newLabList(env), newLabUp(env), newLabExec(env), newLabDown(env), newLabFill(env), newLabClean(env))
	return cmd
}

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
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "list the built-in scenarios, faults and healthy ones, and the labs that are up",
		Example: "  natkit lab list\n  natkit lab list --json",
		RunE: func(*cobra.Command, []string) error {
			up, err := build.States(env.Getenv(runDirEnv))
			return errors.Join(env.print(describeLabs(up)), err)
		},
	}
	env.addJSON(cmd, labListSchema)
	return cmd
}

func describeLabs(up []build.State) labList {
	l := labList{Schema: labListSchema, Up: list(up)}
	for _, s := range lab.Matrix(lab.Scenarios()) {
		d := labScenario{
			Name: s.Name, Title: s.Title, About: s.About,
			Topology: s.Lines(), Bridge: s.Topology.Bridge != nil, Finding: s.Expect.Finding,
			Healthy: s.Healthy(), NeedsHost: s.NeedsHost(),
		}
		for _, st := range s.Stages {
			d.Stages = append(d.Stages, st.Name)
		}
		l.Scenarios = append(l.Scenarios, d)
	}
	return l
}

func (l labList) Text(w io.Writer, style report.Style) error {
	scenarios := &report.Table{Columns: []report.Column{{Head: "scenario"}, {Head: "fault"}, {Head: "what it shows", Wrap: true}}}
	for _, s := range l.Scenarios {
		fault := cmp.Or(s.Finding, "-")
		if s.Healthy {
			fault = "none"
		}
		scenarios.Row(s.Name, fault, s.Title)
	}
	if err := scenarios.Write(w, style); err != nil || len(l.Up) == 0 {
		return err
	}
	fmt.Fprintln(w)
	up := &report.Table{Columns: []report.Column{{Head: "up"}, {Head: "stage"}, {Head: "server"}, {Head: "pid", Right: true}, {Head: "since"}}}
	for _, s := range l.Up {
		up.Row(s.Name, cmp.Or(s.Stage, "-"), s.Server, fmt.Sprint(s.PID), s.Started.Local().Format(time.DateTime))
	}
	return up.Write(w, style)
}

func newLabUp(env *Env) *cobra.Command {
	hold := build.Hold{}
	cmd := &cobra.Command{
		Use:   "up SCENARIO|FILE.yaml",
		Short: "build a scenario's network and keep it, to experiment in",
		Long: `Build the scenario's network, start its web server, set the NAT rules and the fill of
one of its stages, and keep all that in the background until 'natkit lab down', or until
its process natkit-lab-hold ends. The stage is the first one with NAT rules unless
--stage names another. Needs root.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit lab exec client -- curl -s http://198.18.0.1:8080/
  sudo natkit lab up table-full --stage fault --bridge`,
		RunE: func(cmd *cobra.Command, args []string) error {
			hold.Dir = env.Getenv(runDirEnv)
			scenario, err := nameHold(cmd.Context(), env, &hold, args[0], cmd.Flags().Changed("stage"))
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
	addServer(cmd, &hold.Server)
	flags.StringVar(&hold.Stage, "stage", "", "`STAGE` whose NAT rules and fill the lab gets; empty for none")
	return cmd
}

// nameHold fills in which scenario is meant, and which stage where none was named.
func nameHold(ctx context.Context, env *Env, hold *build.Hold, arg string, stageNamed bool) (*lab.Scenario, error) {
	if isScenarioFile(arg) {
		text, err := env.read(ctx, "scenario", arg, lab.MaxSource, "")
		if err != nil {
			return nil, err
		}
		hold.File, hold.Text = arg, string(text)
	} else {
		hold.Name = arg
	}
	scenario, err := hold.Scenario()
	if err != nil && hold.File == "" {
		return nil, usage(err)
	}
	if err != nil || stageNamed {
		return scenario, malformed(err)
	}
	for _, stage := range scenario.Stages {
		if (len(stage.NAT) > 0 || stage.Gateway != nil) && len(stage.Host) == 0 {
			hold.Stage = stage.Name
			break
		}
	}
	return scenario, nil
}

// printUp prints the nodes of a lab that is up, and commands to try.
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
		if g := stage.Gateway; g != nil {
			router = g.Node
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

// execGrace is how long a program may take to exit after natkit was interrupted: the
// terminal interrupted it too.
const execGrace = 2 * time.Second

func newLabExec(env *Env) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARG…]",
		Short: "run a command in a node of a lab that is up",
		Long: `Run a command in the network namespace of a node, among the lab's processes: it ends
with the lab. The exit code is the command's, 127 where there is no such command. natkit is in its PATH, whether it is
installed or not; sudo uses the host's natkit, and is not required. Needs root.`,
		Example: `  sudo natkit lab exec client -- ping -c 3 198.19.0.2
  sudo natkit lab exec gateway -- conntrack -L
  sudo natkit lab exec gateway -- natkit doctor
  sudo natkit lab exec --lab table-full gateway -- bash`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := place{node: args[0], lab: name}
			if err := p.open(cmd, env); err != nil {
				return err
			}
			defer p.close()
			return execInLab(cmd.Context(), env, p.inLab, args)
		},
	}
	addLab(cmd, &name)
	// What follows NODE is the command's.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func execInLab(ctx context.Context, env *Env, l *build.Lab, args []string) error {
	command := args[1:]
	if command[0] == "--" { // the flags end at NODE, so this one is left over
		command = command[1:]
	}
	if len(command) == 0 {
		return usagef("no command given")
	}
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	p, err := l.Start(ctx, args[0], build.Command{
		Path: command[0], Args: command[1:], Dir: here,
		Stdin: env.Stdin, Stdout: env.Stdout, Stderr: env.Stderr,
		Foreground: true,
	})
	var program *exec.Error
	if errors.As(err, &program) {
		fmt.Fprintf(env.Stderr, "natkit: %s\n", said(err))
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return exitStatus(127) // as shells do
		}
		return exitStatus(126)
	}
	if err != nil {
		return err
	}
	return await(ctx, p)
}

func await(ctx context.Context, p *build.Process) error {
	select {
	case <-p.Done():
	case <-ctx.Done():
		select {
		case <-p.Done():
		case <-time.After(execGrace):
			p.Kill()
		}
	}
	err := p.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitStatus(128 + int(status.Signal())) // as shells do
	}
	return exitStatus(exit.ExitCode())
}

// attachLab enters the lab of that name, or the only one, which another natkit keeps up.
func attachLab(env *Env, name string) (*build.Lab, string, error) {
	dir := env.Getenv(runDirEnv)
	state, err := chooseLab(dir, name)
	if err != nil {
		return nil, "", err
	}
	l, err := build.Attach(dir, state)
	return l, state.Name, err
}

// chooseLab is the lab of that name, or the only one.
func chooseLab(dir, name string) (build.State, error) {
	up, damaged := build.States(dir)
	names := make([]string, len(up))
	for i, s := range up {
		names[i] = s.Name
		if s.Name == name {
			return s, nil
		}
	}
	switch {
	case len(up) == 0 && damaged != nil:
		return build.State{}, damaged
	case len(up) == 0:
		return build.State{}, errors.New("no lab is up; 'natkit lab up NAME' builds one")
	case name != "":
		return build.State{}, fmt.Errorf("lab %q is not up%s; up are: %s", name, document.Hint(name, names), strings.Join(names, ", "))
	case len(up) > 1:
		return build.State{}, usagef("several labs are up (%s): choose one by name", strings.Join(names, ", "))
	}
	return up[0], nil
}

func newLabDown(env *Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down [NAME]",
		Short: "take down a lab that is up",
		Long: `Take down one lab, the only one where no name is given, or all of them: none is then
no error. Needs root.`,
		Example: "  sudo natkit lab down table-full\n  sudo natkit lab down --all",
		Args:    argsUnless(takes, "all"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := env.Getenv(runDirEnv)
			which, err := labsToEnd(dir, args, all)
			if err != nil && len(which) == 0 {
				return err
			}
			return errors.Join(endLabs(env, dir, which), err)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "take down every lab that is up")
	return cmd
}

func labsToEnd(dir string, args []string, all bool) ([]build.State, error) {
	if len(args) == 0 {
		up, err := build.States(dir)
		if len(up) > 1 && !all {
			_, err := chooseLab(dir, "")
			return nil, err
		}
		return up, err
	}
	s, err := build.ReadState(dir, args[0])
	if errors.Is(err, os.ErrNotExist) {
		s, err = chooseLab(dir, args[0])
	}
	if err != nil {
		return nil, err
	}
	return []build.State{s}, nil
}

func endLabs(env *Env, dir string, which []build.State) error {
	if len(which) == 0 {
		return env.say("no lab is up\n")
	}
	var errs []error
	for _, s := range which {
		if err := build.Down(dir, s); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, env.say("lab %s is down\n", s.Name))
	}
	return errors.Join(errs...)
}

func newLabClean(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "restore what a lab changed on the host and could not restore itself",
		Long: `Read the journal and undo every change whose natkit is gone. A value is restored only
where it is still the one that natkit wrote. Changes that were applied to stay ('natkit
tune apply', 'natkit doctor --fix') are left alone, unless the time to confirm them has
expired; one that waits for that without its guard is listed. Also remove the entries of every 'natkit lab fill' that no running natkit keeps
up, those left by --keep too, and the eBPF programs of gateways in network namespaces that are gone.`,
		Example: "  sudo natkit lab clean",
		RunE:    func(cmd *cobra.Command, _ []string) error { return clean(cmd.Context(), env) },
	}
}

func clean(ctx context.Context, env *Env) error {
	fills, fillErr := removeFills(ctx, env, 0)
	results, waits, err := gatewayTuner(env).clean()
	programs, sweepErr := engine.Standard.Sweep()
	err = errors.Join(err, sweepErr)
	if len(results)+len(waits)+len(fills.Removed)+len(programs) == 0 && err == nil && fillErr == nil {
		fmt.Fprintln(env.Stdout, "nothing to clean")
	}
	if len(fills.Removed)+len(fills.Held) > 0 {
		fillErr = errors.Join(fillErr, fills.Text(env.Stdout, env.style()))
	}
	for _, dir := range programs {
		err = errors.Join(err, env.say("removed the eBPF programs pinned in %s: their network namespace is gone\n", dir))
	}
	return errors.Join(err, resultsText(env.Stdout, env.style(), results), env.say("%s", waits), fillErr)
}

// place is a network namespace that may be the one of a lab's node.
type place struct {
	*target
	// lab is needed where several are up.
	node, lab string

	ns *netns.Handle
	// where names it, inLab is set of a node; neither before open.
	where string
	inLab *build.Lab
}

// open finds the namespace, nil for the one natkit runs in. close releases it.
func (p *place) open(cmd *cobra.Command, env *Env) (err error) {
	if p.node == "" {
		p.where = p.target.name()
		p.ns, err = p.target.open(cmd)
		return err
	}
	name := ""
	if p.inLab, name, err = attachLab(env, p.lab); err != nil {
		return err
	}
	n, err := p.inLab.FindNode(p.node)
	if err != nil {
		p.close()
		return usagef("lab %s: %w", name, err)
	}
	p.ns, p.where = n.Netns, fmt.Sprintf("%s of lab %s", p.node, name)
	return nil
}

// close leaves a lab up.
func (p *place) close() {
	if p.inLab != nil {
		_ = p.inLab.Close()
		return
	}
	_ = p.ns.Close()
}

// addLab adds --lab.
func addLab(cmd *cobra.Command, lab *string) {
	cmd.Flags().StringVar(lab, "lab", "", "`NAME` of the lab, where several are up")
}
