package pair

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/unix"
)

// world is traffic through a NAT that loses, doubles and delays packets, with what
// happened to each.
type world struct {
	rng         *rand.Rand
	in, out     []observed // as both captures have it
	shift       int64      // of the outside clock
	alike       bool       // UDP payloads are few
	ids         bool       // hosts number their packets
	lost, twice [2]int64
	through     [2]int64
	next        map[netip.Addr]uint16
}

// The directions of a world.
const (
	outward = 0
	inward  = 1
)

// send lets one packet go from a side, and the NAT do what it does.
func (w *world) send(at int64, direction int, inside, outside [2]netip.AddrPort, key uint64, weak bool, protocol uint8, kind Kind) {
	src := inside[0].Addr()
	if direction == inward {
		src = outside[1].Addr()
	}
	o := observed{key: key, weak: weak, protocol: protocol, kind: kind, ttl: 64}
	if w.ids {
		w.next[src]++
		o.ipid = w.next[src]
	}
	entry, exit := &w.in, &w.out
	here, there := inside, outside
	if direction == inward {
		entry, exit = exit, entry
		here, there = [2]netip.AddrPort{outside[1], outside[0]}, [2]netip.AddrPort{inside[1], inside[0]}
	}
	o.at, o.Src, o.Dst = at, here[0], here[1]
	*entry = append(*entry, o)
	if w.rng.IntN(100) < 4 {
		w.lost[direction]++
		return
	}
	w.through[direction]++
	o.at, o.Src, o.Dst, o.ttl = at+10_000+w.rng.Int64N(300_000), there[0], there[1], 63
	*exit = append(*exit, o)
	if w.rng.IntN(100) < 1 {
		w.twice[direction]++
		o.at += w.rng.Int64N(1_000_000)
		*exit = append(*exit, o)
	}
}

// flow sends a connection's or an exchange's packets.
func (w *world) flow(i int, at int64) {
	host := netip.AddrFrom4([4]byte{10, 0, byte(i % 7), byte(i % 50)})
	server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 19, 0, byte(i % 3)}), 80)
	inside := [2]netip.AddrPort{netip.AddrPortFrom(host, uint16(20000+i)), server}
	outside := [2]netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("198.19.0.100"), uint16(1024+i%300)), server}
	udp := i%3 == 0
	for range 2 + w.rng.IntN(12) {
		at += w.rng.Int64N(50_000_000)
		key := w.rng.Uint64()
		if udp && w.alike {
			key %= 5
		}
		direction := w.rng.IntN(2)
		protocol, kind := uint8(unix.IPPROTO_TCP), Data
		if udp {
			protocol, kind = unix.IPPROTO_UDP, UDP
		}
		w.send(at, direction, inside, outside, key, udp, protocol, kind)
		if !udp && w.rng.IntN(10) == 0 { // sent again, the same as before
			w.send(at+200_000_000, direction, inside, outside, key, udp, protocol, kind)
		}
	}
}

// capture puts a side's packets into the order of its clock, and numbers them.
func (w *world) capture(list []observed, shift int64) *source {
	slices.SortStableFunc(list, func(a, b observed) int { return cmp.Compare(a.at, b.at) })
	for i := range list {
		list[i].at += shift
		list[i].frame = int64(i + 1)
	}
	day := int64(24 * time.Hour)
	return &source{ahead: list, ended: true, any: true, first: shift - day, last: shift + day, stop: func() {}}
}

func newWorld(seed uint64, alike, ids bool) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), alike: alike, ids: ids, next: map[netip.Addr]uint16{}}
	for i := range 600 {
		w.flow(i, w.rng.Int64N(int64(20*time.Second)))
	}
	return w
}

// match compares the world's captures; the memory is as given.
func (w *world) match(t *testing.T, o Options) (*Report, *matcher) {
	t.Helper()
	m := newMatcher(o)
	m.sources = [2]*source{w.capture(w.in, 0), w.capture(w.out, w.shift)}
	m.run()
	return m.report(), m
}

// TestWorlds compares what the matcher finds with what was done to each packet.
func TestWorlds(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(seed, false, seed%2 == 0)
			w.shift = int64(seed) * int64(seed) * 123_456_789
			r, _ := w.match(t, Options{})
			got := [6]int64{r.Out.Matched, r.Out.Lost, r.Out.Twice, r.In.Matched, r.In.Lost, r.In.Twice}
			want := [6]int64{w.through[outward], w.lost[outward], w.twice[outward], w.through[inward], w.lost[inward], w.twice[inward]}
			wrong := r.Ambiguous
			for i := range got {
				wrong += abs(got[i] - want[i])
			}
			// Where a packet is lost, and the same one sent again is doubled, there are two
			// before and two behind the NAT: that looks like no loss at all.
			if wrong > 6 || r.Out.Matched+r.Out.Lost != want[0]+want[1] || r.In.Matched+r.In.Lost != want[3]+want[4] {
				t.Errorf("got %v and %d ambiguous, want %v", got, r.Ambiguous, want)
			}
			if r.Swapped || r.SidesBy != ByTranslation || r.Flows.Translated < 590 {
				t.Errorf("sides %v by %s, %+v", r.Swapped, r.SidesBy, r.Flows)
			}
			if wrong := r.Clock.Offset - seconds(w.shift); wrong > 0.0003 || wrong < -0.0003 {
				t.Errorf("offset %v, want %v", r.Clock.Offset, seconds(w.shift))
			}
			if r.Out.Delay.Min < 0 || r.Out.Delay.Median > 0.5 || r.In.Delay.Median > 0.5 {
				t.Errorf("delays out %+v, in %+v", r.Out.Delay, r.In.Delay)
			}
		})
	}
}

// TestAlikeWorlds has datagrams of five contents only, in many flows at once: those that
// cannot be distinguished are ambiguous, and the reported pairs are right.
func TestAlikeWorlds(t *testing.T) {
	for seed := range uint64(6) {
		for _, ids := range []bool{false, true} {
			w := newWorld(seed, true, ids)
			r, _ := w.match(t, Options{})
			wrong := abs(r.Out.Lost-w.lost[outward]) + abs(r.In.Lost-w.lost[inward])
			sent := w.through[0] + w.through[1] + w.lost[0] + w.lost[1]
			if wrong > r.Ambiguous+sent/200 {
				t.Errorf("seed %d, IP IDs %v: lost %d and %d, want %v; %d ambiguous of %d", seed, ids, r.Out.Lost, r.In.Lost, w.lost, r.Ambiguous, sent)
			}
			if ids && r.Ambiguous > sent/10 {
				t.Errorf("seed %d, IP IDs %v: %d of %d are ambiguous", seed, ids, r.Ambiguous, sent)
			}
		}
	}
}

// BenchmarkAlike has nothing but packets that are all alike, of many flows, as a
// generator sends them: the worst case.
func BenchmarkAlike(b *testing.B) {
	const packets = 20_000
	w := &world{}
	for i := range packets {
		o := observed{at: int64(i) * 1000, key: 1, weak: true, protocol: unix.IPPROTO_UDP, kind: UDP, ttl: 64,
			Tuple: frame.Tuple{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i)), Dst: netip.MustParseAddrPort(server)}}
		w.in = append(w.in, o)
		o.at, o.ttl, o.Src = o.at+500, 63, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2}), uint16(i))
		w.out = append(w.out, o)
	}
	for b.Loop() {
		m := newMatcher(Options{})
		m.sources = [2]*source{w.capture(slices.Clone(w.in), 0), w.capture(slices.Clone(w.out), 0)}
		m.run()
	}
	b.ReportMetric(float64(b.N)*2*packets/b.Elapsed().Seconds(), "packets/s")
}
