package drops

import (
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// counters are conntrack's of the namespaces that there were at the start; those
// of a namespace that came later began at 0.
type counters struct {
	only   *netns.Handle // nil: all namespaces
	before map[uint64]tally
}

// tally is what a namespace's tracker counted on all CPUs.
type tally struct{ drop, insertFailed, chainTooLong uint64 }

// readCounters returns nil where they cannot be read.
func readCounters(only *netns.Handle) *counters {
	c := &counters{only: only}
	all := func(uint64) bool { return true }
	if c.before = c.read(all); len(c.before) == 0 {
		return nil
	}
	return c
}

// read asks the namespaces that are wanted; nobody answers for those that are gone.
func (c *counters) read(wanted func(inode uint64) bool) map[uint64]tally {
	handles := []*netns.Handle{c.only}
	if c.only == nil {
		all, err := netns.All()
		if err != nil {
			return nil
		}
		defer netns.CloseAll(all)
		handles = all
	}
	tallies := map[uint64]tally{}
	for _, h := range handles {
		if !wanted(h.Inode()) {
			continue
		}
		cpus, err := dump.Stats(h)
		if err != nil {
			continue
		}
		var sum tally
		for _, cpu := range cpus {
			sum.drop += cpu["drop"]
			sum.insertFailed += cpu["insert_failed"]
			sum.chainTooLong += cpu["chaintoolong"]
		}
		tallies[h.Inode()] = sum
	}
	return tallies
}

// divide attributes what hooks dropped in each namespace.
func (c *counters) divide(hooked map[uint64]uint64, found map[snapshot.DropCause]uint64) {
	if len(hooked) == 0 {
		return
	}
	now := c.read(func(inode uint64) bool { return hooked[inode] > 0 })
	for ns, packets := range hooked {
		n, ok := now[ns]
		if !ok {
			continue // gone: nothing tells
		}
		for _, s := range n.since(c.before[ns]).shares(packets) {
			if s.packets > 0 {
				found[snapshot.DropCause{Cause: s.cause, Netns: ns, Source: s.source}] += s.packets
			}
		}
	}
}

// causeShare is a part of what a namespace's hooks dropped.
type causeShare struct {
	cause, source string
	packets       uint64
}

// shares are at most what was seen. A clash that could not be resolved counts in
// insert_failed and in drop, a hash chain that is too long in insert_failed and
// chaintoolong (nf_conntrack_core.c): the rest of drop is a full table, and what
// neither explains is a rule's.
func (t tally) shares(seen uint64) []causeShare {
	clashed := t.insertFailed - min(t.insertFailed, t.chainTooLong)
	full := min(t.drop-min(t.drop, clashed), seen)
	missed := min(t.insertFailed, seen-full)
	return []causeShare{
		{snapshot.CauseTableFull, "drop less insert_failed", full},
		{snapshot.CauseNotInserted, "insert_failed", missed},
		{snapshot.CauseRule, hook + " less drop and chaintoolong", seen - full - missed},
	}
}

func (t tally) since(before tally) tally {
	return tally{
		drop:         t.drop - min(t.drop, before.drop),
		insertFailed: t.insertFailed - min(t.insertFailed, before.insertFailed),
		chainTooLong: t.chainTooLong - min(t.chainTooLong, before.chainTooLong),
	}
}
