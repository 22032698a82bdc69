package watch

import "time"

// Budget bounds what repeated readings of the connection table cost, by what the last one
// did. Fewer entries cost less, but not in proportion: the kernel walks the hash of all
// namespaces, and a stretch that is empty, or of others, costs as well
// (ctnetlink_dump_table). Where the least number of entries costs too much, the table is
// read less often.
type Budget struct {
	// Interval is the time between two readings, Share the part of one CPU that they may
	// take.
	Interval time.Duration
	Share    float64
	// A reading is of Least to Most entries, the first one of First.
	Least, First, Most int64

	entries int64
	due     time.Time
}

// unlimited is the share of a budget that is never exceeded.
const unlimited = 1000

// longest is the CPU time after which a reading ends in any case.
const longest = 50 * time.Millisecond

// Entries returns how many entries the next reading has.
func (b *Budget) Entries() int64 {
	if b.entries == 0 {
		return b.First
	}
	return b.entries
}

// Due reports whether the last reading is paid for.
func (b *Budget) Due(now time.Time) bool { return !now.Before(b.due) }

// Exceeded reports whether a reading that has used so much CPU time is to end early; the
// next one is due later then.
func (b *Budget) Exceeded(read int64, cost time.Duration) bool {
	return b.Share < unlimited && (cost > longest || cost > 2*b.allowance() && read >= b.Least)
}

func (b *Budget) allowance() time.Duration { return time.Duration(float64(b.Interval) * b.Share) }

// Postpone has the next reading wait for what was spent beside the last one.
func (b *Budget) Postpone(cost time.Duration) {
	b.due = b.due.Add(time.Duration(float64(cost) / b.Share))
}

// Spent schedules the next reading after one that took cost for read entries.
func (b *Budget) Spent(now time.Time, cost time.Duration, read int64) {
	// Some room is left, so that an unlucky reading does not skip the next one.
	target := float64(b.allowance()) * 0.8
	entries := float64(b.Most)
	if cost > 0 {
		entries = float64(max(read, b.Least)) * target / float64(cost)
	}
	if b.entries > 0 {
		entries = min(entries, 2*float64(b.entries))
	}
	b.entries = int64(min(max(entries, float64(b.Least)), float64(b.Most)))
	b.due = now.Add(time.Duration(float64(cost) / b.Share))
}
