package capacity

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
)

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]Release{
		"6.12": {Major: 6, Minor: 12}, "2.6": {Major: 2, Minor: 6}, "4": {Major: 4}, "5.15.103": {Major: 5, Minor: 15, Patch: 103},
		"3.10.0-1127.el7.x86_64": {Major: 3, Minor: 10, Build: 1127, Vendor: true}, "6.1.0-13-amd64": {Major: 6, Minor: 1, Build: 13, Vendor: true},
		"6.18.44-fc-v669": {Major: 6, Minor: 18, Patch: 44, Vendor: true}, "6.3.0-rc2": {Major: 6, Minor: 3},
	} {
		if got, err := ParseRelease(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "new", "1.0", "-3.1", "3.x", "3.-1", "999.1", "6.99999999999999999999"} {
		if got, err := ParseRelease(text); err == nil || got != (Release{}) {
			t.Errorf("%q: %+v, %v; want an error", text, got, err)
		}
	}
}

// TestCaps: mainline and its updates are certain, vendors' kernels are not.
func TestCaps(t *testing.T) {
	none := Cap{}
	for text, want := range map[string][]Cap{
		"4.19": {none}, "5.10.200": {none}, "5.15.102": {shortCap}, "5.15.103": {longCap}, "6.0.19": {shortCap}, "6.1.19": {shortCap}, "6.1.20": {longCap},
		"6.2.6": {shortCap}, "6.2.7": {longCap}, "6.3": {longCap}, "6.12": {longCap}, "6.18.44-fc": {longCap},
		"5.15": {shortCap, longCap}, "6.1": {shortCap, longCap}, // any update of these
		"5.15.0-91-generic": {shortCap, longCap}, "6.1.0-13-amd64": {shortCap, longCap}, "5.14.0-362.el9": {none, shortCap, longCap},
	} {
		r, err := ParseRelease(text)
		got, why := r.Caps()
		if err != nil || !slices.Equal(got, want) || (why == "") != (len(want) == 1) {
			t.Errorf("%s: %v because %q, %v; want %v", text, got, why, err, want)
		}
	}
	if got, _ := (Release{}).Caps(); len(got) != 3 {
		t.Errorf("an unknown kernel: %v", got)
	}
}

// TestLoss has the shares of new connections that a mean chain length costs, by the sum over Poisson's distribution.
func TestLoss(t *testing.T) {
	for _, tt := range []struct {
		cap        Cap
		mean, want float64
	}{
		{cap: shortCap, mean: 4, want: 0.00102}, {cap: shortCap, mean: 8, want: 0.0536}, {cap: shortCap, mean: 12, want: 0.2074}, {cap: shortCap, mean: 16, want: 0.3853},
		{cap: longCap, mean: 32, want: 0.000111}, {cap: longCap, mean: 48, want: 0.0934}, {cap: longCap, mean: 64, want: 0.5796},
		{cap: Cap{}, mean: 1e9, want: 0}, {cap: longCap, mean: 0, want: 0}, {cap: longCap, mean: math.NaN(), want: 0}, {cap: longCap, mean: math.Inf(1), want: 1},
	} {
		if got := tt.cap.Loss(tt.mean); math.Abs(got-tt.want) > 0.01*tt.want+1e-12 {
			t.Errorf("%+v with chains of %g: %g, want %g", tt.cap, tt.mean, got, tt.want)
		}
	}
	for _, c := range []Cap{shortCap, longCap} {
		for mean, before := 0.0, 0.0; mean < 250; mean += 0.5 {
			now := c.Loss(mean)
			if !(now >= before-1e-12 && now <= 1) {
				t.Fatalf("%+v: %g at %g, after %g", c, now, mean, before)
			}
			before = now
		}
	}
}

// TestPublishedRates has the case of the port-reuse page: 63,487 ports of one address.
func TestPublishedRates(t *testing.T) {
	const ports = 65535 - 2048
	old := LongestTimeWait(TimeWaitWheel, 600).Seconds()
	vendor := LongestTimeWait(TimeWaitWheelRearm, 600).Seconds()
	for _, tt := range []struct {
		what       string
		hold       float64
		want, held float64
	}{
		{"sessions of the balancer", 120, 529, snapshot.IPVSTimeWait},
		{"TIME_WAIT up to 4.0", 112.5, 564, old},
		// 1,049/s was published for 60.5 s = 7 × 8.5 s + 1 s; the timers of that kernel come to 7 × 8.5 s + 7.5 s.
		{"TIME_WAIT of 3.10.0-1127", 67, 948, vendor},
		{"TIME_WAIT since 4.1", 60, 1058, TimeWaitLength.Seconds()},
	} {
		if got := Wrap(ports, tt.hold); math.Abs(got-tt.want) > 1 || tt.hold != tt.held {
			t.Errorf("%s: %.1f/s with %g s, want %g/s; natkit holds them for %g s", tt.what, got, tt.hold, tt.want, tt.held)
		}
	}
	if got := Wrap(ports, 60.5); math.Abs(got-1049) > 1 || vendor == 60.5 {
		t.Errorf("60.5 s: %.1f/s", got)
	}
	if got := Wrap(ports, 0); !math.IsInf(got, 1) {
		t.Errorf("ports that are not held: %g/s", got)
	}
}

// TestPublishedMemory: 1,000 entries of 376 B and 65,536 buckets of 16 B are 1.4 MB; with the sizes of a current
// kernel the same table takes less, as a bucket is one pointer.
func TestPublishedMemory(t *testing.T) {
	if got := (Cost{EntryBytes: 376, BucketBytes: 16}).TableBytes(1000, 65536); got != 1_424_576 {
		t.Errorf("as published: %d B", got)
	}
	for release, want := range map[string]int64{"6.18": 1000*384 + 65536*8, "4.19": 1000*384 + 65536*8, "4.4": 1000*448 + 65536*8} {
		r, err := ParseRelease(release)
		if got := r.Cost().TableBytes(1000, 65536); err != nil || got != want {
			t.Errorf("Linux %s: %d B, want %d (%v)", release, got, want, err)
		}
	}
}

func TestDefaultTable(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		release        string
		memory         uint64
		buckets, limit int64
		known          bool
	}{
		{"5.10.1", 8 * gib, 65536, 262144, true}, {"5.4", 2 * gib, 16384, 65536, true}, {"5.4", gib / 2, 4096, 16384, true},
		{"6.1", 8 * gib, 262144, 262144, true}, {"6.12", 2 * gib, 65536, 65536, true}, {"6.12", 1, 1024, 1024, true}, {"6.12", math.MaxUint64, 262144, 262144, true},
		{"5.15", 8 * gib, 0, 0, false}, {"3.10", 8 * gib, 0, 0, false}, {"", 8 * gib, 0, 0, false},
	} {
		buckets, limit, known := DefaultTable(snapshot.Kernel{Release: tt.release}, &snapshot.Memory{TotalBytes: tt.memory})
		if buckets != tt.buckets || limit != tt.limit || known != tt.known {
			t.Errorf("%s with %d B: %d, %d, %t", tt.release, tt.memory, buckets, limit, known)
		}
	}
	if _, _, known := DefaultTable(snapshot.Kernel{Release: "6.12"}, nil); known {
		t.Error("known without the memory")
	}
}

func TestTCPHash(t *testing.T) {
	for memory, want := range map[uint64]int64{0: 524288, 1: 1, 8 << 30: 65536, 9 << 30: 131072, 24 << 30: 262144, 64 << 30: 524288, math.MaxUint64: 524288} {
		if got := TCPHash(memory); got != want {
			t.Errorf("TCPHash(%d) = %d, want %d", memory, got, want)
		}
	}
}

func TestPorts(t *testing.T) {
	got := []int64{
		PortsFor(1000, 100, 120, 1), PortsFor(1000, 100, 120, 13), PortsFor(math.MaxInt64, 1e300, 1e300, 1),
		AddressesFor(0, 64512), AddressesFor(64512, 64512), AddressesFor(64513, 64512), AddressesFor(math.MaxInt64, 1),
		Tuples(64512, 2, 3), Tuples(math.MaxInt64, math.MaxInt64, 2),
		Files(0), Files(math.MaxInt64), Backlog(0, 0), Backlog(1_000_000, 0), Backlog(10, 9000), Backlog(math.MaxInt64, math.Inf(1)),
		TCPPages(3), SocketBytes(2), WithHeadroom(100),
	}
	want := []int64{
		13000, 1000, math.MaxInt64,
		1, 1, 2, math.MaxInt64,
		387072, math.MaxInt64,
		1000, math.MaxInt64, 128, 32768, 16384, 65535,
		6, 2 * (5<<10 + 2*4096), 125,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
