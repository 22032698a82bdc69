package fleet

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/units"
)

// Duplicate is what several recordings of the same node, or several nodes of one name, became.
type Duplicate struct {
	Node string `json:"node"`
	// Counted is the source of the newest recording; empty where each is a node of its own.
	Counted string   `json:"counted,omitempty"`
	Others  []string `json:"others"`
	Why     string   `json:"why"`
}

// clockTolerance is how far clocks that are disciplined may be apart, and how far the time since boot may be off.
const clockTolerance = 2 * time.Second

// newest keeps one recording of each node. Nodes are ordered by name.
func newest(nodes []*Node) (kept []*Node, all []Duplicate) {
	all = []Duplicate{}
	kept, all = sameBoot(nodes, all)
	for i := 0; i < len(kept); {
		end := i + 1
		for end < len(kept) && kept[end].Name == kept[i].Name {
			end++
		}
		if end-i == 1 {
			i = end
			continue
		}
		same := kept[i:end]
		slices.SortStableFunc(same, func(a, b *Node) int { return b.TakenAt.Compare(a.TakenAt) })
		d := Duplicate{Node: same[0].Name}
		if apart(same) {
			for _, n := range same {
				d.Others = append(d.Others, n.Source)
				n.Name = fmt.Sprintf("%s (%s)", n.Name, path.Base(n.Source))
			}
			d.Why = "machines of one name that ran at the same time: each is a node"
			all = append(all, d)
			i = end
			continue
		}
		d.Counted, d.Why = same[0].Source, "the same name: the newest counts"
		for _, n := range same[1:] {
			d.Others = append(d.Others, n.Source)
		}
		all = append(all, d)
		kept = slices.Delete(kept, i+1, end)
		i++
	}
	return kept, all
}

// sameBoot joins recordings of one boot of a machine: of one network namespace the newest counts, others are namespaces of
// that node.
func sameBoot(nodes []*Node, all []Duplicate) ([]*Node, []Duplicate) {
	kept := []*Node{}
	byBoot := map[string][]*Node{}
	for _, n := range nodes {
		if n.BootID == "" {
			kept = append(kept, n)
			continue
		}
		if byBoot[n.BootID] == nil {
			kept = append(kept, n) // in its place
		}
		byBoot[n.BootID] = append(byBoot[n.BootID], n)
	}
	for i, n := range kept {
		same := byBoot[n.BootID]
		if n.BootID == "" || len(same) == 1 {
			continue
		}
		slices.SortStableFunc(same, func(a, b *Node) int { return b.TakenAt.Compare(a.TakenAt) })
		node, d := same[0], Duplicate{Node: same[0].Name, Counted: same[0].Source, Why: "the same boot of one machine: the newest counts"}
		for _, other := range same[1:] {
			if !slices.ContainsFunc(other.Netns, func(inode uint64) bool { return !slices.Contains(node.Netns, inode) }) {
				d.Others = append(d.Others, other.Source)
				continue
			}
			node.join(other)
		}
		if len(d.Others) > 0 {
			all = append(all, d)
		}
		kept[i] = node
	}
	slices.SortStableFunc(kept, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return kept, all
}

// join adds other network namespaces of the same boot.
func (n *Node) join(other *Node) {
	n.Netns = append(n.Netns, other.Netns...)
	for _, f := range other.Findings {
		if own := n.finding(f.ID); own == nil {
			n.Findings = append(n.Findings, f)
		} else if f.Severity > own.Severity {
			*own = f
		}
	}
	slices.SortStableFunc(n.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	for _, why := range other.Incomplete {
		n.Incomplete = appendNew(n.Incomplete, why)
	}
	for _, why := range other.Lost {
		n.Lost = appendNew(n.Lost, why)
	}
	n.Source += ", " + path.Base(other.Source)
}

// apart reports whether recordings of one name are surely of several machines: one had booted before the other, of another
// boot, was taken.
func apart(same []*Node) bool {
	for i, newer := range same {
		for _, older := range same[i+1:] {
			booted := newer.TakenAt.Add(-time.Duration(newer.Uptime * float64(time.Second)))
			if newer.BootID != "" && older.BootID != "" && newer.BootID != older.BootID && newer.Uptime > 0 &&
				newer.Uptime < math.MaxInt32 && booted.Before(older.TakenAt.Add(-clockTolerance)) {
				return true
			}
		}
	}
	return false
}

// Clock is what is known of a node's clock: it is between AheadLeast and AheadMost seconds ahead of the one that it is
// compared with (behind where negative). AheadMost is nil where nothing bounds it.
type Clock struct {
	Node       string   `json:"node"`
	AheadLeast float64  `json:"ahead_at_least_seconds"`
	AheadMost  *float64 `json:"ahead_at_most_seconds,omitempty"`
	// Of is whose clock it is compared with.
	Of string `json:"compared_with"`
}

// clocks are the nodes whose clock is surely off. The collector knows when it began and ended; without it, only a recording
// that comes from the future shows something. No conclusion of the report depends on clocks of different nodes.
func clocks(nodes []*Node, lists []List, now time.Time) []Clock {
	all := []Clock{}
	for _, n := range nodes {
		e := entryOf(n, lists)
		switch {
		case n.TakenAt.IsZero():
		case e != nil && !e.Began.IsZero() && !e.Ended.Before(e.Began):
			least, most := n.TakenAt.Sub(e.Ended), n.TakenAt.Sub(e.Began)
			if least > clockTolerance || most < -clockTolerance {
				upper := most.Seconds()
				all = append(all, Clock{n.Name, least.Seconds(), &upper, "the collector"})
			}
		case !now.IsZero() && n.TakenAt.Sub(now) > clockTolerance:
			all = append(all, Clock{n.Name, n.TakenAt.Sub(now).Seconds(), nil, "this host"})
		}
	}
	return all
}

// String is how far it is off.
func (c Clock) String() string {
	seconds := func(s float64) string { return units.Seconds(math.Abs(s)) }
	switch {
	case c.AheadMost == nil:
		return fmt.Sprintf("%s at least ahead of %s", seconds(c.AheadLeast), c.Of)
	case c.AheadLeast >= 0:
		return fmt.Sprintf("%s to %s ahead of %s", seconds(c.AheadLeast), seconds(*c.AheadMost), c.Of)
	}
	return fmt.Sprintf("%s to %s behind %s", seconds(*c.AheadMost), seconds(c.AheadLeast), c.Of)
}
