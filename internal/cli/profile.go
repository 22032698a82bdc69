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
	"github.com/spf13/cobra"
)

// minProfile is enough for some samples.
const minProfile = 100 * time.Millisecond

// profiler is the verb profile.
type profiler struct {
	env      *Env
	opt      bpf.Options
	duration time.Duration
	top      int
	files    []profileFile
}

// profileFile is a file that profile writes besides its report, or to stdout (-)
// instead of it.
type profileFile struct {
	flag, name string
	write      func(*profile.Stacks, io.Writer) error
}

func newProfile(env *Env) *cobra.Command {
	p := &profiler{env: env, duration: 5 * time.Second, top: 20, opt: bpf.Options{Hz: bpf.DefaultHz}, files: []profileFile{
		{"flame", "", (*profile.Stacks).WriteFlame}, {"pprof", "", (*profile.Stacks).WritePprof}, {"folded", "", (*profile.Stacks).WriteFolded}}}
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "show what NAT costs: the CPU time of packet receive, conntrack, NAT, rules, …",
		Long: `Sample the CPUs, and show first how much of all CPU time is packet receive, and how
much of that is looking up and inserting connections, setting up and rewriting NAT,
rules, bridge netfilter, routing, and the rest; then the functions with most samples.

A sample counts for the innermost of its functions that is known to do one kind
of work. Packet receive is what runs in the receive softirq, delivery to sockets
and forwarding included. Netfilter also handles the packets that this host sends:
its kinds of work appear a second time under "not in packet receive". The sum of all
is exactly the busy time of the whole host, all network namespaces included.

Requires CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), CAP_SYSLOG and
Linux 5.4, and no compiler or debug symbols. Ctrl-C ends the sampling and reports what
was sampled until then.`,
		Example: `  sudo natkit profile
  sudo natkit profile --for 30s --flame nat.html      # a page to click through
  sudo natkit profile --cpu 0-3,8 --hz 499 --top 40
  sudo natkit profile --pprof cpu.pb.gz && go tool pprof -top cpu.pb.gz
  sudo natkit profile --folded - | grep conntrack
  sudo natkit profile --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.Var(periodBetween(&p.duration, minProfile, maxWindow), "for", "sample for this time: seconds or 500ms, 2m, …")
	f.Var(between(&p.opt.Hz, 1, bpf.MaxHz), "hz", "take `N` samples per second of each CPU")
	f.Var(into(&p.opt.CPUs, bpf.ParseCPUs), "cpu", "sample only the CPUs in `LIST`, such as 0-3,8 (default all)")
	f.Var(natural(&p.top), "top", "list the `N` functions with most samples, 0 for all")
	for i, usage := range []string{"write a flame graph to `FILE`.html: one page that needs no network", "write the samples to `FILE`, for 'go tool pprof'",
		"write one line per stack to `FILE`, - for stdout instead of the report"} {
		f.StringVar(&p.files[i].name, p.files[i].flag, "", usage)
	}
	p.env.addJSON(cmd, report.ProfileSchema)
	return cmd
}

func (p *profiler) run(ctx context.Context) error {
	toStdout, err := p.checkFiles()
	if err != nil {
		return err
	}
	stacks, err := p.sample(ctx)
	if err != nil {
		return err
	}
	// If a file cannot be written, the report is still worth something.
	if err = p.writeFiles(stacks); toStdout {
		return err
	}
	summary := stacks.Summarize()
	if p.top > 0 && len(summary.Functions) > p.top {
		summary.Functions = summary.Functions[:p.top]
	}
	return errors.Join(err, p.env.print(report.ProfileDocument{Schema: report.ProfileSchema, Kernel: stacks.Kernel, Profile: summary}))
}

// sample shows how far it is. It ends early with ctx.
func (p *profiler) sample(ctx context.Context) (*profile.Stacks, error) {
	progress := p.env.progress()
	defer progress.Clear()
	running, err := bpf.Start(p.opt)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	_ = during(ctx, p.duration, time.Second, func() error {
		progress.Update("sampling the CPUs: %.0f of %.0f s (Ctrl-C ends it)", time.Since(started).Seconds(), p.duration.Seconds())
		return nil
	})
	return running.Stop()
}

// checkFiles reports, before the sampling, what would keep the files from being written,
// and whether one of them replaces the report.
func (p *profiler) checkFiles() (toStdout bool, err error) {
	seen := map[string]string{}
	for _, file := range p.files {
		switch other := seen[file.name]; {
		case file.name == "":
			continue
		case other != "":
			return false, usagef("--%s %s: --%s writes there, too", file.flag, file.name, other)
		case file.name == "-" && p.env.asJSON:
			return false, usagef("--%s - and --json are mutually exclusive", file.flag)
		case file.name == "-" && file.flag == "pprof" && p.env.StdoutTerminal:
			return false, usagef("--pprof -: stdout is a terminal and the profile is binary: redirect it")
		case file.name == "-":
			toStdout = true
		default:
			if err := ofFlag(file.flag, mayWrite(file.name)); err != nil {
				return false, err
			}
		}
		seen[file.name] = file.flag
	}
	return toStdout, nil
}

// ofFlag names the flag that an error is about.
func ofFlag(name string, err error) error {
	if err != nil {
		return fmt.Errorf("--%s: %w", name, err)
	}
	return nil
}

// writeFiles writes the files, each whole or not at all.
func (p *profiler) writeFiles(stacks *profile.Stacks) error {
	for _, file := range p.files {
		write := func(w io.Writer) error { return file.write(stacks, w) }
		var err error
		switch file.name {
		case "":
		case "-":
			err = write(p.env.Stdout)
		default:
			err = writeWhole(file.name, 0o644, write)
		}
		if err != nil {
			return ofFlag(file.flag, err)
		}
	}
	return nil
}
