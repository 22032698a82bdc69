// Package cli turns command lines into one call and one rendered report each.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/report"
)

// Exit codes, the same for every verb.
const (
	exitOK       = 0
	exitFailed   = 1 // the operation failed
	exitUsage    = 2 // the command line was wrong, or a file does not parse
	exitFindings = 3 // done, and there are findings, or an expectation was not met
	// exitIncomplete: done in part, and nothing was found in that.
	exitIncomplete  = 4
	exitInterrupted = 130 // as shells say it of SIGINT
)

// Env is what a command may use of the process around it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// The streams that are terminals.
	StdinTerminal, StdoutTerminal, StderrTerminal bool

	Getenv func(string) string
	// Version is printed by --version.
	Version string
	// Build is what `natkit version` says besides.
	Build Build

	standardFlags
}

// errFindings makes natkit exit with 3 without a message: the report said it all.
var errFindings = errors.New("there are findings")

// errIncomplete and errCutShort are the same for 4 and 130.
var (
	errIncomplete = errors.New("not all could be looked at")
	errCutShort   = errors.New("interrupted")
)

// Run executes one command line (without the program's name) and returns the
// exit code.
func Run(ctx context.Context, env Env, args []string) int {
	root := newRoot(&env)
	root.SetArgs(conntrackHabits(arrows(args)))
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	began := time.Now()
	cmd, err := root.ExecuteContextC(ctx)
	env.detail("%s took %s", cmd.CommandPath(), time.Since(began).Round(time.Millisecond))
	return exitCode(env.Stderr, cmd, err)
}

// exitStatus makes natkit exit as a program did that it ran for the user, and
// that said itself what was wrong.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func exitCode(stderr io.Writer, cmd *cobra.Command, err error) int {
	var usage usageError
	var status exitStatus
	var file malformedError
	var syntax *document.SyntaxError
	switch {
	case errors.As(err, &status):
		return int(status)
	case err == nil:
		return exitOK
	case errors.Is(err, errFindings):
		return exitFindings
	case errors.Is(err, errIncomplete):
		return exitIncomplete
	case errors.Is(err, errCutShort):
		return exitInterrupted
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "natkit: %s\nsee '%s --help'\n", said(err), cmd.CommandPath())
		return exitUsage
	case errors.As(err, &syntax):
		fmt.Fprintf(stderr, "natkit: %s\n", said(err))
		if syntax.Excerpt != "" {
			fmt.Fprintln(stderr, syntax.Excerpt)
		}
		return exitUsage
	case errors.As(err, &file):
		fmt.Fprintf(stderr, "natkit: %s\n", said(err))
		return exitUsage
	default:
		fmt.Fprintf(stderr, "natkit: %s\n", said(err))
		return exitFailed
	}
}

// said is the text of an error for a terminal: names of files in it may be anybody's.
// Only a signal cancels what natkit does.
func said(err error) string {
	lines := strings.Split(strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted"), "\n")
	for i := range lines {
		lines[i] = report.Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

func newRoot(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "natkit",
		Short: "find out why NAT on this machine is slow or loses connections, fix it, prove it",
		Long: `natkit finds out why NAT on this machine is slow or loses connections, fixes it,
and proves the fix under load.`,
		Example: `  sudo natkit doctor               # is this host healthy?
  sudo natkit lab run table-full   # a failure, its diagnosis and its cure, in half a minute`,
		Version:       env.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("natkit {{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root))
	fitHelp(env, root)
	for _, group := range verbs(env) {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, verb := range group.verbs {
			verb.GroupID = group.title
			root.AddCommand(verb)
		}
	}
	setUp(root, env)
	return root
}

// setUp gives all commands below root what is the same for all of them.
func setUp(root *cobra.Command, env *Env) {
	root.SetFlagErrorFunc(flagError)
	env.addStandardFlags(root)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := env.setOutput(cmd); err != nil {
			return err
		}
		if err := checkFlagGroups(cmd); err != nil {
			return err
		}
		if cmd.Flags().Lookup("netns") != nil {
			env.detail("network namespace: %s", chosenNetns(cmd))
		}
		return nil
	}
	addBuiltIn(root)
	requireKnownWords(root)
}

// runsItself marks a command that does something of its own besides having others
// below it.
var runsItself = map[string]string{"runs-itself": "true"}

// usageTemplate is cobra's, but a command that only has others below it is not
// shown as one that could be run.
func usageTemplate(root *cobra.Command) string {
	return strings.Replace(root.UsageTemplate(), "{{if .Runnable}}",
		`{{if and .Runnable (or (not .HasAvailableSubCommands) (index .Annotations "runs-itself"))}}`, 1)
}

// fitHelp lays help out for the screen, where its width is known.
func fitHelp(env *Env, root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		columns := env.columns()
		if columns == 0 {
			help(cmd, args)
			return
		}
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		fmt.Fprint(out, report.Reflow(text.String(), columns))
	})
}

// addBuiltIn adds the commands that cobra brings along, so that what is true of
// ours is true of them.
func addBuiltIn(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Short = "tell more about a command"
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil && len(rest) == 0 {
					rest = args
				}
				if len(rest) > 0 {
					return unknownCommand(cmp.Or(found, root), rest[0])
				}
				return nil
			}
		case "completion":
			cmd.Short = "print the completion script for a shell: bash, zsh, fish, powershell"
		}
	}
}

// requireKnownWords makes a wrong sub-command or stray argument a usage error
// everywhere, instead of help and exit code 0.
func requireKnownWords(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}
		cmd.Args = cobra.ArbitraryArgs
	}
	if check := cmd.Args; check != nil {
		cmd.Args = checkArgs(check)
	}
	for _, sub := range cmd.Commands() {
		requireKnownWords(sub)
	}
}
