package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// automaticStall is the longest stall of all packets, in seconds, that a change
// may cause without being told to by name.
const automaticStall = 0.050

// size works out the limits that the table needs. lowerBound says that the
// kernel is turning connections away, so that more is offered than can be seen.
func (t *table) size(lowerBound bool) capacity.Sizing {
	f := t.facts()
	need := capacity.Need{
		Max: t.max, Buckets: t.buckets,
		Tracked: t.count, Held: t.held(), Arriving: t.arriving(), LowerBound: lowerBound,
		OtherEntries: f.OtherEntries, MemoryBytes: f.MemoryBytes, Cost: f.Cost,
	}
	// The table is at least what it is: arrivals that are bounded by reachable
	// tuples must not talk it down.
	need.Arriving = max(need.Arriving, t.count-need.Held)
	return capacity.Size(need)
}

func (t *table) facts() tune.Facts { return tune.FactsOf(t.rec.Last()) }

// remedies are the ways out of a table that is too small, the automatic one first. No
// limit is large enough for a flood.
func (t *table) remedies(lowerBound bool) []Remedy {
	if t.flooded() {
		return t.floodRemedies()
	}
	s := t.size(lowerBound)
	var r []Remedy
	if s.Max > t.max {
		r = append(r, t.raise(s, lowerBound))
	}
	if t.needsBuckets(s) && !t.mayResize(s) {
		r = append(r, t.resize(s))
	}
	if s.Max == t.max && s.MemoryBound {
		r = append(r, Remedy{
			Title: "more memory, or spread the connections over more gateways",
			Cost:  fmt.Sprintf("a table with the limit of %s takes %s when full; natkit stops at a quarter of the memory", units.Count(t.max), units.Bytes(s.FullBytesNow)),
		})
	}
	return append(r, t.advice()...)
}

// mostlyHalfOpen is the share of half-open connections from which a table is full of
// them, and not too small for the others.
const mostlyHalfOpen = 0.50

// halfOpen is the share of the entries that are TCP connections whose handshake has not
// come to its end.
func (t *table) halfOpen() float64 {
	tab := t.rec.Last().Table
	if tab == nil || tab.Sampled == 0 {
		return 0
	}
	return float64(tab.ByTCPState["SYN_SENT"]+tab.ByTCPState["SYN_RECV"]) / float64(tab.Sampled)
}

func (t *table) flooded() bool { return t.halfOpen() > mostlyHalfOpen }

// cause is why the limit is met: the given one, unless it is a flood.
func (t *table) cause(ofLimit string) string {
	if !t.flooded() {
		return ofLimit + " " + t.used()
	}
	return fmt.Sprintf("%s of the entries are TCP connections whose handshake never ended (SYN_SENT or SYN_RECV): a flood of SYN, a scan, or clients of a destination that is dead",
		units.Percent(t.halfOpen()))
}

// floodRemedies are advice, the safest first.
func (t *table) floodRemedies() []Remedy {
	list := "natkit conntrack " + inNamespace(t.rec.Last().Netns.Name) + "--by src,dst,dport -p tcp --state "
	return []Remedy{
		{Title: "find out who opens these connections, and to where: " + list + "SYN_SENT, and " + list + "SYN_RECV"},
		synproxy(),
		{
			Title:    "shorten nf_conntrack_tcp_timeout_syn_sent and nf_conntrack_tcp_timeout_syn_recv while it lasts, to 20 s for example",
			Predicts: "half-open entries go as much sooner",
			Risk:     "a connection whose SYN has to be sent again for longer than that loses its NAT mapping while it is set up",
		},
		{
			Title: "not a cure: a larger net.netfilter.nf_conntrack_max",
			Risk:  "a flood fills a larger table as well, and takes memory for it",
		},
	}
}

// synproxy lets no SYN of a forged source become an entry.
func synproxy() Remedy {
	return Remedy{
		Title: "where it is SYN to servers behind this gateway, let SYNPROXY answer first: nft 'tcp dport PORT tcp flags syn notrack' in prerouting at priority raw, and 'ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm' in forward, with net.netfilter.nf_conntrack_tcp_loose=0",
		Risk:  "connections through it lose TCP options that the proxy does not know; with DNAT the rules need the translated port",
	}
}

func (t *table) needsBuckets(s capacity.Sizing) bool { return s.Buckets > t.buckets && t.buckets > 0 }

// mayResize reports whether the buckets may be changed without being told to: the
// stall is short, and known, which takes the entries of all namespaces.
func (t *table) mayResize(s capacity.Sizing) bool {
	size := t.rec.Last().ConntrackSize
	return size != nil && size.SlabBytes > 0 && s.StallSeconds <= automaticStall
}

// raise is the change of the limit, with the buckets where that costs no stall.
func (t *table) raise(s capacity.Sizing, lowerBound bool) Remedy {
	changes := []tune.Change{{
		Kind: tune.Sysctl, Target: snapshot.ConntrackMax,
		Before: strconv.FormatInt(t.max, 10), After: strconv.FormatInt(s.Max, 10), Why: t.usage(),
	}}
	if t.needsBuckets(s) && t.mayResize(s) {
		changes = append(changes, t.bucketChange(s))
	}
	r := remedy("raise the limit of tracked connections", changes, t.facts())
	r.Automatic = true
	r.Predicts = t.predict(s, lowerBound)
	if s.MemoryBound {
		r.Predicts += fmt.Sprintf("; more was needed, but a quarter of the memory is the end (%s)", units.Bytes(s.FullBytes))
	}
	return r
}

// remedy has the cost and the risk of its changes.
func remedy(title string, changes []tune.Change, facts tune.Facts) Remedy {
	r := Remedy{Title: title, Changes: tune.Assess(changes, facts)}
	var costs, risks []string
	for _, c := range r.Changes { // changes of one kind cost and risk the same
		costs, risks = once(costs, c.Cost), once(risks, c.Risk)
	}
	r.Cost, r.Risk = strings.Join(costs, "; "), strings.Join(risks, "; ")
	return r
}

// once adds a text that is not there yet.
func once(texts []string, text string) []string {
	if text == "" || slices.Contains(texts, text) {
		return texts
	}
	return append(texts, text)
}

func (t *table) predict(s capacity.Sizing, lowerBound bool) string {
	share := units.Percent(float64(s.Entries) / float64(s.Max))
	if lowerBound {
		return fmt.Sprintf("at least %s entries, %s of the new limit; what the full table turns away cannot be counted, so measure again afterwards",
			units.Count(s.Entries), share)
	}
	return fmt.Sprintf("%s entries, %s of the new limit", units.Count(s.Entries), share)
}

// resize is advice: all packets would wait for longer than natkit may make them
// by itself.
func (t *table) resize(s capacity.Sizing) Remedy {
	facts := t.facts()
	facts.Max = s.Max
	r := remedy("raise the number of hash buckets", []tune.Change{t.bucketChange(s)}, facts)
	r.Predicts = r.Changes[0].Why
	r.Risk += fmt.Sprintf(": do it when the host is idle, or at boot (options nf_conntrack hashsize=%d)", s.Buckets)
	return r
}

func (t *table) bucketChange(s capacity.Sizing) tune.Change {
	return tune.Change{
		Kind: tune.Sysctl, Target: snapshot.ConntrackBuckets,
		Before: strconv.FormatInt(t.buckets, 10), After: strconv.FormatInt(s.Buckets, 10),
		Why: fmt.Sprintf("hash chains of %s entries on average when full, instead of %s",
			units.Fixed(s.ChainLength, 1), units.Fixed(s.ChainLengthNow, 1)),
	}
}

// advice is what natkit never does by itself, with the risk of each.
func (t *table) advice() []Remedy {
	var r []Remedy
	if tab := t.rec.Last().Table; tab != nil && tab.Sampled > 0 {
		if share := float64(tab.ByTCPState["TIME_WAIT"]) / float64(tab.Sampled); share > 0.2 {
			now, _ := t.rec.Last().Sysctls.Int("net.netfilter.nf_conntrack_tcp_timeout_time_wait")
			r = append(r, Remedy{
				Title:    fmt.Sprintf("shorten nf_conntrack_tcp_timeout_time_wait (now %d s)", now),
				Predicts: units.Percent(share) + " of the entries are in TIME_WAIT and would go sooner",
				Risk:     "late packets of closed connections become INVALID; below the peers' own 60 s a NAT may reuse a port that the server still holds in TIME_WAIT",
			})
		}
		if u := tab.Unanswered; u != nil && u.TCP+u.UDP > tab.Sampled/2 {
			r = append(r, Remedy{
				Title: "find out who opens connections that nobody answers",
				Predicts: units.Percent(float64(u.TCP+u.UDP)/float64(tab.Sampled)) +
					" of the entries are TCP or UDP connections without any answer: a scan, a flood, or a dead destination",
				Risk: "a larger table only gives a flood more room",
			})
		}
	}
	return append(r,
		Remedy{
			Title: "do not track what needs no NAT (NOTRACK, nft notrack)",
			Risk:  "untracked traffic gets no NAT, and stateful rules (ct state) no longer match it",
		},
		Remedy{
			Title: "spread the connections over more gateways or addresses",
			Risk:  "existing connections break when their path moves",
		})
}
