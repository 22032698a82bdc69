package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// refusing is the chance, of a new connection whose own port is taken, not to get
	// another one, from which a pool explains insertions that fail.
	refusing = 0.005
	// usedUp is the share that does so where the layout of the used ports is unknown.
	usedUp = 0.90
	// fewestClashes are the failed insertions, within a recording, from which something
	// is wrong: two packets of one new connection on two CPUs lose a race now and then.
	fewestClashes = 10
	// fewestPorts is the least number that makes a pool. A rule with fewer is there to
	// let one program keep its port (SIP, IPsec): all of them in use is what it is for.
	fewestPorts = 16
)

// pools are the port pools of a recording.
type pools struct {
	*table
	ports *snapshot.Ports
	rules *snapshot.NATRules
}

// readPools gives the check that ends a rule where it is not known which ports NAT uses.
func readPools(rec *snapshot.Recording) (*pools, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	last := rec.Last()
	if last.Ports == nil {
		return nil, Check{State: NotChecked, Why: cmp.Or(last.PartError("ports"),
			"the ports that NAT uses were not looked at: no dump of the table, or a bundle of an older natkit")}
	}
	return &pools{t, last.Ports, last.NATRules}, Check{}
}

// tightest is the pool in which a new connection is most likely to fail; nil where
// there are none.
func (p *pools) tightest() *snapshot.PortPool {
	var worst *snapshot.PortPool
	for i := range p.ports.Pools {
		if pool := &p.ports.Pools[i]; worst == nil || pressure(pool) > pressure(worst) {
			worst = pool
		}
	}
	return worst
}

// pressure orders pools: by the chance where it is known, then by the share.
func pressure(p *snapshot.PortPool) float64 {
	if isMapping(p) {
		return 0
	}
	return p.FailsIfTaken + p.Share
}

// isMapping reports whether a pool is no more than the ports of one program.
func isMapping(p *snapshot.PortPool) bool { return p.Len() < fewestPorts }

// surely is the share of a pool that is in use at least: where the table was sampled,
// less two standard errors of what was counted.
func (p *pools) surely(pool *snapshot.PortPool) float64 {
	if p.ports.Complete || p.ports.Sampled == 0 {
		return pool.Share
	}
	scale := max(1, float64(p.count)/float64(p.ports.Sampled))
	return max(0, pool.Share-2*math.Sqrt(pool.Share*(scale-1)/float64(pool.Len())))
}

// refusesNew reports whether new connections fail in a pool, going by its ports alone.
func refusesNew(p *snapshot.PortPool) bool {
	switch {
	case isMapping(p):
		return false
	case p.Known:
		return p.FailsIfTaken >= refusing
	}
	return p.Share >= usedUp
}

func poolName(p *snapshot.PortPool) string {
	return fmt.Sprintf("%s of %s towards %s", p.Protocol, p.Address, p.Destination)
}

func usedOf(p *snapshot.PortPool) string {
	return fmt.Sprintf("%s of %s ports (%s)", units.Count(p.Used), units.Count(p.Len()), units.Percent(p.Share))
}

// seen is for the line of a check.
func (p *pools) seen() string {
	if len(p.ports.Pools) == 0 {
		return "no translated source"
	}
	return fmt.Sprintf("most pressed: %s, %s", poolName(p.tightest()), usedOf(p.tightest()))
}

// rule is the one that gave the pool its address; nil where it is not known.
func (p *pools) rule(pool *snapshot.PortPool) *snapshot.NATRule {
	if p.rules == nil || pool.Rule < 0 || pool.Rule >= len(p.rules.Rules) {
		return nil
	}
	return &p.rules.Rules[pool.Rule]
}

// mapped is the rule of a pool which takes its ports from a map, so that it is not known
// how many there are; nil where there is none.
func (p *pools) mapped() *snapshot.NATRule {
	for i := range p.ports.Pools {
		if rule := p.rule(&p.ports.Pools[i]); rule != nil && rule.PortsFromMap {
			return rule
		}
	}
	return nil
}

// noRange says that it is not known whether ports are left.
func noRange(rule *snapshot.NATRule) string {
	return fmt.Sprintf("; how many ports a connection can have is not known: a map gives them (%s: %s)", rule.Place(), rule.Text)
}

// byLayout begins the source of chances that hold for the ports left in the end.
const byLayout = "by the layout of used ports"

// evidence of one pool.
func (p *pools) evidence(pool *snapshot.PortPool) []Evidence {
	source := fmt.Sprintf("dump of all %s entries", units.Count(p.ports.Sampled))
	if !p.ports.Complete {
		source = fmt.Sprintf("dump of %s entries, scaled to %s", units.Count(p.ports.Sampled), units.Count(p.count))
	}
	e := []Evidence{{What: "ports used", Value: pool.Used, Unit: fmt.Sprintf("of %s", units.Count(pool.Len())), Source: source}}
	if pool.TimeWait > 0 {
		e = append(e, Evidence{What: "in TIME_WAIT", Value: pool.TimeWait, Unit: "ports", Source: source})
	}
	if pool.RangeSource != "" {
		e = append(e, Evidence{What: "range of ports", Value: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort), Source: pool.RangeSource})
	}
	if pool.Known {
		how := byLayout + " and the kernel's search: " + p.ports.Probing
		e = append(e,
			Evidence{What: "a new connection fails", Value: round2(100 * pool.Fails), Unit: "%", Source: how},
			Evidence{What: "its own port being taken", Value: round2(100 * pool.FailsIfTaken), Unit: "%", Source: how})
	}
	if pool.NewPerSecond > 0 {
		e = append(e, Evidence{What: "new, with a port", Value: round1(pool.NewPerSecond), Unit: "/s", Source: "two dumps"})
	}
	for _, u := range pool.Users[:min(len(pool.Users), mostShown)] {
		e = append(e, Evidence{What: "held by " + u.Who, Value: u.Entries, Unit: "ports", Source: source})
	}
	return append(e, p.counters("insert_failed", "drop", "chaintoolong")...)
}

// sourceRules are those that translate sources, each once though several hooks lead
// to it.
func (p *pools) sourceRules() []*snapshot.NATRule {
	if p.rules == nil {
		return nil
	}
	var all []*snapshot.NATRule
	for i := range p.rules.Rules {
		r := &p.rules.Rules[i]
		again := slices.ContainsFunc(all, func(o *snapshot.NATRule) bool {
			return o.Handle == r.Handle && o.Place() == r.Place() && o.Source == r.Source && r.Handle != 0 &&
				o.First == r.First && o.FromSource == r.FromSource // one rule gives several by a map
		})
		if r.TranslatesSource() && !again {
			all = append(all, r)
		}
	}
	return all
}
