package cli

import "github.com/spf13/cobra"

// verbs lists the commands, in the order in which help shows them.
func verbs(env *Env) []*cobra.Command {
	return []*cobra.Command{
		newDoctor(env),
		newLab(env),
		newSnapshot(env),
		newBench(env),
		newTune(env),
	}
}
