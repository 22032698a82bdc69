//go:build linux

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
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
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
	files     outFiles[*lab.Report]
	// pcap is a folder for captures; snap and limit bound what is kept.
	pcap  string
	snap  int
	limit int64
}

func newLabRun(env *Env) *cobra.Command {
	f := &labRun{env: env, snap: run.DefaultSnapLen, limit: run.DefaultMaxBytes, files: outFiles[*lab.Report]{
		{flag: "html", usage: "write one self-contained page to `FILE`", write: func(r *lab.Report, w io.Writer) error { return report.LabHTML(w, r) }}}}
	cmd := &cobra.Command{
		Use:   "run {SCENARIO|FILE.yaml | --all}",
		Short: "run a scenario: fault, diagnosis, fix, proof; or all of them: the accuracy matrix",
		Long: `Build the scenario's network in namespaces, drive the same load through it stage by
stage, let doctor find the fault and apply its remedy, and print all stages side by
side. What changes on the host is journaled before and restored at the end, also after
an error, Ctrl-C or kill -9; 'natkit lab clean' does so after a crash of the machine.

With --all every built-in scenario runs, except for million, and a matrix shows the fault of each beside
what doctor named. Scenarios that change values of the whole host require --allow-host;
without it --all leaves them out, with a note.

With --rate the loads that have a rate run at another one, for as long as before: a fault is
to be found where few ask for a service as well as where many do. With --all that leaves out
the scenarios of which no load has a rate; those that are about the amount need theirs.

With --connections a scenario that holds connections until all stand (million) holds another
number of them; what fills the table and the host's buckets are in proportion. What does not
fit into memory is refused before the start. Its stages that change values of the whole host
are left out without --allow-host. After Ctrl-C it reports what was reached.

With --engine ebpf the rules of a scenario's gateway file that have a fixed mapping are carried out
by eBPF programs; the report shows which rules netfilter has, and why.

With --pcap the headers of every node's packets are captured, into one file for each
stage and side of a NAT, which 'natkit pcap' reads; files of the same name are replaced.

Exit codes: 0 the expectation was met (--all: of every scenario), 1 the lab could not be
run, 2 usage, 3 the expectation was not met. docs/scenarios.md is the language of scenarios.`,
		Example: `  sudo natkit lab run table-full
  sudo natkit lab run table-full --bridge --html report.html
  sudo natkit lab run table-full --full       # 5,000 concurrent, 100,000 requests
  sudo natkit lab run table-full --lower-max 1000   # as in 2018: a small host-wide limit
  sudo natkit lab run table-full --pcap captures
  sudo natkit lab run service-unanswered --rate 100
  sudo natkit lab run stateless               # what connection tracking costs, and how fast NAT is without it
  sudo natkit lab run million --connections 50000 --allow-host
  sudo natkit lab run nat-kinds --engine ebpf
  sudo natkit lab run ./mine.yaml --json
  sudo natkit lab run --all --allow-host
  sudo natkit lab run --all --only table-full,healthy-idle --json`,
		Args:              argsUnless(takes, "all"),
		ValidArgsFunction: offerOrFile(scenarioNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.all {
				return f.runAll(cmd.Context())
			}
			if len(args) == 0 {
				return usagef("an argument is missing: natkit lab %s", cmd.Use)
			}
			return f.run(cmd.Context(), args[0])
		},
	}
	f.addFlags(cmd)
	return cmd
}

func (f *labRun) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.VarP(between(&f.overrides.Concurrency, 1, math.MaxInt), "concurrency", "c", "concurrent requests (default: the scenario's)")
	flags.VarP(between(&f.overrides.Requests, 1, math.MaxInt64), "requests", "n", "requests in each stage (default: the scenario's)")
	flags.Var(between(&f.overrides.Connections, 1, math.MaxInt32), "connections", "hold `N` connections, with what fills the table and the host's buckets in proportion, where a scenario holds some until all stand (default: the scenario's)")
	flags.VarP(period(&f.overrides.Timeout, time.Millisecond, 0), "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, … (default: the scenario's)")
	flags.Var(between(&f.overrides.Rate, 1, 100000), "rate", "requests and datagrams per `SECOND`, for as long as the scenario says, of loads that have a rate (default: the scenario's)")
	flags.BoolVar(&f.full, "full", false, "5,000 concurrent, 100,000 requests")
	flags.BoolVar(&f.overrides.Bridge, "bridge", false, "put the server behind a bridge with br_netfilter, as Docker does")
	flags.Var(into(&f.overrides.Engine, oneOf(gateway.EngineNetfilter, gateway.EngineEBPF)), "engine", "engine `WORD` of the scenario's gateway files: netfilter, ebpf (default: the scenario's)")
	addServer(cmd, &f.server)
	flags.Var(between(&f.lowerMax, 1, math.MaxInt64), "lower-max", "make the fault by lowering the host-wide nf_conntrack_max to `N` during the fault stage")
	flags.BoolVar(&f.force, "force", false, "with --lower-max or --allow-host: also where other namespaces would lose connections")
	flags.BoolVar(&f.all, "all", false, "run all scenarios and print the accuracy matrix")
	flags.StringSliceVar(&f.only, "only", nil, "with --all: only the scenarios of these `NAMES`, separated by commas")
	flags.BoolVar(&f.allowHost, "allow-host", false, "also run scenarios that change values of the whole host for a while")
	f.env.addJSON(cmd, lab.ReportSchema+", with --all "+lab.AccuracySchema)
	f.files.addTo(flags)
	flags.Var(into(&f.pcap, notEmpty("a folder")), "pcap", "write what each node's interfaces send and receive into pcapng files in `DIR`, one for each stage and side")
	flags.Var(into(&f.snap, parseSnapLen), "pcap-snaplen", fmt.Sprintf("with --pcap: keep `BYTES` of each packet, 0 for all (default %d, enough for all headers)", f.snap))
	flags.Var(into(&f.limit, parseFileSize), "pcap-size", fmt.Sprintf("with --pcap: let no file grow beyond `SIZE`: 64M, 1G, … (default %dM)", f.limit>>20))
	for _, alone := range []string{"connections", "concurrency", "requests", "timeout", "full", "bridge", "lower-max", "force", "html", "pcap", "engine"} {
		cmd.MarkFlagsMutuallyExclusive("all", alone)
	}
	for _, other := range []string{"concurrency", "requests", "full"} {
		cmd.MarkFlagsMutuallyExclusive("rate", other)
	}
	cmd.MarkFlagsMutuallyExclusive("full", "concurrency")
	cmd.MarkFlagsMutuallyExclusive("full", "requests")
	requires(cmd, "force", "lower-max", "allow-host")
	requires(cmd, "only", "all")
	requires(cmd, "pcap-snaplen", "pcap")
	requires(cmd, "pcap-size", "pcap")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"only": completeList(scenarioNames),
		"engine": completeWords(string(gateway.EngineNetfilter), string(gateway.EngineEBPF))})
}

// addServer adds --server.
func addServer(cmd *cobra.Command, server *build.ServerKind) {
	*server = build.Auto
	cmd.Flags().Var(into(server, oneOf(build.Auto, build.Nginx, build.Builtin)), "server", "web server `KIND`: nginx, builtin, or auto (the default: nginx if installed)")
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

func scenarioNames() (names []string) {
	for _, s := range lab.Scenarios() {
		names = append(names, cobra.CompletionWithDesc(s.Name, s.Title))
	}
	return names
}

func (f *labRun) run(ctx context.Context, name string) error {
	toStdout, err := f.files.check(f.env)
	if err != nil {
		return err
	}
	scenario, err := f.findScenario(ctx, name)
	if err != nil {
		return err
	}
	if f.full {
		f.overrides.Concurrency, f.overrides.Requests = 5000, 100000
	}
	if scenario, err = scenario.With(f.overrides); err != nil {
		return usage(err)
	}
	if err := f.makeDir(); err != nil {
		return err
	}
	var r *lab.Report
	ended := f.conduct(scenario.Name, func(opt run.Options) (err error) {
		r, err = run.Run(ctx, scenario, opt)
		return err
	})
	if r == nil {
		return ended
	}
	if !toStdout {
		err = f.env.print(report.LabRun{Report: r})
	}
	if err = errors.Join(err, f.files.save(f.env, r)); ended != nil { // interrupted, with what was reached
		return errors.Join(err, ended)
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

// conduct calls do with the options that the flags choose, and shows its progress.
func (f *labRun) conduct(name string, do func(run.Options) error) error {
	journal, err := f.env.journal()
	if err != nil {
		return err
	}
	progress := f.env.progress()
	err = do(run.Options{
		Server: f.server, Journal: journal, LowerMax: f.lowerMax, Force: f.force, AllowHost: f.allowHost, Version: f.env.Version, Progress: progress.Show,
		Capture: run.CaptureOptions{Dir: f.pcap, SnapLen: cmp.Or(f.snap, run.MaxSnapLen), MaxBytes: f.limit},
	})
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("lab %s: interrupted; the lab is removed and the host is as it was", name)
	}
	return err
}

// findScenario takes the name of a built-in scenario, or a YAML file.
func (f *labRun) findScenario(ctx context.Context, name string) (*lab.Scenario, error) {
	if !isScenarioFile(name) {
		s, err := lab.Find(name)
		if err != nil {
			return nil, usage(err)
		}
		return s, nil
	}
	text, err := f.env.read(ctx, "scenario", name, lab.MaxSource, "")
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

// chosen returns the built-in scenarios that run without a request, or those of --only.
func (f *labRun) chosen() ([]*lab.Scenario, error) {
	if len(f.only) == 0 {
		return slices.DeleteFunc(slices.Clone(lab.Scenarios()), func(s *lab.Scenario) bool { return s.OnRequest }), nil
	}
	var all []*lab.Scenario
	for _, name := range f.only {
		s, err := lab.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, usage(err)
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
	if f.overrides.Rate > 0 {
		if scenarios, err = lab.AtRate(scenarios, f.overrides.Rate); err != nil {
			return usage(err)
		}
	}
	var a *lab.Accuracy
	if err := f.conduct("run --all", func(opt run.Options) (err error) {
		a, err = run.All(ctx, scenarios, run.AllOptions{Options: opt})
		return err
	}); err != nil {
		return err
	}
	if err = f.env.print(report.LabMatrix{Accuracy: a}); err == nil && !a.Passed {
		return errFindings
	}
	return err
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
