package kerneltest

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/natkit/natkit/internal/testutil"
)

// tracked is called by the kernel for each packet that the tracker sees. It lies in
// a module where the kernel has them.
const tracked = "nf_conntrack_in"

func TestKprobe(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	countsPackets(t, &ebpf.ProgramSpec{Type: ebpf.Kprobe}, func(p *ebpf.Program) (link.Link, error) {
		return link.Kprobe(tracked, p, nil)
	})
}

func TestFentry(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Fentry)
	spec := &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry, AttachTo: tracked}
	countsPackets(t, spec, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachTracing(link.TracingOptions{Program: p})
	})
}

// countsPackets attaches a program that counts its calls to tracked, lets packets
// pass the router and compares. Others may use the tracker too.
func countsPackets(t *testing.T, spec *ebpf.ProgramSpec, attach func(*ebpf.Program) (link.Link, error)) {
	t.Helper()
	n := newNodes(t)
	// The rule also loads the tracker's module, before its function is looked up.
	trackAll(t, n.router, "")
	calls := attached(t, spec, attach)
	echoUDP(t, n.server, serverA)
	c := dial(t, n.client, "udp4", serverA)
	const datagrams = 100
	before := calls()
	for range datagrams {
		ask(t, c)
	}
	if got := calls() - before; got < 2*datagrams {
		t.Errorf("%s was called %d times, %d datagrams and as many answers passed", tracked, got, datagrams)
	}
}

// attached loads and attaches a program that counts its calls, and gives a function
// that reads the count.
func attached(t *testing.T, spec *ebpf.ProgramSpec, attach func(*ebpf.Program) (link.Link, error)) func() uint64 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	spec.License = "Dual MIT/GPL"
	spec.Instructions = asm.Instructions{
		asm.LoadMapValue(asm.R1, m.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatalf("load: %+v", err)
	}
	t.Cleanup(func() { p.Close() })
	l, err := attach(p)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return func() (n uint64) {
		t.Helper()
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}
