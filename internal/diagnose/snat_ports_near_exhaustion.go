package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// nearUsedUp is the share of a pool from which the next peak may use it up.
	nearUsedUp = 0.85
	// halfUsed and soon: so full already, and used up within so many seconds at the
	// present rate.
	halfUsed = 0.50
	soon     = 120
	// someFail is the chance of any new connection to fail that is worth a warning
	// though few were seen to.
	someFail = 0.01
)

// snatPortsNear: the ports of an address towards one destination are nearly used up, or
// lie so that new connections begin to fail.
var snatPortsNear = Rule{
	ID:    "snat-ports-near-exhaustion",
	Title: "source ports nearly used up",
	Check: checkPortsNear,
}

func checkPortsNear(rec *snapshot.Recording) (*Finding, Check) {
	p, end := readPools(rec)
	if p == nil {
		return nil, end
	}
	r, _ := p.refused()
	if p.exhausted(r) != nil {
		return nil, Check{State: OK, Why: "new connections fail already, see snat-ports-exhausted"}
	}
	seen := p.seen()
	flooders := p.flooders()
	var worst *snapshot.PortPool
	for i := range p.ports.Pools {
		if pool := &p.ports.Pools[i]; p.near(pool) && !onlyBy(pool, flooders) && (worst == nil || pressure(pool) > pressure(worst)) {
			worst = pool
		}
	}
	switch tightest := p.tightest(); {
	case worst == nil && tightest != nil && onlyBy(tightest, flooders):
		return nil, Check{State: OK, Why: seen + ", by a flood: see ct-flood"}
	case worst == nil:
		return nil, Check{State: OK, Why: seen}
	}
	return p.nearFinding(worst), Check{Why: seen}
}

// near leaves out a pool that cannot run out: one client, whose ports are all in the
// range, keeps them, and runs out of them itself before NAT does.
func (p *pools) near(pool *snapshot.PortPool) bool {
	if isMapping(pool) || len(pool.Users) < 2 && pool.Len() >= fullRange && pool.Class == "" {
		return false
	}
	return p.inTheWay(pool) >= nearUsedUp || pool.Known && pool.Fails >= someFail ||
		p.surely(pool) >= halfUsed && pool.SecondsLeft >= 0 && pool.SecondsLeft <= soon
}

// flooders are the sources that ct-flood names.
func (p *pools) flooders() map[string]bool {
	named := map[string]bool{}
	if f, _ := checkFlood(p.rec); f == nil {
		return named
	}
	for _, s := range p.flood(p.rec.Last().Table.Unanswered).sources {
		named[s.Who] = true
	}
	return named
}

// onlyBy reports whether these sources alone use a pool: nobody else is short of ports
// then.
func onlyBy(pool *snapshot.PortPool, sources map[string]bool) bool {
	for _, u := range pool.Users {
		if !sources[u.Who] {
			return false
		}
	}
	return len(pool.Users) > 0
}

// inTheWay is the share of the ports that a new connection cannot have. Where the search
// never fails though nearly all are used, it takes those in TIME_WAIT (Linux 6.6).
func (p *pools) inTheWay(pool *snapshot.PortPool) float64 {
	if pool.Known && pool.FailsIfTaken == 0 {
		return pool.Share - float64(pool.TimeWait)/float64(max(1, pool.Len()))
	}
	return p.surely(pool)
}

func (p *pools) nearFinding(pool *snapshot.PortPool) *Finding {
	f := &Finding{
		Severity:    Warning,
		Confidence:  "likely",
		Title:       "the ports of a NAT address are nearly used up (" + poolName(pool) + ")",
		Evidence:    p.evidence(pool),
		Cause:       fmt.Sprintf("%s are in use, and each connection through %s to that destination needs one of its own", usedOf(pool), pool.Address),
		Consequence: "when no port is found, new connections to this destination are dropped without an answer; others go on",
		Remedies:    p.portRemedies(pool),
	}
	switch {
	case pool.Known && pool.Fails >= someFail:
		f.Title = fmt.Sprintf("%s of new connections find no free port (%s)", units.Percent(pool.Fails), poolName(pool))
	case pool.Share < nearUsedUp:
		f.Title = fmt.Sprintf("the ports of a NAT address will be used up in %s (%s)", units.Roughly(pool.SecondsLeft), poolName(pool))
		f.Confidence = "possible"
		f.Evidence = append(f.Evidence, Evidence{What: "used up in", Value: round1(pool.SecondsLeft), Unit: "s", Source: "free ports / new ones per second"})
	}
	return f
}
