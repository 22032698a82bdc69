package lab

import (
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/load"
)

// closeModes are what Load.Close may be.
var closeModes = []string{string(load.CloseServer), string(load.CloseClient), string(load.CloseReset)}

// connections checks what an http load does with its connections.
func (c *checker) connections(path []any, l Load) {
	switch {
	case l.Close != "" && !slices.Contains(closeModes, l.Close):
		c.fail(append(path, "close"), "close %q: expected one of: %s", l.Close, strings.Join(closeModes, ", "))
	case l.KeepAlive < 0 || l.KeepAlive > maxKept:
		c.fail(append(path, "keep_alive"), "expected load.keep_alive: 1 to %d requests for each connection, found %d", maxKept, l.KeepAlive)
	case l.keeps() && !c.s.Topology.Server.KeepAlive:
		c.fail(path, "expected topology.server.keep_alive: true, as the server closes each connection first without it")
	case len(l.Servers) > maxSources:
		c.fail(append(path, "servers"), "expected at most %d addresses in load.servers, found %d", maxSources, len(l.Servers))
	}
	for _, a := range l.Servers {
		if !inLabs(a) {
			c.fail(append(path, "servers"), "address %s: expected one in %s, so that no load leaves the lab", a, networks())
		}
	}
	if l.Batch != nil {
		c.batch(append(path, "batch"), l)
	}
}

// maxKept is as much as one connection can be told to carry.
const maxKept = 1_000_000

// keeps reports whether the load needs a server that leaves connections open.
func (l Load) keeps() bool {
	return l.KeepAlive > 1 || l.Close != "" && l.Close != string(load.CloseServer)
}

func (c *checker) batch(path []any, l Load) {
	b := l.Batch
	c.node(append(path, "forgotten_by"), b.ForgottenBy)
	c.duration(append(path, "patience"), "batch.patience", b.Patience, true)
	switch {
	case b.Requests < 1:
		c.fail(append(path, "requests"), "expected batch.requests: 1 or more, found %d", b.Requests)
	case l.Rate > 0:
		c.fail(path, "expected load.batch or load.rate, found both: what starts on a schedule does not wait for a batch")
	}
}
