package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/spf13/cobra"
)

// simulator is the verb simulate.
type simulator struct {
	env         *Env
	preset      string
	list        bool
	printConfig bool
	csv, html   string
	// changes are those of flags to the configuration, by the flags' names.
	changes map[string]func(*simulate.Config) error
}

func newSimulate(env *Env) *cobra.Command {
	s := &simulator{env: env, changes: map[string]func(*simulate.Config) error{}}
	cmd := &cobra.Command{
		Use:   "simulate [CONFIG.yaml]",
		Short: "predict what port reuse, TIME_WAIT, timestamps and a balancer's sessions do to connections",
		Long: `Compute, connection by connection, the outcome of the load of many clients behind one
NAT: which ports the NAT gives them, whether the server still has a TIME_WAIT for that
port, whether it accepts the SYN or answers it with the former connection's ACK because
the timestamp or the sequence number went back, and to which server a load balancer
sends it. Nothing is measured and nothing on this host is read or changed; it needs no
privilege.

The first lines give the rate from which SYNs are refused, how many, and the limit:
ports divided by the time for which they are in use. The curves follow.

The input is a configuration file (docs/simulate.md has its language), or a preset:
--list lists them, among them an old kernel's TIME_WAIT of 112.5 s, what was tried
against it, and the load of the lab's scenario port-reuse-paws. --print-config prints
one to start from. Flags override the configuration.

The same configuration and seed give the same result, byte by byte. An interrupt
(Ctrl-C) ends the simulation without a result.`,
		Example: `  natkit simulate --list
  natkit simulate --preset old-kernel
  natkit simulate --preset old-kernel --addresses 3 --html page.html
  natkit simulate --rate 800 --kernel 3.10 --lb          # without a file
  natkit simulate --preset mixed --print-config > mine.yaml && natkit simulate mine.yaml
  natkit simulate --arrivals rates.csv --csv - > curves.csv
  natkit simulate --preset lab --json`,
		Args:              argsUnless(cobra.MaximumNArgs(1), "preset", "list"),
		RunE:              s.run,
		ValidArgsFunction: completeYAML,
	}
	flags := cmd.Flags()
	flags.StringVar(&s.preset, "preset", "", "simulate the preset `NAME`")
	flags.BoolVar(&s.list, "list", false, "list the presets")
	flags.BoolVar(&s.printConfig, "print-config", false, "print the configuration as YAML instead of simulating it")
	s.addKnobs(cmd)
	flags.StringVar(&s.csv, "csv", "", "write the curves to `FILE`, - for stdout instead of the report")
	flags.StringVar(&s.html, "html", "", "write one self-contained page to `FILE`")
	env.addJSON(cmd, simulate.Schema)
	cmd.MarkFlagsMutuallyExclusive("rate", "arrivals")
	cmd.MarkFlagsMutuallyExclusive("list", "preset")
	cmd.MarkFlagsMutuallyExclusive("list", "print-config")
	cmd.MarkFlagsMutuallyExclusive("print-config", "json")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"preset": completePresets, "strategy": cobra.FixedCompletions(strategies, cobra.ShellCompDirectiveNoFileComp),
		"kernel": cobra.FixedCompletions([]string{"2.6", "3.10", "3.10.0-1127", "4.1"}, cobra.ShellCompDirectiveNoFileComp),
	})
	return cmd
}

func completePresets(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	for _, p := range simulate.Presets() {
		names = append(names, p.Name+"\t"+p.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (s *simulator) run(cmd *cobra.Command, args []string) error {
	if s.list {
		return s.env.print(presetList())
	}
	if err := s.checkFiles(); err != nil {
		return err
	}
	c, text, err := s.config(args)
	if err != nil {
		return err
	}
	if s.printConfig {
		return printConfig(s.env.Stdout, c, text)
	}
	if err := s.mayWrite(); err != nil { // better now than after the simulation
		return err
	}
	r, err := s.simulate(cmd.Context(), c)
	if err != nil {
		return err
	}
	err = s.write(r) // the report is printed even where a file finds no room
	if s.csv == "-" {
		return err
	}
	return errors.Join(err, s.env.print(report.Simulation{Schema: simulate.Schema, Result: r}))
}

// simulate shows its progress.
func (s *simulator) simulate(ctx context.Context, c *simulate.Config) (*simulate.Result, error) {
	progress := s.env.progress()
	defer progress.Clear()
	r, err := simulate.Run(ctx, *c, func(p simulate.Progress) { progress.Show(report.SimulateProgress(p)) })
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("simulate: interrupted; there is no result")
	}
	return r, err
}

func presetList() report.Presets {
	list := report.Presets{Schema: "natkit.simulate-list/1"}
	for _, p := range simulate.Presets() {
		list.Presets = append(list.Presets, report.Preset{Name: p.Name, Title: p.Title, About: p.About})
	}
	return list
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

// config is what the file, the preset and the flags say. text is the YAML of just that,
// where no flag changes it.
func (s *simulator) config(args []string) (c *simulate.Config, text string, err error) {
	switch {
	case len(args) > 0:
		c, text, err = readSimulation(args[0])
	case s.preset != "":
		c, text, err = presetOf(s.preset)
	default:
		c, text, err = presetOf(simulate.DefaultPreset)
	}
	if err != nil || len(s.changes) == 0 {
		return c, text, err
	}
	for _, flag := range slices.Sorted(maps.Keys(s.changes)) {
		if err := s.changes[flag](c); err != nil {
			return nil, "", err
		}
	}
	if s.changes["for"] != nil && len(c.Batches) > 0 {
		return nil, "", usagef("--for %s: the configuration has batches, whose length is not known before; --for requires --rate or --arrivals here", c.Duration)
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
	// A copy: flags change it.
	c, err := simulate.Parse(name+".yaml", []byte(p.Text))
	return c, p.Text, err
}

// readSimulation reads a configuration; a CSV file that it names is
// relative to it.
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

// defaultSimulated is the duration of a rate that replaces batches.
const defaultSimulated = 10 * time.Minute

var strategies = []string{simulate.StrategyRoundRobin, simulate.StrategyRandom, simulate.StrategyHash, simulate.StrategyKernel}

// addKnobs adds the flags that change what a configuration says.
func (s *simulator) addKnobs(cmd *cobra.Command) {
	knob := func(name, usage string, parse func(string) (func(*simulate.Config) error, error)) {
		cmd.Flags().Var(&parsed{set: func(text string) (err error) {
			s.changes[name], err = parse(text)
			return err
		}}, name, usage)
	}
	length := func(name, usage string, least time.Duration, set func(*simulate.Config, time.Duration)) {
		knob(name, usage, func(text string) (func(*simulate.Config) error, error) {
			var d seconds
			err := d.Set(text)
			if err == nil && time.Duration(d) < least {
				err = errors.New("must be more than 0")
			}
			return func(c *simulate.Config) error { set(c, time.Duration(d)); return nil }, err
		})
	}
	count := func(name, usage string, set func(*simulate.Config, int)) {
		knob(name, usage, func(text string) (func(*simulate.Config) error, error) {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				err = errors.New("must be a number, 1 or more")
			}
			return func(c *simulate.Config) error { set(c, n); return nil }, err
		})
	}
	knob("rate", "new connections per `SECOND`, all the time", parseRate)
	knob("arrivals", "new connections per second by the lines \"seconds,rate\" of `FILE.csv`, until the last one", func(path string) (func(*simulate.Config) error, error) {
		return func(c *simulate.Config) error { return setArrivals(c, path) }, nil
	})
	length("for", "simulated `TIME`: seconds or 10m, 24h, …", 1, func(c *simulate.Config, d time.Duration) { c.Duration.Duration = d })
	length("interval", "`TIME` between two points of the curves", 1, func(c *simulate.Config, d time.Duration) { c.Interval.Duration = d })
	count("clients", "`N` hosts behind the NAT, each with its own timestamps", setClients)
	knob("ports", "the NAT's ports, `FIRST-LAST`", parsePorts)
	count("addresses", "the NAT has `N` addresses", func(c *simulate.Config, n int) { c.NAT.Addresses = n })
	knob("strategy", "how the NAT chooses a port, a `NAME`: round-robin, random, hash, or kernel (Linux's own)", func(name string) (func(*simulate.Config) error, error) {
		if !slices.Contains(strategies, name) {
			return nil, fmt.Errorf("must be one of %s", strings.Join(strategies, ", "))
		}
		return func(c *simulate.Config) error { c.NAT.Strategy = name; return nil }, nil
	})
	length("hold-down", "`TIME` for which the NAT keeps a port after its connection has ended", 0, func(c *simulate.Config, d time.Duration) {
		c.NAT.HoldDown = &simulate.Duration{Duration: d}
	})
	count("servers", "`N` servers, replacing all groups of them", func(c *simulate.Config, n int) { oneGroup(c).Count = n })
	knob("kernel", "`VERSION` of the servers' Linux, such as 2.6, 3.10, 3.10.0-1127, 4.1, 6.1, replacing all groups of them", func(release string) (func(*simulate.Config) error, error) {
		kernel, err := timeWaitOf(release)
		return func(c *simulate.Config) error {
			group := oneGroup(c)
			group.Name, group.Kernel = "Linux "+release, kernel
			return nil
		}, err
	})
	knob("lb", "a load balancer with a table of sessions before the servers", func(text string) (func(*simulate.Config) error, error) {
		on, err := strconv.ParseBool(text)
		return func(c *simulate.Config) error {
			if !on {
				c.Balancer = nil
			} else if c.Balancer == nil {
				c.Balancer = new(simulate.Balancer)
			}
			return nil
		}, err
	})
	cmd.Flags().Lookup("lb").NoOptDefVal = "true"
	length("fin-timeout", "`TIME` for which the balancer keeps a session after its connection has ended; implies --lb", 1, func(c *simulate.Config, d time.Duration) {
		if c.Balancer == nil {
			c.Balancer = new(simulate.Balancer)
		}
		c.Balancer.Timeout.Duration = d
	})
	knob("seed", "`N` with which random numbers begin", func(text string) (func(*simulate.Config) error, error) {
		n, err := strconv.ParseUint(text, 10, 64)
		return func(c *simulate.Config) error { c.Seed = n; return nil }, err
	})
}

func parseRate(text string) (func(*simulate.Config) error, error) {
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate > 0) {
		return nil, errors.New("must be a number, more than 0")
	}
	return func(c *simulate.Config) error {
		replaceArrivals(c, simulate.Arrivals{Rate: rate})
		return nil
	}, nil
}

// setArrivals ends with the last line, unless --for says otherwise.
func setArrivals(c *simulate.Config, path string) error {
	points, err := readArrivals(path)
	if err != nil {
		return err
	}
	if last := points[len(points)-1].At; last.Duration > 0 {
		c.Duration = last
	}
	replaceArrivals(c, simulate.Arrivals{Points: points})
	return nil
}

// replaceArrivals keeps the spacing. The duration of batches is not known before.
func replaceArrivals(c *simulate.Config, a simulate.Arrivals) {
	if c.Arrivals != nil {
		a.Spacing = c.Arrivals.Spacing
	}
	c.Arrivals, c.Batches = &a, nil
	if c.Duration.Duration == 0 {
		c.Duration.Duration = defaultSimulated
	}
}

// setClients keeps what the first group says.
func setClients(c *simulate.Config, hosts int) {
	if len(c.Clients) == 0 {
		c.Clients = []simulate.Clients{{Name: "clients"}}
	}
	c.Clients = slices.Clone(c.Clients[:1])
	c.Clients[0].Hosts = hosts
	for i := range c.Batches {
		c.Batches[i].Clients = ""
	}
}

func parsePorts(text string) (func(*simulate.Config) error, error) {
	ports, err := nat.ParsePorts(text)
	if err != nil || ports.First == 0 || !strings.Contains(text, "-") {
		return nil, errors.New("must be FIRST-LAST, such as 2048-65535")
	}
	return func(c *simulate.Config) error {
		c.NAT.Ports = [2]uint16{ports.First, ports.Last}
		return nil
	}, nil
}

// oneGroup leaves the first group of servers.
func oneGroup(c *simulate.Config) *simulate.Servers {
	if len(c.Servers) == 0 {
		c.Servers = []simulate.Servers{{Name: "server"}}
	}
	c.Servers = slices.Clone(c.Servers[:1])
	return &c.Servers[0]
}

// firstTimer is the release whose TIME_WAITs have timers of their own: 4.1
// (789f558cfb36, "tcp/dccp: get rid of central timewait timer").
const firstTimerMajor, firstTimerMinor = 4, 1

// firstRearm is the build of the vendor's 3.10.0 that is known to run again after 1 s;
// later ones are taken for the same.
const firstRearm = 1127

// timeWaitOf is how a kernel's TIME_WAITs end.
func timeWaitOf(release string) (string, error) {
	number, build, vendor := strings.Cut(strings.TrimSuffix(release, "+"), "-")
	parts := strings.SplitN(number, ".", 3)
	major, err := strconv.Atoi(parts[0])
	minor := 0
	if err == nil && len(parts) > 1 {
		minor, err = strconv.Atoi(parts[1])
	}
	if err != nil || major < 2 || minor < 0 {
		return "", errors.New("must be a version such as 2.6, 3.10, 3.10.0-1127, 4.1")
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

// checkFiles refuses --csv and --html that overwrite each other or stdout.
func (s *simulator) checkFiles() error {
	switch {
	case s.csv == "-" && s.env.asJSON:
		return usagef("--csv - and --json are mutually exclusive")
	case s.html == "-":
		return usagef("--html -: the page is written to a file only")
	case s.csv != "" && s.html != "" && filepath.Clean(s.csv) == filepath.Clean(s.html):
		return usagef("--html %s: --csv writes there, too", s.html)
	}
	return nil
}

func (s *simulator) mayWrite() error {
	for flag, name := range map[string]string{"csv": s.csv, "html": s.html} {
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
func (s *simulator) write(r *simulate.Result) error {
	csv := func(w io.Writer) error { return report.SimulateCSV(w, r) }
	switch {
	case s.csv == "-":
		if err := csv(s.env.Stdout); err != nil {
			return fmt.Errorf("write to stdout: %w", err)
		}
	case s.csv != "":
		if err := writeWhole(s.csv, 0o644, csv); err != nil {
			return fmt.Errorf("--csv: %w", err)
		}
	}
	if s.html == "" {
		return nil
	}
	if err := writeWhole(s.html, 0o644, func(w io.Writer) error { return report.SimulateHTML(w, r) }); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}
