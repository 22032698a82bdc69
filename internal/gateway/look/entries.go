package look

import (
	"context"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// poolMemory bounds what the ports of one reading take.
const poolMemory = 32 << 20

// mostRoutes bounds for how many connections that nothing translated a reading asks where they
// go; of a gateway that does its work there are few.
const mostRoutes = 512

// reader counts entries by rules and by ports.
type reader struct {
	plan  *gateway.Plan
	facts *gateway.Facts
	route observe.Router
	here  []netip.Addr
	tally *observe.Tally
	ports *ports.Collector
	// passing finds those that pass untranslated, passed counts them.
	passing *observe.Untranslated
	passed  int64
	// unrouted is why routes could not be asked for.
	unrouted error
	// marks counts entries by their bits of the plan's marks.
	marks map[uint32]int64
	// zones counts them by the conntrack zone of their original direction.
	zones map[uint16]int64
}

func (r *reader) begin() {
	r.tally = observe.NewTally(r.plan, r.here)
	r.marks, r.zones = map[uint32]int64{}, map[uint16]int64{}
	r.passing, r.passed = r.tally.Rules().Untranslated(r.facts, r.route, mostRoutes), 0
	rules, _ := r.plan.PoolRules()
	r.ports = ports.NewCollector(ports.Options{Now: time.Now(), MemoryBytes: poolMemory, Addresses: ports.Given(rules)})
}

func (r *reader) add(e *conntrack.Entry) {
	r.tally.Add(e)
	if !r.tally.Rules().KeepsAddress(e) {
		r.ports.Add(e)
	}
	if r.plan.Marks != 0 {
		r.marks[e.Mark&r.plan.Marks]++
	}
	if e.Zone != 0 {
		r.zones[e.Zone]++
	}
	if r.unrouted != nil {
		return
	}
	var rule *gateway.Ref
	if rule, r.unrouted = r.passing.Of(e); rule != nil {
		r.passed++
	}
}

// entries reads the connection table, or a part of it, and reports each rule's share of it.
func (v *view) entries(ctx context.Context) error {
	if v.plan == nil {
		return nil
	}
	routes, err := host.OpenRoutes(v.o.Netns)
	if err != nil {
		return err
	}
	defer routes.Close()
	r := &reader{plan: v.plan, facts: &gateway.Facts{Interfaces: v.host}, route: routes.Follow}
	for _, i := range v.host {
		for _, p := range i.Addresses {
			r.here = append(r.here, p.Addr())
		}
	}
	r.begin()
	most := v.o.MaxEntries
	result, err := dump.EachWhole(ctx, v.o.Netns, nil, r.begin, func(e *conntrack.Entry) error {
		if most > 0 && r.tally.Seen() >= most {
			return dump.ErrStop
		}
		r.add(e)
		return nil
	})
	if err != nil {
		return err
	}
	if r.unrouted != nil {
		v.note("which connections pass untranslated is not known: %v", r.unrouted)
	}
	if result.Interrupted {
		v.note("%s", result.Interruption())
	}
	complete := result.Complete && (most == 0 || r.tally.Seen() < most)
	v.flows(r, complete)
	v.pools(r, complete)
	return nil
}

func (v *view) flows(r *reader, complete bool) {
	f := &v.Flows
	f.Sampled, f.Complete = r.tally.Seen(), complete
	factor := 1.0
	if !complete && f.Sampled > 0 {
		factor = float64(f.Table) / float64(f.Sampled)
	}
	usage, hosts := r.tally.Usage(factor), r.tally.Hosts(factor)
	for i := range v.Rules {
		one := &v.Rules[i]
		one.Usage = usage[one.Rule]
		for n := range one.Hosts {
			h := &one.Hosts[n]
			h.Flows = hosts[one.Rule][h.Host]
		}
	}
	for i := range v.Leases {
		v.Leases[i].Flows = usage[v.plan.Leases[i].Ref()].Flows
	}
	for i := range v.Uplinks {
		v.Uplinks[i].Flows = int64(float64(r.marks[v.plan.Uplinks[i].Mark]) * factor)
	}
	for i := range v.Zones {
		v.Zones[i].Flows = int64(float64(r.zones[v.Zones[i].Number]) * factor)
	}
	f.Stranger, f.Related = r.tally.Strangers(factor), r.tally.Related(factor)
	f.Untranslated, f.UntranslatedAtLeast = int64(float64(r.passed)*factor), r.passing.Exhausted()
	var stale []netip.Addr
	f.Stale, stale = r.tally.Stale(factor)
	for _, a := range stale {
		f.StaleAddresses = append(f.StaleAddresses, a.String())
	}
}

// pools reports the ports of what the plan's rules give.
func (v *view) pools(r *reader, complete bool) {
	rules, refs := v.plan.PoolRules()
	fullest := map[gateway.Ref]*observe.PortsLeft{}
	q := ports.Query{Complete: complete, Entries: v.Flows.Table, Rules: rules, Release: v.settings.Kernel.Release, Top: v.o.Top, Users: 1,
		Each: func(p *snapshot.PortPool) {
			if p.Rule >= 0 && fullest[refs[p.Rule]] == nil {
				left := observe.PortsLeftOf(p)
				fullest[refs[p.Rule]] = &left
			}
		}}
	all := r.ports.Ports(q)
	if all.LeftOut > 0 {
		v.note("%d small pools of ports found no room in memory and are left out", all.LeftOut)
	}
	for i := range v.Rules {
		v.Rules[i].Ports = fullest[v.Rules[i].Rule]
	}
	for _, p := range all.Pools {
		if p.Rule >= 0 { // not another program's, on the same host
			v.Pools = append(v.Pools, observe.Pool{Rule: &refs[p.Rule], PortsLeft: observe.PortsLeftOf(&p), PortPool: p})
		}
	}
}

// dropCount counts first packets that are dropped behind the rules, by the rule that
// had translated them.
type dropCount struct {
	tracer *drops.Unconfirmed
	// hindered is why there is no tracer.
	hindered error
	// digest is the plan whose rules these are, since when they are counted.
	digest string
	since  time.Time
	rules  map[gateway.Ref]uint64
	noRule uint64
	untold uint64
}

// CountDrops counts drops by rule from now to Close. If it cannot, the status says why.
func (l *Looker) CountDrops() {
	d := &dropCount{}
	d.tracer, d.hindered = drops.StartUnconfirmed(l.o.Netns)
	l.drops = d
}

// Close ends what CountDrops began.
func (l *Looker) Close() error {
	if l.drops == nil || l.drops.tracer == nil {
		return nil
	}
	return l.drops.tracer.Close()
}

// report adds the drops since a plan is in force to the status: rules of another plan may
// have the same names.
func (d *dropCount) report(v *view) {
	switch {
	case d == nil:
		return
	case d.tracer == nil:
		v.note("drops are not counted by rule: %v", d.hindered)
		return
	case v.plan == nil:
		return // PlanUnknown says why there are no rules
	}
	if err := d.count(v); err != nil {
		v.note("drops are not counted by rule: %v", err)
		return
	}
	for i := range v.Rules {
		n := d.rules[v.Rules[i].Rule]
		v.Rules[i].Dropped = &n
	}
	v.Drops.ByRule = &observe.DropsByRule{Seconds: time.Since(d.since).Seconds(), NoRule: d.noRule, Untold: d.untold}
}

// count adds what was counted since the last time; with a new plan it begins anew.
func (d *dropCount) count(v *view) error {
	if d.digest != v.Plan {
		_, err := d.tracer.Take(func(*conntrack.Entry, uint64) {})
		*d = dropCount{tracer: d.tracer, digest: v.Plan, since: time.Now(), rules: map[gateway.Ref]uint64{}}
		return err
	}
	var attribution *observe.Attribution // made only where there are drops
	untold, err := d.tracer.Take(func(e *conntrack.Entry, packets uint64) {
		if attribution == nil {
			attribution = observe.Attribute(v.plan)
		}
		d.add(attribution, e, packets)
	})
	d.untold += untold
	return err
}

// add counts for the rule that chose the port, where one did.
func (d *dropCount) add(a *observe.Attribution, e *conntrack.Entry, packets uint64) {
	source, destination := a.Of(e)
	switch {
	case source != nil:
		d.rules[*source] += packets
	case destination != nil:
		d.rules[*destination] += packets
	default:
		d.noRule += packets
	}
}
