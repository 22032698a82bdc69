package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/netns"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addJSON adds --json to a verb that reports by print; schema names the form of the document.
func (e *Env) addJSON(cmd *cobra.Command, schema string) {
	cmd.Flags().BoolVar(&e.asJSON, "json", false, "print one JSON document (schema "+schema+")")
}

// addCSV adds --csv to a verb whose document is a report.CSVDocument; row names what has a line.
func (e *Env) addCSV(cmd *cobra.Command, row string) {
	cmd.Flags().BoolVar(&e.asCSV, "csv", false, "print comma-separated values, a line for each "+row+", the names of --json in the first")
}

// standardFlags are the flags that mean the same on every verb. Their short form is
// left out where the verb has that letter for something else, as ab and conntrack(8) do.
type standardFlags struct {
	quiet, verbose, numeric, wide, asJSON, asCSV bool
	format                                       string
}

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
	flag(&e.verbose, "verbose", "v", "print on stderr what is read, written and done")
	flag(&e.numeric, "numeric", "n", "do not resolve numbers to names (labels, network namespaces)")
	cmd.MarkFlagsMutuallyExclusive("quiet", "verbose")
	if slices.Contains(neverAsk, strings.TrimPrefix(cmd.CommandPath(), "natkit ")) {
		addYes(cmd, new(bool), " (no effect: this command does not ask)")
	}
	e.addOutput(cmd)
	completeNoFiles(cmd)
}

// neverAsk are the verbs that change something and do not ask; scripts that give --yes
// everywhere need not know which these are.
var neverAsk = []string{"tune confirm", "tune undo", "gateway confirm", "gateway undo", "gateway run", "gateway set",
	"lab run", "lab up", "lab down", "lab clean"}

// addYes adds --yes.
func addYes(cmd *cobra.Command, yes *bool, effect string) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "skip the confirmation"+effect)
}

// formatsKey is the annotation of a verb that lists what else its --output takes; it reads Env.format itself.
const formatsKey = "natkit-formats"

// addOutput adds --output, another name for --json and --csv, to a verb that reports, which
// is one with --json. A verb whose own --output means something else keeps it.
func (e *Env) addOutput(cmd *cobra.Command) {
	flags := cmd.Flags()
	if flags.Lookup("json") == nil {
		return
	}
	known := []string{"text", "json", "wide"}
	if csv := flags.Lookup("csv"); csv != nil {
		known = []string{"text", "json", "csv", "wide"}
		if isSwitch(csv) {
			cmd.MarkFlagsMutuallyExclusive("json", "csv")
		}
	}
	known = slices.Insert(known, len(known)-1, strings.Fields(cmd.Annotations[formatsKey])...) // wide is last
	if flags.Lookup("output") != nil {
		return
	}
	format := into(&e.format, oneOf(known...))
	format.text = "text"
	flags.VarP(format, "output", "o", "print as `FORMAT`: "+strings.Join(known, ", ")+" (text that is not fitted to the terminal)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"output": completeWords(known...)})
}

// setOutput sets the flags that --output stands for.
func (e *Env) setOutput(cmd *cobra.Command) error {
	if e.format == "" {
		return nil
	}
	for _, other := range []string{"json", "csv"} {
		f := cmd.Flags().Lookup(other)
		if f != nil && f.Changed && isSwitch(f) != (e.format == other) {
			return usagef("--output %s and --%s are mutually exclusive", e.format, other)
		}
	}
	e.wide = e.format == "wide"
	switch form := cmd.Flags().Lookup(e.format); {
	case form == nil: // text, wide
		return nil
	case isSwitch(form):
		return cmd.Flags().Set(e.format, "true")
	}
	return cmd.Flags().Set(e.format, "-") // --csv FILE
}

// isSwitch reports whether a flag is on or off, unlike --csv FILE.
func isSwitch(f *pflag.Flag) bool { return f.Value.Type() == "bool" }

// maxWindow bounds the time between two samples: a forgotten command ends.
const maxWindow = time.Hour

// addWindow adds --for, the time between the two samples that are compared: 0, or from least.
func addWindow(cmd *cobra.Command, window *time.Duration, usual, least time.Duration) {
	*window = usual
	cmd.Flags().Var(period(window, least, maxWindow), "for", "time between the two samples: seconds or 500ms, 2m, …")
}

// addTrace adds --trace.
func addTrace(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "trace", false, "between the two samples, also count dropped packets and sample the CPUs, by eBPF, and capture SYNs")
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

// addFlags adds --yes, --confirm and --persist.
func (f *changeFlags) addFlags(cmd *cobra.Command) {
	addYes(cmd, &f.yes, "")
	cmd.Flags().Var(period(&f.confirm, minConfirm, maxConfirm), "confirm", "roll back after this time unless it is confirmed: seconds or 2m, …")
	cmd.Flags().BoolVar(&f.persist, "persist", false, "write files under /etc so that it holds after a boot")
}

// target is the network namespace of a verb, selected by flags.
type target struct {
	// prefix is put before the flags' names, where a verb has more than one.
	prefix string
	netns  string
	pid    int
}

// addFlags adds --netns and --pid.
func (t *target) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.netns, "netns", "", "in the network namespace `NAME` (of 'ip netns list')")
	cmd.Flags().IntVar(&t.pid, "pid", 0, "in the network namespace of process `PID`, for instance a container's")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"netns": offer(netns.Names)})
}

// chosenNetns names the namespace that the flags of cmd select.
func chosenNetns(cmd *cobra.Command) string {
	for _, name := range []string{"netns", "pid"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return name + " " + f.Value.String()
		}
	}
	return "the one natkit runs in"
}

// args are the flags that select the same namespace again.
func (t *target) args() string {
	switch {
	case t.netns != "":
		return " --netns " + t.netns
	case t.pid != 0:
		return fmt.Sprintf(" --pid %d", t.pid)
	}
	return ""
}

// name is for messages.
func (t *target) name() string {
	switch {
	case t.netns != "":
		return "network namespace " + t.netns
	case t.pid != 0:
		return fmt.Sprintf("the network namespace of process %d", t.pid)
	}
	return "this network namespace"
}

// open returns the chosen namespace; nil, without an error, for the one natkit
// runs in. The caller closes it, nil too.
func (t *target) open(cmd *cobra.Command) (*netns.Handle, error) {
	name, pid := t.prefix+"netns", t.prefix+"pid"
	switch {
	case cmd.Flags().Changed(name):
		return openNamed(t.netns)
	case cmd.Flags().Changed(pid):
		return openPID(pid, t.pid)
	default:
		return nil, nil
	}
}

// openNamed opens a namespace of 'ip netns list'.
func openNamed(name string) (*netns.Handle, error) {
	ns, err := netns.Named(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w%s", err, document.Hint(name, netns.Names()))
	}
	return ns, err
}

// openPID opens the namespace of a process, the value of a flag.
func openPID(flag string, pid int) (*netns.Handle, error) {
	if pid <= 0 {
		return nil, usagef("--%s %d: must be the number of a process", flag, pid)
	}
	return netns.OfPID(pid)
}

// with calls do with the chosen namespace, nil for the one natkit runs in, and closes it.
func (t *target) with(cmd *cobra.Command, do func(*netns.Handle) error) error {
	ns, err := t.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns)
}

// runs adds the flags to cmd, which calls do with the chosen namespace.
func (t *target) runs(cmd *cobra.Command, do func(ctx context.Context, ns *netns.Handle, args []string) error) {
	t.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd, func(ns *netns.Handle) error { return do(cmd.Context(), ns, args) })
	}
}

// addInterface adds --iface. An empty name, which a script gives whose variable is not
// set, does not stand for all interfaces.
func (t *target) addInterface(cmd *cobra.Command, name *string, usage string) {
	cmd.Flags().Var(into(name, notEmpty("an interface")), "iface", usage)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"iface": t.completeInterfaces})
}

// completeInterfaces offers the interfaces of the namespace, loopback too, for the shell.
func (t *target) completeInterfaces(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	_ = t.with(cmd, func(ns *netns.Handle) error {
		return ns.Do(func() error {
			links, err := net.Interfaces()
			for _, l := range links {
				names = append(names, l.Name)
			}
			return err
		})
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFlags has the shell complete flags; which there are is known where it is called.
func completeFlags(cmd *cobra.Command, flags map[string]cobra.CompletionFunc) {
	for name, complete := range flags {
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // there is no such flag
		}
	}
}

// usageError is a mistake in the command line, or in a file that is not what the verb reads.
type usageError struct {
	err    error
	ofFile bool
}

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// usage marks a mistake in the command line.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err: err}
}

// malformed marks the error of reading a file, unless it is one of the operating system
// or an interrupt: then nothing is known about the file.
func malformed(err error) error {
	var path *fs.PathError
	var errno syscall.Errno
	if err == nil || errors.As(err, &path) || errors.As(err, &errno) || errors.Is(err, context.Canceled) {
		return err
	}
	return usageError{err, true}
}

// requiresKey is the annotation of a flag that lists the flags of which it requires one.
const requiresKey = "natkit-requires"

// requires makes a flag a usage error without one of others.
func requires(cmd *cobra.Command, flag string, oneOf ...string) {
	if err := cmd.Flags().SetAnnotation(flag, requiresKey, oneOf); err != nil {
		panic(err) // there is no such flag
	}
}

// checkRequires checks what requires set.
func checkRequires(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		oneOf := f.Annotations[requiresKey]
		if len(oneOf) > 0 && !slices.ContainsFunc(oneOf, cmd.Flags().Changed) {
			err = usagef("--%s requires --%s", f.Name, strings.Join(oneOf, " or --"))
		}
	})
	return err
}

// argsUnless is check, and refuses arguments beside flags that take their place.
func argsUnless(check cobra.PositionalArgs, flags ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, name := range flags {
			if len(args) > 0 && cmd.Flags().Changed(name) {
				return usagef("%s and --%s are mutually exclusive", args[0], name)
			}
		}
		return check(cmd, args)
	}
}

// flagError is the error of a flag, without the names of Go functions.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &bare):
		return usagef("--%s needs a value", bare.GetFlag().Name)
	case errors.As(err, &invalid):
		return usagef("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), plainCause(invalid.Unwrap()))
	case errors.As(err, &syntax):
		return usagef("%q is no flag", syntax.GetSpecifiedFlag())
	}
	return usage(err)
}

func unknownFlag(cmd *cobra.Command, err *pflag.NotExistError) error {
	name := err.GetSpecifiedName()
	if err.GetSpecifiedShortnames() != "" {
		return usagef("unknown flag -%s for %q%s", name, cmd.CommandPath(), conntrackHint("-"+name))
	}
	if hint := conntrackHint("--" + name); hint != "" {
		return usagef("unknown flag --%s for %q%s", name, cmd.CommandPath(), hint)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return usagef("unknown flag --%s for %q%s", name, cmd.CommandPath(), document.Hint("--"+name, known))
}

// plainCause leaves out which function of Go's library could not parse a number.
func plainCause(err error) error {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "parsing "); ok && strings.HasPrefix(text, "strconv.") {
		if i := strings.LastIndex(after, ": "); i >= 0 && strings.HasSuffix(after, "out of range") {
			return errors.New("out of range")
		}
		if n := strings.TrimPrefix(after, `"-`); n != after && n[0] >= '0' && n[0] <= '9' {
			return errors.New("must not be negative")
		}
		return errors.New("not a number")
	}
	return err
}

// flagGroups are cobra's errors about flags that exclude or require each other, and how
// natkit ends such a sentence.
var flagGroups = []struct {
	pattern *regexp.Regexp
	ending  string
}{
	{regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`), "are mutually exclusive"},
	{regexp.MustCompile(`^if any flags in the group \[(.*)\] are set they must all be set; missing \[.*\]$`), "go together"},
	{regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`), "are missing: one of them is required"},
}

// checkFlagGroups checks the flags that exclude or require each other.
func checkFlagGroups(cmd *cobra.Command) error {
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return checkRequires(cmd)
	}
	for _, g := range flagGroups {
		if m := g.pattern.FindStringSubmatch(err.Error()); m != nil {
			return usagef("%s %s", flagList(strings.Fields(m[1])), g.ending)
		}
	}
	return usage(err)
}

// flagList is "--a, --b and --c".
func flagList(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return "--" + names[0]
	}
	return "--" + strings.Join(names[:last], ", --") + " and --" + names[last]
}

// argsOf returns the number of arguments a command takes by its usage line, where [brackets] and
// {braces} are optional and … may be repeated.
func argsOf(use string) (least, most int) {
	for _, word := range strings.Fields(use)[1:] {
		if word == "[flags]" || word == "|" || strings.HasPrefix(word, "--") {
			continue
		}
		if !strings.ContainsAny(word[:1], "[{") {
			least++
		}
		if most++; strings.Contains(word, "…") {
			most = math.MaxInt32
		}
	}
	return least, most
}

// takes checks the number of arguments by the usage line.
func takes(cmd *cobra.Command, args []string) error {
	least, most := argsOf(cmd.Use)
	_, wants, _ := strings.Cut(cmd.Use, " ")
	switch n := len(args); {
	case n >= least && n <= most:
		return nil
	case cmd.HasSubCommands():
		return unknownCommand(cmd, args[0])
	case most == 0:
		return usagef("unexpected argument %q: %q takes none", args[0], cmd.CommandPath())
	case n == 0:
		return usagef("an argument is missing: %s %s", cmd.CommandPath(), wants)
	}
	return usagef("wrong number of arguments (%d): %s %s", len(args), cmd.CommandPath(), wants)
}

// unknownCommand is the error of a word that is no command of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
	}
	return usagef("unknown command %q for %q%s", word, cmd.CommandPath(), document.Hint(word, known))
}
