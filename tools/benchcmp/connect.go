package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	connectServer = "198.18.0.1:8080"
	// connectSources are the addresses of the client: those of one would be in TIME_WAIT after
	// a round, as the client closes.
	connectSources = "198.18.0.128/25"

	connectionRate = "connections_per_second"
	connectionCPU  = "machine_cpu_microseconds_per_connection"

	// The subjects besides ab and wrk.
	connectAlone   = "natkit"
	connectRequest = "natkit --request"
	connectMerged  = "natkit --request --merge-ack"
)

// connectTools are bench connect, and the two that send a request over each connection.
func connectTools(natkit string) []tool {
	one := func(name string, flags ...string) tool {
		return tool{name, func(n, c int, _ float64) []string {
			return append([]string{natkit, "bench", "connect", "--json", "-n", strconv.Itoa(n), "-c", strconv.Itoa(c)},
				append(flags, connectServer)...)
		}, parseNatkit}
	}
	all := tools(natkit)
	return []tool{
		one(connectAlone, "--close", "client", "--source", connectSources), one(connectRequest, "--request"),
		one(connectMerged, "--request", "--merge-ack"), all[1], all[2],
	}
}

// connectSuite compares bench connect with what ab and wrk do per connection. Only with --request
// the work is the same.
func connectSuite(natkit string) bench.Suite {
	s := bench.Suite{
		Name: "connect", Title: "natkit bench connect: short connections per second",
		About: "Connections through the lab's DNAT to nginx: without a request, closed by natkit, and with one, closed by\n" +
			"nginx, which is the work of ab and wrk. `--merge-ack` saves a packet of nine, and is not compared with them.",
		Method: fmt.Sprintf("%d connections, %d at a time (wrk: as long as natkit took before), through the lab's DNAT to nginx; the gateway forgets closed connections after 10 s", requests, concurrency),
		Quantities: []bench.Quantity{
			{Name: connectionRate, Label: "connections/s", Better: bench.Higher, Text: units.Rate},
			{Name: connectionCPU, Label: "machine CPU per connection", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 1) + " µs" }},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{"connections": requests, "concurrency": concurrency, "server": connectServer, "sources": connectSources},
		Programs:   [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"ab", "-V"}, {"wrk", "-v"}},
		Setup: func(ctx context.Context) (func(context.Context) error, error) {
			down, err := labUp(ctx, natkit, "nat")
			if err != nil {
				return nil, err
			}
			for node, command := range map[string][]string{
				"client": {"ip", "route", "add", "local", connectSources, "dev", "lo"},
				// 50,000 new tuples of each run would fill the gateway's table in two minutes, and the rest be refused.
				"gateway": {"sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_time_wait=10"},
			} {
				args := append([]string{natkit, "lab", "exec", "--lab", labName, node, "--"}, command...)
				if _, _, err := (bench.Program{Args: args}).Run(ctx); err != nil {
					return nil, errors.Join(err, down(ctx))
				}
			}
			return down, nil
		},
	}
	took := 2.0 // seconds of natkit's last run with a request
	for _, t := range connectTools(natkit) {
		g := generator{natkit: natkit, tool: t, took: &took}
		s.Subjects = append(s.Subjects, bench.Subject{Name: t.name, Run: g.connections})
	}
	s.Claims = []bench.Claim{
		{Subject: connectAlone, Quantity: connectionRate, Than: "ab", Bound: 1.3},
		{Subject: connectAlone, Quantity: connectionRate, Than: "wrk", Bound: 1.3},
		{Subject: connectRequest, Quantity: connectionRate, Than: "ab", Bound: 1.3},
		{Subject: connectRequest, Quantity: connectionRate, Than: "wrk", Bound: 1.05},
	}
	return s
}

// connections is one run, in which a request is a connection.
func (g generator) connections(ctx context.Context) (bench.Sample, error) {
	o, usage, err := g.run(ctx, g.tool.command(requests, concurrency, *g.took))
	if err != nil {
		return bench.Sample{}, err
	}
	if g.tool.name == connectRequest {
		*g.took = math.Max(usage.Seconds, 1)
	}
	return bench.Sample{Failures: o.Failed, Values: bench.Values{
		connectionRate: o.PerSecond,
		connectionCPU:  1e6 * usage.CPUSeconds / float64(o.Completed),
	}}, nil
}

const (
	heldConnections = 100_000
	heldServer      = "127.0.0.1:18100-18103"

	holdRate   = "established_per_second"
	holdClose  = "close_seconds"
	holdMemory = "own_bytes_per_connection"
)

// holdSuite holds connections to natkit's own server, over loopback.
func holdSuite(natkit string) bench.Suite {
	return bench.Suite{
		Name: "hold", Title: "natkit bench hold",
		About: "Memory is that of natkit alone (resident set); the kernel's sockets come on top, some 6 KB at each end.",
		Method: fmt.Sprintf("%d connections over loopback to `natkit bench serve --tcp`, a byte back over 1,000 of them, closed by a reset",
			heldConnections),
		Quantities: []bench.Quantity{
			{Name: holdRate, Label: "established/s", Better: bench.Higher, Text: units.Rate},
			{Name: holdClose, Label: "time to close all", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 3) + " s" }},
			{Name: holdMemory, Label: "natkit's memory per connection", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 0) + " bytes" }},
		},
		Rounds: 5, WarmUp: 1,
		Parameters: map[string]any{"connections": heldConnections, "server": heldServer},
		Programs:   [][]string{{natkit, "--version"}},
		Subjects:   []bench.Subject{{Name: "natkit", Run: func(ctx context.Context) (bench.Sample, error) { return holdSample(ctx, natkit) }}},
		Claims:     []bench.Claim{{Subject: "natkit", Quantity: holdMemory, Bound: 300}},
		Setup:      func(ctx context.Context) (func(context.Context) error, error) { return startHolding(ctx, natkit) },
	}
}

// startHolding starts the server and returns when it accepts connections.
func startHolding(ctx context.Context, natkit string) (func(context.Context) error, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(ctx, natkit, "bench", "serve", "--tcp", heldServer, "--limit", strconv.Itoa(heldConnections))
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	stop := func(context.Context) error {
		cancel()
		_ = cmd.Wait() // it was killed
		return nil
	}
	line := make([]byte, 200)
	if n, err := stdout.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "holding TCP") {
		return nil, errors.Join(fmt.Errorf("the server of natkit said %q", line[:n]), err, stop(ctx))
	}
	return stop, nil
}

func holdSample(ctx context.Context, natkit string) (bench.Sample, error) {
	stdout, _, err := bench.Program{Args: []string{natkit, "bench", "hold", "--json", strconv.Itoa(heldConnections), heldServer}}.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	var r load.HoldResult
	if err := json.Unmarshal(stdout, &r); err != nil {
		return bench.Sample{}, fmt.Errorf("read natkit's JSON: %w", err)
	}
	return bench.Sample{Failures: r.Failed + r.Lost + r.Verified - r.Alive, Values: bench.Values{
		holdRate: r.OpenPerSecond, holdClose: r.CloseSeconds, holdMemory: r.BytesPerConnection,
	}}, nil
}
