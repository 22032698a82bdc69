package look

import (
	"time"

	"github.com/natkit/natkit/internal/bpf/unconfirmed"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/attribute"
	"github.com/natkit/natkit/internal/gateway/status"
)

// dropCount counts first packets that are dropped behind the rules, by the rule that
// had translated them.
type dropCount struct {
	tracer *unconfirmed.Tracer
	// hindered is why there is no tracer.
	hindered error
	// digest is the plan whose rules these are, since when they are counted.
	digest string
	since  time.Time
	rules  map[gateway.Ref]uint64
	noRule uint64
	untold uint64
}

// CountDrops has drops told by rule from now to Close. Where it cannot be done the
// status says why.
func (l *Looker) CountDrops() {
	d := &dropCount{}
	d.tracer, d.hindered = unconfirmed.Start(l.o.Netns)
	l.drops = d
}

// Close ends what CountDrops began.
func (l *Looker) Close() error {
	if l.drops == nil || l.drops.tracer == nil {
		return nil
	}
	return l.drops.tracer.Close()
}

// tell tells the drops since a plan is in force: rules of another plan may have the
// same names.
func (d *dropCount) tell(v *view) {
	switch {
	case d == nil:
		return
	case d.tracer == nil:
		v.note("drops are not told by rule: %v", d.hindered)
		return
	case v.plan == nil:
		return // PlanUnknown says why there are no rules
	}
	if err := d.count(v); err != nil {
		v.note("drops are not told by rule: %v", err)
		return
	}
	for i := range v.Rules {
		n := d.rules[v.Rules[i].Rule]
		v.Rules[i].Dropped = &n
	}
	v.Drops.ByRule = &status.DropsByRule{Seconds: time.Since(d.since).Seconds(), NoRule: d.noRule, Untold: d.untold}
}

// count adds what was counted since the last time; with a new plan it begins anew.
func (d *dropCount) count(v *view) error {
	if d.digest != v.Plan {
		_, err := d.tracer.Take(func(*conntrack.Entry, uint64) {})
		*d = dropCount{tracer: d.tracer, digest: v.Plan, since: time.Now(), rules: map[gateway.Ref]uint64{}}
		return err
	}
	var attribution *attribute.Rules // made only where there are drops
	untold, err := d.tracer.Take(func(e *conntrack.Entry, packets uint64) {
		if attribution == nil {
			attribution = attribute.New(v.plan)
		}
		d.add(attribution, e, packets)
	})
	d.untold += untold
	return err
}

// add counts for the rule that chose the port, where one did.
func (d *dropCount) add(a *attribute.Rules, e *conntrack.Entry, packets uint64) {
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
