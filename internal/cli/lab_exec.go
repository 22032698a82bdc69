package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab/build"
)

// execGrace is how long a program may take to end by itself after natkit was
// told to end: the terminal told it too.
const execGrace = 2 * time.Second

func newLabExec(env *Env) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARG…]",
		Short: "run a command in a node of a lab that is up",
		Long: `Runs a command in the network namespace of a node, among the lab's processes: it
ends with the lab. Exits as the command does. natkit is there by that name, whether it
is installed or not; in a shell there sudo looks for it where the host has it, and is
not needed. Needs root.`,
		Example: `  sudo natkit lab exec client -- ping -c 3 198.19.0.2
  sudo natkit lab exec gateway -- conntrack -L
  sudo natkit lab exec gateway -- natkit doctor
  sudo natkit lab exec --lab table-full gateway -- bash`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := attachLab(env, name)
			if err != nil {
				return err
			}
			defer l.Close()
			return execInLab(cmd.Context(), env, l, args)
		},
	}
	cmd.Flags().StringVar(&name, "lab", "", "`NAME` of the lab, where several are up")
	// What follows NODE is the command's.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func execInLab(ctx context.Context, env *Env, l *attachedLab, args []string) error {
	command := args[1:]
	if command[0] == "--" { // the flags end at NODE, so this one is left over
		command = command[1:]
	}
	if len(command) == 0 {
		return usagef("no command given")
	}
	if _, err := l.node(args[0]); err != nil {
		return err
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
