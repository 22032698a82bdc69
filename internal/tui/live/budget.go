package live

import "time"

// Bounds of a reading of the table. A datagram has some 130 entries, and a few are
// always under way: less than the least is not saved by stopping earlier. The most
// know a share to a percent and a rate of new flows to a few.
const (
	leastEntries = 1024
	mostEntries  = 16384
	firstEntries = 2048
)

// tableShare is the part of one CPU that reading the table may take.
const tableShare = 0.005

// budget bounds what reading the table costs, by what the last reading did. Fewer
// entries cost less, but not in proportion: the kernel walks the hash of all
// namespaces, and a stretch that is empty, or of others, costs as well
// (ctnetlink_dump_table). Where the least number of entries costs too much, the table
// is read less often.
type budget struct {
	entries int
	due     time.Time
	// always is for few readings: each is of the most entries, whatever it costs.
	always bool
}

// next is how many entries may be read now; 0 where it is too early.
func (b *budget) next(now time.Time) int {
	switch {
	case b.always:
		return mostEntries
	case now.Before(b.due):
		return 0
	}
	if b.entries == 0 {
		return firstEntries
	}
	return b.entries
}

// longest is the CPU time after which a reading ends in any case.
const longest = 50 * time.Millisecond

// enough reports whether a reading that was to be of so many entries ends: it has them,
// or costs more than was planned, and then the next one comes later.
func (b *budget) enough(read int64, entries int, cost, interval time.Duration) bool {
	switch {
	case read >= int64(entries):
		return true
	case b.always:
		return false
	}
	return cost > longest || cost > 2*allowance(interval) && read >= leastEntries
}

func allowance(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * tableShare)
}

// spent plans the next reading after one that took so much CPU time.
func (b *budget) spent(now time.Time, interval, cost time.Duration, read int64) {
	// Some room is left, so that an unlucky reading does not skip the next one.
	target := float64(allowance(interval)) * 0.8
	entries := float64(mostEntries)
	if cost > 0 {
		entries = float64(max(read, leastEntries)) * target / float64(cost)
	}
	if b.entries > 0 {
		entries = min(entries, 2*float64(b.entries))
	}
	b.entries = int(min(max(entries, leastEntries), mostEntries))
	b.due = now.Add(time.Duration(float64(cost) / tableShare))
}
