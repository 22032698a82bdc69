package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/tune/apply"
)

// addJSON adds --json; schema names the form of the document.
func addJSON(cmd *cobra.Command, asJSON *bool, schema string) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print one JSON document (schema "+schema+")")
}

// maxWindow bounds the time between two looks: a forgotten one ends.
const maxWindow = time.Hour

// addWindow adds --for, the time between the two looks that are compared.
func addWindow(cmd *cobra.Command, window *time.Duration, usual time.Duration) {
	*window = usual
	cmd.Flags().Var((*seconds)(window), "for", "time between the two looks that are compared: seconds or 500ms, 2m, …")
}

// addTrace adds --trace.
func addTrace(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "trace", false, "between the two looks, also count dropped packets and sample the CPUs, by eBPF, and look at SYNs")
}

func checkWindow(window, least time.Duration) error {
	if window < least || window > maxWindow {
		return usagef("--for %s: must be from %s to %s", window, least, maxWindow)
	}
	return nil
}

// Bounds of --confirm: less cannot be typed in time, more is no safety.
const (
	minConfirm = time.Second
	maxConfirm = 24 * time.Hour
)

// changeFlags are the flags of verbs that change the host.
type changeFlags struct {
	yes, persist bool
	confirm      time.Duration
}

// addFlags adds --yes, --confirm and --persist; when says in which case they
// count, and may be empty.
func (f *changeFlags) addFlags(cmd *cobra.Command, when string) {
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, when+"do it without asking")
	cmd.Flags().Var((*seconds)(&f.confirm), "confirm", when+"undo after this time unless it is confirmed: seconds or 2m, …")
	cmd.Flags().BoolVar(&f.persist, "persist", false, when+"write files under /etc so that it holds after a boot")
}

// given tells whether one of the flags is on the command line.
func (f *changeFlags) given(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("yes") || cmd.Flags().Changed("confirm") || cmd.Flags().Changed("persist")
}

func (f *changeFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("confirm") && (f.confirm < minConfirm || f.confirm > maxConfirm) {
		return usagef("--confirm %s: must be from %s to %s", f.confirm, minConfirm, maxConfirm)
	}
	return nil
}

// fill puts the flags into the options of apply.
func (f *changeFlags) fill(opt *apply.Options) { opt.Confirm, opt.Persist = f.confirm, f.persist }

// parseShare reads a flag's part of a whole, such as 0.001 or 0.1%.
func parseShare(flag, text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) {
		return 0, usagef("--%s %q: must be a share from 0 to 1, or from 0%% to 100%%", flag, text)
	}
	return share, nil
}
