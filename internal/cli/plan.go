package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/plan"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// planVerb is the verb plan.
type planVerb struct {
	env     *Env
	target  target
	request plan.Request
	network plan.Network
	// from is a bundle; kernel and memory describe another machine.
	from, kernel string
	memory       int64
	window       time.Duration
	duration     time.Duration
	rtt          time.Duration
	roles        []string
	check        bool
	explain      bool
	write, unit  string
}

// usualRTT is a round trip to another continent, or half of one.
const usualRTT = 50 * time.Millisecond

func newPlan(env *Env) *cobra.Command {
	v := &planVerb{env: env, rtt: usualRTT, network: plan.Network{WAN: "eth0", LAN: "eth1"}, request: plan.Request{
		Load: plan.Load{Protocol: plan.TCP}, Ports: nat.Ports{First: 1024, Last: 65535}, Addresses: 1, Destinations: 1}}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "size a connection table, its memory, ports and the limits of hosts for a load",
		Long: `Compute what a load needs: the entries of the connection table by state, its limit,
hash buckets and memory, what too long hash chains refuse, SNAT addresses, the rates at
which ports come again, and the limits of files, queues and ports of a server and of a load
client. Nothing is changed.

The load is --rate with --duration, or --connections; without either it is what this host
or the bundle of --from has. The machine is this one, that of --from, or with --kernel
another, of which nothing is read. docs/plan.md has the formulas; --explain prints them
with what went into them.

--output sysctl, modprobe, systemd or gateway prints a file that is ready to use, --write
writes them all below a folder. They raise what is too low; of a machine whose values are
not known, what has to be more than its kernel gives itself.

With --check only what the roles of --as need is compared with the machine. Exit codes:
0 ready, 1 error, 2 usage, 3 not ready, 4 something could not be read.`,
		Example: `  natkit plan --rate 5000/s --duration 2s --kernel 6.12 --memory 8G
  natkit plan --connections 1M --as server --check
  natkit plan --growth 2                      # twice the load of this host
  natkit plan --from bundle.tar.gz --explain
  natkit plan --rate 5k --duration 2s -o sysctl > 80-natkit-plan.conf
  natkit plan --connections 1M --as server --unit nginx.service --write /tmp/plan
  natkit plan --rate 600 --duration 1s --ports 2049-65535 --hold 112.5s`,
		Annotations: map[string]string{formatsKey: "sysctl modprobe systemd gateway"},
	}
	v.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return v.run(cmd) }
	return cmd
}

func (v *planVerb) addFlags(cmd *cobra.Command) {
	r, flags := &v.request, cmd.Flags()
	flags.Var(into(&r.Load.PerSecond, parseRate), "rate", "new connections per `SECOND`: 5000, 5k/s, 0.5/s")
	flags.Var(period(&v.duration, 0, plan.MostSeconds*time.Second), "duration", "`TIME` for which a connection is open: seconds or 500ms, 10m, …")
	flags.Var(into(&r.Load.Open, parseConnections), "connections", "`N` connections that are open at one time: 200000, 200k, 1M")
	flags.Var(into(&r.Load.Unanswered, parseShare), "unanswered", "`SHARE` of new connections without an answer: 0.01, 1%")
	flags.Var(period(&v.rtt, 0, time.Hour), "rtt", "round trip `TIME` between client and server")
	flags.Var(into(&r.Load.Protocol, oneOf(plan.TCP, plan.UDP)), "proto", "the load's `PROTOCOL`: tcp, udp")
	flags.Lookup("proto").DefValue = plan.TCP
	flags.Var(into(&r.Load.Growth, parseGrowth), "growth", "plan for this `FACTOR` of the load that is seen")
	flags.Var(into(&v.kernel, notEmpty("a kernel version")), "kernel", "plan for a machine with this kernel `VERSION` (6.12, 5.15.103, 6.1.0-13-amd64) and read nothing here")
	flags.Var(into(&v.memory, parseMemory), "memory", "`SIZE` of the machine's memory: 8G")
	flags.Var(into(&v.from, notEmpty("a file")), "from", "take machine and load from a bundle `FILE` that 'natkit snapshot' wrote; - for standard input")
	flags.Var(into(&r.Ports, parseRange), "ports", "ports of each address of the NAT, `FIRST-LAST`")
	flags.Lookup("ports").DefValue = r.Ports.String()
	flags.Var(between(&r.Addresses, 1, plan.MostAddresses), "addresses", "`N` addresses: of the NAT, and of a load client")
	flags.Var(between(&r.Destinations, 1, plan.MostAddresses), "destinations", "`N` destinations (address and port) that connections are spread over")
	flags.Var(&value{kind: repeatable, set: func(text string) error {
		d, err := parseSeconds(text)
		r.Holds = append(r.Holds, d.Seconds())
		return err
	}}, "hold", "print the rate at which ports come again that something holds for this `TIME` as well; may be repeated")
	flags.StringSliceVar(&v.roles, "as", []string{string(plan.Gateway)}, "`ROLES` of the machine that --check and files are for: gateway, server, client")
	flags.BoolVar(&v.check, "check", false, "compare only what the roles need with what the machine has; exits with 3 where it is not ready")
	flags.BoolVar(&v.explain, "explain", false, "print formula and inputs of each number")
	flags.Var(into(&v.write, notEmpty("a folder")), "write", "write the files below folder `DIR`; none is overwritten")
	flags.StringVar(&v.unit, "unit", "", "with --write: the systemd `UNIT` of the program that gets the drop-in, such as nginx.service")
	flags.StringVar(&v.network.WAN, "wan", v.network.WAN, "`INTERFACE` outside, for the gateway's file")
	flags.StringVar(&v.network.LAN, "lan", v.network.LAN, "`INTERFACE` inside, for the gateway's file")
	flags.Var(into(&v.network.SNAT, gateway.ParseRanges), "snat", "`ADDRESSES` of the NAT, for the gateway's file: 203.0.113.16-203.0.113.19")
	v.target.addFlags(cmd)
	addWindow(cmd, &v.window, usualWindow, minWindow)
	v.env.addJSON(cmd, plan.Schema)
	for _, one := range []string{"rate", "connections"} {
		cmd.MarkFlagsMutuallyExclusive(one, "growth")
		cmd.MarkFlagsMutuallyExclusive(one, "for")
	}
	for _, live := range []string{"netns", "pid", "for"} {
		cmd.MarkFlagsMutuallyExclusive("from", live)
		cmd.MarkFlagsMutuallyExclusive("kernel", live)
	}
	cmd.MarkFlagsMutuallyExclusive("from", "kernel")
	cmd.MarkFlagsMutuallyExclusive("check", "kernel")
	cmd.MarkFlagsMutuallyExclusive("check", "write")
	cmd.MarkFlagsMutuallyExclusive("check", "explain")
	cmd.MarkFlagsMutuallyExclusive("snat", "addresses")
	requires(cmd, "kernel", "rate", "connections")
	requires(cmd, "rate", "duration", "connections")
	for _, one := range []string{"duration", "unanswered", "rtt", "proto"} {
		requires(cmd, one, "rate", "connections")
	}
	requires(cmd, "unit", "write")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"proto": completeWords(plan.TCP, plan.UDP), "as": completeWords("gateway", "server", "client"),
		"kernel": completeWords("5.10", "5.15", "6.1", "6.6", "6.12", "6.18")})
}

// parseScaled reads a number with k, M or G behind it.
func parseScaled(text string) (float64, error) {
	factor := 1.0
	for suffix, by := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			text, factor = number, by
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errors.New("must be a number such as 200000, 200k or 1M")
	}
	return v * factor, nil
}

func parseRate(text string) (float64, error) {
	v, err := parseScaled(strings.TrimSuffix(text, "/s"))
	if err == nil && !(v > 0 && v <= plan.MostPerSecond) {
		err = errors.New("must be more than 0, and at most 1G per second")
	}
	return v, err
}

func parseConnections(text string) (int64, error) {
	v, err := parseScaled(text)
	switch {
	case err != nil:
	case !(v >= 1 && v <= plan.MostConnections):
		err = errors.New("must be from 1 to 1000G")
	case v != math.Trunc(v):
		err = errors.New("must be a whole number")
	}
	return int64(v), err
}

func parseGrowth(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= plan.MostGrowth) {
		return 0, errors.New("must be a number, more than 0 and at most 1000000")
	}
	return v, nil
}

func parseMemory(text string) (int64, error) {
	n, ok := parseBytes(text)
	if !ok || n == 0 {
		return 0, errors.New("must be an amount of memory: 512M, 8G, …")
	}
	return n, nil
}

func parseRange(text string) (nat.Ports, error) {
	ports, err := nat.ParsePorts(text)
	if err != nil || ports.First == 0 || !strings.Contains(text, "-") {
		return ports, errors.New("must be FIRST-LAST, such as 2048-65535")
	}
	return ports, nil
}

func (v *planVerb) run(cmd *cobra.Command) error {
	if err := v.setLoad(cmd); err != nil {
		return err
	}
	if err := v.machine(cmd); err != nil {
		return err
	}
	p, err := plan.New(v.request)
	if err != nil {
		return err
	}
	p.Version = v.env.Version
	switch {
	case slices.Contains(plan.Formats, plan.Format(v.env.format)):
		_, err := fmt.Fprint(v.env.Stdout, p.Text(plan.Format(v.env.format), v.network))
		return err
	case v.write != "":
		return v.writeFiles(p)
	}
	if err := v.env.print(report.Plan{Plan: p, Explain: v.explain, Check: v.check}); err != nil || !v.check {
		return err
	}
	switch p.Ready {
	case plan.No:
		return errFindings
	case plan.Unknown:
		return errIncomplete
	}
	return nil
}

// setLoad completes the load by what was given of it.
func (v *planVerb) setLoad(cmd *cobra.Command) error {
	l, changed := &v.request.Load, cmd.Flags().Changed
	l.DurationSeconds, l.RTTSeconds = v.duration.Seconds(), v.rtt.Seconds()
	switch {
	case changed("rate") && changed("connections") && changed("duration"):
		return usagef("--rate, --duration and --connections are mutually exclusive: two of them give the third")
	case changed("rate") && changed("connections"):
		l.DurationSeconds = float64(l.Open) / (l.PerSecond * (1 - l.Unanswered))
	case changed("connections") && l.DurationSeconds > 0:
		l.PerSecond = float64(l.Open) / (l.DurationSeconds * (1 - l.Unanswered))
	case !changed("rate") && !changed("connections"):
		l.Observed = true
	}
	if n := v.network.SNAT; len(n) > 0 {
		v.request.Addresses = 0
		for _, r := range n {
			v.request.Addresses = min(v.request.Addresses+r.Size(), plan.MostAddresses)
		}
	}
	for _, name := range v.roles {
		role, err := oneOf(plan.AllRoles...)(name)
		if err != nil {
			return usagef("--as %q: %w", name, err)
		}
		if l.Protocol != plan.TCP && role != plan.Gateway {
			return usagef("--as %s: limits of UDP are those of a gateway alone", role)
		}
		v.request.Roles = append(v.request.Roles, role)
	}
	if len(v.request.Roles) == 0 {
		return usagef("--as: must have one of gateway, server, client")
	}
	if v.kernel != "" {
		if _, err := capacity.ParseRelease(v.kernel); err != nil {
			return usagef("--kernel %q: %w", v.kernel, err)
		}
	}
	if err := v.request.Check(); err != nil && !l.Observed {
		return usage(err)
	}
	if v.unit != "" && (strings.ContainsAny(v.unit, "/ ") || !strings.Contains(v.unit, ".")) {
		return usagef("--unit %q: must be the name of a unit, such as nginx.service", v.unit)
	}
	return nil
}

// machine finds what the plan is for: another machine, that of a bundle, or this one.
func (v *planVerb) machine(cmd *cobra.Command) error {
	r := &v.request
	switch {
	case v.kernel != "":
		r.Source, r.On = "Linux "+v.kernel, &snapshot.Snapshot{Kernel: snapshot.Kernel{Release: v.kernel}}
	case v.from != "":
		if err := v.fromBundle(cmd.Context()); err != nil {
			return err
		}
	default:
		if err := v.fromHost(cmd); err != nil {
			return err
		}
	}
	if v.memory > 0 {
		r.On.Memory = &snapshot.Memory{TotalBytes: uint64(v.memory)}
	}
	return nil
}

func (v *planVerb) fromBundle(ctx context.Context) error {
	rec, err := v.env.readRecorded(ctx, recorded{name: v.from, memory: snapshot.DefaultBudget})
	if err != nil {
		return err
	}
	v.request.On, v.request.Seen, v.request.Source = rec.Last(), rec, "bundle "+v.from
	return nil
}

// writeFiles writes all files, or none where one of them is there already with another text.
func (v *planVerb) writeFiles(p *plan.Plan) error {
	files := p.Files(v.network, v.unit)
	var missing []plan.File
	for _, f := range files {
		name := filepath.Join(v.write, f.Path)
		switch text, err := os.ReadFile(name); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, f)
		case err != nil:
			return fmt.Errorf("write the plan: %w", err)
		case string(text) != f.Text:
			return fmt.Errorf("write %s: it exists already, with another text; nothing was written: remove it, or choose another --write DIR", name)
		default:
			v.env.note("%s is there already, the same", name)
		}
	}
	for _, f := range missing {
		name := filepath.Join(v.write, f.Path)
		err := permit.Output(name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(name), 0o755)
		}
		if err != nil {
			return fmt.Errorf("write the plan: %w", err)
		}
		if err := writing(name, disk.Create(name, 0o644, disk.Text(f.Text))); err != nil {
			return err
		}
		if err := v.env.say("%s\n", name); err != nil {
			return err
		}
	}
	if v.unit == "" && !slices.Equal(v.request.Roles, []plan.Role{plan.Gateway}) {
		v.env.note("no systemd drop-in was written: --unit names the unit of the program")
	}
	return nil
}
