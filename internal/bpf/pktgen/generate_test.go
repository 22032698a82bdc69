package pktgen

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
)

// TestGenerateBuildsFrames compares each frame with packets.Build's, over several
// sequence numbers of all flows. The page that comes in is full of rubbish up to the
// token's end, as one is that comes back from a receiver.
func TestGenerateBuildsFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, s := range stacks() {
		t.Run(s.name, func(t *testing.T) {
			cfg := s.config()
			cfg.Flows.Count = 5
			cfg.Spec.DSCP, cfg.Spec.HopLimit = uint8(random.IntN(64)), uint8(1+random.IntN(255))
			least := cfg.Spec.MinSize()
			cfg.Spec.Sizes = []int{least, 1518, least + 1, 594, 1515, least + 16, 3072}
			if s.tcp {
				cfg.Spec.TCPFlags = []frame.TCPFlags{frame.SYN, frame.ACK, frame.PSH | frame.ACK, frame.FIN | frame.ACK, frame.RST, 0xff, 0}
			}
			compareFrames(t, cfg, 3*5*7*7, random)
		})
	}
}

// TestGenerateBuildsEachSize goes through all sizes of one-sized runs.
func TestGenerateBuildsEachSize(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, s := range stacks() {
		cfg := s.config()
		for _, size := range []int{cfg.Spec.MinSize(), 128, 257, 512, 1280, 1518, 3072} {
			cfg.Spec.Sizes, cfg.Flows.Count = []int{size}, 3
			compareFrames(t, cfg, 10, random)
		}
	}
}

func compareFrames(t *testing.T, cfg packets.Config, frames int, random *rand.Rand) {
	t.Helper()
	tables := loadTables(t, cfg.Flows)
	w := loadWorker(t, tables, cfg, 0)
	allow(t, w, 1<<40)
	oracle := newOracle(cfg, tables.runID, 0)
	octets := 0
	for i := range frames {
		page := make([]byte, cfg.Spec.MaxSize()-frame.FCSLen)
		for j := range cfg.Spec.HeaderLen() {
			page[j] = byte(random.Uint32())
		}
		verdict, got := runProgram(t, w.objects.Program, page)
		want := oracle.next()
		if verdict != xdpRedirect || !bytes.Equal(got, want) {
			t.Fatalf("%+v: frame %d: verdict %d\n got %x\nwant %x", cfg.Spec, i, verdict, got, want)
		}
		octets += len(want)
	}
	if s := stateOf(t, w); s.Sent != uint64(frames) || s.Octets != uint64(octets) {
		t.Errorf("counted %d frames, %d bytes; want %d, %d", s.Sent, s.Octets, frames, octets)
	}
}

// An oracle predicts the frames of a worker in order: each flow once, then each with the
// next sequence number and the next flags; sizes cycle independently.
type oracle struct {
	cfg    packets.Config
	run    uint32
	flows  []frame.Tuple // the worker's
	first  int
	sizes  []int
	frames int
	// sequence is that of the first packets.
	sequence uint32
}

func newOracle(cfg packets.Config, runID uint32, index int) *oracle {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], runID)
	o := &oracle{cfg: cfg, run: binary.BigEndian.Uint32(b[:]), sizes: biggestFirst(cfg.Spec.Sizes)}
	first, count := share(cfg.Flows.Count, cfg.Workers, index)
	for i, tuple := range cfg.Flows.All {
		if i >= first && i < first+count {
			o.flows = append(o.flows, tuple)
		}
	}
	o.first = first
	return o
}

func (o *oracle) next() []byte {
	i, round := o.frames%len(o.flows), o.frames/len(o.flows)
	size := o.sizes[o.frames%len(o.sizes)]
	o.frames++
	var flags frame.TCPFlags
	if cycle := o.cfg.Spec.TCPFlags; len(cycle) > 0 {
		flags = cycle[round%len(cycle)]
	}
	token := packets.Token{Run: o.run, Flow: uint32(o.first + i), Sequence: o.sequence + uint32(round)}
	return packets.Build(nil, testLink, &o.cfg.Spec, o.flows[i], token, size-frame.FCSLen, flags)
}

func allow(t *testing.T, w *worker, n int64) {
	t.Helper()
	if err := w.allow(n); err != nil {
		t.Fatal(err)
	}
}

func stateOf(t testing.TB, w *worker) pktgenGeneratorState {
	t.Helper()
	s, err := w.state()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWorkersShareFlows checks that each flow belongs to one worker, and that its
// sequence starts at 0 there.
func TestWorkersShareFlows(t *testing.T) {
	cfg := config("198.18.0.1:9")
	cfg.Workers, cfg.Flows.Count = 3, 8
	tables := loadTables(t, cfg.Flows)
	seen := map[uint32]int{}
	for i := range cfg.Workers {
		w := loadWorker(t, tables, cfg, i)
		allow(t, w, 100)
		oracle := newOracle(cfg, tables.runID, i)
		for range 2 * len(oracle.flows) {
			_, got := runProgram(t, w.objects.Program, w.run.bareFrame())
			if want := oracle.next(); !bytes.Equal(got, want) {
				t.Fatalf("worker %d:\n got %x\nwant %x", i, got, want)
			}
			token, _ := packets.ParseToken(got[frame.EthernetLen+frame.IPv4Len+frame.UDPLen:])
			seen[token.Flow]++
		}
	}
	for flow := range uint32(8) {
		if seen[flow] != 2 {
			t.Errorf("flow %d was sent %d times by all workers, want 2", flow, seen[flow])
		}
	}
}

func TestSequenceWraps(t *testing.T) {
	cfg := config("198.18.0.1:9")
	cfg.Flows.Count = 1
	tables := loadTables(t, cfg.Flows)
	w := loadWorker(t, tables, cfg, 0)
	if err := w.objects.Generator.Set(pktgenGeneratorState{Limit: 10, Sequence: ^uint32(0)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint32{^uint32(0), 0, 1} {
		_, got := runProgram(t, w.objects.Program, w.run.bareFrame())
		if token, _ := packets.ParseToken(got[frame.EthernetLen+frame.IPv4Len+frame.UDPLen:]); token.Sequence != want {
			t.Errorf("sequence %d, want %d", token.Sequence, want)
		}
	}
}

func TestGeneratorsStopAtTheLimit(t *testing.T) {
	cfg := config("198.18.0.1:9")
	tables := loadTables(t, cfg.Flows)
	for p, bare := range map[string]bool{"generate": false, "bare": true} {
		cfg.Bare = bare
		w := loadWorker(t, tables, cfg, 0)
		program := w.objects.Program
		if err := w.objects.Generator.Set(pktgenGeneratorState{}); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int64{0, 3, 4} {
			allow(t, w, limit)
			for range 5 {
				verdict, _ := runProgram(t, program, w.run.bareFrame())
				if s := stateOf(t, w); (verdict == xdpRedirect) == (verdict == xdpDrop) || s.Sent > uint64(limit) {
					t.Fatalf("%s: verdict %d with %d of %d sent", p, verdict, s.Sent, limit)
				}
			}
			if s := stateOf(t, w); s.Sent != uint64(limit) {
				t.Errorf("%s: %d sent, the limit is %d", p, s.Sent, limit)
			}
		}
	}
}

// TestGenerateRefusesSmallPages checks that nothing is written where the headers
// have no place.
func TestGenerateRefusesSmallPages(t *testing.T) {
	for _, s := range stacks() {
		cfg := s.config()
		tables := loadTables(t, cfg.Flows)
		w := loadWorker(t, tables, cfg, 0)
		allow(t, w, 100)
		for n := frame.EthernetLen; n < cfg.Spec.HeaderLen(); n += 7 {
			page := bytes.Repeat([]byte{0xa5}, n)
			if verdict, got := runProgram(t, w.objects.Program, page); verdict != 0 || !bytes.Equal(got, page) {
				t.Fatalf("%s: %d bytes: verdict %d, %x", s.name, n, verdict, got)
			}
		}
		if s := stateOf(t, w); s.Sent != 0 {
			t.Errorf("%d were counted as sent", s.Sent)
		}
	}
}

// TestGenerateFoldsSums chooses sequence numbers by which the checksum comes to 0,
// which UDP sends as 0xffff, and near it, where the sum carries once more.
func TestGenerateFoldsSums(t *testing.T) {
	for _, s := range stacks() {
		t.Run(s.name, func(t *testing.T) {
			cfg := s.config()
			cfg.Flows.Count = 1
			tables := loadTables(t, cfg.Flows)
			w := loadWorker(t, tables, cfg, 0)
			at := cfg.Spec.HeaderLen() - packets.TokenLen - 2
			if s.tcp {
				at -= 2 // before the urgent pointer
			}
			first := newOracle(cfg, tables.runID, 0).next()
			needed := uint32(binary.BigEndian.Uint16(first[at:]))
			zeros := 0
			for high := range uint32(64) {
				for near := range uint32(7) {
					sequence := high<<16 | (needed+0xffff-high+near-3)%0xffff
					frame := compareAt(t, w, sequence)
					if c := binary.BigEndian.Uint16(frame[at:]); c == 0 || c == 0xffff {
						zeros++
					}
				}
			}
			if zeros < 32 {
				t.Errorf("only %d checksums were 0", zeros)
			}
		})
	}
}

// compareAt compares one frame with a given sequence number.
func compareAt(t *testing.T, w *worker, sequence uint32) []byte {
	t.Helper()
	if err := w.objects.Generator.Set(pktgenGeneratorState{Limit: 1, Sequence: sequence}); err != nil {
		t.Fatal(err)
	}
	_, got := runProgram(t, w.objects.Program, w.run.bareFrame())
	oracle := newOracle(w.run.cfg, w.run.tables.runID, 0)
	oracle.sequence = sequence
	if want := oracle.next(); !bytes.Equal(got, want) {
		t.Fatalf("sequence %#x:\n got %x\nwant %x", sequence, got, want)
	}
	return got
}
