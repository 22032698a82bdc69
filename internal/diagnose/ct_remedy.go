package diagnose

import (
	"fmt"
	"strconv"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// automaticStall is the longest stall of all packets, in seconds, that a change
// may cause without being told to by name.
const automaticStall = 0.050

// assumedCost stands in where the sizes could not be read: struct nf_conn with
// its slab alignment and the extension of 128 bytes (Linux 4.19 to 6.18, amd64).
var assumedCost = capacity.Cost{EntryBytes: 384, BucketBytes: 8}

// size works out the limits that the table needs. lowerBound says that the
// kernel is turning connections away, so that more is offered than can be seen.
func (t *table) size(lowerBound bool) capacity.Sizing {
	need := capacity.Need{
		Max: t.max, Buckets: t.buckets,
		Held: t.held(), Arriving: t.arriving(), LowerBound: lowerBound,
		Cost: t.cost(),
	}
	// The table is at least what it is: arrivals that are bounded by reachable
	// tuples must not talk it down.
	need.Arriving = max(need.Arriving, t.count-need.Held)
	if m := t.rec.Last().Memory; m != nil {
		need.MemoryBytes = m.TotalBytes
	}
	if s := t.rec.Last().ConntrackSize; s != nil && s.EntryBytes > 0 {
		// The slab keeps freed objects for a while: a little more is nobody's.
		if other := int64(s.SlabBytes/s.EntryBytes) - t.count; other > t.count/10 {
			need.OtherEntries = other
		}
	}
	return capacity.Size(need)
}

func (t *table) cost() capacity.Cost {
	s := t.rec.Last().ConntrackSize
	if s == nil || s.EntryBytes == 0 {
		return assumedCost
	}
	return capacity.Cost{EntryBytes: s.PerEntry(), BucketBytes: s.BucketBytes}
}

// costSource says how many bytes an entry takes, and who says so.
func (t *table) costSource() string {
	c, source := t.cost(), "assumed"
	if s := t.rec.Last().ConntrackSize; s != nil && s.EntryBytes > 0 {
		source = s.Source
	}
	return fmt.Sprintf("%d bytes per entry, %s", c.EntryBytes, source)
}

// remedies are the ways out of a table that is too small, the automatic one first.
func (t *table) remedies(lowerBound bool) []Remedy {
	s := t.size(lowerBound)
	var r []Remedy
	if s.Max > t.max {
		r = append(r, t.raise(s, lowerBound))
	}
	if s.Buckets > t.buckets && t.buckets > 0 && s.StallSeconds > automaticStall {
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

// raise is the change of the limit, with the buckets where that costs no stall.
func (t *table) raise(s capacity.Sizing, lowerBound bool) Remedy {
	r := Remedy{
		Title:     fmt.Sprintf("raise the limit from %s to %s entries", units.Count(t.max), units.Count(s.Max)),
		Automatic: true,
		Predicts:  t.predict(s, lowerBound),
		Cost:      fmt.Sprintf("up to %s more memory, %s in all when full (%s)", units.Bytes(s.FullBytes-s.FullBytesNow), units.Bytes(s.FullBytes), t.costSource()),
		Risk:      "the limit is one value for all network namespaces of the host; the memory is taken only as entries come",
		Changes: []tune.Change{{
			Kind: tune.Sysctl, Target: sysctlMax,
			Before: strconv.FormatInt(t.max, 10), After: strconv.FormatInt(s.Max, 10),
			Why:  t.usage(),
			Cost: fmt.Sprintf("up to %s when full", units.Bytes(s.FullBytes-s.FullBytesNow)),
		}},
	}
	if s.MemoryBound {
		r.Predicts += fmt.Sprintf("; more was needed, but a quarter of the memory is the end (%s)", units.Bytes(s.FullBytes))
	}
	if s.Buckets > t.buckets && t.buckets > 0 {
		if s.StallSeconds <= automaticStall {
			r.Changes = append(r.Changes, t.bucketChange(s))
			r.Cost += fmt.Sprintf("; packets wait about %.0f ms while the buckets are resized", 1000*s.StallSeconds)
		} else {
			r.Risk += fmt.Sprintf("; hash chains grow to %.0f entries on average until the buckets are raised too", s.ChainLengthNow)
		}
	}
	return r
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
	c := t.bucketChange(s)
	return Remedy{
		Title:    fmt.Sprintf("raise the hash buckets from %s to %s", units.Count(t.buckets), units.Count(s.Buckets)),
		Changes:  []tune.Change{c},
		Predicts: fmt.Sprintf("mean hash chain of %.1f instead of %.1f entries when full", s.ChainLength, s.ChainLengthNow),
		Cost:     c.Cost,
		Risk: fmt.Sprintf("all packets wait for about %.2f s during the resize, on this machine perhaps more: do it when the host is idle, or at boot (options nf_conntrack hashsize=%d)",
			s.StallSeconds, s.Buckets),
	}
}

func (t *table) bucketChange(s capacity.Sizing) tune.Change {
	return tune.Change{
		Kind: tune.Sysctl, Target: sysctlBuckets,
		Before: strconv.FormatInt(t.buckets, 10), After: strconv.FormatInt(s.Buckets, 10),
		Why:  fmt.Sprintf("mean hash chain of %.1f entries when full, instead of %.1f", s.ChainLength, s.ChainLengthNow),
		Cost: fmt.Sprintf("%s for the bucket array; packets wait about %.2f s", units.Bytes((s.Buckets-t.buckets)*int64(t.cost().BucketBytes)), s.StallSeconds),
		Risk: "new connections are dropped (chaintoolong) where a chain exceeds the kernel's cap, from 5.15 on",
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
		if tab.Unreplied > tab.Sampled/2 {
			r = append(r, Remedy{
				Title: "find out who opens connections that nobody answers",
				Predicts: units.Percent(float64(tab.Unreplied)/float64(tab.Sampled)) +
					" of the entries have seen no reply: a scan, a flood, or a dead destination",
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
