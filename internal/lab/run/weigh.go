package run

import (
	"context"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

// weighable is the number of entries from which the growth of the kernel's slabs
// tells the size of one: slabs grow by pages and belong to others too.
const weighable = 5000

// weigh puts the predicted memory beside what the slabs grew by since the lab was
// empty.
func (c *conductor) weigh(ctx context.Context, st *lab.Stage, fix *lab.Fix) error {
	node := c.watched(st)
	now, err := c.look(ctx, node)
	if err != nil {
		return err
	}
	usage, err := dump.Count(c.node(node))
	if err != nil {
		return err
	}
	fix.SeenEntries = usage.Entries
	if now.ConntrackSize == nil {
		return nil
	}
	fix.PredictedBytesPerEntry = float64(now.ConntrackSize.PerEntry())
	facts := tune.FactsOf(now)
	fix.PredictedMaxBytes = facts.Cost.TableBytes(facts.Max, facts.Buckets)
	fix.SeenBytes = slabBytes(now) - c.emptyBytes
	if fix.SeenEntries >= weighable && fix.SeenBytes > 0 {
		fix.SeenBytesPerEntry = float64(fix.SeenBytes) / float64(fix.SeenEntries)
	}
	return nil
}

// slabBytes is what the slabs of entries and of extensions hold.
func slabBytes(s *snapshot.Snapshot) int64 {
	if s.ConntrackSize == nil {
		return 0
	}
	return int64(s.ConntrackSize.SlabBytes + s.ConntrackSize.ExtensionSlabBytes)
}
