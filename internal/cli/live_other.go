//go:build !linux

package cli

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// onLinux is whether there is a host to read.
const onLinux = false

// needsLinux is the error of doing something that only a host with Linux has; instead is what can be done here.
func needsLinux(what, instead string) error { return usagef("%s: requires Linux; %s", what, instead) }

// linuxVerb stands for a verb that reads or changes a host, and says so.
func linuxVerb(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: "requires Linux", Hidden: true, DisableFlagParsing: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("%s: requires Linux; run it on the host", cmd.CommandPath())
		},
	}
}

// hostNames is nil: there is no host to read.
func (*Env) hostNames(time.Duration) func(context.Context, *netns.Handle) *snapshot.Names { return nil }

func newBench(*Env) *cobra.Command           { return linuxVerb("bench") }
func newExporter(*Env) *cobra.Command        { return linuxVerb("exporter") }
func newDrops(*Env) *cobra.Command           { return linuxVerb("drops") }
func newFlows(*Env) *cobra.Command           { return linuxVerb("flows") }
func newLab(*Env) *cobra.Command             { return linuxVerb("lab") }
func newPath(*Env) *cobra.Command            { return linuxVerb("path") }
func newProfile(*Env) *cobra.Command         { return linuxVerb("profile") }
func newRecordMark(*Env) *cobra.Command      { return linuxVerb("mark") }
func newSnapshot(*Env) *cobra.Command        { return linuxVerb("snapshot") }
func newSysctl(*Env) *cobra.Command          { return linuxVerb("sysctl") }
func newTop(*Env) *cobra.Command             { return linuxVerb("top") }
func newTune(*Env) *cobra.Command            { return linuxVerb("tune") }
func newConntrackDelete(*Env) *cobra.Command { return linuxVerb("delete") }
func newConntrackEvents(*Env) *cobra.Command { return linuxVerb("events") }
func newGatewayApply(*Env) *cobra.Command    { return linuxVerb("apply") }
func newGatewayConfirm(*Env) *cobra.Command  { return linuxVerb("confirm") }
func newGatewayEdit(*Env) *cobra.Command     { return linuxVerb("edit") }
func newGatewayExplain(*Env) *cobra.Command  { return linuxVerb("explain") }
func newGatewayLog(*Env) *cobra.Command      { return linuxVerb("log") }
func newGatewayPlan(*Env) *cobra.Command     { return linuxVerb("plan") }
func newGatewayRun(*Env) *cobra.Command      { return linuxVerb("run") }
func newGatewaySet(*Env) *cobra.Command      { return linuxVerb("set") }
func newGatewayStatus(*Env) *cobra.Command   { return linuxVerb("status") }
func newGatewayUndo(*Env) *cobra.Command     { return linuxVerb("undo") }

// addRecorder has the verb say that it records on Linux alone; what reads recordings is below it.
func addRecorder(_ *Env, cmd *cobra.Command) {
	cmd.RunE = func(*cobra.Command, []string) error {
		return needsLinux("record a host", "copy the directory of 'natkit record' from there, and use 'natkit record show DIR'")
	}
}

// hostFlags choose a host's namespaces, or change the host. A gateway's file is always checked offline.
var hostFlags = []string{"netns", "pid", "for", "watch", "every", "exec", "exec-time", "trace", "fix", "all-netns", "yes", "confirm", "persist", "offline"}

// hideHost leaves out of the help what only a host with Linux has, and says so.
func hideHost(root *cobra.Command) {
	root.Long += "\n\n" + `This natkit, for ` + runtime.GOOS + `, reads what was written on Linux: bundles of 'natkit snapshot', captures,
lists of connections, rules. What reads or changes a host requires natkit on Linux.`
	hideOf(root)
}

func hideOf(cmd *cobra.Command) {
	readsHost := cmd.Flags().Lookup("netns") != nil // --for of simulate is another
	for _, name := range hostFlags {
		f := cmd.Flags().Lookup(name)
		if f == nil || !readsHost {
			continue
		}
		if f.Hidden = true; name != "offline" {
			f.Value = linuxFlag{f.Value}
		}
	}
	var examples []string
	for line := range strings.Lines(cmd.Example) {
		if !strings.Contains(line, "sudo ") && worksOf(cmd, line) {
			examples = append(examples, line)
		}
	}
	cmd.Example = strings.TrimRight(strings.Join(examples, ""), "\n")
	for _, sub := range cmd.Commands() {
		hideOf(sub)
	}
}

// worksOf reports whether an example reads no host: a verb with --from does without it, plan with --kernel as well.
func worksOf(cmd *cobra.Command, line string) bool {
	return cmd.Flags().Lookup("from") == nil || strings.Contains(line, " --from ") || strings.Contains(line, " --rules ") || strings.Contains(line, " --kernel ")
}

// linuxFlag is the value of a flag that requires Linux.
type linuxFlag struct{ pflag.Value }

func (linuxFlag) Set(string) error { return netns.ErrNotLinux }

// treatment is nothing: no host is changed here.
type treatment struct{ *diagnose.Report }

// Last returns the report.
func (t *treatment) Last(r *diagnose.Report) *diagnose.Report { return r }

func (d *doctorVerb) addLive(*collect.RecordOptions)                {}
func (d *doctorVerb) runAll(context.Context) error                  { return netns.ErrNotLinux }
func (d *doctorVerb) watchFor(context.Context, *netns.Handle) error { return netns.ErrNotLinux }
func (d *doctorVerb) diagnose(context.Context, collect.RecordOptions) (*diagnose.Report, error) {
	return nil, netns.ErrNotLinux
}
func (d *doctorVerb) treat(context.Context, collect.RecordOptions, *diagnose.Report) (*treatment, error) {
	return nil, netns.ErrNotLinux
}

func (p *portsVerb) readHost(*cobra.Command, *look) error {
	return needsLinux(readsTable, listInstead)
}

func (v *planVerb) fromHost(*cobra.Command) error {
	return needsLinux("plan for this host", "give --kernel with a load, or --from with a bundle of 'natkit snapshot'")
}

func describe(*netns.Handle, *table.EntryRows) error { return netns.ErrNotLinux }

func readTimeouts(*netns.Handle) aggregate.Timeouts { return aggregate.Timeouts{} }

func kernelRules(*netns.Handle) (*ruleset.Ruleset, error) {
	return nil, needsLinux("read a host's rules", "copy what iptables-save or 'nft list ruleset' prints there, and give that FILE")
}

func planInForce(context.Context, *Env, *netns.Handle) (*gateway.Plan, *gateway.Facts, error) {
	return nil, nil, nil
}

func rulesSince(*Env, *netns.Handle) time.Time { return time.Time{} }

func (w *gatewayWho) byTable(context.Context, *netns.Handle) {}

func gatewayFacts(context.Context, *netns.Handle, *gateway.Config) (gateway.Facts, error) {
	return gateway.Facts{}, netns.ErrNotLinux
}

// gatewayFindings checks a file alone. Which rules engine ebpf would carry out is not known.
func gatewayFindings(file *gateway.File, facts *gateway.Facts) []gateway.Finding {
	return gateway.CheckPlan(file, *facts, func(p *gateway.Plan) {
		if p.Bypass != 0 && !bool(file.Config.AcknowledgeBypass) {
			facts.Unknown = append(facts.Unknown, "engine ebpf: which rules it carries out, and whether acknowledge-bypass is missing: requires Linux")
		}
	})
}
