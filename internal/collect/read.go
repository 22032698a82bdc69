package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// observation is one reading: the snapshot, and what a comparison with another
// one needs besides.
type observation struct {
	*snapshot.Snapshot
	src     source
	machine machine
	// The dump lasted from tableAt to tableEnd; tableRead is whether it went well.
	tableAt, tableEnd instant
	tableRead         bool
	// ipvsTable is nil where IPVS has none, or it could not be read.
	ipvsTable *ipvsTable
	// tables are what judged has read, routes is what asksRoutes has opened, host what readHost has read.
	tables []*ruleset.Table
	routes *router
	host   *host
	// lookedUp is what lookUp has read.
	lookedUp *lookups
}

// entryFunc is asked before the dump for the function to call with each entry of
// the table in the dump's order. What is not in the table has been read then.
type entryFunc func(*observation) func(*conntrack.Entry)

func always(fn func(*conntrack.Entry)) entryFunc {
	return func(*observation) func(*conntrack.Entry) { return fn }
}

// collector reads one part of a snapshot, inside the namespace. It returns errNone where
// this kernel or namespace has no such thing, and there is no part then.
type collector struct {
	part string
	read func(*observation, context.Context) error
}

var errNone = errors.New("there is none")

// collectors are all parts but the table, in the order in which they are read: the counters
// last, so that they and the table are of nearly the same moment.
var collectors = []collector{
	{"kernel", func(o *observation, _ context.Context) (err error) {
		if o.machine, err = o.src.machine(); err == nil {
			o.Netns = o.machine.Netns
			o.Kernel, err = readKernel(o.src, o.machine)
		}
		return err
	}},
	{"memory", func(o *observation, _ context.Context) (err error) { o.Memory, err = readMemory(o.src); return err }},
	{"conntrack_size", func(o *observation, _ context.Context) (err error) {
		o.ConntrackSize, err = readSize(o.src, o.machine)
		return err
	}},
	{snapshot.PartKernelLog, func(o *observation, _ context.Context) (err error) {
		var log logReader
		o.KernelLogNext, err = o.src.kernelLog(log.add)
		o.KernelLog = log.newest()
		return err
	}},
	{snapshot.PartNames, (*observation).readNames},
	{"nat_rules", func(o *observation, _ context.Context) (err error) {
		// The kernel's own answers are of three kinds, and in its byte order.
		o.NATRules, err = answer(o, question{"NAT rules", "nat_rules.json"}, askNATRules)
		if err == nil && o.NATRules.TooMany {
			err = errors.New("read NAT rules: too many to follow: jumps and elements of maps lead to them in more ways than natkit follows; some may be missing, others lack their conditions")
		}
		return err
	}},
	{snapshot.PartPrograms, (*observation).readPrograms},
	{snapshot.PartDNATTargets, (*observation).readDNATTargets},
	{snapshot.PartAudit, (*observation).readAudit},
	{snapshot.PartWays, (*observation).readWays},
	{snapshot.PartTCP, func(o *observation, _ context.Context) (err error) { o.TCP, err = readTCP(o.src); return err }},
	{"neighbours", (*observation).readNeighbours},
	{"softnet", (*observation).readSoftnet},
	{snapshot.PartLinks, (*observation).readLinks},
	{"ipsec_policies", (*observation).readIPsecPolicies},
	{"event_listeners", (*observation).readEventListeners},
	{"accept_queues", (*observation).readAcceptQueues},
	{snapshot.PartOwnPorts, (*observation).readOwnPorts},
	{"reverse_paths", (*observation).readReversePaths},
	{"icmp_errors", (*observation).readICMPErrors},
	{"ipvs", (*observation).readIPVS},
	{"ipvs_connections", (*observation).readIPVSConnections},
	{snapshot.PartStat, func(o *observation, ctx context.Context) (err error) {
		o.ConntrackStat, err = readStat(ctx, o.src)
		return err
	}},
	{snapshot.PartSysctls, func(o *observation, _ context.Context) (err error) {
		o.Sysctls, err = readSysctls(o.src, o.ConntrackStat != nil)
		return err
	}},
}

// answer returns what ask reads, or what a bundle has of it; nil with an error.
func answer[T any](o *observation, q question, ask func() (*T, error)) (*T, error) {
	v := new(T)
	err := o.src.answer(q, v, func() error {
		read, err := ask()
		if err == nil {
			*v = *read
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// only returns the collectors of these parts.
func only(parts ...string) []collector {
	return slices.DeleteFunc(slices.Clone(collectors), func(c collector) bool { return !slices.Contains(parts, c.part) })
}

func newObservation(src source) *observation {
	now := src.clock("snapshot")
	return &observation{src: src, Snapshot: &snapshot.Snapshot{
		Schema: snapshot.Schema, TakenAt: now.Wall, UptimeSeconds: now.Uptime, Parts: []snapshot.Part{},
	}}
}

// collect reads parts.
func (o *observation) collect(ctx context.Context, all []collector) {
	err := o.src.inside(func() error {
		for _, c := range all {
			o.part(c.part, func() error { return c.read(o, ctx) })
		}
		if o.routes != nil {
			o.routes.close()
			o.routes = nil
		}
		if k := o.lookedUp; k != nil && k.mappings != nil {
			_ = k.mappings.Close()
		}
		return nil
	})
	if err != nil {
		o.Parts = append(o.Parts, snapshot.Part{Name: "netns", Error: err.Error()})
	}
}

// Reader reads a namespace again and again, all that a snapshot has but the connection table.
type Reader struct {
	src         source
	before, now *observation
}

// NewReader returns a Reader.
func NewReader(o Options) *Reader { return &Reader{src: newLive(o)} }

// Read takes a snapshot.
func (r *Reader) Read(ctx context.Context) *snapshot.Snapshot {
	r.before, r.now = r.now, newObservation(r.src)
	r.now.collect(ctx, collectors)
	return r.now.Snapshot
}

// Compare adds to the last snapshot what only two of them and what happened in between can tell: the
// tuples that IPVS saw again, and the routes of connections that failed.
func (r *Reader) Compare(rec *snapshot.Recording) {
	if r.before == nil {
		return
	}
	r.now.compareIPVS(r.before)
	r.now.part(snapshot.PartRoutes, func() error { return r.now.readRoutes(rec) })
}

// observe reads everything.
func observe(ctx context.Context, src source, maxEntries int, entries entryFunc) *observation {
	o := newObservation(src)
	o.collect(ctx, collectors)
	o.tableEnd = o.part(snapshot.PartTable, func() (err error) {
		o.tableAt = o.src.clock(snapshot.PartTable)
		o.Table, err = readTable(ctx, src, maxEntries, o.Sysctls.ClassTimeout("tcp/ESTABLISHED"), entries(o))
		o.tableRead = err == nil
		return err
	})
	return o
}

// part reads a part and keeps how that went; it returns when it ended.
func (o *observation) part(name string, read func() error) instant {
	start := o.src.clock(name + " begins")
	err := read()
	end := o.src.clock(name + " ends")
	if errors.Is(err, errNone) {
		return end
	}
	p := snapshot.Part{Name: name, DurationSeconds: end.Uptime - start.Uptime}
	if err != nil {
		p.Error, p.Unavailable = causes(err), unavailable(name, err)
	}
	o.Parts = append(o.Parts, p)
	return end
}

// unavailable reports whether a part cannot be read here at all: without the privilege, or in a container without /dev/kmsg. Another
// file that is missing may come, with a module of the kernel.
func unavailable(part string, err error) bool {
	return errors.Is(err, fs.ErrPermission) || part == snapshot.PartKernelLog && errors.Is(err, fs.ErrNotExist)
}

// readTable summarises at least maxEntries entries, or all: it ends with the datagram that has the last of them.
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

// gap returns the gap between two dumps, once the second observation has come to its
// table.
func gap(first, second *observation) aggregate.Gap {
	return aggregate.Gap{
		Seconds: second.tableAt.Uptime - first.tableEnd.Uptime,
		Whole:   second.tableAt.Uptime - first.UptimeSeconds,
		Sysctls: second.Sysctls, Now: second.tableAt.Wall,
	}
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
