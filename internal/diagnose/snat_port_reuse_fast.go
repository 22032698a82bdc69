package diagnose

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// peerTimeWait is how long a Linux server holds a closed connection, in seconds
	// (TCP_TIMEWAIT_LEN); others hold it for as long or longer.
	peerTimeWait = 60
	// endsOften is the share of a pool's entries that are closed connections, from which
	// its connections come and go.
	endsOften = 0.1
	// someMeet is the chance of a new connection to be given a port of the last minute that
	// is worth a warning.
	someMeet = 0.1
	// evictsFrom is the share of a pool in use from which a kernel that may take the ports
	// of closed connections has to.
	evictsFrom = 0.9
)

// checkPortReuse: NAT gives a port toward one destination again before the minute is
// over that the destination holds the former connection in TIME_WAIT. A SYN whose timestamp
// or sequence number is behind the former one's is then rejected there (RFC 6888, REQ-8,
// asks for 120 s).
func (p *pools) checkPortReuse() (*Finding, Check) {
	hold, ok := p.rec.Last().Sysctls.Int(timeWaitTimeout)
	if !ok {
		return unknown(timeWaitTimeout + " is not known")
	}
	if hold >= peerTimeWait && !p.ports.Evicts {
		return passed(fmt.Sprintf("a port is kept for %d s after its connection", hold))
	}
	hold = max(1, hold)
	var worst *reuse
	for i := range p.ports.Pools {
		if r := p.reuse(&p.ports.Pools[i], float64(hold)); r != nil && (worst == nil || r.surely > worst.surely) {
			worst = r
		}
	}
	switch why := p.noRules(); {
	case why != "" && worst == nil && hold >= peerTimeWait:
		return unknown(fmt.Sprintf("a port is kept for %d s after its connection", hold) + why)
	case why != "" && worst != nil && (worst.surely < someMeet || worst.ownPorts()):
		return unknown(worst.seen() + why)
	case worst == nil && hold >= peerTimeWait:
		return passed(fmt.Sprintf("a port is kept for %d s after its connection, and no pool of TCP ports is so full that one is taken before", hold))
	case worst == nil:
		return passed(fmt.Sprintf("a port is kept for %d s after its connection; no pool of TCP ports has connections that come and go, and that servers close first", hold))
	case worst.chance >= someMeet && worst.surely < someMeet:
		return passed(worst.seen() + ", by too few entries to be sure")
	case worst.chance < someMeet || worst.ownPorts():
		return passed(worst.seen())
	}
	return p.reuseFinding(worst), Check{Why: worst.seen()}
}

// reuse is how soon ports of one pool come again.
type reuse struct {
	pool *snapshot.PortPool
	// hold is the time in seconds for which NAT keeps a port after its connection.
	hold float64
	// rate of connections that end, per second; rateFrom is its source.
	rate     float64
	rateFrom string
	// cycling ports are not held by open connections: they come and go.
	cycling int64
	// chance of a new connection to be given a port that was in use within the last minute;
	// 1 where it cannot be otherwise. surely is the chance at a rate of two standard errors less:
	// few entries may be a burst.
	chance, surely float64
}

// reuse is nil for pools that it does not concern. Connections that their client closed
// first are held by the client, and no matter.
func (p *pools) reuse(pool *snapshot.PortPool, hold float64) *reuse {
	closed := max(0, pool.TimeWait-pool.ClientClosed)
	if pool.Protocol != "tcp" || pool.IsMapping() || closed == 0 || float64(closed) < endsOften*float64(pool.Used) {
		return nil
	}
	r := &reuse{pool: pool, hold: hold, cycling: max(1, pool.Len()-(pool.Used-pool.TimeWait))}
	// What was closed within the time that closed connections are kept is there still.
	r.rate, r.rateFrom = float64(closed)/hold, fmt.Sprintf("%s in TIME_WAIT%s / %g s", units.Plural(closed, "entry", "entries"), serversOwn(pool), hold)
	if hold >= peerTimeWait {
		if pool.Share < evictsFrom {
			return nil
		}
		// Here many of them were taken before their time.
		r.rate, r.rateFrom = p.newTCP()*p.shareOfClosed(closed), "new entries of two dumps"
	}
	r.chance = r.meets(r.rate)
	r.surely = r.meets(r.rate * max(0, 1-2/math.Sqrt(float64(closed))))
	return r
}

// serversOwn returns which entries in TIME_WAIT count, if not all do.
func serversOwn(pool *snapshot.PortPool) string {
	if pool.ClientClosed == 0 {
		return ""
	}
	return " whose client did not close first"
}

// meets is the chance that a port was in use within the last minute. As many connections as
// there are ports within a minute leave none that was not.
func (r *reuse) meets(rate float64) float64 {
	if rate*peerTimeWait >= float64(r.cycling) {
		return 1
	}
	if r.hold >= peerTimeWait {
		return 0
	}
	free := float64(max(1, r.cycling-r.pool.TimeWait))
	return -math.Expm1(-rate * (peerTimeWait - r.hold) / free)
}

// newTCP is the rate of new TCP connections of the whole table.
func (p *pools) newTCP() float64 {
	rate := 0.0
	if f := p.rec.Flows; f != nil {
		for class, perSecond := range f.PerSecond {
			if len(class) > 4 && class[:4] == "tcp/" {
				rate += perSecond
			}
		}
	}
	return rate
}

// shareOfClosed returns the share of closed in the table's closed connections.
func (p *pools) shareOfClosed(closed int64) float64 {
	tab := p.rec.Last().Table
	if tab == nil || tab.ByTCPState["TIME_WAIT"] == 0 {
		return 0
	}
	return min(1, float64(closed)/(float64(tab.ByTCPState["TIME_WAIT"])*p.scale()))
}

// ownPorts reports whether one source uses the pool with ports of its own choice: its clock
// and its sequence numbers go forward, and a server takes its SYN at once.
func (r *reuse) ownPorts() bool {
	return len(r.pool.Users) < 2 && r.pool.Len() >= fullRange && !r.pool.Draws
}

func (r *reuse) seen() string {
	text := fmt.Sprintf("%s: %s/s end, %s ports come and go", poolName(r.pool), units.Rate(r.rate), units.Count(r.cycling))
	switch {
	case r.ownPorts():
		return text + ", of one source, which keeps its own ports"
	case r.chance >= 1:
		return text + ": each comes again within " + units.Roughly(r.interval())
	}
	return text + fmt.Sprintf(": %s of new connections are given one of the last minute", units.Percent(r.chance))
}

// interval is the mean time from one connection of a port to the next one, in seconds.
func (r *reuse) interval() float64 { return float64(r.cycling) / max(r.rate, 1e-9) }

func (p *pools) reuseFinding(r *reuse) *Finding {
	f := worded("snat-port-reuse-fast", p.reuseEvidence(r), p.reuseRemedies(r), units.Percent(r.chance), poolName(r.pool),
		r.hold, timeWaitTimeout, peerTimeWait)
	if r.hold >= peerTimeWait {
		f.Cause = fmt.Sprintf("more connections come than ports are kept for after their end (%g s, %s), so that this kernel (6.6 or later) takes ports of closed ones before their time; a server that closed first holds it in TIME_WAIT for %d s", r.hold, timeWaitTimeout, peerTimeWait)
	}
	if r.surely >= 1 {
		f.Confidence = "certain"
	}
	if r.chance >= 1 {
		f.Title = fmt.Sprintf("a port comes again after %s, while the destination may hold it for %d s (%s)", units.Roughly(r.interval()), peerTimeWait, poolName(r.pool))
	}
	return f
}

func (p *pools) reuseEvidence(r *reuse) []Evidence {
	name := poolName(r.pool)
	e := []Evidence{
		{What: "connections that end" + serversOwn(r.pool), Value: round1(r.rate), Unit: "/s", Source: r.rateFrom},
		{What: "of them within a minute, at this rate", Value: int64(r.rate * peerTimeWait), Source: "rate × 60 s"},
		{What: "ports that come and go", Value: r.cycling, Unit: fmt.Sprintf("of %s", units.Count(r.pool.Len())), Source: name + ": " + r.pool.RangeSource},
		{What: "in TIME_WAIT", Value: r.pool.TimeWait, Unit: fmt.Sprintf("of %s used", units.Count(r.pool.Used)), Source: name},
		{What: "kept after a connection", Value: int64(r.hold), Unit: "s", Source: timeWaitTimeout},
	}
	for _, u := range r.pool.Users[:min(len(r.pool.Users), mostShown)] {
		e = append(e, Evidence{What: "ports of " + u.Who, Value: u.Entries, Source: name})
	}
	return e
}

func (p *pools) reuseRemedies(r *reuse) []Remedy {
	var all []Remedy
	if rule := p.rule(r.pool); rule != nil && restricts(rule) {
		all = append(all, p.widen(r.pool, rule))
	}
	all = append(all, advice("reuse-more-addresses", units.Plural(r.addresses(), "address", "addresses"), units.Count(r.pool.Len())))
	if r.hold < rfcHold {
		all = append(all, p.longerHold(r))
	}
	return append(all,
		advice("reuse-clients-close"),
		advice("reuse-servers"))
}

// addresses that the rate needs for a port to rest for a minute.
func (r *reuse) addresses() int64 {
	return max(2, int64(math.Ceil(r.rate*peerTimeWait/float64(max(1, r.cycling)))))
}

// rfcHold is the time that RFC 6888, REQ-8, asks for, in seconds.
const rfcHold = 120

// longerHold keeps ports back, which needs as many of them.
func (p *pools) longerHold(r *reuse) Remedy {
	need := int64(r.rate * rfcHold)
	m := advice("reuse-longer-hold", timeWaitTimeout, rfcHold, r.hold, units.Count(need), units.Count(r.cycling))
	if need > r.cycling {
		m.Risk = "there are not that many ports: new connections find none (snat-ports-exhausted), or a kernel from 6.6 on takes those of closed ones all the same. More addresses come first"
	}
	return m
}
