// Package cli turns command lines into one call and one rendered report each.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit codes, the same for every verb.
const (
	exitOK       = 0
	exitFailed   = 1 // the operation failed
	exitUsage    = 2 // the command line was wrong
	exitFindings = 3 // done, and there are findings, or an expectation was not met
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
}

// errFindings makes natkit exit with 3 without a message: the report said it all.
var errFindings = errors.New("there are findings")

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Run executes one command line (without the program's name) and returns the
// exit code.
func Run(ctx context.Context, env Env, args []string) int {
	root := newRoot(&env)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return exitCode(env.Stderr, cmd, err)
}

// exitStatus makes natkit exit as a program did that it ran for the user, and
// that said itself what was wrong.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func exitCode(stderr io.Writer, cmd *cobra.Command, err error) int {
	var usage usageError
	var status exitStatus
	switch {
	case errors.As(err, &status):
		return int(status)
	case err == nil:
		return exitOK
	case errors.Is(err, errFindings):
		return exitFindings
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "natkit: %v\nsee '%s --help'\n", err, cmd.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(stderr, "natkit: %v\n", err)
		return exitFailed
	}
}

func newRoot(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "natkit",
		Short:         "find out why NAT on this machine is slow or loses connections, fix it, prove it",
		Version:       env.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("natkit {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(verbs(env)...)
	requireKnownWords(root)
	return root
}

// requireKnownWords makes a wrong sub-command or stray argument a usage error
// everywhere, instead of help and exit code 0.
func requireKnownWords(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return usagef("unknown command %q for %q", args[0], c.CommandPath())
		}
		cmd.Args = cobra.ArbitraryArgs
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		requireKnownWords(sub)
	}
}
