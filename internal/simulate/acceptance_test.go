package simulate

import (
	"math"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/capacity"
)

// What is said of the case that is simulated here: 63,488 ports (2048-65535), many
// clients behind one address, and servers that close first.
const (
	casePorts = 63488
	// loadedLife is the longest life in the wheel where each purge exceeds the quota:
	// 7 slots of two periods each, and the period before the purge.
	loadedLife = 112.5
	// rearmLife is the same where the second look comes after 1 s: 7 × 8.5 s + 7.5 s. The
	// shortest life is a slot's time less.
	rearmLife, rearmShortest = 67, 58.5
)

func run(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ramp goes from one rate to another.
func ramp(from, to float64, d time.Duration) *Arrivals {
	return &Arrivals{Points: []RatePoint{{Rate: from}, {At: Duration{d}, Rate: to}}, Spacing: SpacingEven}
}

// ramped is the case at a rate that slowly rises.
func ramped(from, to float64, servers ...Servers) Config {
	c := sourceCase(servers...)
	c.Duration.Duration = 30 * time.Minute
	c.Arrivals = ramp(from, to, c.Duration.Duration)
	return c
}

func (r *Result) incident(kind string) *Incident {
	for i := range r.Incidents {
		if r.Incidents[i].Kind == kind {
			return &r.Incidents[i]
		}
	}
	return nil
}

// begins is the rate at which something begins, 0 where it does not.
func (r *Result) begins(kind string) float64 {
	if i := r.incident(kind); i != nil {
		return i.Rate
	}
	return 0
}

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: %.1f, want %.1f", what, got, want)
	}
}

// New sessions at the balancer stop growing at 529/s, and errors begin at 564/s.
func TestCaseOldKernel(t *testing.T) {
	r := run(t, ramped(520, 580, Servers{Name: "old", Count: 4, Kernel: KernelWheel}))
	near(t, "sessions stop growing", r.begins(IncidentSessions), casePorts/120., 0.01)
	near(t, "errors begin", r.begins(IncidentRejects), casePorts/loadedLife, 0.01)
	near(t, "clients fail", r.begins(IncidentFailures), casePorts/loadedLife, 0.01)
	near(t, "longest life", r.Servers[0].Life.MaxSeconds, loadedLife, 0.001)
	for _, p := range r.Curve {
		rate := float64(p.Counts.Connections) / r.IntervalSeconds
		if rate < 525 && p.Counts.Sessions != p.Counts.Connections || rate > 540 && rate < 560 && p.Counts.Sessions != 0 {
			t.Errorf("at %.0f/s %d new sessions for %d connections", rate, p.Counts.Sessions, p.Counts.Connections)
		}
	}
}

// The vendor's kernel does not fail at the rates at which the old one does, and it
// does at 1,049/s. That figure is 63,488 ports / 60.5 s, for 7 × 8.5 s + 1 s; but a cell
// is purged 7.5 s after its turn has come, not 1 s: 7 × 8.5 s + 7.5 s = 67 s for those
// who come first, and 58.5 s for those who come last. So the first errors are at
// 948/s, at 1,049/s three quarters of the reused ports meet a TIME_WAIT, and at
// 1,085/s all.
func TestCaseVendorKernel(t *testing.T) {
	vendor := Servers{Name: "new", Count: 4, Kernel: KernelWheelRearm}
	r := run(t, ramped(930, 970, vendor))
	near(t, "errors begin", r.begins(IncidentRejects), casePorts/float64(rearmLife), 0.01)
	near(t, "longest life", r.Servers[0].Life.MaxSeconds, rearmLife, 0.001)
	c := loaded(vendor)
	if r := run(t, c); r.Totals.Rejects() != 0 {
		t.Errorf("%d rejects at 600/s", r.Totals.Rejects())
	}
	c.Arrivals = &Arrivals{Rate: 1049}
	if r := run(t, c); r.Totals.Rejects() == 0 {
		t.Error("no rejects at 1,049/s")
	}
	// One machine is never rejected: its SYNs take the place of each TIME_WAIT they meet.
	c.Clients[0].Hosts = 1
	got := run(t, c).Totals
	near(t, "share that meets a TIME_WAIT", float64(got.Reused)/float64(got.Connections-2*casePorts), (rearmLife-casePorts/1049.)/8.5, 0.05)
}

// Linux 4.1 and later: 60 s, whatever the load.
func TestCaseTimer(t *testing.T) {
	r := run(t, ramped(1040, 1080, Servers{Name: "modern", Count: 4, Kernel: KernelTimer}))
	near(t, "errors begin", r.begins(IncidentRejects), casePorts/60., 0.01)
	if l := r.Servers[0].Life; l.MinSeconds != 60 || l.MaxSeconds != 60 {
		t.Errorf("lives %+v", l)
	}
}

// How long TIME_WAITs stand is made by the algorithm: by how many are purged at once.
func TestLives(t *testing.T) {
	for _, tt := range []struct {
		kernel         string
		perSecond      float64
		least, longest float64
	}{
		{KernelWheel, 2, 52.5, 60},
		{KernelWheel, 13, 52.5, 60}, // 97 in 7.5 s
		{KernelWheel, 14, 97.5, 112.5},
		{KernelWheel, 100, 97.5, 112.5},
		{KernelWheelRearm, 13, 52.5, 60},
		{KernelWheelRearm, 100, rearmShortest, rearmLife},
		{KernelTimer, 2, 60, 60},
		{KernelTimer, 1000, 60, 60},
	} {
		c := Config{Seed: 1, Duration: Duration{20 * time.Minute}, Arrivals: &Arrivals{Rate: tt.perSecond, Spacing: SpacingEven},
			Clients: []Clients{{Name: "x"}}, Servers: []Servers{{Name: "x", Kernel: tt.kernel}},
			NAT: NAT{Addresses: int(tt.perSecond*120)/64000 + 1}}
		l := settled(t, c)
		step := 1.1 / tt.perSecond
		if l.MinSeconds < tt.least-0.01 || l.MaxSeconds > tt.longest+0.01 || l.MinSeconds > tt.least+step || l.MaxSeconds < tt.longest-step {
			t.Errorf("%s at %v/s: %.2f to %.2f s, want %v to %v", tt.kernel, tt.perSecond, l.MinSeconds, l.MaxSeconds, tt.least, tt.longest)
		}
	}
}

// LongestTimeWait is what the algorithm comes to.
func TestLongestTimeWait(t *testing.T) {
	for _, kernel := range []string{KernelWheel, KernelWheelRearm, KernelTimer} {
		for _, perSecond := range []float64{2, 13, 14, 20, 25, 100} {
			c := Config{Seed: 1, Duration: Duration{20 * time.Minute}, Arrivals: &Arrivals{Rate: perSecond, Spacing: SpacingEven},
				Clients: []Clients{{Name: "x"}}, Servers: []Servers{{Name: "x", Kernel: kernel}}}
			got, want := capacity.LongestTimeWait(kernel, perSecond).Seconds(), settled(t, c).MaxSeconds
			if got < want-0.01 || got > want+1.1/perSecond {
				t.Errorf("%s at %v/s: %.2f s, the simulation's %.2f", kernel, perSecond, got, want)
			}
		}
	}
}

// A wheel that was loaded once stays so at a lower rate: each cell is filled for twice
// the time, until that is not more than the quota, below 100 / 15 s.
func TestWheelRemembers(t *testing.T) {
	for rate, longest := range map[float64]float64{10: loadedLife, 6: 60} {
		c := Config{Seed: 1, Duration: Duration{30 * time.Minute}, Clients: []Clients{{Name: "x"}}, Servers: []Servers{{Name: "x", Kernel: KernelWheel}},
			Arrivals: &Arrivals{Spacing: SpacingEven, Points: []RatePoint{{Rate: 30}, {At: Duration{time.Minute}, Rate: 30}, {At: Duration{2 * time.Minute}, Rate: rate}}}}
		near(t, "longest life", settled(t, c).MaxSeconds, longest, 0.01)
	}
}

// settled are the lives of the last part of a simulation, when the wheel has found its
// pace.
func settled(t *testing.T, c Config) Life {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	f := c.filled()
	e := newEngine(&f)
	for e.now < int64(10*time.Minute) {
		if err := e.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.life = make([]lives, 1)
	if err := e.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e.result().Servers[0].Life
}

// loaded is the case at a rate at which old servers fail.
func loaded(servers ...Servers) Config {
	c := sourceCase(servers...)
	c.Duration.Duration = 12 * time.Minute
	c.Arrivals = &Arrivals{Rate: 600}
	return c
}

// Twice as many of the old servers: the balancer sends a port to the server that has
// its TIME_WAIT.
func TestCaseDoubledServers(t *testing.T) {
	four := run(t, loaded(Servers{Name: "old", Count: 4, Kernel: KernelWheel}))
	eight := run(t, loaded(Servers{Name: "old", Count: 8, Kernel: KernelWheel}))
	near(t, "rejects of eight servers", float64(eight.Totals.Rejects()), float64(four.Totals.Rejects()), 0.25)
	near(t, "errors begin", run(t, ramped(520, 580, Servers{Name: "old", Count: 8, Kernel: KernelWheel})).begins(IncidentRejects), casePorts/loadedLife, 0.01)
}

// Beside servers of the other kernel, the old ones lose their load: a connection that
// failed leaves no session, and its port may go to a new server, where it stays.
func TestCaseLoadShifts(t *testing.T) {
	c := loaded(Servers{Name: "old", Count: 4, Kernel: KernelWheel}, Servers{Name: "new", Count: 4, Kernel: KernelWheelRearm, From: Duration{10 * time.Minute}})
	c.Duration.Duration = time.Hour
	r := run(t, c)
	share := func(i int) float64 {
		s := r.Curve[i].Servers
		return float64(s[1].Connections) / float64(s[0].Connections+s[1].Connections)
	}
	last := len(r.Curve) - 2
	for i := range r.Curve[:last] {
		if r.Curve[i].StartSeconds < 600 && share(i) != 0 {
			t.Errorf("new servers got %.2f before they were there", share(i))
		}
	}
	if share(last) < 0.85 {
		t.Errorf("at the end the new servers have %.2f of the load", share(last))
	}
	first, end := r.Curve[30].Counts, r.Curve[last].Counts
	if end.Failed > first.Failed/5 {
		t.Errorf("%d failures in an interval at first, %d at last", first.Failed, end.Failed)
	}
	// "Few, and slowly growing": while a new server has little load, its work item is
	// done in one round, and its TIME_WAITs stand as long as on the old ones.
	if few, many := r.Servers[1].Totals.Rejects(), r.Servers[0].Totals.Rejects(); few == 0 || few > many/10 {
		t.Errorf("new servers rejected %d, old ones %d", few, many)
	}
}

// Each remedy of the case alone.
func TestCaseRemedies(t *testing.T) {
	old := Servers{Name: "old", Count: 4, Kernel: KernelWheel}
	plain := run(t, loaded(old)).Totals
	if plain.Rejects() < 50_000 || plain.SequenceRejects != 0 {
		t.Fatalf("without a remedy: %+v", plain)
	}
	rejects := func(change func(*Config)) (Counts, int64) {
		c := loaded(old)
		change(&c)
		r := run(t, c)
		return r.Totals, r.Totals.Rejects()
	}
	for name, change := range map[string]func(*Config){
		"more SNAT addresses":  func(c *Config) { c.NAT.Addresses = 3 },
		"more addresses":       func(c *Config) { c.Balancer.Addresses = 2 },
		"client closes first":  func(c *Config) { c.Connection.ClosesFirst = CloseClient },
		"keep-alive":           func(c *Config) { c.Connection.Requests = 10 },
		"no TIME_WAIT at all":  func(c *Config) { c.Servers[0].MaxTimeWait = new(int) },
		"the other kernel":     func(c *Config) { c.Servers[0].Kernel = KernelWheelRearm },
		"one machine, no NAT":  func(c *Config) { c.Clients[0].Hosts = 1 },
		"hold-down of 120 s":   func(c *Config) { c.NAT.HoldDown = &Duration{120 * time.Second} },
		"more servers, direct": func(c *Config) { c.Balancer = nil },
	} {
		if total, n := rejects(change); n != 0 {
			t.Errorf("%s: %+v", name, total)
		}
	}
	// tcp_max_tw_buckets: fewer, and not none as the rate rises.
	busier := func(most int) int64 {
		_, n := rejects(func(c *Config) { c.Arrivals.Rate, c.Servers[0].MaxTimeWait = 800, &most })
		return n
	}
	if few, many := busier(5000), busier(1<<20); few == 0 || few > many/2 {
		t.Errorf("tcp_max_tw_buckets 5000: %d rejects, %d without", few, many)
	}
	// Without timestamps the counter is 0 and the fault stays: sequence numbers.
	no := false
	if total, n := rejects(func(c *Config) { c.Servers[0].Timestamps = &no }); total.PAWSRejects != 0 || n < plain.Rejects()/2 {
		t.Errorf("without timestamps: %+v", total)
	}
	// A longer hold-down is no more ports: above 529/s it has none left.
	if total, _ := rejects(func(c *Config) { c.NAT.HoldDown = &Duration{120 * time.Second} }); total.NoPort == 0 {
		t.Errorf("hold-down of 120 s: %+v", total)
	}
}
