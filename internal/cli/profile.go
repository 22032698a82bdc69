package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	bpf "github.com/natkit/natkit/internal/bpf/profile"
	"github.com/natkit/natkit/internal/profile"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// profileSchema names the JSON form of a profile.
const profileSchema = "natkit.profile/1"

// minProfile is enough for some samples.
const minProfile = 100 * time.Millisecond

// profiler is the verb profile.
type profiler struct {
	env      *Env
	duration time.Duration
	hz       int
	cpus     string
	top      int
	outputs  profileOutputs
	asJSON   bool
}

func newProfile(env *Env) *cobra.Command {
	p := &profiler{env: env, duration: 5 * time.Second}
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "tell what NAT costs: the CPU time of packet receive, conntrack, NAT, rules, …",
		Long: `Sample what the CPUs do, and tell first how much of all CPU time is packet
receive, and how much of that is looking up and inserting connections, setting
up and rewriting NAT, rules, bridge netfilter, routing, and the rest; then the
functions with most samples.

A sample counts for the innermost of its functions that is known to do one kind
of work. Packet receive is what runs in the receive softirq, delivery to sockets
and forwarding included. Netfilter also sees the packets that this host sends:
its kinds of work count wherever they run, and stand a second time under "not in
packet receive". The sum of all is exactly the busy time.

Samples are the CPUs' time. The whole host is sampled, all network namespaces
and containers included. What the kernel runs with interrupts disabled is
found at the function that enables them again.

It needs CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) and CAP_SYSLOG,
Linux 5.4, and no compiler or debug symbols. An interrupt (Ctrl-C) ends the
sampling, and what was sampled until then is reported.`,
		Example: `  sudo natkit profile
  sudo natkit profile --for 30s --flame nat.html      # a page to click through
  sudo natkit profile --cpu 0-3,8 --hz 499 --top 40
  sudo natkit profile --pprof cpu.pb.gz && go tool pprof -top cpu.pb.gz
  sudo natkit profile --folded - | grep conntrack
  sudo natkit profile --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	flags := cmd.Flags()
	flags.Var((*seconds)(&p.duration), "for", "sample for this time: seconds or 500ms, 2m, …")
	flags.IntVar(&p.hz, "hz", bpf.DefaultHz, "take `N` samples a second of each CPU")
	flags.StringVar(&p.cpus, "cpu", "", "sample only the CPUs in `LIST`, such as 0-3,8 (default all)")
	flags.IntVar(&p.top, "top", 20, "list the `N` functions with most samples, 0 for all")
	p.outputs.addFlags(cmd)
	addJSON(cmd, &p.asJSON, profileSchema)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"cpu": cobra.NoFileCompletions, "for": cobra.NoFileCompletions,
		"hz": cobra.NoFileCompletions, "top": cobra.NoFileCompletions})
	return cmd
}

// options checks the command line.
func (p *profiler) options(cmd *cobra.Command) (bpf.Options, error) {
	opt := bpf.Options{Hz: p.hz}
	switch {
	case p.hz < 1 || p.hz > bpf.MaxHz:
		return opt, usagef("--hz %d: must be from 1 to %d", p.hz, bpf.MaxHz)
	case p.top < 0:
		return opt, usagef("--top %d: must not be negative", p.top)
	}
	if cmd.Flags().Changed("cpu") {
		cpus, err := bpf.ParseCPUs(p.cpus)
		if err != nil {
			return opt, usagef("--cpu: %w", err)
		}
		opt.CPUs = cpus
	}
	if err := p.outputs.check(p.env, p.asJSON); err != nil {
		return opt, err
	}
	return opt, checkWindow(p.duration, minProfile)
}

func (p *profiler) run(cmd *cobra.Command) error {
	opt, err := p.options(cmd)
	if err != nil {
		return err
	}
	// Better now than after the sampling.
	if err := p.outputs.mayWrite(); err != nil {
		return err
	}
	stacks, err := p.sample(cmd.Context(), opt)
	if err != nil {
		return err
	}
	// Where a file finds no room, the report is still worth something.
	err = p.outputs.write(p.env, stacks)
	if p.outputs.usesStdout() {
		return err
	}
	return errors.Join(err, p.print(p.env.Stdout, stacks))
}

// sample shows how far it is. It ends early with ctx.
func (p *profiler) sample(ctx context.Context, opt bpf.Options) (*profile.Stacks, error) {
	progress := p.env.progress()
	defer progress.Clear()
	started := time.Now()
	running, err := bpf.Start(opt)
	if err != nil {
		return nil, err
	}
	end := time.NewTimer(p.duration)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-end.C:
			return running.Stop()
		case <-ctx.Done():
			return running.Stop()
		case <-tick.C:
			progress.Update("sampling the CPUs: %.0f of %.0f s (Ctrl-C ends it)", time.Since(started).Seconds(), p.duration.Seconds())
		}
	}
}

// print writes the report.
func (p *profiler) print(w io.Writer, stacks *profile.Stacks) error {
	summary := stacks.Summarize()
	if p.top > 0 && len(summary.Functions) > p.top {
		summary.Functions = summary.Functions[:p.top]
	}
	var err error
	if p.asJSON {
		err = report.JSON(w, struct {
			Schema string `json:"schema"`
			Kernel string `json:"kernel_release"`
			*snapshot.Profile
		}{profileSchema, stacks.Kernel, summary})
	} else {
		err = report.Profile(w, p.env.style(), stacks.Kernel, summary)
	}
	if err != nil {
		return fmt.Errorf("print the profile: %w", err)
	}
	return nil
}

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
