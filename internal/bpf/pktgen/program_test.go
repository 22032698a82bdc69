package pktgen

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/testutil"
)

// Verdicts of XDP programs (enum xdp_action).
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

var (
	testLink = frame.Link{Source: frame.MAC{2, 0, 0, 0, 0, 1}, Destination: frame.MAC{2, 0, 0, 0, 0, 2}}
)

// loadWorker loads a generator whose program is called on one frame at a time.
func loadWorker(t *testing.T, tables *tables, cfg packets.Config, index int) *worker {
	t.Helper()
	from := Egress{Index: 1, MAC: net.HardwareAddr(testLink.Source[:]), NextMAC: net.HardwareAddr(testLink.Destination[:])}
	w := &worker{run: &run{cfg: cfg, from: from, tables: tables}, index: index}
	if err := w.load(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.objects.Program.Close() })
	return w
}

func loadTables(t *testing.T, flows packets.Flows) *tables {
	t.Helper()
	testutil.NeedRoot(t)
	tables, err := newTables(flows)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tables.close() })
	return tables
}

// runProgram gives a program one frame, and what it makes of it.
func runProgram(t *testing.T, p *ebpf.Program, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096)}
	verdict, err := p.Run(&opts)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, opts.DataOut
}

// A sinkTest is a receiver whose program is called on one frame at a time.
type sinkTest struct {
	t       *testing.T
	cfg     packets.Config
	tables  *tables
	objects receiverObjects
	flows   []frame.Tuple
	random  *rand.Rand
}

func loadSink(t *testing.T, cfg packets.Config, concurrent bool) *sinkTest {
	t.Helper()
	s := &sinkTest{t: t, cfg: cfg, tables: loadTables(t, cfg.Flows), random: rand.New(rand.NewPCG(1, 2))}
	if err := s.objects.load(cfg, s.tables, concurrent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.objects.close() })
	for _, tuple := range cfg.Flows.All {
		s.flows = append(s.flows, tuple)
	}
	return s
}

// run is the mark of the run as packets.Token has it.
func (s *sinkTest) run() uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], s.tables.runID)
	return binary.BigEndian.Uint32(b[:])
}

// frame builds a packet of a flow, length bytes without FCS.
func (s *sinkTest) frame(tuple frame.Tuple, flow, sequence uint32, length int) []byte {
	flags := frame.SYN
	token := packets.Token{Run: s.run(), Flow: flow, Sequence: sequence}
	return packets.Build(nil, testLink, &s.cfg.Spec, tuple, token, length, flags)
}

// put passes one frame to the program, and returns the verdict and the counters.
func (s *sinkTest) put(frame []byte) (verdict uint32, counted pktgenSinkCounters) {
	s.t.Helper()
	before := s.counters()
	verdict, out := runProgram(s.t, s.objects.Sink, frame)
	if string(out) != string(frame) {
		s.t.Fatalf("the receiver changed a frame:\n%x\n%x", frame, out)
	}
	return verdict, less(s.counters(), before)
}

func (s *sinkTest) counters() pktgenSinkCounters {
	s.t.Helper()
	c, err := (&receiver{objects: s.objects}).counters()
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func less(a, b pktgenSinkCounters) pktgenSinkCounters {
	a.Received -= b.Received
	a.Octets -= b.Octets
	a.Reordered -= b.Reordered
	a.Duplicated -= b.Duplicated
	a.Late -= b.Late
	a.Misdelivered -= b.Misdelivered
	a.BadIpChecksum -= b.BadIpChecksum
	a.BadChecksum -= b.BadChecksum
	a.PartialChecksum -= b.PartialChecksum
	a.Other -= b.Other
	return a
}

// stack is a kind of packet.
type stack struct {
	name string
	ipv6 bool
	tcp  bool
	vlan uint16
}

func stacks() (all []stack) {
	for _, ip := range []string{"IPv4", "IPv6"} {
		for _, transport := range []string{"UDP", "TCP"} {
			for _, vlan := range []uint16{0, 7} {
				s := stack{transport + " over " + ip, ip == "IPv6", transport == "TCP", vlan}
				if vlan != 0 {
					s.name += " in a VLAN"
				}
				all = append(all, s)
			}
		}
	}
	return all
}

// config is that of a run of such packets.
func (s stack) config() packets.Config {
	to := "198.18.0.1:9"
	if s.ipv6 {
		to = "[2001:db8:18::1]:9"
	}
	cfg := config(to)
	cfg.Spec.VLAN = s.vlan
	if s.tcp {
		cfg.Spec.Protocol, cfg.Spec.TCPFlags = unix.IPPROTO_TCP, []frame.TCPFlags{frame.SYN}
	}
	cfg.Spec.Sizes = []int{cfg.Spec.MinSize()}
	return cfg
}
