package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// setup is what is compared, and how often.
type setup struct {
	Rounds          int
	Requests        int
	Concurrency     int
	ManyConnections int // concurrency of the memory measurement
	TracedRequests  int // requests under strace, which slows them
	URL             string
}

func (s setup) String() string {
	return fmt.Sprintf("%d rounds of every tool in turn, %d requests with %d connections at a time "+
		"(wrk: as long as natkit took before), through the lab's DNAT to nginx, which closes every connection",
		s.Rounds, s.Requests, s.Concurrency)
}

// tool is one load generator.
type tool struct {
	name string
	// command makes the arguments for n requests with c connections; seconds is
	// for tools that know only a duration.
	command func(n, c int, seconds float64, url string) []string
	parse   func([]byte) (outcome, error)
}

func tools(natkit string) []tool {
	return []tool{
		{"natkit", func(n, c int, _ float64, url string) []string {
			return []string{natkit, "bench", "http", "--json", "-n", strconv.Itoa(n), "-c", strconv.Itoa(c), url}
		}, parseNatkit},
		{"ab", func(n, c int, _ float64, url string) []string {
			// -r: go on after a failed connection, as the others do
			return []string{"ab", "-q", "-r", "-n", strconv.Itoa(n), "-c", strconv.Itoa(c), url}
		}, parseAB},
		{"wrk", func(_, c int, seconds float64, url string) []string {
			return []string{"wrk", "-t", "2", "-c", strconv.Itoa(c), "-d", fmt.Sprintf("%ds", max(1, int(seconds+0.5))),
				"-H", "Connection: close", url}
		}, parseWrk},
	}
}

// bench holds a lab that is up.
type bench struct {
	natkit string
	setup  setup
}

// labName is the scenario, and what its lab is called while it is up.
const labName = "table-full"

// measured is one run of one tool.
type measured struct {
	outcome
	seconds    float64
	cpuSeconds float64 // of the whole machine
	peakBytes  int64
}

func (b bench) up(ctx context.Context) error {
	return command(ctx, b.natkit, "lab", "up", labName, "--stage", "nat")
}

// down works after an interruption too.
func (b bench) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return command(ctx, b.natkit, "lab", "down", labName)
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// inClient runs a command on the lab's client and measures it.
func (b bench) inClient(ctx context.Context, args []string) ([]byte, measured, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.natkit, append([]string{"lab", "exec", "--lab", labName, "client", "--"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	before, err := machineBusy()
	if err != nil {
		return nil, measured{}, err
	}
	start := time.Now()
	runErr := cmd.Run()
	m := measured{seconds: time.Since(start).Seconds()}
	after, err := machineBusy()
	if err != nil {
		return nil, measured{}, err
	}
	// All tools exit 0 where only some requests failed; those are counted.
	if runErr != nil {
		return nil, measured{}, fmt.Errorf("%s on the lab's client: %w\n%s%s", strings.Join(args, " "), runErr, &stdout, &stderr)
	}
	m.cpuSeconds = after - before
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		m.peakBytes = usage.Maxrss * 1024 // getrusage(2): in KiB
	}
	return stdout.Bytes(), m, nil
}

func (b bench) run(ctx context.Context, t tool, n, c int, seconds float64) (measured, error) {
	out, m, err := b.inClient(ctx, t.command(n, c, seconds, b.setup.URL))
	if err != nil {
		return measured{}, err
	}
	if m.outcome, err = t.parse(out); err != nil {
		return measured{}, err
	}
	if m.Completed == 0 {
		return measured{}, fmt.Errorf("%s completed no request:\n%s", t.name, out)
	}
	return m, nil
}

// systemCalls counts a tool's system calls per completed request, those of its
// start and end included.
func (b bench) systemCalls(ctx context.Context, t tool) (float64, error) {
	dir, err := os.MkdirTemp("", "benchcmp-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	table := filepath.Join(dir, "strace")
	traced := t
	traced.command = func(n, c int, seconds float64, url string) []string {
		return append([]string{"strace", "-f", "-c", "-o", table}, t.command(n, c, seconds, url)...)
	}
	m, err := b.run(ctx, traced, b.setup.TracedRequests, min(100, b.setup.Concurrency), 3)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(table)
	if err != nil {
		return 0, err
	}
	calls, err := parseStrace(text)
	return float64(calls) / float64(m.Completed+m.Failed), err
}

// compare runs the rounds. The order turns, so that no tool always follows the
// same other one.
func (b bench) compare(ctx context.Context, all []tool, progress func(string, ...any)) ([]figures, error) {
	result := make([]figures, len(all))
	seconds := 2.0
	for round := range b.setup.Rounds {
		for i := range all {
			at := (round + i) % len(all)
			m, err := b.run(ctx, all[at], b.setup.Requests, b.setup.Concurrency, seconds)
			if err != nil {
				return nil, err
			}
			if at == 0 {
				seconds = m.seconds
			}
			f := &result[at]
			f.PerSecond = append(f.PerSecond, m.PerSecond)
			f.CPUMicrosPerRequest = append(f.CPUMicrosPerRequest, 1e6*m.cpuSeconds/float64(m.Completed))
			f.Failed += m.Failed
			progress("round %d/%d  %-7s %9.0f requests/s  %6.1f µs CPU/request  %d failed",
				round+1, b.setup.Rounds, all[at].name, m.PerSecond, 1e6*m.cpuSeconds/float64(m.Completed), m.Failed)
		}
	}
	for i, t := range all {
		f := &result[i]
		f.Tool = t.name
		var err error
		if f.SystemCallsPerRequest, err = b.systemCalls(ctx, t); err != nil {
			return nil, err
		}
		many, err := b.run(ctx, t, 4*b.setup.ManyConnections, b.setup.ManyConnections, 2)
		if err != nil {
			return nil, err
		}
		f.PeakBytes = many.peakBytes
		progress("%-7s %.2f system calls/request, %.1f MiB with %d connections",
			t.name, f.SystemCallsPerRequest, float64(f.PeakBytes)/(1<<20), b.setup.ManyConnections)
	}
	return result, nil
}

// machineBusy is the time in seconds that all CPUs together have not been idle.
func machineBusy() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy adds up /proc/stat's first line without idle and iowait (proc(5));
// guest time is contained in user time.
func parseBusy(text string) (float64, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: unexpected first line %q", line)
	}
	ticks := 0.0
	for _, column := range []int{1, 2, 3, 6, 7} { // user nice system irq softirq
		n, err := strconv.ParseFloat(fields[column], 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks += n
	}
	return ticks / 100, nil // USER_HZ is 100 on every Linux
}
