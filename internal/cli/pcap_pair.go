package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/report"
)

// pairDocument is the JSON form.
type pairDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// InsideFile and OutsideFile are the names given, as it turned out which is which.
	InsideFile  string `json:"inside_file"`
	OutsideFile string `json:"outside_file"`
	Interrupted bool   `json:"interrupted,omitempty"`
	*pair.Report
}

// usualRows of each table of flows are shown.
const usualRows = 10

// compare reads captures of both sides of a NAT.
func (v *pcapVerb) compare(cmd *cobra.Command, inside, outside string) error {
	if err := v.checkPair(cmd, inside, outside); err != nil {
		return err
	}
	if v.rows = usualRows; cmd.Flags().Changed("max") {
		v.rows = v.ladders
	}
	in, err := openCapture(cmd.Context(), v.env, inside)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := openCapture(cmd.Context(), v.env, outside)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; and a filter does not begin like that", err)
	}
	if err != nil {
		return err
	}
	defer out.Close()
	out.quiet = true // one line of progress
	r, err := pair.Match(in, out, pair.Options{Window: v.window, Memory: int64(v.memory), Listed: v.keep})
	in.progress.Clear()
	if err != nil {
		return malformed(fmt.Errorf("compare %s with %s: %w", in.name, out.name, err))
	}
	if r.Swapped {
		in, out = out, in
	}
	if err := v.showPair(r, in, out); err != nil {
		return err
	}
	if r.Out.Lost+r.In.Lost > 0 {
		return errFindings
	}
	return nil
}

// checkPair refuses what only one capture has.
func (v *pcapVerb) checkPair(cmd *cobra.Command, inside, outside string) error {
	if inside == "-" && outside == "-" {
		return usagef("both captures are standard input: name two files")
	}
	for _, name := range []string{"kind", "list", "all", "clock", "time-wait"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s is for one capture: of two only packets are compared", name)
		}
	}
	return nil
}

func (v *pcapVerb) showPair(r *pair.Report, in, out *captureInput) error {
	interrupted := in.interrupted || out.interrupted
	if interrupted {
		r.Inside.File.Damage, r.Outside.File.Damage = withoutEnd(r.Inside.File.Damage), withoutEnd(r.Outside.File.Damage)
	}
	if v.asJSON {
		return report.JSON(v.env.Stdout, pairDocument{Schema: pair.Schema, Version: v.env.Version, InsideFile: in.name, OutsideFile: out.name, Interrupted: interrupted, Report: r})
	}
	view := report.PairView{Inside: in.name, Outside: out.name, Rows: v.rows, Zone: v.zone(), Interrupted: interrupted}
	return report.PcapPair(v.out(), v.env.style(), view, r)
}
