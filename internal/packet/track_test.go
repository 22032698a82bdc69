package packet

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTrack(t *testing.T) {
	for _, tt := range []struct {
		name      string
		sequences []uint32
		want      []Arrival
	}{
		{"in order", []uint32{0, 1, 2}, []Arrival{InOrder, InOrder, InOrder}},
		{"a gap", []uint32{0, 5, 6}, []Arrival{InOrder, InOrder, InOrder}},
		{"swapped", []uint32{1, 0, 2}, []Arrival{InOrder, Reordered, InOrder}},
		{"twice", []uint32{0, 0, 1, 0}, []Arrival{InOrder, Duplicated, InOrder, Duplicated}},
		{"late and again", []uint32{3, 1, 1}, []Arrival{InOrder, Reordered, Duplicated}},
		{"edge of the window", []uint32{64, 1, 0}, []Arrival{InOrder, Reordered, Late}},
		{"a jump clears the window", []uint32{0, 64, 0, 1}, []Arrival{InOrder, InOrder, Late, Reordered}},
	} {
		var track Track
		var got []Arrival
		for _, s := range tt.sequences {
			got = append(got, track.Observe(s))
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestTrackWraps(t *testing.T) {
	track := Track{Next: ^uint32(0), Seen: 1}
	for i, want := range []Arrival{InOrder, InOrder, Duplicated, InOrder} {
		if got := track.Observe([]uint32{^uint32(0), 0, ^uint32(0), 1}[i]); got != want {
			t.Errorf("packet %d: %v, want %v", i, got, want)
		}
	}
}

// TestTrackAgainstSet compares with a set that forgets nothing.
func TestTrackAgainstSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var track Track
	seen := map[uint32]bool{}
	next := uint32(0)
	for range 100_000 {
		s := next + uint32(random.IntN(100)) - min(next, 80)
		want := InOrder
		switch {
		case s >= next:
			next = s + 1
		case next-1-s >= Window:
			want = Late
		case seen[s]:
			want = Duplicated
		default:
			want = Reordered
		}
		seen[s] = true
		if got := track.Observe(s); got != want {
			t.Fatalf("sequence %d with next %d: %v, want %v", s, next, got, want)
		}
	}
}
