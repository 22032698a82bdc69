package capacity

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/snapshot"
)

// Cost is the memory of one entry (its extension included) and of one hash
// bucket, in bytes.
type Cost struct {
	EntryBytes, BucketBytes uint64
	// Source is where the entry's size was read.
	Source string
}

// CostOf is what entries and buckets cost on the machine that a snapshot is of.
// Where that could not be read (nil) the sizes of Linux 4.19 to 6.18 on 64 bits
// are assumed: struct nf_conn with its slab alignment, 256 bytes, the extension
// of 128 bytes, and a pointer for each bucket.
func CostOf(s *snapshot.ConntrackSize) Cost {
	if s == nil || s.EntryBytes == 0 {
		return Cost{EntryBytes: 384, BucketBytes: 8, Source: "assumed"}
	}
	return Cost{EntryBytes: s.PerEntry(), BucketBytes: s.BucketBytes, Source: s.Source}
}

func (c Cost) String() string { return fmt.Sprintf("%d B per entry, %s", c.EntryBytes, c.Source) }

// TableBytes is the memory of a table with so many entries and buckets; the
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
// A tenth more than that is nobody's: the slab keeps freed objects for a while.
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
