package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// natLogSuite measures what a NAT log costs a gateway that only sees new connections, beside the event listener that people
// log with.
func natLogSuite(natkit string) bench.Suite {
	const trace, table, peer = "natkit gateway log", "natkit gateway log --by table", "conntrack -E"
	o := &newcomers{observing: observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesMasquerade, to: serverAddress}}
	o.observing.send = o.connect
	by := func(name, shows, command string) observer {
		return observer{name: name, attach: func() (io.Closer, error) { return startLogger(o.gateway, shows, command) }}
	}
	const ready = "until interrupted"
	s := o.suite(bench.Suite{
		Name: "nat-log", Title: "natkit gateway log beside conntrack -E",
		About: "The lab's gateway masquerades connections of one packet each, and its table fills up from\n" +
			"nothing. Meanwhile each start is logged to /dev/null: by natkit's programs on tracepoints, from\n" +
			"differences of the table every 5 s, and by a listener to the tracker's events.",
		Quantities: []bench.Quantity{
			{Name: flowRate, Label: "new flows/s", Better: bench.Higher, Text: units.Rate},
			nanoseconds(flowCPU, "CPU time per new flow of who sends and forwards", false),
		},
		Claims: []bench.Claim{
			{Subject: trace, Quantity: flowRate, Than: peer, Bound: 1},
			{Subject: table, Quantity: flowRate, Than: peer, Bound: 1},
			{Subject: trace, Quantity: flowRate, Than: unobserved, Bound: 0.6},
		},
		Programs: [][]string{{natkit, "--version"}, {"conntrack", "--version"}, {"nft", "--version"}},
	}, observer{name: unobserved}, by(trace, ready, "exec '"+natkit+"' gateway log >/dev/null"),
		by(table, ready, "exec '"+natkit+"' gateway log --by table >/dev/null"),
		by(peer, "listens", "echo listens >&2; exec conntrack -E >/dev/null 2>&1"))
	s.Method = fmt.Sprintf("%s UDP flows of one packet of %d bytes, each new to the gateway, sent as fast as they go into an empty table, and taken by the server",
		units.Count(newFlows), packetBytes)
	s.Parameters = map[string]any{"flows": newFlows, "server_ports": newFlowPorts, "frame_bytes": packetBytes, "workers": 1}
	s.Setup = o.setUp
	return s
}

// logger is a program that logs until SIGINT.
type logger struct{ cmd *exec.Cmd }

// startLogger starts a command of the shell in a namespace, and returns when it has written a text to its standard error.
func startLogger(ns *netns.Handle, shows, command string) (*logger, error) {
	l := &logger{exec.Command("sh", "-c", command)}
	stderr, err := l.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := ns.Do(l.cmd.Start); err != nil {
		return nil, err
	}
	lines, said := bufio.NewScanner(stderr), ""
	for lines.Scan() {
		if said += lines.Text(); strings.Contains(said, shows) {
			go io.Copy(io.Discard, stderr) // ends with it
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s: %w: %s", command, l.cmd.Wait(), said)
}

// Close ends it. What it says of lost records, or of the signal, is no failure here.
func (l *logger) Close() error {
	if err := l.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	_ = l.cmd.Wait()
	return nil
}
