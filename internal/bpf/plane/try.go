package plane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Verdict is what programs do with a packet.
type Verdict int

const (
	// Passed: it goes to the stack as it is.
	Passed Verdict = iota
	// Half: its destination is translated, and the rest is the stack's and the program's at the way out.
	Half
	// Sent: it is translated and sent on.
	Sent
)

// Outcome is what came of a packet.
type Outcome struct {
	Verdict Verdict
	// Program is that which decided: "xdp" or "tc".
	Program string
	// Frame is what became of it.
	Frame []byte
	// Rules are the numbers of the counters that counted it; Reason why it was not sent.
	Rules  []uint32
	Reason Reason
}

// What programs return (include/uapi/linux/bpf.h, pkt_cls.h).
const (
	xdpRedirect = 4
	actRedirect = 7
)

const (
	frameRoom = 256
	skbSize   = 192 // of struct __sk_buff
)

// Try has the programs handle a frame as if it came in by an interface of the network namespace that the thread is in, and
// sends nothing (BPF_PROG_TEST_RUN). Routes and neighbours are the host's. It counts: the programs are to be some that
// are not attached.
func (p *Programs) Try(index int, mode Mode, frame []byte) (*Outcome, error) {
	// Each CPU has a memory of its own, in which the program at tc leaves what it decided for the one at XDP.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stay, err := stayOnCPU()
	if err != nil {
		return nil, err
	}
	defer stay()
	as, err := p.tryTC(index, frame)
	if err != nil {
		return nil, err
	}
	if mode != TC {
		context := make([]byte, 24) // struct xdp_md
		binary.NativeEndian.PutUint32(context[4:], uint32(len(frame)))
		binary.NativeEndian.PutUint32(context[12:], uint32(index))
		o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+frameRoom), Context: context}
		code, err := p.Forward.Run(o)
		if err != nil {
			return nil, fmt.Errorf("run the XDP program: %w", err)
		}
		if code == xdpRedirect {
			return p.outcome(&Outcome{Verdict: Sent, Program: hookXDP, Frame: o.DataOut})
		}
	}
	return p.outcome(as)
}

// tryTC has the program at tc handle it.
func (p *Programs) tryTC(index int, frame []byte) (*Outcome, error) {
	context := make([]byte, skbSize) // struct __sk_buff
	binary.NativeEndian.PutUint32(context[40:], uint32(index))
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+frameRoom), Context: context, ContextOut: context}
	code, err := p.Ingress.Run(o)
	if err != nil {
		return nil, fmt.Errorf("run the program at tc: %w", err)
	}
	as := &Outcome{Program: "tc", Frame: o.DataOut}
	switch mark := binary.NativeEndian.Uint32(context[8:]); {
	case code == actRedirect:
		as.Verdict = Sent
	case mark&p.marks.Mask != 0:
		as.Verdict = Half
	}
	return as, nil
}

// stayOnCPU keeps the thread on one of the CPUs that it may run on.
func stayOnCPU() (back func(), err error) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("read the CPUs of the thread: %w", err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("stay on a CPU: %w", err)
	}
	return func() { _ = unix.SchedSetaffinity(0, &all) }, nil
}

// outcome adds what was counted.
func (p *Programs) outcome(as *Outcome) (*Outcome, error) {
	rules, reasons := make([]Count, p.Rules.MaxEntries()), make([]Count, p.Reasons.MaxEntries())
	if err := errors.Join(addCounts(p.Rules, rules), addCounts(p.Reasons, reasons)); err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	for i, c := range rules {
		if c.Packets > 0 {
			as.Rules = append(as.Rules, uint32(i))
		}
	}
	for i, c := range reasons {
		if c.Packets > 0 {
			as.Reason = Reason(i)
		}
	}
	return as, nil
}
