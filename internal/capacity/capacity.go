// Package capacity is the arithmetic of connection tables: how many entries a
// load needs, what they cost, and how long hash chains become.
package capacity

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/snapshot"
)

// PortsPerTuple is how many entries one (protocol, source, destination,
// destination port) can have at most: one per source port from 1024 to 65535.
// What a client really uses is less (28,232 with Linux' default
// ip_local_port_range, of which connect() takes every second one first), but a
// gateway cannot know its clients' settings.
const PortsPerTuple = 64512

// Class is one kind of new entry: how many come per second, and how long each
// stays in the table.
type Class struct {
	Name      string
	PerSecond float64
	// LifetimeSeconds is the timeout of the state in which such an entry ends.
	LifetimeSeconds float64
}

// Steady is the number of entries that the classes lead to when their rates
// last: the sum of rate × lifetime (Little's law), but no more than the tuples
// that can be distinguished, groups × PortsPerTuple. groups 0 means unknown and
// bounds nothing.
func Steady(classes []Class, groups int64) int64 {
	var sum float64
	for _, c := range classes {
		sum += c.PerSecond * c.LifetimeSeconds
	}
	if groups > 0 {
		sum = math.Min(sum, float64(groups)*PortsPerTuple)
	}
	return ceil(sum)
}

// Table is the connection table as it is, and what it costs; zero means unknown.
type Table struct {
	// Entries are tracked in this network namespace now (nf_conntrack_count), OtherEntries
	// in other namespaces, which share the buckets.
	Entries, OtherEntries int64
	// Max and Buckets are the present limits (nf_conntrack_max, nf_conntrack_buckets).
	Max, Buckets int64
	Cost         Cost
	// MemoryBytes is the machine's memory, of which a table may take its Budget; 0
	// bounds nothing.
	MemoryBytes uint64
}

// TableOf takes it from what was observed.
func TableOf(s *snapshot.Snapshot) Table {
	t := Table{Cost: CostOf(s.ConntrackSize)}
	t.Entries, _ = s.Sysctls.Int(snapshot.ConntrackCount)
	t.Max, _ = s.Sysctls.Int(snapshot.ConntrackMax)
	t.Buckets, _ = s.Sysctls.Int(snapshot.ConntrackBuckets)
	t.OtherEntries = Elsewhere(s.ConntrackSize, t.Entries)
	if s.Memory != nil {
		t.MemoryBytes = s.Memory.TotalBytes
	}
	return t
}

// For is the need of connections that are open at one time, and of new ones per second,
// each of which leaves an entry for some seconds after its end.
func (t Table) For(open int64, perSecond, seconds float64) Need {
	return Need{Table: t, Held: open, Arriving: Steady([]Class{{PerSecond: perSecond, LifetimeSeconds: seconds}}, 0)}
}

// Need is what a table is sized for.
type Need struct {
	Table
	// Held entries stay whatever comes; Arriving is Steady of what comes.
	Held, Arriving int64
	// LowerBound is set if more is offered than was seen, because the full table
	// turns it away: then the limit is at least doubled.
	LowerBound bool
}

// Sizing is the answer to a Need.
type Sizing struct {
	// Max is the proposed limit: never below the present one.
	Max int64
	// Entries is the number expected, before headroom.
	Entries int64
	// Buckets is the proposed number, the present one where it suffices.
	Buckets int64
	// ChainLength is the mean length of a hash chain when the table is full to
	// Max, with the present buckets and with the proposed ones.
	ChainLength, ChainLengthNow float64
	// FullBytes is the memory of a full table after the change; the present
	// limit's is FullBytesNow.
	FullBytes, FullBytesNow int64
	// StallSeconds is how long all packets wait while the buckets are resized; 0
	// where they are not.
	StallSeconds float64
	// MemoryBound is set if the Budget is the limit, so that Max is less than was
	// needed.
	MemoryBound bool
}

const (
	// headroom keeps the expected number at 80 % of the limit.
	headroom = 1.25
	// Step is what limits are rounded up to.
	Step = 65536
	// LongChain is the mean chain length above which more buckets are proposed.
	LongChain = 4
	// RefusedChain is the least length of a chain at which a kernel may refuse a new
	// entry and count chaintoolong (Cap).
	RefusedChain = 8
	// BucketStep is the number of buckets in one page; the kernel rounds up to it
	// (nf_ct_alloc_hashtable, nf_conntrack_core.c).
	BucketStep = 512
	// AutomaticStall is the longest wait of all packets, in seconds, that a change may
	// cause unless it is requested by name.
	AutomaticStall = 0.050
)

// ChainLength is the mean number of entries in a hash chain: each connection
// stands in the table twice, once for each direction.
func ChainLength(entries, buckets int64) float64 {
	if buckets <= 0 {
		return 0
	}
	return 2 * float64(entries) / float64(buckets)
}

// Size proposes limits for a need. It never proposes less than there is.
func Size(n Need) Sizing {
	s := Sizing{Entries: ceil(float64(n.Held) + float64(n.Arriving)), Buckets: n.Buckets}
	want := ceil(float64(s.Entries) * headroom)
	if n.LowerBound {
		want = max(want, ceil(2*float64(n.Max)))
	}
	s.Max = max(roundUp(want, Step), n.Max)
	if n.MemoryBytes > 0 {
		s.Max, s.MemoryBound = boundByMemory(s.Max, n)
	}
	full := ceil(float64(s.Max) + float64(n.OtherEntries))
	s.ChainLengthNow = ChainLength(full, n.Buckets)
	if s.ChainLengthNow > LongChain {
		s.Buckets = max(roundUp(s.Max, BucketStep), n.Buckets)
		s.StallSeconds = ResizeSeconds(ceil(float64(n.Entries) + float64(n.OtherEntries)))
	}
	s.ChainLength = ChainLength(full, s.Buckets)
	s.FullBytesNow = n.Cost.TableBytes(n.Max, n.Buckets)
	s.FullBytes = n.Cost.TableBytes(s.Max, s.Buckets)
	return s
}

// boundByMemory keeps a full table, a bucket for each entry included, within the
// budget, but never below the present limit.
func boundByMemory(want int64, n Need) (limit int64, bound bool) {
	perEntry := int64(n.Cost.EntryBytes + n.Cost.BucketBytes)
	if perEntry == 0 {
		return want, false
	}
	limit = Budget(n.MemoryBytes) / perEntry / Step * Step
	if limit >= want {
		return want, false
	}
	return max(limit, n.Max), true
}

// roundUp is the next multiple; what has none stays.
func roundUp(n, to int64) int64 {
	if n > math.MaxInt64-to {
		return n
	}
	return (n + to - 1) / to * to
}

// Cost is the memory of one entry (its extension included) and of one hash
// bucket, in bytes.
type Cost struct {
	EntryBytes, BucketBytes uint64
	// ExtensionBytes are those of EntryBytes that are not the slab object's.
	ExtensionBytes uint64
	// Source is where the entry's size was read.
	Source string
}

// CostOf returns the cost of entries and buckets on the machine that a snapshot is of.
// Where that could not be read (nil) the sizes of Linux 4.19 to 6.18 on 64 bits
// are assumed: struct nf_conn with its slab alignment, 256 bytes, the extension
// of 128 bytes, and a pointer for each bucket.
func CostOf(s *snapshot.ConntrackSize) Cost {
	if s == nil || s.EntryBytes == 0 {
		return Cost{EntryBytes: 384, ExtensionBytes: 128, BucketBytes: 8, Source: "assumed"}
	}
	return Cost{EntryBytes: s.PerEntry(), ExtensionBytes: s.ExtensionBytes, BucketBytes: s.BucketBytes, Source: s.Source}
}

// Cost is what entries and buckets take with this kernel on 64 bits, by its version: CostOf says of which it is
// known. Older kernels were built with objects of 304 to 320 bytes.
func (r Release) Cost() Cost {
	c := CostOf(nil)
	if r.Before(4, 19) && r != (Release{}) {
		c.EntryBytes = 320 + 128
	}
	return c
}

func (c Cost) String() string { return fmt.Sprintf("%d B per entry, %s", c.EntryBytes, c.Source) }

// TableBytes returns the memory of a table with this number of entries and buckets; the
// greatest int64 where it is more than that.
func (c Cost) TableBytes(entries, buckets int64) int64 {
	bytes := float64(entries)*float64(c.EntryBytes) + float64(buckets)*float64(c.BucketBytes)
	if bytes >= math.MaxInt64 {
		return math.MaxInt64
	}
	return entries*int64(c.EntryBytes) + buckets*int64(c.BucketBytes)
}

// Budget is the memory that a table may take: a quarter of the machine's.
func Budget(memoryBytes uint64) int64 { return int64(memoryBytes / 4) }

// Elsewhere estimates the entries of all other namespaces of the host, which
// share the buckets, from the slab's objects. count is what this one tracks.
// A tenth more than that is unused: the slab keeps freed objects for a while.
func Elsewhere(s *snapshot.ConntrackSize, count int64) int64 {
	if s == nil || s.EntryBytes == 0 {
		return 0
	}
	entries := s.SlabBytes / s.EntryBytes
	if s.ActiveEntries > 0 {
		entries = min(entries, s.ActiveEntries)
	}
	if other := int64(entries) - count; other > count/10 {
		return other
	}
	return 0
}

// stallPerEntry is the time that a resize of the hash takes for each entry, in
// seconds: 0.42-0.47 s were measured at 1 M entries and 0.8-0.9 s at 2 M (Linux
// 6.18, one machine).
const stallPerEntry = 0.45e-6

// ResizeSeconds predicts how long all packets of the host wait while the number
// of buckets is changed: nf_conntrack_hash_resize rehashes the entries of all
// namespaces with every bucket lock held.
func ResizeSeconds(entries int64) float64 { return float64(max(entries, 0)) * stallPerEntry }
