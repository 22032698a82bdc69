package diagnose

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// raceIsCritical is the share of new connections lost to races that users notice.
const raceIsCritical = 0.01

// snatRace: new connections are lost though ports are free, because two packets on two
// CPUs chose the same port before either was in the table.
//
// Without fully-random the search begins at the port that the client itself used, so
// that clients with equal ports begin at the same place.
var snatRace = Rule{
	ID:    "snat-race",
	Title: "source ports drawn twice at once",
	Check: checkRace,
}

func checkRace(rec *snapshot.Recording) (*Finding, Check) {
	p, end := readPools(rec)
	if p == nil {
		return nil, end
	}
	r, ok := p.refused()
	if !ok {
		return nil, Check{State: NotChecked, Why: p.noCounters()}
	}
	seen := r.String()
	switch {
	case r.clashes < fewestClashes:
		return nil, Check{State: OK, Why: seen}
	case p.exhausted(r) != nil:
		return nil, Check{State: OK, Why: seen + ": no ports were left, see snat-ports-exhausted"}
	case r.blurred:
		return nil, Check{State: NotChecked, Why: seen + ": this kernel counts clashes that were resolved as failures, too (before Linux 5.10)"}
	case len(p.ports.Pools) == 0:
		return nil, Check{State: NotChecked, Why: seen + ", but no source is translated here: which connections clash is not known"}
	case p.mapped() != nil:
		return nil, Check{State: NotChecked, Why: seen + noRange(p.mapped())}
	case p.tight():
		return nil, Check{State: NotChecked, Why: seen + "; " + p.seen() + ": a race or missing ports, which cannot be told"}
	}
	return p.race(r), Check{Why: seen + "; " + p.seen()}
}

// tight reports whether a pool is so full that it may have to do with failures.
func (p *pools) tight() bool {
	for i := range p.ports.Pools {
		if refusesNew(&p.ports.Pools[i]) {
			return true
		}
	}
	return false
}

func (p *pools) race(r refused) *Finding {
	f := &Finding{
		Severity:   Warning,
		Confidence: "likely",
		Title:      "new connections are lost in a race for source ports",
		Evidence:   append(p.counters("insert_failed", "drop", "chaintoolong", "clash_resolve"), p.lowPools()...),
		Cause:      "packets of new connections that are translated at the same moment on different CPUs are given the same port; the second one cannot be entered into the table and is dropped, though ports are free",
		Consequence: "the client sends its SYN again after 1 s, 3 s, 7 s; UDP is lost, a DNS query waits for 5 s: " +
			units.Count(r.clashes) + fmt.Sprintf(" packets in %.1f s", p.rec.Seconds()),
		Remedies: p.raceRemedies(),
	}
	if p.allRandom() {
		f.Confidence = "possible"
		f.Cause = "every rule that translates sources draws ports at random already, so that they hardly clash; packets of one socket that are sent at once and translated to different backends (DNAT: the two queries of a resolver) are given the same ports, and the second one is dropped"
	}
	if share, ok := p.lostShare(r.clashes); ok {
		f.Evidence = append(f.Evidence, Evidence{What: "of new connections", Value: round2(100 * share), Unit: "% lost", Source: "drop and insert_failed against new entries of two dumps"})
		if share >= raceIsCritical {
			f.Severity = Critical
		}
	}
	return f
}

// allRandom reports whether two connections hardly draw the same port at once.
func (p *pools) allRandom() bool {
	rules := p.sourceRules()
	notRandom := func(r *snapshot.NATRule) bool { return !r.FullyRandom }
	return len(rules) > 0 && !slices.ContainsFunc(rules, notRandom)
}

// lowPools is the evidence that ports are free.
func (p *pools) lowPools() []Evidence {
	var e []Evidence
	for i := range p.ports.Pools[:min(len(p.ports.Pools), mostShown)] {
		pool := &p.ports.Pools[i]
		e = append(e, Evidence{What: "ports used", Value: pool.Used,
			Unit: fmt.Sprintf("of %s", units.Count(pool.Len())), Source: poolName(pool)})
	}
	return e
}
