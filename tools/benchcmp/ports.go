package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// What a point yields.
const (
	chanceOff      = "off_percentage_points"
	chanceComputed = "computed_share"
	chanceMeasured = "measured_share"
)

// portsFlows is how many connections a point measures: enough for a standard
// deviation of 0.6 points.
const portsFlows = 6000

// portsSuite measures how near natkit's chance that a connection finds no port is to
// what happens.
func portsSuite(natkit string) bench.Suite {
	s := bench.Suite{
		Name: "ports", Title: "The chance that a new connection finds no port",
		About: "A gateway gives one address. One client holds ports towards one destination; then\n" +
			"another one opens UDP connections through the kernel's own port allocator. Computed is\n" +
			"the chance that natkit derives from the connection table, measured is the share of new\n" +
			"connections that the kernel refused (`insert_failed`).",
		Method: fmt.Sprintf("%s connections, %s at a time, whose ports are all taken (of the mixed ones: drawn from the whole range)",
			units.Count(portsFlows), units.Count(portsBatch)) + ";\nin the short range 10 at a time",
		Quantities: []bench.Quantity{
			{Name: chanceOff, Label: "difference", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 2) + " points" }},
			{Name: chanceComputed, Label: "computed", Better: bench.Lower, Text: units.Percent},
			{Name: chanceMeasured, Label: "measured", Better: bench.Lower, Text: units.Percent},
		},
		Rounds:     3,
		Parameters: map[string]any{"connections": portsFlows, "batch": portsBatch},
		Seed:       portsSeed,
		Programs:   [][]string{{natkit, "--version"}, {"nft", "--version"}},
	}
	for _, p := range portPoints {
		s.Subjects = append(s.Subjects, bench.Subject{Name: p.name, Run: func(ctx context.Context) (bench.Sample, error) {
			return p.run(ctx, portsFlows)
		}})
		s.Claims = append(s.Claims, bench.Claim{Subject: p.name, Quantity: chanceOff, Bound: 3})
	}
	return s
}

const (
	portsSeed  = 585
	portsBatch = 200
)

// portPoint is a way in which ports are used.
type portPoint struct {
	name string
	// options of the rule, and the range that they mean.
	options string
	ports   nat.Ports
	// share of the range is held, in one block or scattered.
	share     float64
	scattered bool
	// mixed has the caller's ports drawn from the whole range, not from the held
	// ones: measured is then the chance of any connection.
	mixed bool
	// One held port in ended is of a TCP connection in TIME_WAIT, and sequence is that of
	// the new connections: past theirs (which is 0), or before.
	ended    int
	sequence uint32
}

func (p portPoint) proto() uint8 {
	if p.ended > 0 {
		return unix.IPPROTO_TCP
	}
	return unix.IPPROTO_UDP
}

// state of the held connection i.
func (p portPoint) state(i int) conntrack.TCPState {
	if i%p.ended == 0 {
		return conntrack.TCPTimeWait
	}
	return conntrack.TCPEstablished
}

// packet makes the first packet of a new connection.
func (p portPoint) packet() func(port uint16) []byte {
	if p.ended > 0 {
		return syn(p.sequence)
	}
	return datagram
}

var wholeRange = ports.DefaultRange(unix.IPPROTO_UDP)

// portPoints are those of the table, and of the test.
var portPoints = []portPoint{
	{name: "one block, half full", ports: wholeRange, share: 0.5},
	{name: "one block, 93 % full", ports: wholeRange, share: 0.93},
	{name: "scattered, 93 % full", ports: wholeRange, share: 0.93, scattered: true},
	{name: "scattered, 99 % full", ports: wholeRange, share: 0.99, scattered: true},
	{name: "1,000 ports, one block, 95 % full", options: ":20000-20999", ports: nat.Ports{First: 20000, Last: 20999}, share: 0.95},
	{name: "1,000 ports, scattered, 95 % full", options: ":20000-20999", ports: nat.Ports{First: 20000, Last: 20999}, share: 0.95, scattered: true},
	{name: "one block, 93 % full, fully-random", options: " fully-random", ports: wholeRange, share: 0.93, mixed: true},
	{name: "one block, 93 % full, mixed ports", ports: wholeRange, share: 0.93, mixed: true},
	{name: "TCP, one block, 93 % full, of it 2 % ended and passed", ports: wholeRange, share: 0.93, ended: 50, sequence: 1 << 20},
	{name: "TCP, one block, 93 % full, of it 2 % ended, not passed", ports: wholeRange, share: 0.93, ended: 50, sequence: 1<<31 + 1<<20},
}

// run measures one point with the given number of connections.
func (p portPoint) run(ctx context.Context, flows int) (s bench.Sample, err error) {
	g, err := newSNATGate()
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	random := rand.New(rand.NewPCG(portsSeed, rand.Uint64()))
	held := p.held(random)
	if err := g.rule(ctx, p.options); err != nil {
		return s, err
	}
	if err := g.hold(ctx, p.proto(), held, p.state); err != nil {
		return s, err
	}
	t := portTrial{point: p, gate: g}
	if t.rules, err = read.NAT(g.gateway); err != nil {
		return s, err
	}
	if t.release, err = collect.Release(); err != nil {
		return s, err
	}
	if err := t.batches(ctx, flows, held, random); err != nil {
		return s, err
	}
	computed, measured := t.computed/float64(t.sent), float64(t.failed)/float64(t.sent)
	return bench.Sample{Values: bench.Values{
		chanceOff: 100 * math.Abs(computed-measured), chanceComputed: computed, chanceMeasured: measured,
	}}, g.release(ctx, 0, callerMark)
}

// held are the ports that are in use before.
func (p portPoint) held(random *rand.Rand) []uint16 {
	n := int(math.Round(p.share * float64(p.ports.Len())))
	all := make([]uint16, p.ports.Len())
	for i := range all {
		all[i] = p.ports.First + uint16(i)
	}
	if p.scattered {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all[:n]
}

// batch returns the number of connections opened at once: few where they would fill what
// is free.
func (p portPoint) batch() int {
	if p.ports.Len() < 1<<12 {
		return portsBatch / 20
	}
	return portsBatch
}

// portTrial adds up the batches of one point.
type portTrial struct {
	point   portPoint
	gate    *snatGate
	rules   *snapshot.NATRules
	release string
	// computed is the sum of the chances that natkit reported for each connection.
	computed     float64
	sent, failed int64
}

// batches are small, and are removed after each, as they take ports themselves; the
// mean of before and after stands for each.
func (t *portTrial) batches(ctx context.Context, flows int, held []uint16, random *rand.Rand) error {
	var empty *ports.Collector
	before := 0.0
	for t.sent < int64(flows) {
		// New connections take ports for good only of ended ones.
		if empty == nil || t.point.ended > 0 {
			var err error
			if empty, err = t.look(ctx); err != nil {
				return err
			}
			if before, err = t.chance(empty, nil); err != nil {
				return err
			}
		}
		got, err := t.gate.call(ctx, t.from(held, random), t.point.packet())
		if err != nil {
			return err
		}
		now, err := t.look(ctx)
		if err != nil {
			return err
		}
		after, err := t.chance(now, empty)
		if err != nil {
			return err
		}
		computed := (before + after) / 2
		if t.point.mixed {
			// Before the first connection the ports of the new ones are not known.
			computed = after
		}
		t.computed += computed * float64(got.sent)
		t.sent, t.failed = t.sent+got.sent, t.failed+got.failed
		if err := t.gate.release(ctx, callerMark); err != nil {
			return err
		}
	}
	return nil
}

// from are the ports of the next batch, each once.
func (t *portTrial) from(held []uint16, random *rand.Rand) []uint16 {
	chosen := make([]uint16, 0, t.point.batch())
	seen := map[uint16]bool{}
	for len(chosen) < t.point.batch() {
		p := wholeRange.First + uint16(random.IntN(wholeRange.Len()))
		if !t.point.mixed {
			p = held[random.IntN(len(held))]
		}
		if !seen[p] {
			seen[p] = true
			chosen = append(chosen, p)
		}
	}
	return chosen
}

// lookTries limits how often a table is read again after a resize: other namespaces of
// the host share its hash.
const lookTries = 5

// look reads the gateway's table as natkit ports does.
func (t *portTrial) look(ctx context.Context) (*ports.Collector, error) {
	for range lookTries {
		c := ports.NewCollector(ports.Options{})
		r, err := dump.Each(ctx, t.gate.gateway, nil, func(e *conntrack.Entry) error {
			c.Add(e)
			return nil
		})
		if err != nil || !r.Interrupted && r.Complete {
			return c, err
		}
	}
	return nil, fmt.Errorf("read the gateway's table: it was resized each time of %d", lookTries)
}

// chance returns what natkit reports: for connections whose port is taken, or for any.
func (t *portTrial) chance(now, before *ports.Collector) (float64, error) {
	// The rates do not matter here, only which connections are new.
	q := ports.Query{Complete: true, Rules: t.rules, Release: t.release, Before: before, Seconds: 1}
	report := now.Ports(q)
	if len(report.Pools) == 0 {
		return 0, errors.New("natkit finds no ports in use")
	}
	pool := report.Pools[0]
	if want := t.point.ports; pool.FirstPort != want.First || pool.LastPort != want.Last || report.Probing != snapshot.PortProbeRandom {
		return 0, fmt.Errorf("natkit reports the range %d-%d (%s, %s), want %d-%d", pool.FirstPort, pool.LastPort, pool.RangeSource, report.Probing, want.First, want.Last)
	}
	if t.point.mixed {
		return pool.Fails, nil
	}
	if t.point.sequence > 1<<31 {
		return pool.FailsIfKept, nil
	}
	return pool.FailsIfTaken, nil
}
