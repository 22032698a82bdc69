package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// simulator is the verb simulate.
type simulator struct {
	env         *Env
	preset      string
	list        bool
	printConfig bool
	knobs       simulateKnobs
	outputs     simulateOutputs
	asJSON      bool
}

func newSimulate(env *Env) *cobra.Command {
	s := &simulator{env: env}
	cmd := &cobra.Command{
		Use:   "simulate [CONFIG.yaml]",
		Short: "predict what port reuse, TIME_WAIT, timestamps and a balancer's sessions do to connections",
		Long: `Compute, connection by connection, what becomes of the load of many clients behind
one NAT: which ports the NAT gives them, whether the server still has a TIME_WAIT
for that port, whether it takes the SYN or answers it with the former connection's
ACK, since the timestamp or the sequence number went back, and to which server a
load balancer sends it. Nothing is measured and nothing on this host is read or
changed; it needs no privilege.

The first lines say from which rate on SYNs are refused, how many, and what the
limit is: ports divided by the time for which they are in use. Below are the curves.

What is simulated is a configuration file (docs/simulate.md has its language), or a
preset: --list names them, among them the case of an old kernel's TIME_WAIT of
112.5 s, what was tried against it, and what the lab's scenario port-reuse-paws sends.
--print-config prints one to begin with. Flags change what the configuration says.

The same configuration and seed give the same result, byte by byte. An interrupt
(Ctrl-C) ends the simulation without a result.`,
		Example: `  natkit simulate --list
  natkit simulate --preset old-kernel
  natkit simulate --preset old-kernel --addresses 3 --html page.html
  natkit simulate --rate 800 --kernel 3.10 --lb          # without a file
  natkit simulate --preset mixed --print-config > mine.yaml && natkit simulate mine.yaml
  natkit simulate --arrivals rates.csv --csv - > curves.csv
  natkit simulate --preset lab --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.run(cmd, args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.preset, "preset", "", "simulate the preset `NAME`")
	flags.BoolVar(&s.list, "list", false, "list the presets")
	flags.BoolVar(&s.printConfig, "print-config", false, "print the configuration as YAML instead of simulating it")
	s.knobs.addFlags(cmd)
	s.outputs.addFlags(cmd)
	addJSON(cmd, &s.asJSON, simulate.Schema)
	cmd.MarkFlagsMutuallyExclusive("rate", "arrivals")
	cmd.MarkFlagsMutuallyExclusive("list", "preset")
	cmd.MarkFlagsMutuallyExclusive("list", "print-config")
	cmd.MarkFlagsMutuallyExclusive("print-config", "json")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"preset": completePresets})
	return cmd
}

func completePresets(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range simulate.Presets() {
		names = append(names, p.Name+"\t"+p.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (s *simulator) run(cmd *cobra.Command, args []string) error {
	if err := s.check(args); err != nil {
		return err
	}
	if s.list {
		return s.printList()
	}
	c, text, err := s.config(cmd, args)
	if err != nil {
		return err
	}
	if s.printConfig {
		return printConfig(s.env.Stdout, c, text)
	}
	// Better now than after the simulation.
	if err := s.outputs.mayWrite(); err != nil {
		return err
	}
	r, err := s.simulate(cmd.Context(), c)
	if err != nil {
		return err
	}
	return s.print(r)
}

func (s *simulator) check(args []string) error {
	switch {
	case s.preset != "" && len(args) > 0:
		return usagef("--preset %s and %s: give one of them", s.preset, args[0])
	case s.list && len(args) > 0:
		return usagef("--list goes alone, or with --json")
	}
	return s.outputs.check(s.asJSON)
}

// simulate shows how far it is.
func (s *simulator) simulate(ctx context.Context, c *simulate.Config) (*simulate.Result, error) {
	progress := s.env.progress()
	defer progress.Clear()
	r, err := simulate.Run(ctx, *c, func(p simulate.Progress) { progress.Show(report.SimulateProgress(p)) })
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("simulate: interrupted; there is no result")
	}
	return r, err
}

// print writes the report even where a file finds no room.
func (s *simulator) print(r *simulate.Result) error {
	err := s.outputs.write(s.env, r)
	switch {
	case s.outputs.usesStdout():
		return err
	case s.asJSON:
		return errors.Join(err, report.JSON(s.env.Stdout, report.NamedSimulation(r)))
	}
	return errors.Join(err, report.Simulate(s.env.Stdout, s.env.style(), r))
}

// simulateListSchema names the JSON form of the list of presets.
const simulateListSchema = "natkit.simulate-list/1"

type simulatePreset struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`
}

func (s *simulator) printList() error {
	t := &report.Table{Columns: []report.Column{{Head: "preset"}, {Head: "what it simulates", Wrap: true}}}
	var list []simulatePreset
	for _, p := range simulate.Presets() {
		list = append(list, simulatePreset{p.Name, p.Title, p.About})
		t.Row(p.Name, p.Title)
	}
	if s.asJSON {
		return report.JSON(s.env.Stdout, struct {
			Schema  string           `json:"schema"`
			Presets []simulatePreset `json:"presets"`
		}{simulateListSchema, list})
	}
	return t.Write(s.env.Stdout, s.env.style())
}

// printConfig prints the text where there is one, with its comments.
func printConfig(w io.Writer, c *simulate.Config, text string) error {
	if text == "" {
		yaml, err := simulate.YAML(c)
		if err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		text = yaml
	}
	_, err := io.WriteString(w, text)
	return err
}

// config is what the file, the preset and the flags say. text is the YAML that says
// just that, where no flag changes it.
func (s *simulator) config(cmd *cobra.Command, args []string) (c *simulate.Config, text string, err error) {
	switch {
	case len(args) > 0:
		c, text, err = readSimulation(args[0])
	case s.preset != "":
		c, text, err = presetOf(s.preset)
	default:
		c, text, err = presetOf(simulate.DefaultPreset)
	}
	if err != nil {
		return nil, "", err
	}
	changed, err := s.knobs.apply(cmd, c)
	if err != nil || !changed {
		return c, text, err
	}
	if err := c.Check(); err != nil {
		return nil, "", usagef("with these flags: %w", err)
	}
	return c, "", nil
}

func presetOf(name string) (*simulate.Config, string, error) {
	p, err := simulate.FindPreset(name)
	if err != nil {
		return nil, "", usageError{err}
	}
	// A copy of its own: flags change it.
	c, err := simulate.Parse(name+".yaml", []byte(p.Text))
	return c, p.Text, err
}

// readSimulation reads a configuration; a CSV file that it names is looked for
// beside it.
func readSimulation(path string) (*simulate.Config, string, error) {
	text, err := readFile("simulation", path, simulate.MaxSource)
	if err != nil {
		return nil, "", err
	}
	c, err := simulate.Parse(path, text)
	if err != nil || c.Arrivals == nil || c.Arrivals.CSV == "" {
		return c, string(text), malformed(err)
	}
	if len(c.Arrivals.Points) > 0 {
		return nil, "", usagef("%s: expected arrivals by points or by csv, found both", path)
	}
	name := c.Arrivals.CSV
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	if c.Arrivals.Points, err = readArrivals(name); err != nil {
		return nil, "", err
	}
	if err := c.Check(); err != nil {
		return nil, "", malformed(fmt.Errorf("%s with the rates of %s: %w", path, name, err))
	}
	return c, string(text), nil
}

// maxArrivals bounds the CSV file with rates, in bytes.
const maxArrivals = 16 << 20

func readArrivals(path string) ([]simulate.RatePoint, error) {
	text, err := readFile("arrivals", path, maxArrivals)
	if err != nil {
		return nil, err
	}
	if len(text) > maxArrivals {
		return nil, malformed(fmt.Errorf("read arrivals: %s has more than %d bytes", path, maxArrivals))
	}
	points, err := simulate.ParseCSV(path, text)
	if err != nil {
		return nil, malformed(fmt.Errorf("read arrivals: %w", err))
	}
	return points, nil
}

// simulateKnobs are flags that change what a configuration says.
type simulateKnobs struct {
	rate                              float64
	duration, interval                time.Duration
	ports, kernel, strategy, arrivals string
	addresses, servers, clients       int
	holdDown, finTimeout              time.Duration
	balancer                          bool
	seed                              uint64
}

func (k *simulateKnobs) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Float64Var(&k.rate, "rate", 0, "new connections per `SECOND`, all the time")
	f.StringVar(&k.arrivals, "arrivals", "", "new connections per second by the lines \"seconds,rate\" of `FILE.csv`, until the last one")
	f.Var((*seconds)(&k.duration), "for", "simulate so much time: seconds or 10m, 24h, …")
	f.Var((*seconds)(&k.interval), "interval", "time between two points of the curves")
	f.IntVar(&k.clients, "clients", 0, "`N` hosts behind the NAT, each with timestamps of its own")
	f.StringVar(&k.ports, "ports", "", "the NAT's ports, `FIRST-LAST`")
	f.IntVar(&k.addresses, "addresses", 0, "the NAT has `N` addresses")
	f.StringVar(&k.strategy, "strategy", "", "how the NAT chooses a port: round-robin, random, hash, or kernel (Linux's own)")
	f.Var((*seconds)(&k.holdDown), "hold-down", "how long the NAT keeps a port after its connection has ended")
	f.IntVar(&k.servers, "servers", 0, "`N` servers, in place of all groups of them")
	f.StringVar(&k.kernel, "kernel", "", "`VERSION` of the servers' Linux, such as 2.6, 3.10, 3.10.0-1127, 4.1, 6.1, in place of all groups of them")
	f.BoolVar(&k.balancer, "lb", false, "a load balancer with a table of sessions before the servers")
	f.Var((*seconds)(&k.finTimeout), "fin-timeout", "how long the balancer keeps a session after its connection has ended; includes --lb")
	f.Uint64Var(&k.seed, "seed", 0, "where random numbers begin")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"strategy": cobra.FixedCompletions(strategies, cobra.ShellCompDirectiveNoFileComp),
		"kernel":   cobra.FixedCompletions([]string{"2.6", "3.10", "3.10.0-1127", "4.1"}, cobra.ShellCompDirectiveNoFileComp),
	})
}

var strategies = []string{simulate.StrategyRoundRobin, simulate.StrategyRandom, simulate.StrategyHash, simulate.StrategyKernel}

// knob sets what one flag is for.
type knob func(*simulate.Config) error

func (k *simulateKnobs) all() map[string]knob {
	return map[string]knob{
		"rate":     k.setRate,
		"arrivals": k.setArrivals,
		"for":      func(c *simulate.Config) error { c.Duration.Duration = k.duration; return atLeast("for", k.duration) },
		"interval": func(c *simulate.Config) error {
			c.Interval.Duration = k.interval
			return atLeast("interval", k.interval)
		},
		"clients": k.setClients,
		"ports":   k.setPorts,
		"addresses": func(c *simulate.Config) error {
			c.NAT.Addresses = k.addresses
			return positive("addresses", k.addresses)
		},
		"strategy":    k.setStrategy,
		"hold-down":   func(c *simulate.Config) error { c.NAT.HoldDown = &simulate.Duration{Duration: k.holdDown}; return nil },
		"servers":     k.setServers,
		"kernel":      k.setKernel,
		"lb":          k.setBalancer,
		"fin-timeout": k.setFINTimeout,
		"seed":        func(c *simulate.Config) error { c.Seed = k.seed; return nil },
	}
}

// apply changes c as the command line says, and reports whether it says anything.
func (k *simulateKnobs) apply(cmd *cobra.Command, c *simulate.Config) (changed bool, err error) {
	knobs := k.all()
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if set := knobs[f.Name]; set != nil && err == nil {
			changed, err = true, set(c)
		}
	})
	if err == nil && cmd.Flags().Changed("for") && len(c.Batches) > 0 {
		err = usagef("--for %s: the configuration has batches, which take as long as they take; give --rate, too", k.duration)
	}
	return changed, err
}

func positive(flag string, n int) error {
	if n < 1 {
		return usagef("--%s %d: must be 1 or more", flag, n)
	}
	return nil
}

func atLeast(flag string, d time.Duration) error {
	if d <= 0 {
		return usagef("--%s %s: must be more than 0", flag, d)
	}
	return nil
}

func (k *simulateKnobs) setRate(c *simulate.Config) error {
	if !(k.rate > 0) {
		return usagef("--rate %g: must be more than 0", k.rate)
	}
	c.Arrivals, c.Batches = &simulate.Arrivals{Rate: k.rate, Spacing: spacing(c)}, nil
	if c.Duration.Duration == 0 { // of batches it is not known before
		c.Duration.Duration = defaultSimulated
	}
	return nil
}

// defaultSimulated is how long a rate goes on that takes the place of batches.
const defaultSimulated = 10 * time.Minute

// setArrivals goes to the last line, unless --for says otherwise.
func (k *simulateKnobs) setArrivals(c *simulate.Config) error {
	points, err := readArrivals(k.arrivals)
	if err != nil {
		return err
	}
	c.Arrivals, c.Batches = &simulate.Arrivals{Points: points, Spacing: spacing(c)}, nil
	if last := points[len(points)-1].At; k.duration == 0 && last.Duration > 0 {
		c.Duration = last
	}
	if c.Duration.Duration == 0 {
		c.Duration.Duration = defaultSimulated
	}
	return nil
}

func spacing(c *simulate.Config) string {
	if c.Arrivals == nil {
		return ""
	}
	return c.Arrivals.Spacing
}

// setClients keeps what the first group says.
func (k *simulateKnobs) setClients(c *simulate.Config) error {
	if len(c.Clients) == 0 {
		c.Clients = []simulate.Clients{{Name: "clients"}}
	}
	c.Clients = slices.Clone(c.Clients[:1])
	c.Clients[0].Hosts = k.clients
	for i := range c.Batches {
		c.Batches[i].Clients = ""
	}
	return positive("clients", k.clients)
}

func (k *simulateKnobs) setPorts(c *simulate.Config) error {
	first, last, ok := strings.Cut(k.ports, "-")
	from, err1 := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if !ok || err1 != nil || err2 != nil || from == 0 || from > to {
		return usagef("--ports %q: must be FIRST-LAST, such as 2048-65535", k.ports)
	}
	c.NAT.Ports = [2]uint16{uint16(from), uint16(to)}
	return nil
}

func (k *simulateKnobs) setStrategy(c *simulate.Config) error {
	if !slices.Contains(strategies, k.strategy) {
		return usagef("--strategy %s: must be one of %s", k.strategy, strings.Join(strategies, ", "))
	}
	c.NAT.Strategy = k.strategy
	return nil
}

// oneGroup leaves the first group of servers.
func oneGroup(c *simulate.Config) *simulate.Servers {
	if len(c.Servers) == 0 {
		c.Servers = []simulate.Servers{{Name: "server"}}
	}
	c.Servers = slices.Clone(c.Servers[:1])
	return &c.Servers[0]
}

func (k *simulateKnobs) setServers(c *simulate.Config) error {
	oneGroup(c).Count = k.servers
	return positive("servers", k.servers)
}

func (k *simulateKnobs) setKernel(c *simulate.Config) error {
	kernel, err := timeWaitOf(k.kernel)
	if err != nil {
		return err
	}
	group := oneGroup(c)
	group.Name, group.Kernel = "Linux "+k.kernel, kernel
	return nil
}

func (k *simulateKnobs) setBalancer(c *simulate.Config) error {
	switch {
	case !k.balancer:
		c.Balancer = nil
	case c.Balancer == nil:
		c.Balancer = new(simulate.Balancer)
	}
	return nil
}

func (k *simulateKnobs) setFINTimeout(c *simulate.Config) error {
	if c.Balancer == nil {
		c.Balancer = new(simulate.Balancer)
	}
	c.Balancer.Timeout.Duration = k.finTimeout
	return atLeast("fin-timeout", k.finTimeout)
}

// firstTimer is the release whose TIME_WAITs have timers of their own: 4.1
// (789f558cfb36, "tcp/dccp: get rid of central timewait timer").
const firstTimerMajor, firstTimerMinor = 4, 1

// firstRearm is the build of the vendor's 3.10.0 that is known to look again after 1 s;
// later ones are taken for the same.
const firstRearm = 1127

// timeWaitOf tells how a kernel's TIME_WAITs end.
func timeWaitOf(release string) (string, error) {
	number, build, vendor := strings.Cut(strings.TrimSuffix(release, "+"), "-")
	parts := strings.SplitN(number, ".", 3)
	major, err := strconv.Atoi(parts[0])
	minor := 0
	if err == nil && len(parts) > 1 {
		minor, err = strconv.Atoi(parts[1])
	}
	if err != nil || major < 2 || minor < 0 {
		return "", usagef("--kernel %q: must be a version such as 2.6, 3.10, 3.10.0-1127, 4.1", release)
	}
	buildNumber, _, _ := strings.Cut(build, ".")
	n, _ := strconv.Atoi(buildNumber)
	switch {
	case major > firstTimerMajor || major == firstTimerMajor && minor >= firstTimerMinor:
		return simulate.KernelTimer, nil
	case vendor && number == "3.10.0" && n >= firstRearm:
		return simulate.KernelWheelRearm, nil
	}
	return simulate.KernelWheel, nil
}

// simulateOutputs are the files that simulate writes besides its report.
type simulateOutputs struct{ csv, html string }

func (o *simulateOutputs) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.csv, "csv", "", "write the curves to `FILE`, - for stdout instead of the report")
	cmd.Flags().StringVar(&o.html, "html", "", "write one self-contained page to `FILE`")
}

func (o *simulateOutputs) check(asJSON bool) error {
	switch {
	case o.csv == "-" && asJSON:
		return usagef("--csv -: --json prints to stdout, too: give one of them")
	case o.html == "-":
		return usagef("--html -: give the name of a file")
	case o.csv != "" && o.html != "" && filepath.Clean(o.csv) == filepath.Clean(o.html):
		return usagef("--html %s: --csv writes there, too", o.html)
	}
	return nil
}

func (o *simulateOutputs) usesStdout() bool { return o.csv == "-" }

func (o *simulateOutputs) mayWrite() error {
	for flag, name := range map[string]string{"csv": o.csv, "html": o.html} {
		if name == "" || name == "-" {
			continue
		}
		if err := mayWrite(name); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// write writes the files, each whole or not at all.
func (o *simulateOutputs) write(env *Env, r *simulate.Result) error {
	csv := func(w io.Writer) error { return report.SimulateCSV(w, r) }
	switch {
	case o.usesStdout():
		if err := csv(env.Stdout); err != nil {
			return fmt.Errorf("write to stdout: %w", err)
		}
	case o.csv != "":
		if err := writeWhole(o.csv, 0o644, csv); err != nil {
			return fmt.Errorf("--csv: %w", err)
		}
	}
	if o.html == "" {
		return nil
	}
	if err := writeWhole(o.html, 0o644, func(w io.Writer) error { return report.SimulateHTML(w, r) }); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}
