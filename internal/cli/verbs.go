package cli

import "github.com/spf13/cobra"

// verbGroup is a heading in the help, with the verbs below it.
type verbGroup struct {
	title string
	verbs []*cobra.Command
}

// verbs lists the commands, by what somebody wants to do.
func verbs(env *Env) []verbGroup {
	return []verbGroup{
		{"Find the fault and fix it:", []*cobra.Command{newDoctor(env), newSnapshot(env), newTune(env), newSysctl(env)}},
		{"Translate addresses:", []*cobra.Command{newGateway(env)}},
		{"See what the kernel does:", []*cobra.Command{newTop(env), newConntrack(env), newPorts(env), newDrops(env), newProfile(env), newPath(env), newPcap(env)}},
		{"Reproduce, measure, predict:", []*cobra.Command{newLab(env), newBench(env), newSimulate(env)}},
		{"About natkit:", []*cobra.Command{newVersion(env)}},
	}
}
