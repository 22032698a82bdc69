package state

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"
)

// Names of the series of a History.
const (
	SeriesEntries      = "entries"
	SeriesLimit        = "limit_entries"
	SeriesNew          = "new_per_second"
	SeriesAnswered     = "answered_share"
	SeriesPorts        = "used_ports_share" // of the most pressed address
	SeriesDrops        = "drops_per_second" // of the kernel
	SeriesDrop         = "conntrack_drop_per_second"
	SeriesInsertFailed = "insert_failed_per_second"
	SeriesEarlyDrop    = "early_drop_per_second"
)

// seriesOf are the series of a History, and how the value of now is found; false where it is not known.
var seriesOf = []struct {
	name  string
	value func(*Namespace) (float64, bool)
}{
	{SeriesEntries, func(n *Namespace) (float64, bool) {
		if n.Counters == nil {
			return 0, false
		}
		return float64(n.Counters.Entries), true
	}},
	{SeriesLimit, func(n *Namespace) (float64, bool) {
		if n.Counters == nil || n.Counters.Limit <= 0 {
			return 0, false
		}
		return float64(n.Counters.Limit), true
	}},
	{SeriesNew, func(n *Namespace) (float64, bool) {
		if n.Table == nil || n.Table.Flows == nil {
			return 0, false
		}
		return n.Table.Flows.NewPerSecond, true
	}},
	{SeriesAnswered, func(n *Namespace) (float64, bool) {
		if n.Services == nil || n.Services.AnsweredShare < 0 {
			return 0, false
		}
		return n.Services.AnsweredShare, true
	}},
	{SeriesPorts, func(n *Namespace) (float64, bool) {
		if n.Ports == nil {
			return 0, false
		}
		i := slices.IndexFunc(n.Ports.Addresses, func(a Address) bool { return !a.IsMapping() })
		if i < 0 {
			return 0, false
		}
		return n.Ports.Addresses[i].UsedShare, true
	}},
	{SeriesDrops, func(n *Namespace) (float64, bool) {
		if n.Drops == nil {
			return 0, false
		}
		return n.Drops.PerSecond, true
	}},
	{SeriesDrop, counterRate("drop")},
	{SeriesInsertFailed, counterRate("insert_failed")},
	{SeriesEarlyDrop, counterRate("early_drop")},
}

// Point has what is known of each series at one time.
func (n *Namespace) Point() map[string]float64 {
	point := map[string]float64{}
	for _, s := range seriesOf {
		if v, known := s.value(n); known {
			point[s.name] = v
		}
	}
	return point
}

// HistoryOf is the history of points at these times, in seconds since 1970. What a point lacks is not known there.
func HistoryOf(times []float64, points []map[string]float64) History {
	h := History{Times: times, Series: map[string][]Value{}}
	for _, s := range seriesOf {
		values := make([]Value, 0, len(points))
		for _, point := range points {
			v, known := point[s.name]
			if !known {
				v = math.NaN()
			}
			values = append(values, Value(v))
		}
		h.Series[s.name] = values
	}
	return h
}

func counterRate(name string) func(*Namespace) (float64, bool) {
	return func(n *Namespace) (float64, bool) {
		if n.Counters == nil {
			return 0, false
		}
		rate, known := n.Counters.PerSecond[name]
		return rate, known
	}
}

// Value is a number; NaN, null in JSON, where it is not known.
type Value float64

// MarshalJSON writes null for NaN. Four digits are more than a chart shows.
func (v Value) MarshalJSON() ([]byte, error) {
	if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(v), 'g', 10, 64), nil
}

// UnmarshalJSON reads null as NaN.
func (v *Value) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*v = Value(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(v))
}

// HistoryPoints is how many points a History has at most: an hour at the usual interval.
const HistoryPoints = 720

// History is the course of the main series, the oldest point first: element i of each is of Times[i], in seconds since
// 1970. A value that was not known, or was too old to stand for that time, is NaN.
type History struct {
	Times  []float64          `json:"times"`
	Series map[string][]Value `json:"series"`
}

// Add adds a point, and forgets the oldest one beyond HistoryPoints. A part that is older than stale counts as not known.
func (h *History) Add(n *Namespace, now time.Time, stale time.Duration) {
	if h.Series == nil {
		h.Series = map[string][]Value{}
	}
	fresh := n.within(now, stale)
	point := fresh.Point()
	for _, s := range seriesOf {
		v, known := point[s.name]
		if !known {
			v = math.NaN()
		}
		h.Series[s.name] = last(append(h.Series[s.name], Value(v)))
	}
	h.Times = last(append(h.Times, float64(now.UnixMilli())/1000))
}

// last returns the newest points. What is in front of them is given back whenever append grows the slice.
func last[T any](points []T) []T { return points[max(0, len(points)-HistoryPoints):] }

// Clone returns a copy that later points do not change.
func (h *History) Clone() History {
	c := History{Times: slices.Clone(h.Times), Series: make(map[string][]Value, len(h.Series))}
	if c.Times == nil {
		c.Times = []float64{}
	}
	for name, values := range h.Series {
		c.Series[name] = slices.Clone(values)
	}
	return c
}

// within returns the namespace without the parts that are older than stale.
func (n *Namespace) within(now time.Time, stale time.Duration) Namespace {
	fresh := *n
	for part, r := range n.Readings() {
		if now.Sub(r.At) <= stale {
			continue
		}
		switch part {
		case PartCounters:
			fresh.Counters = nil
		case PartTable:
			fresh.Table = nil
		case PartServices:
			fresh.Services = nil
		case PartPorts:
			fresh.Ports = nil
		case PartDrops:
			fresh.Drops = nil
		}
	}
	return fresh
}
