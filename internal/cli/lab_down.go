package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab/build"
)

func newLabDown(env *Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down [NAME]",
		Short: "take down a lab that is up",
		Long: `Takes down one lab, the only one where no name is given, or all of them: that
none is up is then no error. Needs root.`,
		Example: "  sudo natkit lab down table-full\n  sudo natkit lab down --all",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usagef("give a name or --all, not both")
			}
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
