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

// Size is what the connection table needs for a load: the connections that are open
// at one time, and for each new one an entry that stays for the time of TIME_WAIT
// after its end.
func Size(e gateway.Expect, now Present) capacity.Sizing {
	return capacity.Size(now.Facts.For(int64(e.Flows), float64(e.Rate), timeWaitSeconds(now)))
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
	case s.StallSeconds > capacity.AutomaticStall:
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
	return fmt.Sprintf("%s: %s with those that have just ended", strings.Join(parts, " and "), units.Plural(s.Entries, "entry", "entries"))
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
	*Ready
	// Obstacles are why apply would refuse, besides findings.
	Obstacles []string
	// TimeWaitSeconds is how long the entry of an ended connection keeps its port.
	TimeWaitSeconds float64
	// Sizing is of the connection table; nil where nothing is expected of it.
	Sizing *capacity.Sizing
	// Table are the table's present limits, and what its memory depends on.
	Table tune.Facts
}

// Preview is Prepare that writes nothing anywhere, and goes on where Prepare refuses, so
// that all reasons are seen at once.
func (h Host) Preview(ctx context.Context, w Wish) (*Preview, error) {
	r, err := h.check(ctx, w, h.Engines.CheckPlan)
	if err != nil {
		return nil, err
	}
	v := &Preview{Ready: r}
	err = r.compile(ctx, w)
	switch refused := refusals(r.Findings); {
	case err != nil && r.Gateway == nil && len(refused) > 0:
		return v, Refused{refused}
	case err != nil:
		return v, err
	}
	for _, o := range r.obstacles {
		v.Obstacles = append(v.Obstacles, o.Error())
	}
	v.Table, v.TimeWaitSeconds = r.now.Facts, timeWaitSeconds(r.now)
	if e := r.Gateway.Expect; (e.Flows > 0 || e.Rate > 0) && r.now.Facts.Max > 0 {
		s := Size(e, r.now)
		v.Sizing = &s
	}
	return v, nil
}

// Refused reports whether apply would do nothing of it.
func (v *Preview) Refused() bool { return len(v.Obstacles) > 0 || len(refusals(v.Findings)) > 0 }

func timeWaitSeconds(now Present) float64 {
	return capacity.Lifetime(capacity.TimeWaitClass, now.Sysctls)
}
