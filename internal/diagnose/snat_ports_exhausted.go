package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// snatPortsExhausted: new connections fail now because NAT finds no free port towards
// their destination.
//
// The kernel's search gives up without a word and lets the insertion fail, which counts
// in insert_failed and drop like a race of two packets for one port; how the used ports
// lie tells them apart.
var snatPortsExhausted = Rule{
	ID:    "snat-ports-exhausted",
	Title: "source ports used up",
	Check: checkPortsExhausted,
}

func checkPortsExhausted(rec *snapshot.Recording) (*Finding, Check) {
	p, end := readPools(rec)
	if p == nil {
		return nil, end
	}
	r, ok := p.refused()
	if !ok {
		return nil, Check{State: NotChecked, Why: p.noCounters()}
	}
	seen := p.seen() + "; " + r.String()
	pool := p.exhausted(r)
	if rule := p.mapped(); pool == nil && rule != nil && r.clashes >= fewestClashes {
		return nil, Check{State: NotChecked, Why: seen + noRange(rule)}
	}
	if pool == nil {
		return nil, Check{State: OK, Why: seen}
	}
	return p.exhaustedFinding(pool, r), Check{Why: seen}
}

// exhausted is the pool that explains the failed insertions; nil where there are none,
// or none does.
func (p *pools) exhausted(r refused) *snapshot.PortPool {
	if r.clashes < fewestClashes {
		return nil
	}
	var worst *snapshot.PortPool
	for i := range p.ports.Pools {
		pool := &p.ports.Pools[i]
		if refusesNew(pool) && p.explains(pool, r) && (worst == nil || pressure(pool) > pressure(worst)) {
			worst = pool
		}
	}
	return worst
}

// muchLess is how far the failures that a pool leads one to expect may stay behind what
// was counted: a client sends a SYN again and fails again.
const muchLess = 10

// explains reports whether the new connections that got a port of the pool, by the chance
// that one does not, go with so many failures. The chance is that of the last moment:
// where it is noticeable then, it may have been any a moment before.
func (p *pools) explains(pool *snapshot.PortPool, r refused) bool {
	if !pool.Known || pool.FailsIfTaken >= 0.5 || pool.Fails >= someFail {
		return true
	}
	failed := pool.NewPerSecond * p.rec.Seconds() * pool.FailsIfTaken / (1 - pool.FailsIfTaken)
	return muchLess*failed >= float64(r.clashes)
}

func (p *pools) exhaustedFinding(pool *snapshot.PortPool, r refused) *Finding {
	f := &Finding{
		Severity:   Critical,
		Confidence: "likely",
		Title:      "NAT finds no free port: new connections are dropped (" + poolName(pool) + ")",
		Evidence:   p.evidence(pool),
		Cause: fmt.Sprintf("%s towards %s are in use, and each connection through %s to that destination needs one of its own",
			usedOf(pool), pool.Destination, pool.Address),
		Consequence: fmt.Sprintf("%s packets were dropped without an answer in %.1f s: clients of this destination see connect timeouts, SYN retransmits after 1 s, 3 s, 7 s; other destinations work",
			units.Count(r.clashes), p.rec.Seconds()),
		Remedies: p.portRemedies(pool),
	}
	if share, ok := p.lostShare(r.clashes); ok {
		if share > 2*pool.Fails {
			f.Evidence = slices.DeleteFunc(f.Evidence, func(e Evidence) bool { return strings.HasPrefix(e.Source, byLayout) })
		}
		f.Evidence = append(f.Evidence, Evidence{What: "of new connections", Value: round2(100 * share), Unit: "% refused", Source: "drop and insert_failed against new entries of two dumps"})
	}
	if pool.Known && pool.Share < usedUp {
		f.Cause += "; the kernel looks at 128, 64, 32, 16 and 8 ports in a row from random starts and gives up, and the used ones lie in a block"
	}
	if pool.Known && pool.FailsIfTaken >= 0.05 && !r.blurred {
		f.Confidence = "certain"
	}
	return f
}
