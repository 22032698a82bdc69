package pktgen

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load/packets"
)

// BenchmarkGenerate sends the smallest frames over a veth to a receiver on the same
// CPU: bare ones that are only counted, and those of a run, counted alone, by their
// sequence numbers, with verified checksums, and with addresses compared as well. All
// take turns; ns is the CPU time per packet of the sending thread, in which the
// receiver runs, and ratio the bare one's to theirs. Each turn loads its own programs
// alone, for each one more in use makes the kernel's dispatcher slower.
func BenchmarkGenerate(b *testing.B) {
	n := newNetwork(b)
	for _, s := range benchSubjects {
		s.ns = nil
	}
	for round := 0; b.Loop(); round++ {
		for i := range benchSubjects {
			benchSubjects[(i+round)%len(benchSubjects)].turn(b, n)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, s := range benchSubjects {
		s.report(b, benchSubjects[0])
	}
}

// benchSubject is one kind of run.
type benchSubject struct {
	name       string
	bare       bool
	count      bool // nothing but count
	verify     bool
	expect, v6 bool
	ns         []float64 // per packet, of each round
}

var benchSubjects = []*benchSubject{
	{name: "bare", bare: true, count: true},
	{name: "headers", count: true},
	{name: "tracked"},
	{name: "verified", verify: true},
	{name: "expected", verify: true, expect: true},
	{name: "expected6", verify: true, expect: true, v6: true},
}

func (s *benchSubject) config() packets.Config {
	cfg := config("198.18.0.1:9")
	if s.v6 {
		cfg = config("[2001:db8:18::1]:9")
	}
	cfg.Bare, cfg.Verify = s.bare, s.verify
	if s.expect {
		same := packets.End{Address: packets.Same, Port: packets.Same}
		cfg.Expect = packets.Expectation{Source: same, Destination: same}
	}
	cfg.Spec.Sizes = []int{cfg.Spec.MinSize()}
	return cfg
}

// open is run.open, but for a receiver that only counts where the frames are whole.
func (s *benchSubject) open(b *testing.B, n *network) *run {
	b.Helper()
	cfg := s.config()
	r := &run{cfg: cfg, from: egress(b, n, cfg.Flows.Destinations[0].Addr().String())}
	b.Cleanup(func() { r.close() })
	port := Port{n.gateway, "eth0"}
	index, err := interfaceIndex(port)
	must(b, err)
	r.tables, err = newTables(cfg.Flows)
	must(b, err)
	r.sink = &receiver{port: port}
	counting := cfg
	counting.Bare = s.count
	must(b, r.sink.objects.load(counting, r.tables, false))
	r.sink.link, err = attachMode(port.Netns, index, r.sink.objects.Sink, link.XDPDriverMode)
	must(b, err)
	r.closers = append(r.closers, r.tables.close, r.sink.close)
	must(b, r.makeWorkers())
	return r
}

func must(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// turn measures one round. Where the receiver's CPU was not the sender's for a moment,
// or was taken away, packets were lost, and it is measured again.
func (s *benchSubject) turn(b *testing.B, n *network) {
	b.Helper()
	for range 5 {
		r := s.open(b, n)
		ns, lost := s.measure(b, r)
		must(b, r.close())
		if lost == 0 {
			s.ns = append(s.ns, ns)
			return
		}
		b.Logf("%s: %d packets were lost", s.name, lost)
	}
	b.Fatalf("%s: packets were lost in each of five turns", s.name)
}

func (s *benchSubject) measure(b *testing.B, r *run) (ns float64, lost int64) {
	b.Helper()
	const warm, packets = burst, 8 * burst
	w := r.workers[0]
	var took time.Duration
	must(b, w.onCPU(func() error {
		var start time.Duration
		for sent := int64(0); sent < warm+packets; sent += burst {
			if sent == warm {
				start = threadTime()
			}
			if err := w.sendUntil(sent + burst); err != nil {
				return err
			}
		}
		took = threadTime() - start
		return nil
	}))
	c, err := r.received()
	must(b, err)
	return float64(took.Nanoseconds()) / packets, warm + packets - int64(c.Received)
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func (s *benchSubject) report(b *testing.B, bare *benchSubject) {
	ratios := make([]float64, len(s.ns))
	for i := range ratios {
		ratios[i] = bare.ns[i] / s.ns[i]
	}
	b.ReportMetric(median(s.ns), s.name+"-ns")
	b.ReportMetric(median(ratios), s.name+"-ratio")
}

func median(x []float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[len(sorted)/2]
}
