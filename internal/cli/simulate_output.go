package cli

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/simulate"
)

// simulateOutputs are the files that simulate writes besides its report.
type simulateOutputs struct{ csv, html string }

func (o *simulateOutputs) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.csv, "csv", "", "write the curves to `FILE`, - for stdout instead of the report")
	cmd.Flags().StringVar(&o.html, "html", "", "write one self-contained page to `FILE`")
}

func (o *simulateOutputs) check(asJSON bool) error {
	switch {
	case o.csv == "-" && asJSON:
		return usagef("--csv -: --json prints to stdout, too: give one of them")
	case o.html == "-":
		return usagef("--html -: give the name of a file")
	case o.csv != "" && o.html != "" && filepath.Clean(o.csv) == filepath.Clean(o.html):
		return usagef("--html %s: --csv writes there, too", o.html)
	}
	return nil
}

func (o *simulateOutputs) usesStdout() bool { return o.csv == "-" }

func (o *simulateOutputs) mayWrite() error {
	for flag, name := range map[string]string{"csv": o.csv, "html": o.html} {
		if name == "" || name == "-" {
			continue
		}
		if err := mayWrite(name); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// write writes the files, each whole or not at all.
func (o *simulateOutputs) write(env *Env, r *simulate.Result) error {
	csv := func(w io.Writer) error { return report.SimulateCSV(w, r) }
	switch {
	case o.usesStdout():
		if err := csv(env.Stdout); err != nil {
			return fmt.Errorf("write to stdout: %w", err)
		}
	case o.csv != "":
		if err := writeWhole(o.csv, 0o644, csv); err != nil {
			return fmt.Errorf("--csv: %w", err)
		}
	}
	if o.html == "" {
		return nil
	}
	if err := writeWhole(o.html, 0o644, func(w io.Writer) error { return report.SimulateHTML(w, r) }); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}
