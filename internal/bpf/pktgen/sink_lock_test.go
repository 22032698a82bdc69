package pktgen

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/load/packets"
)

// TestSinkLocks has two CPUs receive the packets of one flow, one the even sequence
// numbers and one the odd, for many flows. All were seen then: each is a duplicate
// when it comes again. (Without the lock about one in a thousand is not.)
func TestSinkLocks(t *testing.T) {
	cfg := config("198.18.0.1:9")
	cfg.Flows.Count = 300
	s := loadSink(t, cfg, true)
	frames := s.windows()
	var all sync.WaitGroup
	var arrived atomic.Int64 // at a flow's start, where each waits for the other
	for parity := range 2 {
		all.Go(func() {
			for i := parity; i < len(frames); i += 2 {
				if sequence := i % packets.Window; sequence == parity {
					for arrived.Add(1); arrived.Load() < int64(2*(i/packets.Window+1)); {
						runtime.Gosched()
					}
				}
				if _, err := s.objects.Sink.Run(&ebpf.RunOptions{Data: frames[i]}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	first := s.counters()
	if n := uint64(len(frames)); first.Received != n || first.Duplicated != 0 {
		t.Errorf("%d packets: %+v", n, first)
	}
	for _, frame := range frames {
		runProgram(t, s.objects.Sink, frame)
	}
	if again := less(s.counters(), first); again.Duplicated+again.Late != uint64(len(frames)) || again.Late > 0 {
		t.Errorf("%d packets came again: %+v", len(frames), again)
	}
}

// windows has as many packets of each flow as a receiver remembers.
func (s *sinkTest) windows() (frames [][]byte) {
	for flow, tuple := range s.flows {
		for sequence := range uint32(packets.Window) {
			frames = append(frames, s.frame(tuple, uint32(flow), sequence, 78))
		}
	}
	return frames
}
