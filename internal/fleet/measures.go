package fleet

import (
	"math"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// measure is a number of a node that is compared with the same of the others.
type measure struct {
	id, title, unit string
	// least is what is worth a look at all: below it nothing stands out.
	least float64
	read  func(*snapshot.Recording) (float64, bool)
}

// measured are the measures, in the order in which they are reported.
var measured = []measure{
	{"entries_share", "share of the connection table in use", "share", 0.5, entriesShare},
	{"new_connections", "new connections", "per second", 100, func(rec *snapshot.Recording) (float64, bool) {
		if rec.Flows == nil || rec.SinceStart {
			return 0, false
		}
		return rec.Flows.TotalPerSecond, true
	}},
	{"dropped", "entries that conntrack dropped", "per second", 0.2, counted("drop")},
	{"insert_failed", "entries that could not be inserted", "per second", 1, counted("insert_failed")},
	{"early_drop", "entries that were evicted", "per second", 1, counted("early_drop")},
	{"invalid", "packets that conntrack takes for INVALID", "per second", 10, counted("invalid")},
	{"ports_share", "share of the fullest pool of NAT's ports", "share", 0.5, portsShare},
	{"time_wait", "sockets in TIME_WAIT", "", 1000, func(rec *snapshot.Recording) (float64, bool) {
		t := rec.Last().TCP
		if t == nil || t.Sockets == nil {
			return 0, false
		}
		return float64(t.Sockets.TimeWait), true
	}},
	{"retransmitted", "segments that this host sent again", "per second", 10, grown("TcpRetransSegs")},
	{"queue_dropped", "packets that CPUs had no room for", "per second", 1, func(rec *snapshot.Recording) (float64, bool) {
		a, b := rec.First().Softnet, rec.Last().Softnet
		if a == nil || b == nil {
			return 0, false
		}
		return perSecond(rec, uint64(b.Dropped-a.Dropped)) // both wrap at 32 bits
	}},
}

func measures(rec *snapshot.Recording) []float64 {
	all := make([]float64, len(measured))
	for i, m := range measured {
		v, ok := m.read(rec)
		if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			v = math.NaN()
		}
		all[i] = v
	}
	return all
}

// perSecond is not known of a recording of one sample alone: since the start is no rate of now.
func perSecond(rec *snapshot.Recording, n uint64) (float64, bool) {
	seconds := rec.Seconds()
	if rec.SinceStart || seconds <= 0 {
		return 0, false
	}
	return float64(n) / seconds, true
}

func counted(name string) func(*snapshot.Recording) (float64, bool) {
	return func(rec *snapshot.Recording) (float64, bool) {
		last, first := rec.Last().ConntrackStat, rec.First().ConntrackStat
		if last == nil || first == nil {
			return 0, false
		}
		n, ok := last.Delta(first, name)
		if !ok {
			return 0, false
		}
		return perSecond(rec, n)
	}
}

func grown(name string) func(*snapshot.Recording) (float64, bool) {
	return func(rec *snapshot.Recording) (float64, bool) {
		last, first := rec.Last().TCP, rec.First().TCP
		if last == nil || first == nil {
			return 0, false
		}
		n, ok := last.Counters.Delta(first.Counters, name)
		if !ok {
			return 0, false
		}
		return perSecond(rec, n)
	}
}

func entriesShare(rec *snapshot.Recording) (float64, bool) {
	count, limit, ok := rec.Last().Entries()
	if !ok || limit <= 0 {
		return 0, false
	}
	return float64(count) / float64(limit), true
}

func portsShare(rec *snapshot.Recording) (float64, bool) {
	p := rec.Last().Ports
	if p == nil {
		return 0, false
	}
	share := 0.0
	for _, pool := range p.Pools {
		share = max(share, pool.Share)
	}
	return share, true
}

// Outlier is a node whose number is far above that of the others.
type Outlier struct {
	Measure string  `json:"measure"`
	Title   string  `json:"title"`
	Unit    string  `json:"unit,omitempty"`
	Node    string  `json:"node"`
	Value   float64 `json:"value"`
	Median  float64 `json:"median"`
	// Nodes are those of which it is known.
	Nodes int `json:"nodes"`
	// Deviation is the distance from the median in median absolute deviations, scaled as a standard deviation of a normal
	// distribution; 0 where more than half of the nodes have the same number.
	Deviation float64 `json:"deviation,omitempty"`
}

const (
	// fewForOutliers is the number of nodes from which on one can stand out.
	fewForOutliers = 10
	// farAway is the modified z-score of Iglewicz and Hoaglin (3.5 there), larger as ten measures of each node are tried.
	farAway = 6
	// madScale makes a median absolute deviation one that compares with a standard deviation.
	madScale = 1.4826
	// commonShare is the share of nodes above which a large number stands for a kind of node.
	commonShare = 0.1
)

// outliers are the nodes that stand out, by measure and value.
func outliers(nodes []*Node) []Outlier {
	all := []Outlier{}
	for i, m := range measured {
		var known []*Node
		var values []float64
		for _, n := range nodes {
			if i < len(n.measures) && !math.IsNaN(n.measures[i]) {
				known, values = append(known, n), append(values, n.measures[i])
			}
		}
		if len(values) < fewForOutliers {
			continue
		}
		all = append(all, m.outliers(i, known, values)...)
	}
	return all
}

func (m *measure) outliers(at int, known []*Node, values []float64) (found []Outlier) {
	middle := median(values)
	distances := make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(v - middle)
	}
	spread := madScale * median(distances)
	for _, n := range known {
		v := n.measures[at]
		far := spread == 0 || (v-middle)/spread >= farAway
		if v < m.least || v < 1.5*middle || v <= middle || !far {
			continue
		}
		o := Outlier{Measure: m.id, Title: m.title, Unit: m.unit, Node: n.Name, Value: v, Median: middle, Nodes: len(known)}
		if spread > 0 {
			o.Deviation = (v - middle) / spread
		}
		found = append(found, o)
	}
	if float64(len(found)) > commonShare*float64(len(known)) {
		return nil
	}
	slices.SortStableFunc(found, func(a, b Outlier) int {
		switch {
		case a.Value > b.Value:
			return -1
		case a.Value < b.Value:
			return 1
		}
		return 0
	})
	return found
}

// median orders a copy; of none it is 0.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
