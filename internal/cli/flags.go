package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/natkit/natkit/internal/tune/apply"
)

// addJSON adds --json; schema names the form of the document.
func addJSON(cmd *cobra.Command, asJSON *bool, schema string) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print one JSON document (schema "+schema+")")
}

// addCSV adds --csv; row says what has a line. Its columns are those of the document.
func addCSV(cmd *cobra.Command, asCSV *bool, row string) {
	cmd.Flags().BoolVar(asCSV, "csv", false, "print comma-separated values, a line for each "+row+", the names of --json in the first")
}

// standardFlags are the flags that mean the same on every verb. Their short form is
// left out where the verb has that letter for something else, as ab and conntrack(8) do.
type standardFlags struct{ quiet, verbose, numeric, wide bool }

// addStandardFlags adds them to cmd and all commands below it.
func (e *Env) addStandardFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		e.addStandardFlags(sub)
	}
	if cmd.RunE == nil && cmd.Run == nil {
		return
	}
	flag := func(on *bool, name, letter, usage string) {
		if cmd.Flags().ShorthandLookup(letter) != nil {
			letter = ""
		}
		cmd.Flags().BoolVarP(on, name, letter, false, usage)
	}
	flag(&e.quiet, "quiet", "q", "print no progress and no notes on stderr, only errors")
	flag(&e.verbose, "verbose", "v", "say on stderr what is read, written and done")
	flag(&e.numeric, "numeric", "n", "do not resolve numbers to names (labels, network namespaces)")
	cmd.MarkFlagsMutuallyExclusive("quiet", "verbose")
	if slices.Contains(neverAsk, strings.TrimPrefix(cmd.CommandPath(), "natkit ")) {
		addYes(cmd, new(bool), "")
	}
	addOutput(cmd)
}

// neverAsk are the verbs that change something and do not ask; scripts that give --yes
// everywhere need not know which these are.
var neverAsk = []string{"tune confirm", "tune undo", "gateway confirm", "gateway undo", "gateway run",
	"lab run", "lab up", "lab down", "lab clean"}

// addYes adds --yes.
func addYes(cmd *cobra.Command, yes *bool, when string) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, when+"do it without asking")
}

// outputFormat is the value of --output: another name for --json and --csv.
type outputFormat struct {
	name  string
	known []string
}

func (o *outputFormat) String() string { return o.name }
func (o *outputFormat) Type() string   { return "string" }
func (o *outputFormat) Set(name string) error {
	if !slices.Contains(o.known, name) {
		return fmt.Errorf("must be one of %s", strings.Join(o.known, ", "))
	}
	o.name = name
	return nil
}

// addOutput adds --output to a verb that reports, which is one with --json. A verb whose
// own --output means something else keeps it.
func addOutput(cmd *cobra.Command) {
	flags := cmd.Flags()
	if flags.Lookup("json") == nil {
		return
	}
	o := &outputFormat{name: "text", known: []string{"text", "json", "wide"}}
	if csv := flags.Lookup("csv"); csv != nil {
		o.known = []string{"text", "json", "csv", "wide"}
		if isSwitch(csv) {
			cmd.MarkFlagsMutuallyExclusive("json", "csv")
		}
	}
	if flags.Lookup("output") != nil {
		return
	}
	flags.VarP(o, "output", "o", "print as `FORMAT`: "+strings.Join(o.known, ", ")+" (text that is not fitted to the terminal)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"output": cobra.FixedCompletions(o.known, cobra.ShellCompDirectiveNoFileComp)})
}

// setOutput sets the flags that --output stands for.
func (e *Env) setOutput(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("output")
	if flag == nil || !flag.Changed {
		return nil
	}
	o, ok := flag.Value.(*outputFormat)
	if !ok { // of this verb alone
		return nil
	}
	for _, other := range []string{"json", "csv"} {
		f := cmd.Flags().Lookup(other)
		if f != nil && f.Changed && isSwitch(f) != (o.name == other) {
			return usagef("--output %s and --%s are mutually exclusive", o.name, other)
		}
	}
	switch o.name {
	case "wide":
		e.wide = true
	case "json", "csv":
		return chooseForm(cmd, o.name)
	}
	return nil
}

// chooseForm sets --json or --csv; a --csv that names a file writes to stdout.
func chooseForm(cmd *cobra.Command, name string) error {
	value := "true"
	if !isSwitch(cmd.Flags().Lookup(name)) {
		value = "-"
	}
	return cmd.Flags().Set(name, value)
}

// isSwitch tells a flag that is on or off from one with a value, as --csv FILE is.
func isSwitch(f *pflag.Flag) bool { return f.Value.Type() == "bool" }

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
	addYes(cmd, &f.yes, when)
	cmd.Flags().Var((*seconds)(&f.confirm), "confirm", when+"undo after this time unless it is confirmed: seconds or 2m, …")
	cmd.Flags().BoolVar(&f.persist, "persist", false, when+"write files under /etc so that it holds after a boot")
}

// given reports whether one of the flags is on the command line.
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
