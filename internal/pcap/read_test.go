package pcap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// sorted are the times that come out of a sorter.
func sorted(s *sorter, times []int64) (out []int64) {
	take := func(g *segment) { out = append(out, g.at) }
	for i, at := range times {
		s.add(&segment{record: record{at: at, number: int64(i)}}, take)
	}
	s.flush(take)
	return out
}

func TestSorter(t *testing.T) {
	const ms = 1_000_000
	for _, tt := range []struct {
		name     string
		max      int
		in, want []int64
		late     int64
	}{
		{"in order", 9, []int64{1, 2, 2, 3}, []int64{1, 2, 2, 3}, 0},
		{"two interfaces", 9, []int64{10, 30, 50, 20, 40, 60}, []int64{10, 20, 30, 40, 50, 60}, 0},
		{"the first is not the earliest", 9, []int64{3, 1, 2}, []int64{1, 2, 3}, 0},
		{"more than may wait", 2, []int64{10, 30, 50, 20, 5, 60}, []int64{10, 30, 20, 5, 50, 60}, 2},
		{"earlier than all of many", 2, []int64{10, 30, 5}, []int64{10, 5, 30}, 1},
		{"the clock was set back", 9, []int64{5000 * ms, 5001 * ms, 1, 2, 3}, []int64{5000 * ms, 5001 * ms, 1, 2, 3}, 1},
		{"the clock was set forward", 9, []int64{1, 2, 5000 * ms, 5001 * ms}, []int64{1, 2, 5000 * ms, 5001 * ms}, 0},
		{"the ends of time", 9, []int64{resolution{perSecond: 1}.nanoseconds(1 << 63), 0, resolution{perSecond: 1, offset: -1 << 62}.nanoseconds(0)},
			[]int64{resolution{perSecond: 1}.nanoseconds(1 << 63), 0, resolution{perSecond: 1, offset: -1 << 62}.nanoseconds(0)}, 2},
	} {
		s := newSorter(DefaultMemory)
		s.max = tt.max
		if got := sorted(&s, tt.in); !slices.Equal(got, tt.want) || s.late != tt.late {
			t.Errorf("%s: %v with %d late, want %v with %d", tt.name, got, s.late, tt.want, tt.late)
		}
	}
}

// TestSorterOfMany: what is shuffled within reach comes out in order, and nothing is lost.
func TestSorterOfMany(t *testing.T) {
	const n = 50_000
	rng := rand.New(rand.NewPCG(1, 2))
	in, key := make([]int64, n), make([]int64, n)
	for i := range in {
		in[i], key[i] = int64(i)*10_000, int64(i)+rng.Int64N(3000)
	}
	index := make([]int, n)
	for i := range index {
		index[i] = i
	}
	slices.SortStableFunc(index, func(a, b int) int { return int(key[a] - key[b]) })
	shuffled := make([]int64, n)
	for i, j := range index {
		shuffled[i] = in[j]
	}
	s := newSorter(DefaultMemory)
	if got := sorted(&s, shuffled); !slices.Equal(got, in) || s.late != 0 || len(s.waiting) > mostWaiting {
		t.Errorf("%d of %d, %d late, %d waited", len(got), n, s.late, len(s.waiting))
	}
}

// TestTwoInterfaces: programs write what each interface got together; the connections of
// such a capture are those of one in order.
func TestTwoInterfaces(t *testing.T) {
	lines := parseScript(t, clientA, serverA, serverFirst+`
		30005 > S   5000 0   0  4000 0
		30006 < A   922  112 0  37000 5002
		30007 > R   112  0   0
		31005 > S   5000 0   0  5000 0
		31006 < SA  77   5001 0 38000 5000`)
	slices.SortStableFunc(lines, func(a, b line1) int { // of each second the client's packets first
		if d := int(a.ms/1000) - int(b.ms/1000); d != 0 {
			return d
		}
		if a.fromClient == b.fromClient {
			return 0
		} else if a.fromClient {
			return -1
		}
		return 1
	})
	r := reportOf(t, scripted(t, lines), Options{})
	got := fmt.Sprint(len(r.Incidents), r.RejectedByPAWS, r.Connections.Established, r.Connections.ServerClosedFirst)
	if want := "1 1 2 1"; got != want || r.OutOfOrder == 0 {
		t.Errorf("%s, want %s; %d out of order", got, want, r.OutOfOrder)
	}
	roles := ""
	for _, step := range r.Incidents[0].Ladder {
		roles += fmt.Sprintf("%d%s ", step.Frame, step.Role)
	}
	if want := "1former 4former 2former 5former 3former 6former 7syn 9old-ack 8reset 10syn 11syn-ack "; roles != want {
		t.Errorf("ladder %s", roles)
	}
}
