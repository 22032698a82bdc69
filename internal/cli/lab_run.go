package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/lab/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// labRun is the verb lab run.
type labRun struct {
	env       *Env
	overrides lab.Overrides
	full      bool
	server    build.ServerKind
	lowerMax  int64
	force     bool
	all       bool
	only      []string
	allowHost bool
	html      string
	// pcap is a folder for captures; snap and limit bound what is kept.
	pcap  string
	snap  int
	limit int64
}

func newLabRun(env *Env) *cobra.Command {
	f := &labRun{env: env, snap: run.DefaultSnapLen, limit: run.DefaultMaxBytes}
	cmd := &cobra.Command{
		Use:   "run SCENARIO|FILE.yaml",
		Short: "run a scenario: fault, diagnosis, fix, proof; or all of them: the accuracy matrix",
		Long: `Build the scenario's network in namespaces, drive the same load through it stage by
stage, let doctor find the fault and apply its remedy, and print all stages side by
side. Stages that ask for it also trace, by eBPF, which packets the kernel drops, or what
the CPUs do; where the kernel cannot, the report says why, and the rest is the same.

What the remedy changes on the host is journaled before and restored at the end, also
after an error, Ctrl-C or kill -9; 'natkit lab clean' does so after a crash of the
machine.

With --all every built-in scenario runs, one after the other, those with a fault and
those that are healthy. doctor does not know which one it samples. The matrix shows the
fault of each beside what doctor named: how many faults it found, false findings, and
whether its remedy cured. A scenario that this kernel cannot run is shown as such, and
does not count as passed.

Some scenarios change values of the whole host (nf_conntrack_buckets), which hold for
every network namespace, during a stage, journaled and restored as above. They require
--allow-host; without it --all leaves them out, with a note.

With --pcap the headers of every node's packets are captured while stages run: one file
for each stage and side of a NAT (fault-gateway-inside.pcapng), which 'natkit pcap' reads,
alone or both sides together. A stage that runs again has .2 behind its name. Files of
the same name are replaced. Packets that were not captured are counted.

docs/scenarios.md is the language of scenarios.

Exit codes: 0 the expectation was met (--all: of every scenario), 1 the lab could not be
run, 2 usage, 3 the expectation was not met.`,
		Example: `  sudo natkit lab run table-full
  sudo natkit lab run table-full --bridge --html report.html
  sudo natkit lab run table-full --full       # 5,000 concurrent, 100,000 requests
  sudo natkit lab run table-full --lower-max 1000   # as in 2018: a small host-wide limit
  sudo natkit lab run table-full --pcap captures
  sudo natkit lab run ./mine.yaml --json
  sudo natkit lab run --all --allow-host
  sudo natkit lab run --all --only table-full,healthy-idle --json`,
		Args: argsUnless(func(cmd *cobra.Command, args []string) error {
			if f.all {
				return nil
			}
			return cobra.ExactArgs(1)(cmd, args)
		}, "all"),
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.all {
				return f.runAll(cmd.Context())
			}
			return f.run(cmd.Context(), args[0])
		},
	}
	f.addFlags(cmd)
	return cmd
}

func (f *labRun) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVarP(&f.overrides.Concurrency, "concurrency", "c", 0, "concurrent requests (default: the scenario's)")
	flags.Int64VarP(&f.overrides.Requests, "requests", "n", 0, "requests in each stage (default: the scenario's)")
	flags.VarP((*seconds)(&f.overrides.Timeout), "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, … (default: the scenario's)")
	flags.BoolVar(&f.full, "full", false, "5,000 concurrent, 100,000 requests")
	flags.BoolVar(&f.overrides.Bridge, "bridge", false, "put the server behind a bridge with br_netfilter, as Docker does")
	addServer(cmd, &f.server)
	flags.Var(between(&f.lowerMax, 1, math.MaxInt64), "lower-max", "make the fault by lowering the host-wide nf_conntrack_max to `N` during the fault stage")
	flags.BoolVar(&f.force, "force", false, "with --lower-max or --allow-host: also where other namespaces would lose connections")
	flags.BoolVar(&f.all, "all", false, "run all scenarios and print the accuracy matrix")
	flags.StringSliceVar(&f.only, "only", nil, "with --all: only the scenarios of these `NAMES`, separated by commas")
	flags.BoolVar(&f.allowHost, "allow-host", false, "also run scenarios that change values of the whole host for a while")
	f.env.addJSON(cmd, lab.ReportSchema+", with --all "+lab.AccuracySchema)
	flags.StringVar(&f.html, "html", "", "write one self-contained page to `FILE`")
	flags.Var(into(&f.pcap, func(dir string) (string, error) {
		if dir == "" {
			return "", errors.New("the name of a folder is missing")
		}
		return dir, nil
	}), "pcap", "write what each node's interfaces send and receive into pcapng files in `DIR`, one for each stage and side")
	flags.Var(into(&f.snap, parseSnapLen), "pcap-snaplen", fmt.Sprintf("with --pcap: keep `BYTES` of each packet, 0 for all (default %d, enough for all headers)", f.snap))
	flags.Var(into(&f.limit, parseFileSize), "pcap-size", fmt.Sprintf("with --pcap: let no file grow beyond `SIZE`: 64M, 1G, … (default %dM)", f.limit>>20))
	for _, alone := range []string{"concurrency", "requests", "timeout", "full", "bridge", "lower-max", "force", "html", "pcap"} {
		cmd.MarkFlagsMutuallyExclusive("all", alone)
	}
	cmd.MarkFlagsMutuallyExclusive("full", "concurrency")
	cmd.MarkFlagsMutuallyExclusive("full", "requests")
	requires(cmd, "force", "lower-max", "allow-host")
	requires(cmd, "only", "all")
	requires(cmd, "pcap-snaplen", "pcap")
	requires(cmd, "pcap-size", "pcap")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"only": completeNames})
}

// addServer adds --server.
func addServer(cmd *cobra.Command, server *build.ServerKind) {
	*server = build.Auto
	cmd.Flags().Var(into(server, func(kind string) (build.ServerKind, error) {
		if !slices.Contains([]build.ServerKind{build.Auto, build.Nginx, build.Builtin}, build.ServerKind(kind)) {
			return "", errors.New("must be nginx, builtin or auto")
		}
		return build.ServerKind(kind), nil
	}), "server", "web server `KIND`: nginx, builtin, or auto (the default: nginx if installed)")
}

func parseSnapLen(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n != 0 && (n < run.MinSnapLen || n > run.MaxSnapLen) {
		return 0, fmt.Errorf("must be from %d to %d, or 0", run.MinSnapLen, run.MaxSnapLen)
	}
	return n, nil
}

func parseFileSize(text string) (int64, error) {
	n, ok := parseBytes(text)
	if !ok || n < 1<<20 {
		return 0, errors.New("must be the size of a file, 1M or more: 64M, 1G, …")
	}
	return n, nil
}

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, s := range lab.Scenarios() {
		names = append(names, s.Name+"\t"+s.Title)
	}
	return names, cobra.ShellCompDirectiveDefault
}

func (f *labRun) run(ctx context.Context, name string) error {
	scenario, err := findScenario(name)
	if err != nil {
		return err
	}
	if f.full {
		f.overrides.Concurrency, f.overrides.Requests = 5000, 100000
	}
	if scenario, err = scenario.With(f.overrides); err != nil {
		return usageError{err}
	}
	if f.html != "" { // better now than after the run
		if err := mayWrite(f.html); err != nil {
			return err
		}
	}
	if err := f.makeDir(); err != nil {
		return err
	}
	opt, err := f.options()
	if err != nil {
		return err
	}
	progress := f.env.progress()
	opt.Progress = progress.Show
	r, err := run.Run(ctx, scenario, opt)
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("lab %s: interrupted; the lab is removed and the host is as it was", scenario.Name)
	}
	if err != nil {
		return err
	}
	// The report is printed before the page, which a full disk may stop.
	err = f.env.print(report.LabRun{Report: r})
	if f.html != "" {
		err = errors.Join(err, writeWhole(f.html, 0o644, func(w io.Writer) error { return report.LabHTML(w, r) }))
	}
	for _, c := range r.Captures { // of a run that went well otherwise
		if c.Error != "" {
			err = errors.Join(err, errors.New(c.Error))
		}
	}
	if err == nil && !r.ExpectationMet {
		return errFindings
	}
	return err
}

func (f *labRun) options() (run.Options, error) {
	journal, err := f.env.journal()
	return run.Options{
		Server: f.server, Journal: journal, LowerMax: f.lowerMax, Force: f.force, AllowHost: f.allowHost, Version: f.env.Version,
		Capture: run.CaptureOptions{Dir: f.pcap, SnapLen: cmp.Or(f.snap, run.MaxSnapLen), MaxBytes: f.limit},
	}, err
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

// chosen are the built-in scenarios, or those of --only.
func (f *labRun) chosen() ([]*lab.Scenario, error) {
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
func (f *labRun) runAll(ctx context.Context) error {
	scenarios, err := f.chosen()
	if err != nil {
		return err
	}
	opt, err := f.options()
	if err != nil {
		return err
	}
	progress := f.env.progress()
	opt.Progress = progress.Show
	a, err := run.All(ctx, scenarios, run.AllOptions{Options: opt})
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		return errors.New("lab run --all: interrupted; the lab is removed and the host is as it was")
	}
	if err != nil {
		return err
	}
	if err = f.env.print(report.LabMatrix{Accuracy: a}); err == nil && !a.Passed {
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

// makeDir makes the folder of captures, or fails before the run where files cannot be written.
func (f *labRun) makeDir() error {
	if f.pcap == "" {
		return nil
	}
	err := os.Mkdir(f.pcap, 0o755)
	if errors.Is(err, os.ErrExist) {
		err = disk.MayReplace(filepath.Join(f.pcap, "stage-node.pcapng"))
	}
	if err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	return nil
}
