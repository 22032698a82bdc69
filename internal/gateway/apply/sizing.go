package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// automaticStall is the longest wait of all packets, in seconds, that a change may
// cause without being told to by name.
const automaticStall = 0.050

// usualTimeWait is nf_conntrack_tcp_timeout_time_wait where it cannot be read, in
// seconds (nf_conntrack_proto_tcp.c: tcp_timeouts).
const usualTimeWait = 120

// Size is what the connection table needs for a load: the connections that are open
// at one time, and for each new one an entry that stays for the time of TIME_WAIT
// after its end.
func Size(e gateway.Expect, now Present) capacity.Sizing {
	wait, ok := now.Sysctls.Int(timeWait)
	if !ok {
		wait = usualTimeWait
	}
	f := now.Facts
	return capacity.Size(capacity.Need{
		Max: f.Max, Buckets: f.Buckets, Tracked: f.Entries, OtherEntries: f.OtherEntries,
		Held:     int64(e.Flows),
		Arriving: capacity.Steady([]capacity.Class{{PerSecond: float64(e.Rate), LifetimeSeconds: float64(wait)}}, 0),
		// Max and Buckets are one value for all namespaces.
		MemoryBytes: f.MemoryBytes, Cost: f.Cost,
	})
}

// sizing raises the limits of the connection table for the load that is expected,
// never lowers them.
func (c *collector) sizing(e gateway.Expect) {
	if e.Flows == 0 && e.Rate == 0 {
		return
	}
	f := c.now.Facts
	if f.Max == 0 || f.Buckets == 0 {
		c.note("the connection table is not sized: its present size cannot be read here (%s)", absent(c.now.Sysctls, snapshot.ConntrackMax, snapshot.ConntrackBuckets))
		return
	}
	s := Size(e, c.now)
	why := expected(e, s)
	if s.MemoryBound {
		c.note("%s would need a larger table than a quarter of the memory can hold; its limit is %s", why, units.Count(s.Max))
	}
	if !c.now.Initial {
		c.elsewhere(s, why)
		return
	}
	c.number(snapshot.ConntrackMax, s.Max, why)
	c.buckets(s)
}

// elsewhere: the limit is one value for the whole machine, and only the initial
// namespace can write it (nf_conntrack_standalone.c: read-only for the others).
func (c *collector) elsewhere(s capacity.Sizing, why string) {
	if s.Max <= c.now.Facts.Max {
		c.out.Already = append(c.out.Already, fmt.Sprintf("%s is %s already", snapshot.ConntrackMax, units.Count(c.now.Facts.Max)))
		return
	}
	c.note("the connection table is not sized: %s needs %s = %d, which can only be written in the host's own network namespace: there, 'natkit tune apply %s=%d'",
		why, snapshot.ConntrackMax, s.Max, snapshot.ConntrackMax, s.Max)
}

// buckets are resized where that holds up no packet for long, and by name only where
// it does.
func (c *collector) buckets(s capacity.Sizing) {
	why := fmt.Sprintf("hash chains of %s entries on average when full, instead of %s",
		units.Fixed(s.ChainLength, 1), units.Fixed(s.ChainLengthNow, 1))
	byHand := fmt.Sprintf("'natkit tune apply %s=%d', or at boot 'options nf_conntrack hashsize=%d' in /etc/modprobe.d", snapshot.ConntrackBuckets, s.Buckets, s.Buckets)
	switch {
	case s.Buckets <= c.now.Facts.Buckets:
		if c.now.Held[snapshot.ConntrackBuckets] {
			c.number(snapshot.ConntrackBuckets, c.now.Facts.Buckets, "")
		}
	case !c.now.SlabKnown:
		c.note("%s stays: how long a resize would hold up all packets is not known, as the entries of other namespaces cannot be counted here; %s gives %s", snapshot.ConntrackBuckets, byHand, why)
	case s.StallSeconds > automaticStall:
		c.note("%s stays: a resize would hold up all packets of the host for %s; when it is idle, %s gives %s",
			snapshot.ConntrackBuckets, units.Roughly(s.StallSeconds), byHand, why)
	default:
		c.number(snapshot.ConntrackBuckets, s.Buckets, why)
	}
}

func (c *collector) note(format string, args ...any) {
	c.out.Notes = append(c.out.Notes, fmt.Sprintf(format, args...))
}

// expected says what the table is sized for.
func expected(e gateway.Expect, s capacity.Sizing) string {
	var parts []string
	if e.Flows > 0 {
		parts = append(parts, units.Count(int64(e.Flows))+" connections at a time")
	}
	if e.Rate > 0 {
		parts = append(parts, units.Rate(float64(e.Rate))+" new ones per second")
	}
	return fmt.Sprintf("%s: %s entries with those that have just ended", strings.Join(parts, " and "), units.Count(s.Entries))
}

func absent(values snapshot.Sysctls, names ...string) string {
	for _, name := range names {
		if _, ok := values[name]; !ok {
			return name + " is missing"
		}
	}
	return "there is no limit"
}

// lasting are the changes that files keep over a boot: the limits of the connection
// table, and who takes router advertisements, which is for interfaces that come later as
// well (systemd-udevd applies sysctl.d to them). Forwarding is not among them: the
// service turns it on when the rules are there.
func lasting(changes []tune.Change) []tune.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c tune.Change) bool {
		return c.Kind != tune.Sysctl || c.Target != snapshot.ConntrackMax && c.Target != snapshot.ConntrackBuckets && !isAccept(c.Target)
	})
}

// Preview is what Prepare and Apply would do, and what would keep them from it.
type Preview struct {
	Prepared
	Findings []gateway.Finding
	Gateway  *gateway.Plan
	Facts    gateway.Facts
	// InForce is the plan that natkit's table was made for; nil where there is none or
	// natkit does not have it: Before tells.
	InForce *gateway.Plan
	Before  string
	// Changed says what somebody did to the rules since natkit wrote them.
	Changed []string
	// Obstacles are why apply would refuse, besides findings.
	Obstacles []string
	// TimeWaitSeconds is how long the entry of an ended connection keeps its port.
	TimeWaitSeconds float64
	// Sizing is of the connection table; nil where nothing is expected of it.
	Sizing *capacity.Sizing
	// Table are the table's present limits, and what its memory depends on.
	Table tune.Facts
}

// Preview looks at the host for a wish, and writes nothing anywhere. It goes on where
// Prepare refuses, so that somebody sees all at once.
func (h Host) Preview(ctx context.Context, w Wish) (*Preview, error) {
	file, err := UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.Parse(w.Name, w.Text) })
	if err != nil {
		return nil, err
	}
	v := &Preview{}
	if v.Facts, err = h.facts(ctx, file, w.PID); err != nil {
		return nil, err
	}
	v.Findings, err = UnlessEnded(ctx, func() ([]gateway.Finding, error) { return h.Engines.Check(file, v.Facts), nil })
	if err != nil {
		return nil, err
	}
	if v.Gateway, err = UnlessEnded(ctx, func() (*gateway.Plan, error) { return gateway.Compile(&file.Config, v.Facts) }); err != nil {
		if len(refusals(v.Findings)) > 0 {
			return v, Refused{refusals(v.Findings)}
		}
		return v, err
	}
	assigned, notes, err := h.Engines.Assign(v.Gateway, v.Facts)
	if err == nil {
		v.Gateway = assigned
		return v, h.preview(ctx, v, w, notes)
	}
	v.Obstacles = append(v.Obstacles, err.Error())
	return v, h.preview(ctx, v, w, nil)
}

func (h Host) preview(ctx context.Context, v *Preview, w Wish, notes []gateway.Note) error {
	now, state, err := h.present(ctx, v.Gateway)
	if err != nil {
		return err
	}
	now.EngineNotes = notes
	v.Before, v.Changed, v.Table = Value(state), state.Changes, now.Facts
	if v.InForce, err = h.replaceable(state, w.Overwrite); err != nil {
		v.Obstacles = append(v.Obstacles, err.Error())
	}
	v.TimeWaitSeconds = timeWaitSeconds(now)
	if e := v.Gateway.Expect; (e.Flows > 0 || e.Rate > 0) && now.Facts.Max > 0 {
		s := Size(e, now)
		v.Sizing = &s
	}
	if v.Before == tune.GatewayForeign {
		return nil // Plan has no changes for that
	}
	v.Prepared, err = Plan(v.Gateway, gateway.Digest(v.Gateway), now, w.Origin)
	return err
}

// Refused reports whether apply would do nothing of it.
func (v *Preview) Refused() bool { return len(v.Obstacles) > 0 || len(refusals(v.Findings)) > 0 }

func timeWaitSeconds(now Present) float64 {
	if wait, ok := now.Sysctls.Int(timeWait); ok {
		return float64(wait)
	}
	return usualTimeWait
}
