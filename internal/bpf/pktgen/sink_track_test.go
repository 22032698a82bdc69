package pktgen

import (
	"fmt"
	"testing"

	"github.com/natkit/natkit/internal/load/packets"
)

// TestSinkTracksSequences compares the receiver with packets.Track, with the lock and
// without, over sequence numbers that stay near the newest one, fall behind and jump.
func TestSinkTracksSequences(t *testing.T) {
	const count = 5000
	for _, concurrent := range []bool{false, true} {
		t.Run(fmt.Sprintf("concurrent %t", concurrent), func(t *testing.T) {
			cfg := config("198.18.0.1:9")
			cfg.Flows.Count = 3
			s := loadSink(t, cfg, concurrent)
			tracks := make([]packets.Track, len(s.flows))
			for i := range count {
				flow := s.random.IntN(len(s.flows))
				sequence := s.sequence(&tracks[flow])
				want := arrival(tracks[flow].Observe(sequence))
				frame := s.frame(s.flows[flow], uint32(flow), sequence, 78)
				want.Octets = uint64(len(frame))
				verdict, got := s.put(frame)
				if verdict != xdpDrop || got != want {
					t.Fatalf("packet %d: flow %d, sequence %d: verdict %d\n got %+v\nwant %+v", i, flow, sequence, verdict, got, want)
				}
			}
			c := s.counters()
			if c.Reordered < count/20 || c.Duplicated < count/20 || c.Late < count/50 {
				t.Errorf("the test has too few of a kind: %+v", c)
			}
		})
	}
}

// sequence chooses the number that comes next.
func (s *sinkTest) sequence(track *packets.Track) uint32 {
	switch s.random.IntN(10) {
	case 0: // a gap, wide at times
		return track.Next + s.random.Uint32N(100)
	case 1:
		return track.Next + 1<<31 - s.random.Uint32N(3) // as far as RFC 1982 goes, and too far
	case 2, 3, 4:
		return track.Next - 1 - s.random.Uint32N(80) // wraps at the start, and is old there
	case 5:
		return track.Next - 1
	}
	return track.Next
}

// arrival is what the receiver counts for one packet.
func arrival(a packets.Arrival) pktgenSinkCounters {
	c := pktgenSinkCounters{Received: 1}
	switch a {
	case packets.Reordered:
		c.Reordered = 1
	case packets.Duplicated:
		c.Duplicated = 1
	case packets.Late:
		c.Late = 1
	}
	return c
}
