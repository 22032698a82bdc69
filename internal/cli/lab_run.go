package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/lab/capture"
	"github.com/natkit/natkit/internal/lab/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type labRunFlags struct {
	concurrency int
	requests    int64
	timeout     time.Duration
	full        bool
	bridge      bool
	server      string
	lowerMax    int64
	force       bool
	all         bool
	only        []string
	allowHost   bool
	json        bool
	html        string
	pcap        labPcapFlags
}

func newLabRun(env *Env) *cobra.Command {
	f := &labRunFlags{}
	cmd := &cobra.Command{
		Use:   "run SCENARIO|FILE.yaml",
		Short: "run a scenario: fault, diagnosis, fix, proof; or all of them: the accuracy matrix",
		Long: `Builds the scenario's network in namespaces of its own, drives the same load
through it stage by stage, lets doctor find the fault and applies its remedy, and
prints all stages side by side. Stages that ask for it also trace, by eBPF, which
packets the kernel drops, or what the CPUs do; where the kernel cannot, the report
says why, and the rest is the same.

What the remedy changes on the host is journaled before and put back at the end,
also after an error, Ctrl-C or kill -9; 'natkit lab clean' does so after a crash
of the machine.

With --all every scenario that natkit brings along runs, one after the other, those
with a fault and those that are healthy. doctor is not told which it looks at. The
matrix shows what was wrong in each beside what doctor named: how many faults it
found, what it found falsely, and whether its remedy cured. A scenario that this
kernel cannot run is shown as such, and does not count as passed.

Some scenarios change values of the whole host (nf_conntrack_buckets), which hold for
every network namespace, for the time of a stage, journaled and put back as above.
They need --allow-host; without it --all leaves them out and says so.

With --pcap every node's packets are captured while stages run, from their headers on:
one file for each stage and side of a NAT (fault-gateway-inside.pcapng), which
'natkit pcap' reads, alone or both sides together. A stage that runs again has .2
behind its name. Files of the same name are replaced. What could not be captured is
counted and shown.

docs/scenarios.md tells how to write a scenario.

Exit code: 0 the expectation was met (--all: of every scenario), 3 it was not, 1 the
lab could not be run.`,
		Example: `  sudo natkit lab run table-full
  sudo natkit lab run table-full --bridge --html report.html
  sudo natkit lab run table-full --full       # 5,000 concurrent, 100,000 requests
  sudo natkit lab run table-full --lower-max 1000   # as in 2018: a small host-wide limit
  sudo natkit lab run table-full --pcap captures
  sudo natkit lab run ./mine.yaml --json
  sudo natkit lab run --all --allow-host
  sudo natkit lab run --all --only table-full,healthy-idle --json`,
		Args:              runArgs(f),
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.all {
				return f.checked(func() error { return f.runAll(cmd.Context(), env) })
			}
			return f.checked(func() error { return f.run(cmd, env, args[0]) })
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&f.concurrency, "concurrency", "c", 0, "requests in flight at once (default: the scenario's)")
	flags.Int64VarP(&f.requests, "requests", "n", 0, "requests in each stage (default: the scenario's)")
	flags.VarP((*seconds)(&f.timeout), "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, … (default: the scenario's)")
	flags.BoolVar(&f.full, "full", false, "5,000 concurrent, 100,000 requests")
	flags.BoolVar(&f.bridge, "bridge", false, "put the server behind a bridge with br_netfilter, as Docker does")
	flags.StringVar(&f.server, "server", string(build.Auto), "web server `KIND`: nginx, builtin, or auto (nginx if installed)")
	flags.Int64Var(&f.lowerMax, "lower-max", 0, "make the fault by lowering the host-wide nf_conntrack_max to `N` for the time of the fault")
	flags.BoolVar(&f.force, "force", false, "with --lower-max or --allow-host: also where other namespaces would lose connections")
	flags.BoolVar(&f.all, "all", false, "run all scenarios and print the accuracy matrix")
	flags.StringSliceVar(&f.only, "only", nil, "with --all: only the scenarios of these `NAMES`, with commas between")
	flags.BoolVar(&f.allowHost, "allow-host", false, "run scenarios that change values of the whole host for a while, too")
	addJSON(cmd, &f.json, lab.ReportSchema+", with --all "+lab.AccuracySchema)
	flags.StringVar(&f.html, "html", "", "write one self-contained page to `FILE`")
	f.pcap.addFlags(flags)
	cmd.MarkFlagsMutuallyExclusive("full", "concurrency")
	cmd.MarkFlagsMutuallyExclusive("full", "requests")
	for _, alone := range aloneFlags {
		cmd.MarkFlagsMutuallyExclusive("all", alone)
	}
	_ = cmd.RegisterFlagCompletionFunc("only", completeNames)
	return cmd
}

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, s := range lab.Scenarios() {
		names = append(names, s.Name+"\t"+s.Title)
	}
	return names, cobra.ShellCompDirectiveDefault
}

func (f *labRunFlags) check() error {
	switch {
	case f.lowerMax < 0:
		return usagef("--lower-max %d: must be 1 or more", f.lowerMax)
	case f.force && f.lowerMax == 0 && !f.allowHost:
		return usagef("--force goes with --lower-max or --allow-host")
	}
	switch build.ServerKind(f.server) {
	case build.Auto, build.Nginx, build.Builtin:
		return nil
	}
	return usagef("--server %s: must be nginx, builtin or auto", f.server)
}

// checked runs do where the flags go together.
func (f *labRunFlags) checked(do func() error) error {
	if err := f.check(); err != nil {
		return err
	}
	return do()
}

func (f *labRunFlags) run(cmd *cobra.Command, env *Env, name string) error {
	if err := f.pcap.check(cmd.Flags()); err != nil {
		return err
	}
	scenario, err := findScenario(name)
	if err != nil {
		return err
	}
	overrides := lab.Overrides{Concurrency: f.concurrency, Requests: f.requests, Timeout: f.timeout, Bridge: f.bridge}
	if f.full {
		overrides.Concurrency, overrides.Requests = 5000, 100000
	}
	if scenario, err = scenario.With(overrides); err != nil {
		return usageError{err}
	}
	if f.html != "" { // better now than after the run
		if err := mayWrite(f.html); err != nil {
			return err
		}
	}
	if err := f.pcap.makeDir(); err != nil {
		return err
	}
	r, err := f.conduct(cmd.Context(), env, scenario)
	if err != nil {
		return err
	}
	if err := errors.Join(f.write(env, r), failedCaptures(r)); err != nil {
		return err
	}
	if !r.ExpectationMet {
		return errFindings
	}
	return nil
}

func (f *labRunFlags) conduct(ctx context.Context, env *Env, scenario *lab.Scenario) (*lab.Report, error) {
	journal, err := env.journal()
	if err != nil {
		return nil, err
	}
	progress := env.progress()
	defer progress.Clear()
	r, err := run.Run(ctx, scenario, run.Options{
		Server:   build.ServerKind(f.server),
		Journal:  journal,
		LowerMax: f.lowerMax,
		Force:    f.force,

		AllowHost: f.allowHost,
		Capture:   f.pcap.options(env.Version),
		Version:   env.Version,
		Progress:  progress.Show,
	})
	if errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("lab %s: interrupted; the lab is removed and the host is as it was", scenario.Name)
	}
	return r, err
}

// write prints the report before it writes the page, which a full disk may stop.
func (f *labRunFlags) write(env *Env, r *lab.Report) error {
	var err error
	if f.json {
		err = report.JSON(env.Stdout, r)
	} else {
		err = report.Lab(env.Stdout, env.style(), r)
	}
	if f.html != "" {
		err = errors.Join(err, writeWhole(f.html, 0o644, func(w io.Writer) error { return report.LabHTML(w, r) }))
	}
	return err
}

// findScenario takes the name of a built-in scenario, or a YAML file.
func findScenario(name string) (*lab.Scenario, error) {
	if !isScenarioFile(name) {
		s, err := lab.Find(name)
		if err != nil {
			return nil, usageError{err}
		}
		return s, nil
	}
	text, err := readFile("scenario", name, lab.MaxSource)
	if err != nil {
		return nil, err
	}
	s, err := lab.Parse(name, text)
	return s, malformed(err)
}

func isScenarioFile(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml"
}

// readFile reads no more than limit bytes and one, by which too much is known, and
// waits for no pipe.
func readFile(what, path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %s is not a file", what, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return text, nil
}

// aloneFlags are those of lab run that are about one scenario.
var aloneFlags = []string{"concurrency", "requests", "timeout", "full", "bridge", "lower-max", "force", "html", "pcap", "pcap-snaplen", "pcap-size"}

// runArgs wants one scenario, or none with --all.
func runArgs(f *labRunFlags) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if !f.all {
			if cmd.Flags().Changed("only") {
				return errors.New("--only goes with --all")
			}
			return cobra.ExactArgs(1)(cmd, args)
		}
		if len(args) > 0 {
			return errors.New("give a scenario or --all, not both; --all --only takes names")
		}
		return nil
	}
}

// chosen are the scenarios that natkit brings along, or those of --only.
func (f *labRunFlags) chosen() ([]*lab.Scenario, error) {
	if len(f.only) == 0 {
		return lab.Scenarios(), nil
	}
	var all []*lab.Scenario
	for _, name := range f.only {
		s, err := lab.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, usageError{err}
		}
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all, nil
}

// runAll runs the scenarios one after the other, and prints the matrix.
func (f *labRunFlags) runAll(ctx context.Context, env *Env) error {
	scenarios, err := f.chosen()
	if err != nil {
		return err
	}
	journal, err := env.journal()
	if err != nil {
		return err
	}
	progress := env.progress()
	a, err := run.All(ctx, scenarios, run.AllOptions{Options: run.Options{
		Server: build.ServerKind(f.server), Journal: journal, AllowHost: f.allowHost,
		Version: env.Version, Progress: progress.Show,
	}})
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		return errors.New("lab run --all: interrupted; the lab is removed and the host is as it was")
	}
	if err != nil {
		return err
	}
	if f.json {
		err = report.JSON(env.Stdout, a)
	} else {
		err = report.Accuracy(env.Stdout, env.style(), a)
	}
	if err == nil && !a.Passed {
		return errFindings
	}
	return err
}

func completeNames(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := ""
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		before = typed[:i+1]
	}
	var names []string
	for _, s := range lab.Scenarios() {
		names = append(names, cobra.CompletionWithDesc(before+s.Name, s.Title))
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// labPcapFlags say whether a run's packets are captured.
type labPcapFlags struct {
	dir   string
	snap  int
	limit fileSize
}

// fileSize is how large a file may become.
type fileSize int64

const minFileSize = 1 << 20

func (s *fileSize) Type() string   { return "SIZE" }
func (s *fileSize) String() string { return (*memorySize)(s).String() }

func (s *fileSize) Set(text string) error {
	n, ok := parseBytes(text)
	if !ok || n < minFileSize {
		return errors.New("must be the size of a file, 1M or more: 64M, 1G, …")
	}
	*s = fileSize(n)
	return nil
}

func (f *labPcapFlags) addFlags(flags *pflag.FlagSet) {
	f.snap, f.limit = capture.DefaultSnapLen, capture.DefaultMaxBytes
	flags.StringVar(&f.dir, "pcap", "", "write what each node's interfaces send and receive into pcapng files in `DIR`, one for each stage and side")
	flags.IntVar(&f.snap, "pcap-snaplen", f.snap, "with --pcap: keep `BYTES` of each packet, 0 for all; the usual has room for all headers")
	flags.Var(&f.limit, "pcap-size", "with --pcap: let no file grow beyond `SIZE`: 64M, 1G, …")
}

func (f *labPcapFlags) check(flags *pflag.FlagSet) error {
	switch {
	case f.dir == "" && (flags.Changed("pcap-snaplen") || flags.Changed("pcap-size")):
		return usagef("--pcap-snaplen and --pcap-size go with --pcap DIR")
	case f.dir == "" && flags.Changed("pcap"):
		return usagef("--pcap: expected the name of a folder")
	case f.snap != 0 && (f.snap < capture.MinSnapLen || f.snap > capture.MaxSnapLen):
		return usagef("--pcap-snaplen %d: must be from %d to %d, or 0", f.snap, capture.MinSnapLen, capture.MaxSnapLen)
	}
	return nil
}

// makeDir makes the folder, or tells before the run what keeps files out of it.
func (f *labPcapFlags) makeDir() error {
	if f.dir == "" {
		return nil
	}
	err := os.Mkdir(f.dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		err = disk.MayReplace(filepath.Join(f.dir, "stage-node.pcapng"))
	}
	if err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	return nil
}

func (f *labPcapFlags) options(version string) run.CaptureOptions {
	return run.CaptureOptions{Dir: f.dir, Options: capture.Options{
		SnapLen: cmp.Or(f.snap, capture.MaxSnapLen), MaxBytes: int64(f.limit), Version: version,
	}}
}

// failedCaptures is what went wrong with captures of a run that went well otherwise.
func failedCaptures(r *lab.Report) error {
	var errs []error
	for _, c := range r.Captures {
		if c.Error != "" {
			errs = append(errs, errors.New(c.Error))
		}
	}
	return errors.Join(errs...)
}
