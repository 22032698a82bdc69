package main

import (
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// natLogSuite measures what a NAT log costs a gateway that only sees new connections, beside the event listener that people
// log with.
func natLogSuite(natkit string) bench.Suite {
	const trace, table, peer = "natkit gateway log", "natkit gateway log --by table", "conntrack -E"
	o := &newcomers{observing: observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesMasquerade, to: serverAddress}}
	o.observing.send = o.connect
	// On a terminal, which ends them with it; what they write goes nowhere.
	by := func(name, shows, command string) observer {
		return observer{name: name, attach: func() (io.Closer, error) { return startOnTerminal(o.gateway, shows, "sh", "-c", command) }}
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
		by(peer, "listens", "echo listens; exec conntrack -E >/dev/null 2>&1"))
	s.Method = fmt.Sprintf("%s UDP flows of one packet of %d bytes, each new to the gateway, sent as fast as they go into an empty table, and taken by the server",
		units.Count(newFlows), packetBytes)
	s.Parameters = map[string]any{"flows": newFlows, "server_ports": newFlowPorts, "frame_bytes": packetBytes, "workers": 1}
	s.Setup = o.setUp
	return s
}
