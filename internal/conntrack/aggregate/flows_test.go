package aggregate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"

	"github.com/natkit/natkit/internal/unix"
)

func tcpEntry(s conntrack.TCPState, left uint32, status conntrack.Status) conntrack.Entry {
	e := samples[0]
	e.TCPState, e.Timeout, e.Status = s, left, conntrack.Confirmed|status
	return e
}

func udpEntry(left uint32, status conntrack.Status) conntrack.Entry {
	e := tcpEntry(conntrack.TCPNone, left, status)
	e.Orig.Proto, e.Reply.Proto = unix.IPPROTO_UDP, unix.IPPROTO_UDP
	return e
}

func TestBirthsOfReusedTuples(t *testing.T) {
	const answered = conntrack.SeenReply | conntrack.Assured
	tests := map[string]struct {
		before, after conntrack.Entry
		// id and start change what the kernel gives to a new entry.
		id    uint32
		start uint64
		gap   float64
		want  float64
	}{
		"another ID":             {before: tcpEntry(conntrack.TCPEstablished, 600, answered), after: tcpEntry(conntrack.TCPEstablished, 600, answered), id: 1, gap: 2, want: 1},
		"another time of birth":  {before: tcpEntry(conntrack.TCPEstablished, 600, answered), after: tcpEntry(conntrack.TCPEstablished, 600, answered), start: 5, gap: 2, want: 1},
		"nothing happened":       {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPTimeWait, 98, answered), gap: 2},
		"rounded in its favour":  {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPTimeWait, 99, answered), gap: 1.9},
		"on the boundary":        {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPTimeWait, 99, answered), gap: 2},
		"just beyond it":         {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPTimeWait, 99, answered), gap: 2.02, want: 1},
		"closed again":           {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPTimeWait, 119, answered), gap: 2, want: 1},
		"closed again, no wait":  {before: tcpEntry(conntrack.TCPTimeWait, 118, answered), after: tcpEntry(conntrack.TCPTimeWait, 119, answered), gap: 0, want: 1},
		"reset again":            {before: tcpEntry(conntrack.TCPClose, 3, answered), after: tcpEntry(conntrack.TCPClose, 9, answered), gap: 2, want: 1},
		"reset after TIME_WAIT":  {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPClose, 9, answered), gap: 2, want: 1},
		"open again":             {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(conntrack.TCPEstablished, 432000, answered), gap: 2, want: 1},
		"asked again":            {before: tcpEntry(conntrack.TCPClose, 5, answered), after: tcpEntry(conntrack.TCPSynSent, 119, 0), gap: 2, want: 1},
		"LAST_ACK, then open":    {before: tcpEntry(conntrack.TCPLastAck, 29, answered), after: tcpEntry(conntrack.TCPEstablished, 432000, answered), gap: 2, want: 1},
		"simultaneous open":      {before: tcpEntry(conntrack.TCPSynSent, 100, 0), after: tcpEntry(conntrack.TCPSynSent2, 119, 0), gap: 2},
		"two years left":         {before: tcpEntry(conntrack.TCPTimeWait, math.MaxUint32, answered), after: tcpEntry(conntrack.TCPTimeWait, leftMax-2, answered), gap: 2},
		"packets came":           {before: tcpEntry(conntrack.TCPEstablished, 431000, answered), after: tcpEntry(conntrack.TCPEstablished, 432000, answered), gap: 2},
		"half closed, data came": {before: tcpEntry(conntrack.TCPCloseWait, 20, answered), after: tcpEntry(conntrack.TCPCloseWait, 59, answered), gap: 2},
		"FIN sent again":         {before: tcpEntry(conntrack.TCPLastAck, 20, answered), after: tcpEntry(conntrack.TCPLastAck, 29, answered), gap: 2},
		"SYN sent again":         {before: tcpEntry(conntrack.TCPSynSent, 100, 0), after: tcpEntry(conntrack.TCPSynSent, 119, 0), gap: 2},
		"closing goes on":        {before: tcpEntry(conntrack.TCPLastAck, 20, answered), after: tcpEntry(conntrack.TCPTimeWait, 119, answered), gap: 2},
		"closed from open":       {before: tcpEntry(conntrack.TCPEstablished, 300, answered), after: tcpEntry(conntrack.TCPTimeWait, 119, answered), gap: 2},
		"a state of the future":  {before: tcpEntry(conntrack.TCPTimeWait, 100, answered), after: tcpEntry(14, 300, answered), gap: 2},
		"UDP packets":            {before: udpEntry(10, answered), after: udpEntry(119, answered), gap: 2},
		"UDP is answered":        {before: udpEntry(10, 0), after: udpEntry(119, answered), gap: 2},
		"UDP not answered yet":   {before: udpEntry(1, answered), after: udpEntry(29, 0), gap: 2, want: 1},
		"UDP no stream yet":      {before: udpEntry(1, answered), after: udpEntry(29, conntrack.SeenReply), gap: 2, want: 1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewFlowEstimator(1)
			b.First(&c.before)
			b.EndFirst(true)
			b.BeginSecond(Gap{Seconds: c.gap})
			c.after.ID += c.id
			c.after.Start += c.start
			b.Second(&c.after)
			f := b.Flows(1, 1, true)
			if f.TotalPerSecond != c.want || float64(f.Groups) != c.want {
				t.Errorf("%v births in %d groups, want %v", f.TotalPerSecond, f.Groups, c.want)
			}
		})
	}
}

// TestBirthsWithoutAgesAreNotCorrected has 100 tuples that were closed just before
// the first dump; by the second one, 60 were closed again in the last second, 20
// in the one before, 20 not.
func TestBirthsWithoutAgesAreNotCorrected(t *testing.T) {
	estimate := func(gap Gap, left uint32) float64 {
		b := NewFlowEstimator(1)
		entry := func(i int, left uint32) *conntrack.Entry {
			e := tcpEntry(conntrack.TCPTimeWait, left, conntrack.SeenReply|conntrack.Assured)
			e.Orig.SrcPort = uint16(i)
			return &e
		}
		for i := range 100 {
			b.First(entry(i, 119))
		}
		b.EndFirst(true)
		b.BeginSecond(gap)
		for i := range 100 {
			switch {
			case i < 60:
				b.Second(entry(i, left))
			case i < 80:
				b.Second(entry(i, 118))
			default:
				b.Second(entry(i, 117))
			}
		}
		return b.Flows(2, 100, true).TotalPerSecond
	}
	for name, c := range map[string]struct {
		gap  Gap
		left uint32
		want float64
	}{
		"ages known":           {Gap{Seconds: 2.1, Sysctls: timeouts("tcp_timeout_time_wait", 120)}, 119, 60},
		"timeout not known":    {Gap{Seconds: 2.1}, 119, 40},
		"another timeout":      {Gap{Seconds: 2.1, Sysctls: timeouts("tcp_timeout_time_wait", 119)}, 120, 40},
		"timeout of the other": {Gap{Seconds: 2.1, Sysctls: timeouts("tcp_timeout_close", 120)}, 119, 40},
	} {
		if got := estimate(c.gap, c.left); got != c.want {
			t.Errorf("%s: %v/s, want %v/s", name, got, c.want)
		}
	}
}

// TestBirthsOfASteadyClient makes connections of one client over simulated time: tuples
// are taken as each case says, an entry keeps its ID, and stays in TIME_WAIT.
func TestBirthsOfASteadyClient(t *testing.T) {
	const timeWait = 120
	sweep := func(rng *rand.Rand, ports int) func() int {
		at := 0
		return func() int { at = (at + 1 + rng.IntN(8)) % ports; return at }
	}
	tests := map[string]struct {
		perSecond float64
		open      float64 // seconds that a connection lasts
		gap       float64
		port      func(*rand.Rand) func() int
		busy      float64 // how many times the rate the last second has
		low, high float64 // the estimate, as a share of the average rate
	}{
		"never again":           {3000, 0, 2, func(*rand.Rand) func() int { i := 0; return func() int { i++; return i } }, 1, 0.99, 1.01},
		"never again, busy end": {3000, 0, 2, func(*rand.Rand) func() int { i := 0; return func() int { i++; return i } }, 3, 0.99, 1.01},
		"in turn":               {3000, 0, 2, func(*rand.Rand) func() int { i := 0; return func() int { i++; return i % 12000 } }, 1, 0.97, 1.03},
		"as Linux does":         {3000, 0, 2, func(r *rand.Rand) func() int { return sweep(r, 14000) }, 1, 0.92, 1.05},
		"as Linux, open 1 s":    {3000, 1, 2, func(r *rand.Rand) func() int { return sweep(r, 28000) }, 1, 0.85, 1.05},
		"as Linux, longer":      {3000, 0, 4.3, func(r *rand.Rand) func() int { return sweep(r, 40000) }, 1, 0.9, 1.05},
		"any of many":           {3000, 0, 2, func(r *rand.Rand) func() int { return func() int { return r.IntN(60000) } }, 1, 0.95, 1.05},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(len(name))))
			port := c.port(rng)
			opened := map[int]float64{}
			dump := func(now float64, fn func(*conntrack.Entry)) {
				for p, at := range opened {
					e := tcpEntry(conntrack.TCPEstablished, 432000, conntrack.SeenReply|conntrack.Assured)
					if left := at + c.open + timeWait - now; left <= timeWait {
						e.TCPState, e.Timeout = conntrack.TCPTimeWait, uint32(left)
					}
					e.Orig.SrcPort, e.Orig.DstPort = uint16(p), uint16(p>>16)
					fn(&e)
				}
			}
			load := func(from, until, rate float64) (n int) {
				for now := from; now < until; now += 1 / rate {
					p := port()
					if at, ok := opened[p]; ok && now < at+c.open {
						continue
					}
					opened[p] = now
					n++
				}
				return n
			}
			load(0.377, 20, c.perSecond)
			b := NewFlowEstimator(1)
			dump(20, b.First)
			b.EndFirst(true)
			end := 20 + c.gap + 0.01
			truth := float64(load(20, end-1, c.perSecond)+load(end-1, end, c.perSecond*c.busy)) / (end - 20)
			b.BeginSecond(Gap{Seconds: end - 20, Sysctls: timeouts("tcp_timeout_time_wait", timeWait, "tcp_timeout_close", 10)})
			dump(end, b.Second)
			f := b.Flows(end-20, int64(len(opened)), true)
			t.Logf("%.0f/s of %.0f/s (%.3f) ± %.0f, %d entries", f.TotalPerSecond, truth, f.TotalPerSecond/truth, f.StandardErrorPerSecond, len(opened))
			if share := f.TotalPerSecond / truth; share < c.low || share > c.high {
				t.Errorf("%.0f/s, %.0f/s were made", f.TotalPerSecond, truth)
			}
		})
	}
}

// timeouts are sysctls of the connection tracker, by name and seconds.
func timeouts(pairs ...any) snapshot.Sysctls {
	all := snapshot.Sysctls{}
	for i := 0; i < len(pairs); i += 2 {
		all["net.netfilter.nf_conntrack_"+pairs[i].(string)] = fmt.Sprint(pairs[i+1])
	}
	return all
}
