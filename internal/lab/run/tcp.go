package run

import (
	"fmt"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
)

// tcpOfNodes is how TCP of each node stands.
type tcpOfNodes map[string]*snapshot.TCP

func (c *conductor) readTCP() (tcpOfNodes, error) {
	all := tcpOfNodes{}
	for _, n := range c.lab.Nodes() {
		tcp, err := collect.ReadTCP(n.Netns)
		if err != nil {
			return nil, fmt.Errorf("read the TCP counters of %s: %w", n.Name, err)
		}
		all[n.Name] = tcp
	}
	return all, nil
}

// addTCP tells in a stage's report what TCP of each node did meanwhile, and what became
// of the handshakes of its load.
func (c *conductor) addTCP(st *lab.Stage, r *lab.StageReport, before, after tcpOfNodes) {
	r.TCP = map[string]snapshot.Counters{}
	for name, now := range after {
		r.TCP[name] = now.Counters.Grown(before[name].Counters)
	}
	server := c.sc.Topology.Server.Node
	for _, l := range c.sc.LoadsOf(st) {
		if l.Is(lab.LoadHTTP) {
			r.Handshakes = lab.HandshakesOf(r.TCP[l.From], r.TCP[server], after[server], &r.Result)
		}
	}
}
