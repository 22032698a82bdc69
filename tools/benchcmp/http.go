package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// labName is the scenario, and what its lab is called while it is up.
	labName = "table-full"
	labURL  = "http://198.18.0.1:8080/"

	requests    = 50000
	concurrency = 1000
	// manyConnections at a time show the memory per connection.
	manyConnections = 5000
	// tracedRequests run under strace, which slows them.
	tracedRequests = 10000
)

// Quantities of a run of HTTP requests.
const (
	requestRate = "requests_per_second"
	requestCPU  = "machine_cpu_microseconds_per_request"
	systemCalls = "system_calls_per_request"
	peakMemory  = "peak_bytes"
)

// tool is one load generator.
type tool struct {
	name string
	// command makes the arguments for n requests with c connections; seconds is
	// for tools that know only a duration.
	command func(n, c int, seconds float64) []string
	parse   func([]byte) (outcome, error)
}

func tools(natkit string) []tool {
	return []tool{
		{"natkit", func(n, c int, _ float64) []string {
			return []string{natkit, "bench", "http", "--json", "-n", strconv.Itoa(n), "-c", strconv.Itoa(c), labURL}
		}, parseNatkit},
		{"ab", func(n, c int, _ float64) []string {
			// -r: go on after a failed connection, as the others do
			return []string{"ab", "-q", "-r", "-n", strconv.Itoa(n), "-c", strconv.Itoa(c), labURL}
		}, parseAB},
		{"wrk", func(_, c int, seconds float64) []string {
			return []string{"wrk", "-t", "2", "-c", strconv.Itoa(c), "-d", fmt.Sprintf("%ds", max(1, int(math.Round(seconds)))),
				"-H", "Connection: close", labURL}
		}, parseWrk},
	}
}

// httpSuite compares load generators. They are what is measured here, so it is no
// reason to refuse that one of them is the limit.
func httpSuite(natkit string) bench.Suite {
	memory := peaks
	memory.Label, memory.Counted = fmt.Sprintf("peak memory, %d connections", manyConnections), true
	s := bench.Suite{
		Name: "http", Title: "natkit bench http against ab and wrk",
		About: "Short connections through the lab's DNAT to nginx.",
		Method: fmt.Sprintf("%d requests with %d connections at a time (wrk: as long as natkit took before), "+
			"through the lab's DNAT to nginx, which closes every connection", requests, concurrency),
		Quantities: []bench.Quantity{
			{Name: requestRate, Label: "requests/s", Better: bench.Higher, Text: units.Rate},
			{Name: requestCPU, Label: "machine CPU per request", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 1) + " µs" }},
			{Name: systemCalls, Label: "system calls per request", Better: bench.Lower, Counted: true, Text: func(v float64) string { return units.Fixed(v, 2) }},
			memory,
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{
			"requests": requests, "concurrency": concurrency, "url": labURL,
			"memory_concurrency": manyConnections, "traced_requests": tracedRequests,
		},
		Programs: [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"ab", "-V"}, {"wrk", "-v"}, {"strace", "-V"}},
		Setup:    func(ctx context.Context) (func(context.Context) error, error) { return labUp(ctx, natkit, "nat") },
	}
	took := 2.0 // seconds of natkit's last run
	for i, t := range tools(natkit) {
		g := generator{natkit: natkit, tool: t, took: &took}
		s.Subjects = append(s.Subjects, bench.Subject{Name: t.name, Run: g.sample, Count: g.count})
		if i > 0 {
			s.Claims = append(s.Claims,
				bench.Claim{Subject: "natkit", Quantity: requestRate, Than: t.name, Bound: 1.05},
				bench.Claim{Subject: "natkit", Quantity: requestCPU, Than: t.name, Bound: 1},
				bench.Claim{Subject: "natkit", Quantity: systemCalls, Than: t.name, Bound: 1, Strict: true})
		}
	}
	s.Claims = append(s.Claims, bench.Claim{Subject: "natkit", Quantity: peakMemory, Than: "ab", Bound: 0.5})
	return s
}

// labUp builds the lab as a stage has it.
func labUp(ctx context.Context, natkit, stage string) (down func(context.Context) error, err error) {
	if _, _, err := (bench.Program{Args: []string{natkit, "lab", "up", labName, "--stage", stage}}).Run(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, _, err := bench.Program{Args: []string{natkit, "lab", "down", labName}}.Run(ctx)
		return err
	}, nil
}

// generator runs a tool on the lab's client.
type generator struct {
	natkit string
	tool   tool
	took   *float64
}

func (g generator) run(ctx context.Context, args []string) (outcome, bench.Usage, error) {
	p := bench.Program{Args: append([]string{g.natkit, "lab", "exec", "--lab", labName, "client", "--"}, args...)}
	// All tools exit with 0 where only some requests failed; those are counted.
	stdout, usage, err := p.Run(ctx)
	if err != nil {
		return outcome{}, usage, err
	}
	o, err := g.tool.parse(stdout)
	if err == nil && o.Completed == 0 {
		err = fmt.Errorf("%s completed no request:\n%s", g.tool.name, stdout)
	}
	return o, usage, err
}

func (g generator) sample(ctx context.Context) (bench.Sample, error) {
	o, usage, err := g.run(ctx, g.tool.command(requests, concurrency, *g.took))
	if err != nil {
		return bench.Sample{}, err
	}
	if g.tool.name == "natkit" {
		*g.took = usage.Seconds
	}
	return bench.Sample{Failures: o.Failed, Values: bench.Values{
		requestRate: o.PerSecond,
		requestCPU:  1e6 * usage.CPUSeconds / float64(o.Completed),
	}}, nil
}

// count takes what does not change from run to run.
func (g generator) count(ctx context.Context) (bench.Values, error) {
	calls, err := g.systemCalls(ctx)
	if err != nil {
		return nil, err
	}
	_, usage, err := g.run(ctx, g.tool.command(4*manyConnections, manyConnections, 2))
	if err != nil {
		return nil, err
	}
	return bench.Values{systemCalls: calls, peakMemory: float64(usage.PeakBytes)}, nil
}

// systemCalls counts them per request, those of the tool's start and end included.
func (g generator) systemCalls(ctx context.Context) (float64, error) {
	dir, err := os.MkdirTemp("", "benchcmp-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	table := filepath.Join(dir, "strace")
	o, _, err := g.run(ctx, append([]string{"strace", "-f", "-c", "-o", table}, g.tool.command(tracedRequests, 100, 3)...))
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(table)
	if err != nil {
		return 0, err
	}
	calls, err := parseStrace(text)
	return float64(calls) / float64(o.Completed+o.Failed), err
}
