package tune

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ResizeStallPerEntry is how long every packet waits, per tracked connection of
// the host, while nf_conntrack_buckets is changed: nf_conntrack_hash_resize
// rehashes all entries with every bucket lock held. Measured on Linux 6.18:
// 423 to 466 ms with 1 M entries, 0.8 to 0.9 s with 2 M.
const ResizeStallPerEntry = 450 * time.Nanosecond

// ResizeStall predicts the stall of a resize of the connection table.
func ResizeStall(entries int64) time.Duration {
	return time.Duration(max(entries, 0)) * ResizeStallPerEntry
}

const (
	// assumedEntryBytes is struct nf_conn with its extension on a 64-bit kernel,
	// where the machine was not asked.
	assumedEntryBytes = 448
	bucketBytes       = 8 // struct hlist_nulls_head on 64 bits
	// chainEntries is the number of hash entries of one connection: one for each
	// direction.
	chainEntries = 2
)

// Facts is what the cost and risk of a change depend on; zero means unknown.
type Facts struct {
	// Entries tracked in this network namespace (nf_conntrack_count).
	Entries int64
	// HostEntries tracked in all namespaces, as the hash table is shared.
	HostEntries int64
	// Max and Buckets are nf_conntrack_max and nf_conntrack_buckets now.
	Max, Buckets int64
	// EntryBytes is the memory of one entry, its extension included.
	EntryBytes int64
	// MemoryBytes is the machine's.
	MemoryBytes int64
}

// Assess adds cost and risk to a change that a person asked for, where natkit
// knows them. What the change already says is kept.
func Assess(c Change, f Facts) Change {
	if c.Kind != Sysctl || c.Cost != "" || c.Risk != "" {
		return c
	}
	before, errBefore := strconv.ParseInt(NormalValue(c.Before), 0, 64)
	after, errAfter := strconv.ParseInt(NormalValue(c.After), 0, 64)
	if errBefore != nil || errAfter != nil || before == after {
		return c
	}
	switch {
	case c.Target == conntrackMax || c.Target == "net.nf_conntrack_max":
		c.Cost, c.Risk = assessMax(before, after, f)
	case c.Target == conntrackBuckets:
		c.Cost, c.Risk = assessBuckets(after, f)
	case strings.HasPrefix(c.Target, "net.netfilter.nf_conntrack_") && strings.Contains(c.Target, "timeout"):
		c.Risk = assessTimeout(before, after)
	case after < before:
		c.Risk = fmt.Sprintf("lowers the value from %d to %d", before, after)
	}
	return c
}

func assessMax(before, after int64, f Facts) (cost, risk string) {
	entry := f.EntryBytes
	if entry <= 0 {
		entry = assumedEntryBytes
	}
	var risks []string
	if after > before {
		// In floating point: a person may type any number.
		more := float64(after-before) * float64(entry)
		cost = fmt.Sprintf("up to %.0f MiB more kernel memory when the table is full (%d B per entry)", more/(1<<20), entry)
		if f.MemoryBytes > 0 && float64(after)*float64(entry) > float64(f.MemoryBytes)/4 {
			risks = append(risks, "a full table would take more than a quarter of the machine's memory")
		}
		if f.Buckets > 0 && after > 4*f.Buckets {
			risks = append(risks, fmt.Sprintf("hash chains grow to %d entries on average with %d buckets; kernels 5.15 to 6.3 drop new connections from about 8 on",
				chainEntries*(after/f.Buckets), f.Buckets))
		}
	} else {
		risks = append(risks, "lowers a limit of the whole host, every network namespace included")
		if f.Entries > after {
			risks = append(risks, fmt.Sprintf("%d connections are tracked now, more than the new maximum: new connections are dropped at once", f.Entries))
		}
	}
	return cost, strings.Join(risks, "; ")
}

func assessBuckets(after int64, f Facts) (cost, risk string) {
	cost = fmt.Sprintf("%.1f MiB of kernel memory for the bucket array", float64(after)*bucketBytes/(1<<20))
	entries := max(f.HostEntries, f.Entries)
	risk = fmt.Sprintf("all packets of the host stall for %s while %d entries are rehashed (0.45 µs each)",
		stallText(ResizeStall(entries)), entries)
	if limit := max(f.Max, f.Entries); after > 0 && limit > 4*after {
		risk += fmt.Sprintf("; chains of %d entries on average when the table is full", chainEntries*(limit/after))
	}
	return cost, risk
}

func stallText(d time.Duration) string {
	if d < time.Millisecond {
		return "less than 1 ms"
	}
	return fmt.Sprintf("about %d ms", d.Round(time.Millisecond).Milliseconds())
}

func assessTimeout(before, after int64) string {
	if after < before {
		return "idle connections are forgotten sooner: packets that come later find no entry, and NAT cannot map them back"
	}
	return "entries stay longer: the table fills faster at the same rate of connections"
}
