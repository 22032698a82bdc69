package diagnose

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
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

// restricts reports whether a rule takes fewer ports than there are.
func restricts(r *snapshot.NATRule) bool {
	return r.FirstPort != 0 && int(r.LastPort)-int(r.FirstPort)+1 < fullRange
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
		after.FirstPort, after.LastPort = firstOfAll, lastOfAll
		change := tune.NATRuleChange(rule, after)
		change.Why = usedOf(pool)
		r = remedy(title, []tune.Change{change}, p.facts())
	}
	r.Automatic = why == ""
	r.Predicts = fmt.Sprintf("%s ports towards each destination instead of %s", units.Count(fullRange), units.Count(pool.Len()))
	if r.Cost == "" {
		r.Cost = "none: connections that are there keep their ports"
	}
	risks := []string{"where another host has other ports of the same address, answers to them go wrong; a firewall outside may let only the old range through"}
	if why != "" {
		risks = append(risks, "not done by itself, as "+why)
	}
	if r.Risk != "" {
		risks = append(risks, r.Risk)
	}
	r.Risk = strings.Join(risks, "; ")
	return r
}

// deliberate says why a range may be on purpose; empty where nothing speaks for it.
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
	addr, ok := parseAddr(address)
	return ok && addr.Compare(r.First) >= 0 && addr.Compare(r.Last) <= 0
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
		case rule.FullyRandom, rule.Protocol == snapshot.OtherProtocols:
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
		r.Predicts = "two packets that come at once hardly ever draw the same of so many ports"
		r.Risk = strings.TrimPrefix(r.Risk+"; "+ownClocks, "; ")
		all = append(all, r)
	}
	if len(ofGateway) > 0 {
		all = append(all, Remedy{
			Title: "give these rules of the gateway's file 'random: fully' and run 'natkit gateway apply' with it: " + firstOf(ofGateway),
			Risk:  "clients no longer keep their own port, which some peer-to-peer programs rely on; " + ownClocks,
		})
	}
	if len(unchangeable) > 0 {
		all = append(all, Remedy{
			Title: "add fully-random (iptables: --random-fully) to the rules that natkit cannot change: " + strings.Join(unchangeable, "; "),
			Risk:  "clients no longer keep their own port, which some peer-to-peer programs rely on; " + ownClocks,
		})
	}
	return append(all, Remedy{
		Title: "let programs not open two connections from one port at once: single-request-reopen in resolv.conf, a DNS cache on each host",
	})
}

// firstOf names some of many rules.
func firstOf(names []string) string {
	if len(names) <= mostShown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostShown], ", "), len(names)-mostShown)
}

func parseAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}
