package collect

import (
	"errors"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// What a snapshot has of the ports: the most pressed pools, with a few users each.
const (
	snapshotPools  = 20
	snapshotUsers  = 3
	snapshotMemory = 16 << 20
)

// portReader collects the ports of one observation's table, in the pass that reads
// it.
type portReader struct {
	collector *ports.Collector
	at        *observation
}

// with has every entry also collected, before next gets it.
func (p *portReader) with(next entryFunc) entryFunc {
	return func(o *observation) func(*conntrack.Entry) {
		fn := next(o)
		p.at = o
		p.collector = ports.NewCollector(ports.Options{
			MemoryBytes: snapshotMemory, Now: o.tableAt.Wall, Addresses: ports.Given(o.NATRules),
		})
		if fn == nil {
			return p.collector.Add
		}
		return func(e *conntrack.Entry) {
			p.collector.Add(e)
			fn(e)
		}
	}
}

// finish adds the part to the observation that was read; before is that of an
// earlier one, nil where there was none.
func (p *portReader) finish(before *portReader) {
	p.at.part("ports", func() error {
		if !p.at.tableRead {
			return errors.New("count used ports: the connection table could not be read")
		}
		p.at.Ports = p.collector.Ports(p.query(before))
		return nil
	})
}

func (p *portReader) query(before *portReader) ports.Query {
	o := p.at
	entries, _ := o.Sysctls.Int(snapshot.ConntrackCount)
	q := ports.Query{
		Complete: o.Table.Complete, Entries: entries, Rules: o.NATRules, Release: o.Kernel.Release,
		Top: snapshotPools, Users: snapshotUsers,
	}
	if before != nil && before.at.tableRead && before.at.Table.Complete {
		q.Before, q.Seconds = before.collector, o.tableMiddle()-before.at.tableMiddle()
	}
	return q
}
