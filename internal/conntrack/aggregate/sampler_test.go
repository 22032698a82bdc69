package aggregate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// samples are DNATed TCP, UDP over IPv6 without an answer, and an echo.
var samples = []conntrack.Entry{
	{
		Family:   unix.AF_INET,
		Orig:     conntrack.Tuple{Src: addr("198.18.0.0"), Dst: addr("198.19.0.1"), Proto: 6, SrcPort: 1024, DstPort: 8080},
		Reply:    conntrack.Tuple{Src: addr("198.19.1.2"), Dst: addr("198.18.0.0"), Proto: 6, SrcPort: 80, DstPort: 1024},
		Status:   conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed | conntrack.DstNAT | conntrack.SrcNATDone | conntrack.DstNATDone,
		TCPState: conntrack.TCPEstablished, Timeout: 600, Mark: 0x6e61746b, ID: 0xb06d5f9c, Use: 1,
	},
	{
		Family: unix.AF_INET6,
		Orig:   conntrack.Tuple{Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"), Proto: 17, SrcPort: 7, DstPort: 53},
		Reply:  conntrack.Tuple{Src: addr("2001:db8::2"), Dst: addr("2001:db8::1"), Proto: 17, SrcPort: 53, DstPort: 7},
		Status: conntrack.Confirmed, Timeout: 30, Zone: 5, Start: 0x17a0000000000001, Fields: conntrack.NoMark,
	},
	{
		Family: unix.AF_INET,
		Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 1, ICMPID: 7, ICMPType: 8},
		Reply:  conntrack.Tuple{Src: addr("198.18.0.2"), Dst: addr("198.18.0.1"), Proto: 1, ICMPID: 7, ICMPType: 0},
		Status: conntrack.Confirmed, Timeout: 30, Fields: conntrack.NoMark,
	},
}

func TestSampler(t *testing.T) {
	tcp := samples[0]
	plain := tcp
	plain.Reply = plain.Orig.Mirror()
	plain.TCPState, plain.Status, plain.Timeout = conntrack.TCPSynSent, conntrack.Confirmed, 119
	masqueraded := samples[1]
	masqueraded.Reply.DstPort = 50000
	stream := samples[1]
	stream.Status |= conntrack.SeenReply | conntrack.Assured | conntrack.Offload
	s := NewSampler()
	for _, e := range []conntrack.Entry{tcp, tcp, plain, masqueraded, stream, samples[2]} {
		s.Add(&e)
	}
	remaining := func(i int, n int64) []int64 { return append(make([]int64, i), n) }
	want := &snapshot.ConntrackTable{
		Sampled: 6, Complete: true,
		ByProtocol: map[string]int64{"tcp": 3, "udp": 2, "icmp": 1},
		ByTCPState: map[string]int64{"ESTABLISHED": 2, "SYN_SENT": 1},
		Assured:    3, Unreplied: 3, SNAT: 1, DNAT: 2, Offloaded: 1,
		Remaining: map[string][]int64{
			"tcp/ESTABLISHED": remaining(120, 2), "tcp/SYN_SENT": remaining(23, 1),
			"udp/unreplied": remaining(6, 1), "udp/stream": remaining(6, 1), "icmp": remaining(6, 1),
		},
		TopSources: []snapshot.Talker{{Who: "198.18.0.0", Entries: 3}, {Who: "2001:db8::1", Entries: 2}, {Who: "198.18.0.1", Entries: 1}},
		TopServices: []snapshot.Talker{
			{Who: "tcp 198.19.0.1:8080", Entries: 3}, {Who: "udp [2001:db8::2]:53", Entries: 2}, {Who: "icmp 198.18.0.2", Entries: 1},
		},
		Unanswered: &snapshot.Unanswered{
			TCP: 1, UDP: 1,
			Sources: []snapshot.UnansweredSource{
				{Who: "198.18.0.0", Protocol: "tcp", Entries: 1, OfEntries: 3}, {Who: "2001:db8::1", Protocol: "udp", Entries: 1, OfEntries: 2},
			},
			Services: []snapshot.Talker{{Who: "tcp 198.19.0.1:8080", Entries: 1}, {Who: "udp [2001:db8::2]:53", Entries: 1}},
		},
	}
	if d := cmp.Diff(want, s.Table(true)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestTopKeepsItsBounds: with more keys than find room counts are little too low, and
// never too high.
func TestTopKeepsItsBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const additions, room = 400_000, 60_000
	tp := newTop()
	came := map[end]int64{}
	for range additions {
		n := uint32(math.Exp(rng.Float64() * 13)) // few keys often, 440,000 in all
		k := end{netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), uint16(n >> 16), uint8(1 + n%3)}
		came[k]++
		tp.add(k)
	}
	if len(came) <= tp.table.Len() || tp.table.Exact() || tp.table.Len() < room {
		t.Fatalf("%d keys came, %d are there", len(came), tp.table.Len())
	}
	for k, n := range came {
		if got := tp.count(k); got > n || got < n-additions/room {
			t.Fatalf("key %v: counted %d, came %d times", k, got, n)
		}
	}
	for _, c := range tp.largest(5) {
		if c.n != came[c.end] {
			t.Errorf("%v: %d, came %d times", c.end, c.n, came[c.end])
		}
	}
	names := tp.talkers()
	if len(names) != shown || !slices.IsSortedFunc(names, func(a, b snapshot.Talker) int { return int(b.Entries - a.Entries) }) {
		t.Errorf("talkers = %v", names)
	}
}

// table simulates a hash table: entries in the order of a hash of what they are.
type table struct {
	rng     *rand.Rand
	entries map[uint64]conntrack.Entry
	nextID  uint32
}

func (tb *table) born(n int, proto uint8) {
	for range n {
		e := samples[0]
		e.Orig.Proto, e.Reply.Proto = proto, proto
		e.Orig.Src = netip.AddrFrom4([4]byte{198, 18, byte(tb.rng.IntN(8)), byte(tb.rng.IntN(250))})
		// The tracker has a tuple once.
		e.Orig.DstPort, e.Orig.SrcPort = uint16(tb.nextID>>16), uint16(tb.nextID)
		if proto == unix.IPPROTO_UDP {
			e.TCPState, e.Status = conntrack.TCPNone, conntrack.Confirmed
		} else {
			e.TCPState = conntrack.TCPTimeWait
		}
		tb.nextID++
		e.ID = tb.nextID
		tb.entries[tb.rng.Uint64()] = e
	}
}

func (tb *table) die(share float64) {
	for h := range tb.entries {
		if tb.rng.Float64() < share {
			delete(tb.entries, h)
		}
	}
}

// dump calls fn with at most n entries in hash order.
func (tb *table) dump(n int, fn func(*conntrack.Entry)) (complete bool) {
	order := make([]uint64, 0, len(tb.entries))
	for h := range tb.entries {
		order = append(order, h)
	}
	slices.Sort(order)
	for i, h := range order {
		if i == n {
			return false
		}
		e := tb.entries[h]
		fn(&e)
	}
	return true
}

func TestBirthsFindsTheRate(t *testing.T) {
	const seconds = 2.0
	tests := []struct {
		size     int
		tcp, udp int
		deaths   float64
		prefix   int
	}{
		{size: 0, tcp: 500, prefix: 1 << 20},
		{size: 5000, tcp: 0, udp: 0, deaths: 0.5, prefix: 1 << 20},
		{size: 5000, tcp: 1000, udp: 300, prefix: 1 << 20},
		{size: 5000, tcp: 1000, udp: 300, deaths: 0.3, prefix: 5500}, // the second dump whole, or just not
		{size: 40000, tcp: 8000, udp: 2000, prefix: 8000},
		{size: 40000, tcp: 8000, udp: 2000, deaths: 0.6, prefix: 8000}, // shrinks: the second dump reaches further
		{size: 40000, tcp: 80000, udp: 0, prefix: 8000},                // grows: the first one does
		{size: 40000, tcp: 100, udp: 0, prefix: 8000},
	}
	for i, c := range tests {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			outside, rounds := 0, 15
			for round := range rounds {
				tb := &table{rng: rand.New(rand.NewPCG(uint64(i), uint64(round))), entries: map[uint64]conntrack.Entry{}}
				tb.born(c.size, unix.IPPROTO_TCP)
				b := NewFlowEstimator(7)
				b.EndFirst(tb.dump(c.prefix, b.First))
				tb.die(c.deaths)
				tb.born(c.tcp, unix.IPPROTO_TCP)
				tb.born(c.udp, unix.IPPROTO_UDP)
				complete := tb.dump(c.prefix, b.Second)
				f := b.Flows(seconds, int64(len(tb.entries)), complete)
				if f == nil {
					t.Fatal("no estimate")
				}
				want := float64(c.tcp+c.udp) / seconds
				if math.Abs(f.TotalPerSecond-want) > 2.6*f.StandardErrorPerSecond {
					outside++
				}
				sum := f.PerSecond["tcp/TIME_WAIT"] + f.PerSecond["udp/unreplied"]
				if math.Abs(sum-f.TotalPerSecond) > 1e-6*want {
					t.Fatalf("classes %v do not sum up to %v", f.PerSecond, f.TotalPerSecond)
				}
				if c.prefix == 1<<20 && math.Abs(f.TotalPerSecond-want) > 1e-9 {
					t.Fatalf("whole table: %v per second, want exactly %v", f.TotalPerSecond, want)
				}
			}
			// Within 2.6 standard errors stand 99 % of estimates.
			if outside > 1 {
				t.Errorf("%d of %d estimates are further than 2.6 standard errors from the truth", outside, rounds)
			}
		})
	}
}

func TestBirthsWithoutOverlap(t *testing.T) {
	e := samples[0]
	b := NewFlowEstimator(1)
	b.First(&e)
	b.EndFirst(false)
	e.Orig.SrcPort++
	b.Second(&e)
	if f := b.Flows(1, 100, false); f != nil {
		t.Errorf("dumps that share nothing: %+v, want no estimate", f)
	}
	if f := b.Flows(0, 100, false); f != nil {
		t.Errorf("no time between: %+v, want no estimate", f)
	}
}

func TestBirthsGroups(t *testing.T) {
	b := NewFlowEstimator(1)
	b.EndFirst(true)
	for i := range 20 {
		e := samples[0]
		e.Orig.SrcPort = uint16(i)
		e.Orig.DstPort = uint16(i % 4)
		b.Second(&e)
	}
	if f := b.Flows(1, 20, true); f.Groups != 4 {
		t.Errorf("Groups = %d, want 4", f.Groups)
	}
}

func BenchmarkSample(b *testing.B) {
	e := samples[0]
	s := NewSampler()
	b.ReportAllocs()
	for b.Loop() {
		s.Add(&e)
	}
}

func BenchmarkFlowEstimator(b *testing.B) {
	e := samples[0]
	s := NewFlowEstimator(1)
	b.ReportAllocs()
	for b.Loop() {
		e.Orig.SrcPort++
		s.First(&e)
	}
}
