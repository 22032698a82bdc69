package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/spf13/cobra"
)

// simulator is the verb simulate.
type simulator struct {
	env               *Env
	preset            string
	list, printConfig bool
	files             outFiles[*simulate.Result]
}

func newSimulate(env *Env) *cobra.Command {
	s := &simulator{env: env, files: outFiles[*simulate.Result]{
		{flag: "csv", usage: "write the curves to `FILE`, - for stdout instead of the report",
			write: func(r *simulate.Result, w io.Writer) error { return report.SimulateCSV(w, r) }},
		{flag: "html", usage: "write one self-contained page to `FILE`",
			write: func(r *simulate.Result, w io.Writer) error { return report.SimulateHTML(w, r) }}}}
	cmd := &cobra.Command{
		Use:   "simulate [CONFIG.yaml]",
		Short: "predict what port reuse, TIME_WAIT, timestamps and a balancer's sessions do to connections",
		Long: `Compute, connection by connection, the outcome of the load of many clients behind one
NAT: the ports that it gives them, whether the server still has a TIME_WAIT for that port
and accepts the SYN, and to which server a load balancer sends it. Nothing is measured,
and nothing on this host is read or changed.

The input is a configuration file (docs/simulate.md has its language) or a preset; flags
override it. The same configuration and seed give the same result, byte by byte.`,
		Example: `  natkit simulate --list
  natkit simulate --preset old-kernel
  natkit simulate --preset old-kernel --addresses 3 --html page.html
  natkit simulate --rate 800 --kernel 3.10 --lb          # without a file
  natkit simulate --preset mixed --print-config > mine.yaml && natkit simulate mine.yaml
  natkit simulate --arrivals rates.csv --csv - > curves.csv
  natkit simulate --preset lab --json`,
		Args:              argsUnless(takes, "preset", "list"),
		RunE:              s.run,
		ValidArgsFunction: completeYAML,
	}
	flags := cmd.Flags()
	flags.StringVar(&s.preset, "preset", "", "simulate the preset `NAME`")
	flags.BoolVar(&s.list, "list", false, "list the presets")
	flags.BoolVar(&s.printConfig, "print-config", false, "print the configuration as YAML instead of simulating it")
	for _, k := range knobs {
		flags.Var(&value{set: func(string) error { return nil }}, k.name, k.usage)
	}
	flags.Lookup("lb").NoOptDefVal = "true"
	s.files.addTo(flags)
	env.addJSON(cmd, simulate.Schema)
	cmd.MarkFlagsMutuallyExclusive("rate", "arrivals")
	cmd.MarkFlagsMutuallyExclusive("list", "preset")
	cmd.MarkFlagsMutuallyExclusive("list", "print-config")
	cmd.MarkFlagsMutuallyExclusive("print-config", "json")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"preset": offer(presetNames), "strategy": completeWords(strategies...), "kernel": completeWords("2.6", "3.10", "3.10.0-1127", "4.1"),
	})
	return cmd
}

func presetNames() (names []string) {
	for _, p := range simulate.Presets() {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Title))
	}
	return names
}

func (s *simulator) run(cmd *cobra.Command, args []string) error {
	if s.list {
		return s.env.print(presetList())
	}
	toStdout, err := s.files.check(s.env)
	if err != nil {
		return err
	}
	c, text, err := s.config(cmd, args)
	if err != nil {
		return err
	}
	if s.printConfig {
		return printConfig(s.env.Stdout, c, text)
	}
	progress := s.env.progress()
	r, err := simulate.Run(cmd.Context(), *c, func(p simulate.Progress) { progress.Show(report.SimulateProgress(p)) })
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		err = errors.New("simulate: interrupted; there is no result")
	}
	if err != nil {
		return err
	}
	if err = s.files.save(s.env, r); toStdout {
		return err
	}
	return errors.Join(err, s.env.print(report.Simulation{Schema: simulate.Schema, Result: r}))
}

func presetList() report.Presets {
	list := report.Presets{Schema: "natkit.simulate-list/1"}
	for _, p := range simulate.Presets() {
		list.Presets = append(list.Presets, report.Preset{Name: p.Name, Title: p.Title, About: p.About})
	}
	return list
}

// printConfig prints the text where there is one, with its comments.
func printConfig(w io.Writer, c *simulate.Config, text string) (err error) {
	if text == "" {
		if text, err = simulate.YAML(c); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
	}
	_, err = io.WriteString(w, text)
	return err
}

// config returns the configuration of file, preset and flags. text is the YAML of just that,
// where no flag changes it.
func (s *simulator) config(cmd *cobra.Command, args []string) (c *simulate.Config, text string, err error) {
	name := s.preset
	switch {
	case len(args) > 0:
		c, text, err = s.readConfig(cmd.Context(), args[0])
	case name == "":
		name = simulate.DefaultPreset
		fallthrough
	default:
		c, text, err = presetOf(name)
	}
	if err != nil {
		return nil, "", err
	}
	if err := s.addArrivals(cmd, c); err != nil {
		return nil, "", err
	}
	changed := cmd.Flags().Changed
	for _, k := range knobs {
		if !changed(k.name) {
			continue
		}
		text = ""
		if given := cmd.Flags().Lookup(k.name).Value.String(); k.set != nil {
			if err := k.set(c, given); err != nil {
				return nil, "", usagef("--%s %q: %w", k.name, given, err)
			}
		}
	}
	if text != "" {
		return c, text, nil
	}
	if changed("for") && len(c.Batches) > 0 {
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
		return nil, "", usage(err)
	}
	// A copy: flags change it.
	c, err := simulate.Parse(name+".yaml", []byte(p.Text))
	return c, p.Text, err
}

// readConfig reads a configuration; a CSV file that it names is relative to it.
func (s *simulator) readConfig(ctx context.Context, path string) (*simulate.Config, string, error) {
	text, err := s.env.read(ctx, "simulation", path, simulate.MaxSource, "a configuration into it")
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
	if c.Arrivals.Points, err = s.readArrivals(ctx, name); err != nil {
		return nil, "", err
	}
	if err := c.Check(); err != nil {
		return nil, "", malformed(fmt.Errorf("%s with the rates of %s: %w", path, name, err))
	}
	return c, string(text), nil
}

// maxArrivals bounds the CSV file with rates, in bytes.
const maxArrivals = 16 << 20

func (s *simulator) readArrivals(ctx context.Context, path string) ([]simulate.RatePoint, error) {
	text, err := s.env.read(ctx, "arrivals", path, maxArrivals, "lines \"seconds,rate\" into it")
	if err != nil {
		return nil, err
	}
	points, err := simulate.ParseCSV(path, text)
	if len(text) > maxArrivals {
		err = fmt.Errorf("%s has more than %d bytes", path, maxArrivals)
	}
	if err != nil {
		return nil, malformed(fmt.Errorf("read arrivals: %w", err))
	}
	return points, nil
}

// addArrivals implements --arrivals: the simulation ends with the last line.
func (s *simulator) addArrivals(cmd *cobra.Command, c *simulate.Config) error {
	if !cmd.Flags().Changed("arrivals") {
		return nil
	}
	points, err := s.readArrivals(cmd.Context(), cmd.Flags().Lookup("arrivals").Value.String())
	if err != nil {
		return err
	}
	if last := points[len(points)-1].At; last.Duration > 0 {
		c.Duration = last
	}
	replaceArrivals(c, simulate.Arrivals{Points: points})
	return nil
}

// defaultSimulated is the duration of a rate that replaces batches.
const defaultSimulated = 10 * time.Minute

var strategies = []string{simulate.StrategyRoundRobin, simulate.StrategyRandom, simulate.StrategyHash, simulate.StrategyKernel}

// knob is a flag that overrides a value of the configuration.
type knob struct {
	name, usage string
	set         func(c *simulate.Config, text string) error
}

var knobs = []knob{
	{"rate", "new connections per `SECOND`, all the time", setRate},
	{"arrivals", "new connections per second by the lines \"seconds,rate\" of `FILE.csv`, until the last one", nil},
	{"for", "simulated `TIME`: seconds or 10m, 24h, …", length(func(c *simulate.Config) *time.Duration { return &c.Duration.Duration })},
	{"interval", "`TIME` between two points of the curves", length(func(c *simulate.Config) *time.Duration { return &c.Interval.Duration })},
	{"clients", "`N` hosts behind the NAT, each with its own timestamps", count1(hosts)},
	{"ports", "the NAT's ports, `FIRST-LAST`", setPorts},
	{"addresses", "the NAT has `N` addresses", count1(func(c *simulate.Config) *int { return &c.NAT.Addresses })},
	{"strategy", "how the NAT chooses a port, a `NAME`: round-robin, random, hash, or kernel (Linux's own)", func(c *simulate.Config, name string) error {
		return into(&c.NAT.Strategy, oneOf(strategies...)).Set(name)
	}},
	{"hold-down", "`TIME` for which the NAT keeps a port after its connection has ended", func(c *simulate.Config, text string) error {
		c.NAT.HoldDown = new(simulate.Duration)
		return period(&c.NAT.HoldDown.Duration, 0, 0).Set(text)
	}},
	{"servers", "`N` servers, replacing all groups of them", count1(func(c *simulate.Config) *int { return &oneGroup(c).Count })},
	{"kernel", "`VERSION` of the servers' Linux, such as 2.6, 3.10, 3.10.0-1127, 4.1, 6.1, replacing all groups of them", func(c *simulate.Config, release string) error {
		group := oneGroup(c)
		group.Name = "Linux " + release
		return into(&group.Kernel, timeWaitOf).Set(release)
	}},
	{"lb", "a load balancer with a table of sessions before the servers", func(c *simulate.Config, text string) error {
		on, err := strconv.ParseBool(text)
		if c.Balancer = balancer(c); !on {
			c.Balancer = nil
		}
		return err
	}},
	{"fin-timeout", "`TIME` for which the balancer keeps a session after its connection has ended; implies --lb",
		length(func(c *simulate.Config) *time.Duration { c.Balancer = balancer(c); return &c.Balancer.Timeout.Duration })},
	{"seed", "`N` with which random numbers begin", func(c *simulate.Config, text string) (err error) {
		if c.Seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			return errors.New("not a number")
		}
		return nil
	}},
}

// length sets a time.
func length(of func(*simulate.Config) *time.Duration) func(*simulate.Config, string) error {
	return func(c *simulate.Config, text string) error { return period(of(c), time.Nanosecond, 0).Set(text) }
}

// count1 sets a number, 1 or more.
func count1(of func(*simulate.Config) *int) func(*simulate.Config, string) error {
	return func(c *simulate.Config, text string) error { return between(of(c), 1, math.MaxInt).Set(text) }
}

func setRate(c *simulate.Config, text string) error {
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate > 0) {
		return errors.New("must be a number, more than 0")
	}
	replaceArrivals(c, simulate.Arrivals{Rate: rate})
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

// hosts leaves the first group of clients, and what it says; its number is the result.
func hosts(c *simulate.Config) *int {
	if len(c.Clients) == 0 {
		c.Clients = []simulate.Clients{{Name: "clients"}}
	}
	c.Clients = slices.Clone(c.Clients[:1])
	for i := range c.Batches {
		c.Batches[i].Clients = ""
	}
	return &c.Clients[0].Hosts
}

func setPorts(c *simulate.Config, text string) error {
	ports, err := nat.ParsePorts(text)
	if err != nil || ports.First == 0 || !strings.Contains(text, "-") {
		return errors.New("must be FIRST-LAST, such as 2048-65535")
	}
	c.NAT.Ports = [2]uint16{ports.First, ports.Last}
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

func balancer(c *simulate.Config) *simulate.Balancer {
	if c.Balancer == nil {
		return new(simulate.Balancer)
	}
	return c.Balancer
}

// timeWaitOf returns how a kernel ends TIME_WAIT.
func timeWaitOf(release string) (string, error) {
	r, err := capacity.ParseRelease(release)
	return r.TimeWait(), err
}
