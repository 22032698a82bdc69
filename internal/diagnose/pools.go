package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
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
)

// pools are the port pools of a recording.
type pools struct {
	*table
	ports *snapshot.Ports
	rules *snapshot.NATRules
	// grown is what the rules' counters grew by, counted whether each counted at both times; nil until they are asked for.
	grown   []uint64
	counted []bool
}

// readPools gives the check that ends a rule where it is not known which ports NAT uses.
func readPools(rec *snapshot.Recording) (*pools, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	last := rec.Last()
	if last.Ports == nil {
		return nil, Check{State: NotChecked, Why: cmp.Or(last.PartError(snapshot.PartPorts),
			"the ports that NAT uses were not read: no dump of the table, or a bundle of an older natkit")}
	}
	return &pools{table: t, ports: last.Ports, rules: last.NATRules}, Check{}
}

// worst returns the most pressed of the pools that are wanted; nil where there is none.
func (p *pools) worst(wanted func(*snapshot.PortPool) bool) (worst *snapshot.PortPool) {
	for i := range p.ports.Pools {
		if pool := &p.ports.Pools[i]; wanted(pool) && (worst == nil || byPressure(pool, worst) < 0) {
			worst = pool
		}
	}
	return worst
}

// byPressure orders the most pressed pool first. Those that are alike to a percent have an order that does not depend on the moment,
// so that a live reading and a recording of the same fault name the same one.
func byPressure(a, b *snapshot.PortPool) int {
	percent := func(p *snapshot.PortPool) float64 { return math.Round(100 * pressure(p)) }
	return cmp.Or(cmp.Compare(percent(b), percent(a)), cmp.Compare(b.Len(), a.Len()), cmp.Compare(a.Address, b.Address),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.FirstPort, b.FirstPort))
}

// tightest is the pool in which a new connection is most likely to fail; nil where
// there are none.
func (p *pools) tightest() *snapshot.PortPool {
	return p.worst(func(*snapshot.PortPool) bool { return true })
}

// pressure orders pools: by the chance where it is known, then by the share.
func pressure(p *snapshot.PortPool) float64 {
	if p.IsMapping() {
		return 0
	}
	return p.FailsIfTaken + p.Share
}

// surely is the share of a pool that is in use at least: where the table was sampled,
// less two standard errors of what was counted.
func (p *pools) surely(pool *snapshot.PortPool) float64 {
	scale := p.scaleOf(pool)
	return max(0, pool.Share-2*math.Sqrt(pool.Share*(scale-1)/float64(pool.Len())))
}

// atMost is the share of a pool that is in use at most: two standard errors more, of one entry more than were counted.
func (p *pools) atMost(pool *snapshot.PortPool) float64 {
	scale := p.scaleOf(pool)
	if scale == 1 {
		return pool.Share
	}
	each := scale / float64(pool.Len())
	return pool.Share + 2*math.Sqrt((pool.Share+each)*(1-1/scale)*each)
}

// scaleOf is how many entries of the table one stands for that was counted for a pool.
func (p *pools) scaleOf(pool *snapshot.PortPool) float64 {
	if p.ports.Complete || p.ports.Sampled == 0 || pool.Exact {
		return 1
	}
	return max(1, float64(p.count)/float64(p.ports.Sampled))
}

// refusesNew reports whether new connections fail in a pool, going by its ports alone.
func refusesNew(p *snapshot.PortPool) bool {
	switch {
	case p.IsMapping():
		return false
	case p.Known:
		return p.FailsIfTaken >= refusing
	}
	return p.Share >= usedUp
}

// mayRefuse is refusesNew for what a sample leaves open.
func (p *pools) mayRefuse(pool *snapshot.PortPool) bool {
	return refusesNew(pool) || !pool.IsMapping() && p.atMost(pool) >= usedUp
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
	if pool := p.worst(p.isOfMap); pool != nil {
		return p.rule(pool)
	}
	return nil
}

func (p *pools) isOfMap(pool *snapshot.PortPool) bool {
	r := p.rule(pool)
	return r != nil && r.PortsFromMap
}

// noRange returns why it is not known whether ports are left; "" where it is known.
func (p *pools) noRange() string {
	if why := p.noRules(); why != "" {
		return why
	}
	if rule := p.mapped(); rule != nil {
		return rangeUnknown + fmt.Sprintf("a map gives them (%s: %s)", rule.Place(), rule.Text)
	}
	return ""
}

const rangeUnknown = "; how many ports a connection can have is not known: "

// noRules returns why the rules that give the pools their ports are not known: the ports in use may
// then be all that there are. It is "" where they are known, or nothing is translated.
func (p *pools) noRules() string {
	ofNoRule := func(pool snapshot.PortPool) bool { return pool.Rule < 0 }
	if len(p.ports.Pools) == 0 || p.rules != nil && !(p.rules.TooMany && slices.ContainsFunc(p.ports.Pools, ofNoRule)) {
		return ""
	}
	return rangeUnknown + cmp.Or(p.rec.Last().PartError("nat_rules"), "the NAT rules were not read")
}

// byLayout begins the source of chances that hold for the ports left in the end.
const byLayout = "by the layout of used ports"

// evidence of one pool.
func (p *pools) evidence(pool *snapshot.PortPool) []Evidence {
	source := fmt.Sprintf("dump of all %s", units.Plural(p.ports.Sampled, "entry", "entries"))
	switch {
	case pool.Exact:
		source = fmt.Sprintf("dump of the entries of %s, chosen by the kernel", pool.Address)
	case !p.ports.Complete:
		source = fmt.Sprintf("dump of %s, scaled to %s", units.Plural(p.ports.Sampled, "entry", "entries"), units.Count(p.count))
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

// What NAT takes from if no rule has a range (nf_nat_l4proto_unique_tuple,
// net/netfilter/nf_nat_core.c), for clients' ports from 1024 on.
const (
	firstOfAll = 1024
	lastOfAll  = 65535
	fullRange  = lastOfAll - firstOfAll + 1
)

const timeWaitTimeout = "net.netfilter.nf_conntrack_tcp_timeout_time_wait"

// portRemedies are the ways out of a pool that is too small, the automatic one first.
func (p *pools) portRemedies(pool *snapshot.PortPool) []Remedy {
	var r []Remedy
	if rule := p.rule(pool); rule != nil && restricts(rule) {
		r = append(r, p.widen(pool, rule))
	}
	r = append(r, advice("ports-more-addresses", units.Count(pool.Len()), pool.Destination))
	if pool.Used > 0 && float64(pool.TimeWait) >= 0.2*float64(pool.Used) {
		now, _ := p.rec.Last().Sysctls.Int(timeWaitTimeout)
		r = append(r, advice("ports-shorten-time-wait", timeWaitTimeout, now, units.Percent(float64(pool.TimeWait)/float64(pool.Used))))
	}
	r = append(r,
		advice("ports-keep-alive"),
		advice("ports-more-destinations"))
	return append(r, p.aboutRandom(pool)...)
}

// aboutRandom describes the effect of fully-random on a pool whose used ports lie in a block,
// which is often named as the cure.
func (p *pools) aboutRandom(pool *snapshot.PortPool) []Remedy {
	rule := p.rule(pool)
	if !pool.Known || pool.FailsIfTaken < refusing || pool.Share >= 0.97 || rule == nil || rule.FullyRandom {
		return nil
	}
	return []Remedy{advice("ports-no-fully-random", rule.Place(), rule.Text, units.Percent(pool.FailsIfTaken), units.Percent(pool.Fails))}
}

// restricts reports whether a rule takes fewer ports than there are.
func restricts(r *snapshot.NATRule) bool {
	return r.FirstPort != 0 && int(r.LastPort)-int(r.FirstPort)+1 < fullRange
}

// isForOne reports whether a rule gives no more ports than one program has: there is nothing to draw.
func isForOne(r *snapshot.NATRule) bool {
	return r.FirstPort != 0 && int(r.LastPort)-int(r.FirstPort)+1 < snapshot.FewestPorts
}

// widen gives a rule all ports. It is automatic only where the range looks like an
// oversight: no other rule gives the address, and the range is none of those that an
// address is shared out in.
func (p *pools) widen(pool *snapshot.PortPool, rule *snapshot.NATRule) Remedy {
	title := fmt.Sprintf("widen the ports of the rule %s: %s", rule.Place(), rule.Text)
	r := Remedy{Title: title}
	why := p.deliberate(pool, rule)
	if rule.Gateway != "" {
		r.Title = fmt.Sprintf("give %s in the gateway's file more ports (now %s) and run 'natkit gateway apply' with it", rule.Gateway, rule.Text)
		why = "the file is where the gateway's rules are changed"
	} else if rule.Target == "" {
		why = "natkit cannot change rules of " + rule.Source
	} else {
		after := tune.NATOptionsOf(rule)
		after.Ports.First, after.Ports.Last = firstOfAll, lastOfAll
		change := tune.NATRuleChange(rule, after)
		change.Why = usedOf(pool)
		r = remedy(title, []tune.Change{change}, p.facts())
	}
	r.Automatic = why == ""
	r.Predicts = fmt.Sprintf("%s ports towards each destination instead of %s", units.Count(fullRange), units.Count(pool.Len()))
	if r.Cost == "" {
		r.Cost = "none: connections that are there keep their ports"
	}
	risks := []string{cmp.Or(r.Risk, tune.RiskOfMorePorts)}
	if why != "" {
		risks = append(risks, "not automatic, as "+why)
	}
	r.Risk = strings.Join(risks, "; ")
	return r
}

// deliberate returns why a range may be on purpose; empty where nothing speaks for it.
func (p *pools) deliberate(pool *snapshot.PortPool, rule *snapshot.NATRule) string {
	for _, other := range p.sourceRules() {
		same := other.Target == rule.Target && other.Handle == rule.Handle && other.Place() == rule.Place()
		if concerns := other.Protocol == "" || other.Protocol == pool.Protocol; !same && concerns && mayGive(other, pool.Address) {
			return fmt.Sprintf("another rule may give the same address (%s: %s)", other.Place(), other.Text)
		}
	}
	if size := uint(rule.LastPort) - uint(rule.FirstPort) + 1; bits.OnesCount(size) == 1 && uint(rule.FirstPort)%size == 0 {
		return "the range is one of equal shares, as with an address that several hosts have (MAP-E, lw4o6, port blocks)"
	}
	return ""
}

// mayGive reports whether a rule may translate to an address: masquerade may give any.
func mayGive(r *snapshot.NATRule, address string) bool {
	if r.Kind == snapshot.NATMasquerade || !r.First.IsValid() {
		return true
	}
	addr, err := netip.ParseAddr(address)
	return err == nil && addr.Compare(r.First) >= 0 && addr.Compare(r.Last) <= 0
}

// ownClocks is what random ports lead to with clients whose timestamps depend on their
// own port (offsetPerConnection).
const ownClocks = "where clients give each connection a timestamp offset of its own (" + offsetPerConnection + "), servers that close first reject those on ports that come back within a minute (tw-paws-reject)"

// raceRemedies let every rule draw ports at random.
func (p *pools) raceRemedies() []Remedy {
	const title = "draw source ports at random (fully-random)"
	var changes []tune.Change
	var unchangeable, ofGateway []string
	for _, rule := range p.sourceRules() {
		switch {
		case rule.FullyRandom, rule.Protocol == snapshot.OtherProtocols, isForOne(rule):
		case rule.Gateway != "":
			if !slices.Contains(ofGateway, rule.Gateway) {
				ofGateway = append(ofGateway, rule.Gateway)
			}
		case rule.Target == "":
			unchangeable = append(unchangeable, rule.Place()+": "+rule.Text)
		default:
			after := tune.NATOptionsOf(rule)
			after.FullyRandom = true
			change := tune.NATRuleChange(rule, after)
			change.Why = "connections are lost in a race for ports"
			changes = append(changes, change)
		}
	}
	var all []Remedy
	if len(changes) > 0 {
		r := remedy(title, changes, p.facts())
		r.Automatic = true
		r.Predicts = "two packets that come at once hardly ever draw the same port"
		r.Risk = strings.TrimPrefix(r.Risk+"; "+ownClocks, "; ")
		all = append(all, r)
	}
	if len(ofGateway) > 0 {
		all = append(all, advice("race-gateway-rules", firstOf(ofGateway), ownClocks))
	}
	if len(unchangeable) > 0 {
		all = append(all, advice("race-other-rules", strings.Join(unchangeable, "; "), ownClocks))
	}
	return append(all, advice("race-programs"))
}

// firstOf names some of many rules.
func firstOf(names []string) string {
	if len(names) <= mostShown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostShown], ", "), len(names)-mostShown)
}
