package collect

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/snapshot"
)

// observation is one reading: the snapshot, and what a comparison with another
// one needs besides.
type observation struct {
	*snapshot.Snapshot
	src source
	// The dump lasted from tableAt to tableEnd; tableRead is whether it went well.
	tableAt, tableEnd instant
	tableRead         bool
	// ipvsTable is nil where IPVS has none, or it could not be read.
	ipvsTable *ipvs.Table
}

// entryFunc is asked before the dump for the function to call with each entry of
// the table in the dump's order. What is not in the table has been read then.
type entryFunc func(*observation) func(*conntrack.Entry)

func always(fn func(*conntrack.Entry)) entryFunc {
	return func(*observation) func(*conntrack.Entry) { return fn }
}

// observe reads everything.
func observe(ctx context.Context, src source, maxEntries int, entries entryFunc) *observation {
	now := src.clock("snapshot")
	o := &observation{src: src, Snapshot: &snapshot.Snapshot{
		Schema: snapshot.Schema, TakenAt: now.Wall, UptimeSeconds: now.Uptime, Parts: []snapshot.Part{},
	}}
	if err := src.inside(func() error { o.files(ctx); return nil }); err != nil {
		o.Parts = append(o.Parts, snapshot.Part{Name: "netns", Error: err.Error()})
	}
	o.tableEnd = o.part("conntrack_table", func() (err error) {
		o.tableAt = o.src.clock("conntrack_table")
		o.Table, err = readTable(ctx, src, maxEntries, o.timeout("established"), entries(o))
		o.tableRead = err == nil
		return err
	})
	return o
}

// files reads all but the table, the counters last, so that they and the table
// are of nearly the same moment.
func (o *observation) files(ctx context.Context) {
	var m machine
	o.part("kernel", func() (err error) {
		if m, err = o.src.machine(); err == nil {
			o.Netns = m.Netns
			o.Kernel, err = readKernel(o.src, m)
		}
		return err
	})
	o.part("memory", func() (err error) { o.Memory, err = readMemory(o.src); return err })
	o.part("conntrack_size", func() (err error) {
		o.ConntrackSize, err = readSize(o.src, m, o.Kernel)
		return err
	})
	o.part("kernel_log", func() error {
		var log logReader
		next, err := o.src.kernelLog(log.add)
		o.KernelLog, o.KernelLogNext = log.newest(), next
		return err
	})
	o.part("nat_rules", func() (err error) {
		if o.NATRules, err = o.src.natRules(); err == nil && o.NATRules.TooMany {
			err = errors.New("read NAT rules: too many to follow: jumps and elements of maps lead to them in more ways than natkit follows; some may be missing, others lack their conditions")
		}
		return err
	})
	o.part(snapshot.PartTCP, func() (err error) { o.TCP, err = readTCP(o.src); return err })
	o.readIPVS()
	o.part("conntrack_stat", func() (err error) { o.ConntrackStat, err = readStat(ctx, o.src); return err })
	o.part("sysctls", func() (err error) { o.Sysctls, err = readSysctls(o.src); return err })
}

// part reads a part and keeps how that went; it returns when it ended.
func (o *observation) part(name string, read func() error) instant {
	start := o.src.clock(name + " begins")
	err := read()
	end := o.src.clock(name + " ends")
	p := snapshot.Part{Name: name, DurationSeconds: end.Uptime - start.Uptime}
	if err != nil {
		p.Error = err.Error()
	}
	o.Parts = append(o.Parts, p)
	return end
}

// readTable summarises at least maxEntries entries, where there are so many: it
// ends with the datagram that has the last of them.
func readTable(ctx context.Context, src source, maxEntries int, established uint32, fn func(*conntrack.Entry)) (*snapshot.ConntrackTable, error) {
	sampler := aggregate.NewSampler()
	sampler.EstablishedTimeout(established)
	seen := 0
	var e conntrack.Entry
	add := func(e *conntrack.Entry) error {
		seen++
		sampler.Add(e)
		if fn != nil {
			fn(e)
		}
		return nil
	}
	r, err := src.table(ctx, func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, add); err != nil {
			return err
		}
		if seen >= maxEntries {
			return dump.ErrStop
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sampler.Table(r.Complete), nil
}

// gap is what lies between two dumps, once the second observation has come to its
// table.
func gap(first, second *observation) aggregate.Gap {
	return aggregate.Gap{
		Seconds:  second.tableAt.Uptime - first.tableEnd.Uptime,
		TimeWait: second.timeout("time_wait"), Close: second.timeout("close"),
		Now: second.tableAt.Wall,
	}
}

// timeout is that of a TCP state in seconds; 0 where it is not known.
func (o *observation) timeout(state string) uint32 {
	n, ok := o.Sysctls.Int("net.netfilter.nf_conntrack_tcp_timeout_" + state)
	if !ok || n < 0 || n > math.MaxUint32 {
		return 0
	}
	return uint32(n)
}

// tableMiddle is when an entry of the table was read, on average: the entries lie
// in the dump's order by chance.
func (o *observation) tableMiddle() float64 { return (o.tableAt.Uptime + o.tableEnd.Uptime) / 2 }

// compare estimates what became of the connections between two observations.
func compare(births *aggregate.FlowEstimator, first, second *observation) (*snapshot.Flows, error) {
	if !first.tableRead || !second.tableRead {
		return nil, errors.New("compare two dumps of the table: it could not be read twice")
	}
	count, ok := second.Sysctls.Int(snapshot.ConntrackCount)
	if !ok && !second.Table.Complete {
		return nil, errors.New("compare two dumps of the table: the number of its entries is not known, only a sample")
	}
	flows := births.Flows(second.tableMiddle()-first.tableMiddle(), count, second.Table.Complete)
	if flows == nil {
		return nil, fmt.Errorf("compare two dumps of the table: the samples of %d and %d entries have none in common: read more (--max-entries)",
			first.Table.Sampled, second.Table.Sampled)
	}
	return flows, nil
}
