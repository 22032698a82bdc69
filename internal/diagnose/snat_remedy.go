package diagnose

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// What NAT takes from where no rule says otherwise (nf_nat_l4proto_unique_tuple,
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
	r = append(r, Remedy{
		Title:    "translate to more addresses (snat to a range of addresses, or another gateway)",
		Predicts: fmt.Sprintf("each address has %s ports of its own towards %s", units.Count(pool.Len()), pool.Destination),
		Risk:     "clients appear under other addresses: allow-lists of the destination must know them",
	})
	if pool.Used > 0 && float64(pool.TimeWait) >= 0.2*float64(pool.Used) {
		now, _ := p.rec.Last().Sysctls.Int(timeWaitTimeout)
		r = append(r, Remedy{
			Title:    fmt.Sprintf("shorten %s (now %d s)", timeWaitTimeout, now),
			Predicts: units.Percent(float64(pool.TimeWait)/float64(pool.Used)) + " of the used ports are in TIME_WAIT and would be free sooner",
			Risk:     "below the destination's own 60 s a port is used again that it still holds in TIME_WAIT: it rejects some of the new connections; late packets become INVALID",
		})
	}
	r = append(r,
		Remedy{Title: "let the clients named above keep connections open and use them again (keep-alive, connection pools)"},
		Remedy{
			Title: "spread the destination over more addresses or ports: ports are counted for each one apart",
			Risk:  "the destination's operator has to offer them",
		})
	return append(r, p.aboutRandom(pool)...)
}

// aboutRandom says what fully-random does to a pool whose used ports lie in a block,
// which is often named as the cure.
func (p *pools) aboutRandom(pool *snapshot.PortPool) []Remedy {
	rule := p.rule(pool)
	if !pool.Known || pool.FailsIfTaken < refusing || pool.Share >= 0.97 || rule == nil || rule.FullyRandom {
		return nil
	}
	return []Remedy{{
		Title:    fmt.Sprintf("not a cure for now: fully-random in the rule %s (%s)", rule.Place(), rule.Text),
		Predicts: "ports are scattered from then on, and scattered ones hardly ever get in the way of the search below 97 % use",
		Risk: fmt.Sprintf("as long as the present block is there, every new connection draws a port and %s fail, not %s as now",
			units.Percent(pool.FailsIfTaken), units.Percent(pool.Fails)),
	}}
}

// restricts tells whether a rule takes fewer ports than there are.
func restricts(r *snapshot.NATRule) bool {
	return r.FirstPort != 0 && int(r.LastPort)-int(r.FirstPort)+1 < fullRange
}

// widen gives a rule all ports. It is automatic only where the range looks like an
// oversight: no other rule gives the address, and the range is none of those that an
// address is shared out in.
func (p *pools) widen(pool *snapshot.PortPool, rule *snapshot.NATRule) Remedy {
	wide := *rule
	wide.FirstPort, wide.LastPort = firstOfAll, lastOfAll
	r := Remedy{
		Title: fmt.Sprintf("widen the ports of the rule %s: %s", rule.Place(), rule.Text),
		Changes: []tune.Change{{
			Kind: tune.NATRule, Target: rule.Target, Before: natValue(rule), After: natValue(&wide), Why: usedOf(pool),
		}},
		Predicts: fmt.Sprintf("%s ports towards each destination instead of %s", units.Count(fullRange), units.Count(pool.Len())),
		Cost:     "none: connections that are there keep their ports",
		Risk:     "where the address is shared with another gateway or host that has the other ports, answers to their ports are mixed up; a firewall outside may let only the old range through",
	}
	why := p.deliberate(pool, rule)
	switch {
	case rule.Target == "":
		r.Changes = nil
		r.Risk += "; natkit cannot change this rule itself (" + rule.Source + ")"
	case why == "":
		r.Automatic = true
	default:
		r.Risk += "; not done by itself, as " + why
	}
	if !r.Automatic && r.Changes != nil {
		r.Changes[0].Risk = r.Risk
	}
	return r
}

// deliberate says why a range may be on purpose; empty where nothing speaks for it.
func (p *pools) deliberate(pool *snapshot.PortPool, rule *snapshot.NATRule) string {
	for _, other := range p.sourceRules() {
		same := other.Target == rule.Target && other.Handle == rule.Handle && other.Place() == rule.Place()
		if !same && mayGive(other, pool.Address) {
			return fmt.Sprintf("another rule may give the same address (%s: %s)", other.Place(), other.Text)
		}
	}
	if size := uint(rule.LastPort) - uint(rule.FirstPort) + 1; bits.OnesCount(size) == 1 && uint(rule.FirstPort)%size == 0 {
		return "the range is one of equal shares, as with an address that several hosts have (MAP-E, lw4o6, port blocks)"
	}
	return ""
}

// mayGive tells whether a rule may translate to an address: masquerade may give any.
func mayGive(r *snapshot.NATRule, address string) bool {
	if r.Kind == snapshot.NATMasquerade || !r.First.IsValid() {
		return true
	}
	addr, ok := parseAddr(address)
	return ok && addr.Compare(r.First) >= 0 && addr.Compare(r.Last) <= 0
}

// raceRemedies let every rule draw ports at random.
func (p *pools) raceRemedies() []Remedy {
	r := Remedy{
		Title:     "draw source ports at random (fully-random)",
		Automatic: true,
		Predicts:  "two packets that come at once hardly ever draw the same of many thousand ports",
		Cost:      "none to speak of: a random number for each new connection",
		Risk:      "clients no longer keep their own port, which some peer-to-peer programs rely on; kernels before 5.7 with VXLAN and checksum offload may lose packets (63 s delays)",
	}
	unchangeable := []string{}
	for _, rule := range p.sourceRules() {
		switch {
		case rule.FullyRandom:
		case rule.Target == "":
			unchangeable = append(unchangeable, rule.Place()+": "+rule.Text)
		default:
			random := *rule
			random.FullyRandom = true
			r.Changes = append(r.Changes, tune.Change{
				Kind: tune.NATRule, Target: rule.Target, Before: natValue(rule), After: natValue(&random), Why: "connections are lost in a race for ports",
			})
		}
	}
	var all []Remedy
	if len(r.Changes) > 0 {
		all = append(all, r)
	}
	if len(unchangeable) > 0 {
		all = append(all, Remedy{
			Title: "add --random-fully to the rules that natkit cannot change: " + strings.Join(unchangeable, "; "),
			Risk:  r.Risk,
		})
	}
	return append(all, Remedy{
		Title: "let programs not open two connections from one port at once: single-request-reopen in resolv.conf, a DNS cache on each host",
	})
}

// natValue is the value of a change of kind tune.NATRule.
func natValue(r *snapshot.NATRule) string {
	var words []string
	if r.FirstPort != 0 {
		words = append(words, fmt.Sprintf("%d-%d", r.FirstPort, r.LastPort))
	}
	for _, o := range []struct {
		on   bool
		name string
	}{{r.Random, "random"}, {r.FullyRandom, "fully-random"}, {r.Persistent, "persistent"}} {
		if o.on {
			words = append(words, o.name)
		}
	}
	return strings.Join(words, " ")
}

func parseAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}
