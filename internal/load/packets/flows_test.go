package packets

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
)

func addresses(first string, n int) []netip.Addr {
	list := []netip.Addr{netip.MustParseAddr(first)}
	for len(list) < n {
		list = append(list, list[len(list)-1].Next())
	}
	return list
}

// someFlows has 5 × 7 × 2 combinations.
func someFlows() Flows {
	return Flows{
		Count:        70,
		Sources:      addresses("198.18.0.1", 5),
		SourcePorts:  nat.Ports{First: 65529, Last: 65535},
		Destinations: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("203.0.113.2:443")},
		Seed:         1,
	}
}

func tuples(f Flows) []frame.Tuple {
	var list []frame.Tuple
	for i, tuple := range f.All {
		if i != len(list) {
			return nil
		}
		list = append(list, tuple)
	}
	return list
}

// TestFlowsReachAll: with as many flows as there are combinations, each comes once,
// whatever the seed.
func TestFlowsReachAll(t *testing.T) {
	for seed := range uint64(50) {
		flows := someFlows()
		flows.Seed = seed
		seen := map[frame.Tuple]bool{}
		for _, tuple := range tuples(flows) {
			if seen[tuple] {
				t.Fatalf("seed %d: %v comes twice", seed, tuple)
			}
			seen[tuple] = true
			if !slices.Contains(flows.Sources, tuple.Src.Addr()) || !slices.Contains(flows.Destinations, tuple.Dst) || tuple.Src.Port() < 65529 {
				t.Fatalf("seed %d: %v is no combination", seed, tuple)
			}
		}
		if len(seen) != 70 {
			t.Fatalf("seed %d: %d of 70 tuples", seed, len(seen))
		}
	}
}

func TestFlowsAreRepeatable(t *testing.T) {
	flows := someFlows()
	flows.Count = 30
	first := tuples(flows)
	if again := tuples(flows); !slices.Equal(first, again) || len(first) != 30 {
		t.Errorf("%v, and again %v", first, again)
	}
	flows.Count = 40
	if more := tuples(flows); !slices.Equal(first, more[:30]) {
		t.Error("more flows change the first ones")
	}
	flows.Seed = 2
	if other := tuples(flows); slices.Equal(first, other[:30]) {
		t.Error("another seed gives the same order")
	}
}

// TestFlowsAreDistinct has many flows of a great number of combinations.
func TestFlowsAreDistinct(t *testing.T) {
	flows := Flows{
		Count:        200_000,
		Sources:      addresses("2001:db8::1", 60_000),
		SourcePorts:  nat.Ports{First: 1024, Last: 65535},
		Destinations: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8:1::1]:80")},
		Seed:         3,
	}
	if err := flows.Check(); err != nil || !flows.IPv6() {
		t.Fatal(err)
	}
	seen := make(map[frame.Tuple]bool, flows.Count)
	for _, tuple := range flows.All {
		seen[tuple] = true
	}
	if len(seen) != flows.Count {
		t.Errorf("%d of %d tuples are distinct", len(seen), flows.Count)
	}
}

func TestFlowsStop(t *testing.T) {
	seen := 0
	for range someFlows().All {
		if seen++; seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("%d flows", seen)
	}
}

func TestFlowsCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Flows)
		want   string // empty: no error
	}{
		{"good", func(*Flows) {}, ""},
		{"one", func(f *Flows) { f.Count = 1 }, ""},
		{"one port", func(f *Flows) { f.Count, f.SourcePorts = 10, nat.Ports{First: 80, Last: 80} }, ""},
		{"as many as the table holds", func(f *Flows) {
			f.Count, f.Sources, f.SourcePorts = MaxFlows, addresses("198.18.0.1", 256), nat.Ports{First: 1, Last: 65535}
		}, ""},
		{"none", func(f *Flows) { f.Count = 0 }, "0 flows: must be 1 to"},
		{"negative", func(f *Flows) { f.Count = -1 }, "-1 flows: must be 1 to"},
		{"more than the table holds", func(f *Flows) { f.Count = MaxFlows + 1 }, "flows: must be 1 to 16777216"},
		{"no source", func(f *Flows) { f.Sources = nil }, "flows need source addresses"},
		{"no destination", func(f *Flows) { f.Destinations = nil }, "flows need source addresses"},
		{"no ports", func(f *Flows) { f.SourcePorts = nat.Ports{} }, "flows need source addresses"},
		{"ports backwards", func(f *Flows) { f.SourcePorts = nat.Ports{First: 9, Last: 5} }, "flows need source addresses"},
		{"too few combinations", func(f *Flows) { f.Count = 71 }, "71 flows: 5 source addresses × 7 source ports × 2 destinations make only 70"},
		{"too many combinations", func(f *Flows) {
			f.Sources, f.SourcePorts = addresses("198.18.0.1", 65536), nat.Ports{First: 1, Last: 65535}
		}, "fewer than 2^32 combinations"},
		{"invalid source", func(f *Flows) { f.Sources[1] = netip.Addr{} }, "source address invalid IP: not an address of a host"},
		{"unspecified", func(f *Flows) { f.Sources[1] = netip.IPv4Unspecified() }, "source address 0.0.0.0: not an address of a host"},
		{"broadcast", func(f *Flows) { f.Sources[1] = netip.MustParseAddr("255.255.255.255") }, "not an address of a host"},
		{"multicast", func(f *Flows) { f.Destinations[1] = netip.MustParseAddrPort("224.0.0.1:80") }, "destination 224.0.0.1:80: not an address of a host"},
		{"invalid destination", func(f *Flows) { f.Destinations[0] = netip.AddrPort{} }, "not an address of a host"},
		{"port 0", func(f *Flows) { f.Destinations[1] = netip.MustParseAddrPort("203.0.113.2:0") }, "the port must be 1 to 65535"},
		{"mixed sources", func(f *Flows) { f.Sources[1] = netip.MustParseAddr("2001:db8::1") }, "source address 2001:db8::1: all addresses must be of one family"},
		{"mixed destinations", func(f *Flows) { f.Destinations[1] = netip.MustParseAddrPort("[2001:db8::1]:80") }, "must be of one family"},
		{"mapped", func(f *Flows) { f.Sources[1] = netip.MustParseAddr("::ffff:198.18.0.9") }, "write it as 198.18.0.9"},
		{"zone", func(f *Flows) { f.Sources[1] = netip.MustParseAddr("fe80::1%eth0") }, "write it as fe80::1"},
		{"source twice", func(f *Flows) { f.Sources[4] = f.Sources[0] }, "source address 198.18.0.1 is given twice"},
		{"destination twice", func(f *Flows) { f.Destinations[1] = f.Destinations[0] }, "destination 203.0.113.1:80 is given twice"},
	} {
		flows := someFlows()
		tt.change(&flows)
		err := flows.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

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

// TestBitRates: 10 Gbit/s Ethernet carries 14,880,952 frames of 64 bytes per second
// (RFC 2544, section 20).
func TestBitRates(t *testing.T) {
	r := Result{SentPerSecond: 14880952, SentBytes: 6400}
	r.Sent = 100
	if got := r.SentBits(); got.Line < 9.9999e9 || got.Line > 10e9 || got.Frames != 14880952*64*8 {
		t.Errorf("%+v", got)
	}
	if got := r.ReceivedBits(); got != (BitRates{}) {
		t.Errorf("nothing came: %+v", got)
	}
}
