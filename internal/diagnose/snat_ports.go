package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkPortsExhausted: new connections fail now because NAT finds no free port towards
// their destination.
//
// The kernel's search gives up without a word and lets the insertion fail, which counts
// in insert_failed and drop like a race of two packets for one port; how the used ports
// lie distinguishes them.
func (p *pools) checkPortsExhausted() (*Finding, Check) {
	l, ok := p.losses()
	if !ok {
		return unknown(p.noCounters())
	}
	seen := p.seen() + "; " + lossText(l)
	if p.rec.SinceStart && l.Clashes >= fewestClashes {
		return unknown(seen + onlySum)
	}
	pool := p.exhausted(l)
	if why := p.noRange(); pool == nil && why != "" && l.Clashes >= fewestClashes {
		return unknown(seen + why)
	}
	if pool == nil {
		return passed(seen)
	}
	return p.exhaustedFinding(pool, l), Check{Why: seen}
}

// onlySum ends what is known of losses where counters were read once.
const onlySum = " since the start; how many lately is not known: it takes two outputs of conntrack -S"

// exhausted is the pool that explains the failed insertions; nil where there are none,
// or none does.
func (p *pools) exhausted(l snapshot.TrackerLosses) *snapshot.PortPool {
	if l.Clashes < fewestFailing || p.rec.SinceStart {
		return nil
	}
	if pool := p.worst(func(pool *snapshot.PortPool) bool { return isCrowded(pool) && p.turnsAway(pool, l) == yes }); pool != nil {
		return pool
	}
	if l.Clashes < fewestClashes {
		return nil
	}
	pool := p.worst(func(pool *snapshot.PortPool) bool {
		return refusesNew(pool) && p.explains(pool, l) && p.turnsAway(pool, l) != no
	})
	if pool == nil {
		pool = p.worst(func(pool *snapshot.PortPool) bool { return p.mayTurnAway(pool, l) })
	}
	if share, known := p.lostShare(l.Clashes); pool == nil && known && share >= raceLoses {
		return p.worst(p.isOfMap)
	}
	return pool
}

// isCrowded reports whether so few ports of a range are left that there may have been none a moment
// before. Of a single one, that of a program which keeps it, the same is so.
func isCrowded(pool *snapshot.PortPool) bool {
	return pool.Class == "" && pool.Len() < fullRange && pool.Share >= usedUp
}

// answer is of a question that the rule's counter answers, if it has one.
type answer int

const (
	unsure answer = iota
	no
	yes
)

// turnsAway reports whether the rule of a range was for connections that came to nothing, as many as
// half of the failed insertions at least. Its counter has each first packet, and the ones sent again.
func (p *pools) turnsAway(pool *snapshot.PortPool, l snapshot.TrackerLosses) answer {
	rule, before := p.rule(pool), p.rec.First().NATRules
	if rule == nil || before == nil || !rule.Counted || !restricts(rule) {
		return unsure
	}
	if p.grown == nil {
		p.grown, p.counted = p.rules.Compared(before)
	}
	if !p.counted[pool.Rule] {
		return unsure
	}
	refused := float64(p.grown[pool.Rule])
	for i := range p.ports.Pools {
		other := &p.ports.Pools[i]
		if r := p.rule(other); r != nil && r.Handle == rule.Handle && r.Place() == rule.Place() { // a map's elements share its counter
			refused -= other.NewPerSecond * p.rec.Seconds()
		}
	}
	if refused >= fewestFailing && 2*refused >= float64(l.Clashes) {
		return yes
	}
	return no
}

// raceLoses is the share of new connections that no race loses: two packets seldom come at once.
const raceLoses = 0.1

// mayTurnAway is turnsAway for a rule that does not count: more ports than one program has are all in
// use, or too much fails for a race, or there is nothing that could race.
func (p *pools) mayTurnAway(pool *snapshot.PortPool, l snapshot.TrackerLosses) bool {
	if !isCrowded(pool) || p.turnsAway(pool, l) != unsure {
		return false
	}
	share, known := p.lostShare(l.Clashes)
	return pool.Len() > 1 || known && share >= raceLoses || !p.hasFree()
}

// hasFree reports whether a pool has ports left, so that connections of it may have raced.
func (p *pools) hasFree() bool {
	return slices.ContainsFunc(p.ports.Pools, func(pool snapshot.PortPool) bool { return !isCrowded(&pool) })
}

// isLostTowards reports whether a trace saw connections to the pool's destination that did not leave.
func (p *pools) isLostTowards(pool *snapshot.PortPool) bool {
	return p.rec.Followed != nil && slices.ContainsFunc(p.rec.Followed.Services, func(s snapshot.FollowedService) bool { return isLostFor(&s, pool) })
}

// isLostFor reports whether connections to a service that did not leave may have found no port of the pool.
func isLostFor(s *snapshot.FollowedService, pool *snapshot.PortPool) bool {
	return s.Failed != nil && s.Failed.Step == snapshot.StepLostHere && s.In != "" && pool.Protocol == s.Protocol &&
		(pool.Destination == s.Service.String() || pool.Destination == s.Target.String())
}

// portless is the finding of ports used up towards the service, of which connections do not leave this
// host; nil where that is not why.
func (r *row) portless() *Finding {
	if r.Failed.Step != snapshot.StepLostHere || r.byRule() {
		return nil
	}
	p, _ := readPools(r.rec)
	if p == nil {
		return nil
	}
	l, _ := p.losses()
	if pool := p.exhausted(l); pool != nil && isLostFor(r.FollowedService, pool) {
		return p.exhaustedFinding(pool, l)
	}
	return nil
}

// muchLess is how far the failures that a pool leads one to expect may stay behind what
// was counted: a client sends a SYN again and fails again.
const muchLess = 10

// explains reports whether the new connections that got a port of the pool, by the chance
// that one does not, go with that many failures. The chance is that of the last moment:
// where it is noticeable then, it may have been any a moment before.
func (p *pools) explains(pool *snapshot.PortPool, l snapshot.TrackerLosses) bool {
	if !pool.Known || pool.FailsIfTaken >= 0.5 || pool.Fails >= someFail {
		return true
	}
	failed := pool.NewPerSecond * p.rec.Seconds() * pool.FailsIfTaken / (1 - pool.FailsIfTaken)
	return muchLess*failed >= float64(l.Clashes)
}

// beside says what becomes of other destinations than that of a pool without a free port: which have none either.
func (p *pools) beside(pool *snapshot.PortPool, l snapshot.TrackerLosses) string {
	var names []string
	for i := range p.ports.Pools {
		if o := &p.ports.Pools[i]; o != pool && isCrowded(o) && p.turnsAway(o, l) != no {
			names = append(names, poolName(o))
		}
	}
	if len(names) == 0 {
		return "other destinations work"
	}
	shown := min(len(names), mostShown)
	text := "no port is free either: " + strings.Join(names[:shown], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %s", units.Plural(more, "other", "others"))
	}
	return text + "; the packets are those of all of these, and 'natkit ports' lists them"
}

func (p *pools) exhaustedFinding(pool *snapshot.PortPool, l snapshot.TrackerLosses) *Finding {
	f := worded("snat-ports-exhausted", p.evidence(pool), p.portRemedies(pool), poolName(pool), usedOf(pool),
		pool.Destination, pool.Address, units.Count(l.Clashes), p.rec.Seconds(), p.beside(pool, l))
	rule := p.rule(pool)
	if p.isOfMap(pool) {
		f.Cause = fmt.Sprintf("a map gives the rule %s its ports (%s), and there seem to be no more than the %s in use towards %s: too many connections fail for a race of two packets",
			rule.Place(), rule.Text, units.Count(pool.Used), pool.Destination)
		f.Remedies = []Remedy{advice("ports-map", rule.Place()), advice("ports-keep-alive")}
	} else if rule != nil && restricts(rule) {
		f.Cause += fmt.Sprintf("; the rule %s gives no others: %s", rule.Place(), rule.Text)
	}
	if to, err := netip.ParseAddrPort(pool.Destination); err == nil {
		f.About = ends(to)
	}
	if share, ok := p.lostShare(l.Clashes); ok {
		if share > 2*pool.Fails {
			f.Evidence = slices.DeleteFunc(f.Evidence, func(e Evidence) bool { return strings.HasPrefix(e.Source, byLayout) })
		}
		f.Evidence = append(f.Evidence, Evidence{What: "of new connections", Value: round2(100 * share), Unit: "% refused", Source: "drop and insert_failed against new entries of two dumps"})
	}
	if pool.Known && pool.Share < usedUp && !p.isOfMap(pool) {
		f.Cause += "; the kernel tries 128, 64, 32, 16 and 8 ports in a row from random starts and gives up, and the used ones lie in a block"
	}
	switch {
	case p.turnsAway(pool, l) == yes:
		f.Confidence = "certain"
	case p.isOfMap(pool):
		f.Confidence, f.Severity = "possible", Warning
	case !refusesNew(pool) && p.hasFree() && !p.isLostTowards(pool):
		f.Confidence, f.Severity = "possible", Warning
		f.Cause += "; a race of two packets for one port is not excluded, as the rule has no counter"
		for i := range f.Remedies { // a range may be meant, and wanted by a firewall outside
			f.Remedies[i].Automatic = false
		}
		if rule != nil {
			f.Remedies = slices.Insert(f.Remedies, 0, advice("ports-count", rule.Place(), rule.Text))
		}
	case pool.Known && pool.FailsIfTaken >= 0.05 && !l.Blurred:
		f.Confidence = "certain"
	}
	return f
}

const (
	// nearUsedUp is the share of a pool from which the next peak may use it up.
	nearUsedUp = 0.85
	// halfUsed and soon: so full already, and used up within that many seconds at the
	// present rate.
	halfUsed = 0.50
	soon     = 120
	// someFail is the chance of any new connection to fail that is worth a warning
	// though few were seen to.
	someFail = 0.01
)

// checkPortsNear: the ports of an address towards one destination are nearly used up, or
// lie so that new connections begin to fail.
func (p *pools) checkPortsNear() (*Finding, Check) {
	l, _ := p.losses()
	if p.exhausted(l) != nil {
		return passed("new connections fail already, see snat-ports-exhausted")
	}
	seen := p.seen()
	flooders := p.flooders()
	worst := p.worst(func(pool *snapshot.PortPool) bool { return p.near(pool) && !onlyBy(pool, flooders) })
	switch tightest := p.tightest(); {
	case worst == nil && tightest != nil && onlyBy(tightest, flooders):
		return passed(seen + ", by a flood: see ct-flood")
	case worst == nil && p.noRules() != "":
		return unknown(seen + p.noRules())
	case worst == nil:
		return passed(seen)
	}
	return p.nearFinding(worst), Check{Why: seen}
}

// near leaves out a pool that cannot run out: one client, whose ports are all in the
// range, keeps them, and runs out of them itself before NAT does.
func (p *pools) near(pool *snapshot.PortPool) bool {
	if pool.IsMapping() || len(pool.Users) < 2 && pool.Len() >= fullRange && pool.Class == "" {
		return false
	}
	return p.inTheWay(pool) >= nearUsedUp || pool.Known && pool.Fails >= someFail ||
		p.inTheWay(pool) >= halfUsed && pool.SecondsLeft >= 0 && pool.SecondsLeft <= soon
}

// flooders are the sources that ct-flood names.
func (p *pools) flooders() map[string]bool {
	named := map[string]bool{}
	if f, _ := p.checkFlood(); f == nil {
		return named
	}
	for _, s := range p.flood(p.rec.Last().Table.Unanswered).sources {
		named[s.Who] = true
	}
	return named
}

// onlyBy reports whether these sources alone use a pool: no other source is short of ports
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
	f := worded("snat-ports-near-exhaustion", p.evidence(pool), p.portRemedies(pool), poolName(pool), usedOf(pool),
		pool.Address)
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

// raceIsCritical is the share of new connections lost to races that users notice.
const raceIsCritical = 0.01

// checkRaced is checkRace; where the ports in use are not known it says what the counters have.
func checkRaced(rec *snapshot.Recording) (*Finding, Check) {
	p, end := readPools(rec)
	if p != nil {
		return p.checkRace()
	}
	l, ok := (&table{rec: rec}).losses()
	switch {
	case !ok || l.Clashes < fewestClashes:
		return nil, end
	case rec.SinceStart:
		return unknown(lossText(l) + onlySum)
	}
	return unknown(fmt.Sprintf("%s: a race, missing ports, or copies of packets; %s", lossText(l), end.Why))
}

// checkRace: new connections are lost though ports are free, because two packets on two
// CPUs chose the same port before either was in the table.
//
// Without fully-random the search begins at the port that the client itself used, so
// that clients with equal ports begin at the same place.
func (p *pools) checkRace() (*Finding, Check) {
	l, ok := p.losses()
	if !ok {
		return unknown(p.noCounters())
	}
	seen := lossText(l)
	switch {
	case l.Clashes < fewestClashes:
		return passed(seen)
	case p.rec.SinceStart:
		return unknown(seen + onlySum)
	case p.exhausted(l) != nil:
		return passed(seen + ": no ports were left, see snat-ports-exhausted")
	case l.Blurred:
		return unknown(seen + ": this kernel counts clashes that were resolved as failures, too (before Linux 5.10)")
	case len(p.ports.Pools) == 0:
		return unknown(seen + ", but no source is translated here: which connections clash is not known")
	case p.noRange() != "":
		return unknown(seen + p.noRange())
	case p.worst(p.mayRefuse) != nil: // it may have to do with the failures
		return unknown(seen + "; " + p.seen() + ": a race or missing ports, which cannot be distinguished")
	}
	return p.race(l), Check{Why: seen + "; " + p.seen()}
}

func (p *pools) race(l snapshot.TrackerLosses) *Finding {
	f := worded("snat-race", append(p.counters("insert_failed", "drop", "chaintoolong", "clash_resolve"), p.lowPools()...),
		p.raceRemedies(), units.Count(l.Clashes), p.rec.Seconds())
	if full := p.worst(func(pool *snapshot.PortPool) bool { return isCrowded(pool) && p.turnsAway(pool, l) == unsure }); full != nil {
		f.Confidence = "possible"
		f.Cause += fmt.Sprintf("; or %s are in use (%s) and others ask for one, which no counter of the rule tells", usedOf(full), poolName(full))
		for i := range f.Remedies {
			f.Remedies[i].Automatic = false
		}
		if rule := p.rule(full); rule != nil {
			f.Remedies = slices.Insert(f.Remedies, 0, advice("ports-count", rule.Place(), rule.Text))
		}
	}
	if p.allRandom() {
		f.Confidence = "possible"
		f.Cause = "every rule that translates sources draws ports at random already, so that they hardly clash; packets of one socket that are sent at once and translated to different backends (DNAT: the two queries of a resolver) are given the same ports, and the second one is dropped"
	}
	if share, ok := p.lostShare(l.Clashes); ok {
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
