package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/profile"
)

// profileOutputs are the files that profile writes besides its report.
type profileOutputs struct {
	flame, pprof, folded string
}

func (o *profileOutputs) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.flame, "flame", "", "write a flame graph to `FILE`.html: one page that needs no network")
	cmd.Flags().StringVar(&o.pprof, "pprof", "", "write the samples to `FILE`, for 'go tool pprof'")
	cmd.Flags().StringVar(&o.folded, "folded", "", "write one line per stack to `FILE`, - for stdout instead of the report")
}

// profileOutput is one of the files.
type profileOutput struct {
	flag, name string
	write      func(*profile.Stacks, io.Writer) error
}

// all are the files that are wanted.
func (o *profileOutputs) all() []profileOutput {
	var wanted []profileOutput
	for _, out := range []profileOutput{
		{"flame", o.flame, (*profile.Stacks).WriteFlame},
		{"pprof", o.pprof, (*profile.Stacks).WritePprof},
		{"folded", o.folded, (*profile.Stacks).WriteFolded},
	} {
		if out.name != "" {
			wanted = append(wanted, out)
		}
	}
	return wanted
}

func (o *profileOutputs) check(env *Env, asJSON bool) error {
	seen := map[string]string{}
	for _, out := range o.all() {
		switch other := seen[out.name]; {
		case other != "":
			return usagef("--%s %s: --%s writes there, too", out.flag, out.name, other)
		case out.name == "-" && asJSON:
			return usagef("--%s -: --json prints to stdout, too: give one of them", out.flag)
		case out.name == "-" && out.flag == "pprof" && env.StdoutTerminal:
			return usagef("--pprof -: stdout is a terminal and the profile is binary: redirect it")
		}
		seen[out.name] = out.flag
	}
	return nil
}

// usesStdout reports whether a file goes where the report would.
func (o *profileOutputs) usesStdout() bool {
	for _, out := range o.all() {
		if out.name == "-" {
			return true
		}
	}
	return false
}

func (o *profileOutputs) mayWrite() error {
	for _, out := range o.all() {
		if out.name == "-" {
			continue
		}
		if err := mayWrite(out.name); err != nil {
			return fmt.Errorf("--%s: %w", out.flag, err)
		}
	}
	return nil
}

// write writes the files, each whole or not at all.
func (o *profileOutputs) write(env *Env, stacks *profile.Stacks) error {
	for _, out := range o.all() {
		write := func(w io.Writer) error { return out.write(stacks, w) }
		if out.name == "-" {
			if err := write(env.Stdout); err != nil {
				return fmt.Errorf("write to stdout: %w", err)
			}
			continue
		}
		if err := writeWhole(out.name, 0o644, write); err != nil {
			return fmt.Errorf("--%s: %w", out.flag, err)
		}
	}
	return nil
}
