package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/natkit/natkit/internal/simulate"
)

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
