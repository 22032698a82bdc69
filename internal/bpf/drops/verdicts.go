package drops

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachVerdicts hooks the returns of conntrack's and NAT's functions, as far as
// that is possible. Without nf_conntrack_in's the others are of no use.
func (t *Tracer) attachVerdicts(s *ebpf.CollectionSpec) {
	alloc := t.attachVerdict(s, dropsProgVerdictAlloc)
	if err := s.Variables[dropsVarHasAlloc].Set(alloc == nil); err != nil {
		t.note(fmt.Sprintf("cannot tell full tables from invalid packets: %v", err))
	}
	if err := t.attachVerdict(s, dropsProgVerdictTrack); err != nil {
		return
	}
	t.verdicts = true
	t.noteMissing(alloc, "packets not valid for their connection count as a full table")
	t.noteMissing(t.attachVerdict(s, dropsProgVerdictConfirm), "connections that were not inserted count as a rule's drops")
	for _, program := range []string{dropsProgVerdictNat, dropsProgVerdictMasq4, dropsProgVerdictMasq6} {
		t.noteMissing(t.attachVerdict(s, program), "some packets that could not be translated count as a rule's drops")
	}
	if err := s.Variables[dropsVarHasVerdicts].Set(true); err != nil {
		t.note(fmt.Sprintf("cannot tell NAT's drops apart: %v", err))
		t.verdicts = false
	}
}

// noteMissing says what is not told, unless there is nothing to tell: what is in a
// module that is not loaded does not drop.
func (t *Tracer) noteMissing(err error, consequence string) {
	if err != nil && !errors.Is(err, errNoFunction) {
		t.note(fmt.Sprintf("%s: %v", consequence, err))
	}
}

// errNoFunction says that a function is not in this kernel at the moment.
var errNoFunction = errors.New("no such function in this kernel")

func (t *Tracer) attachVerdict(s *ebpf.CollectionSpec, program string) error {
	function := s.Programs[program].AttachTo
	if t.names.symbols != nil && len(t.names.symbols.Named(function)) == 0 {
		return fmt.Errorf("no fexit program on %s: %w", function, errNoFunction)
	}
	p, err := t.load(s, program)
	if err != nil {
		return fmt.Errorf("no fexit program on %s: %w", function, err)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return fmt.Errorf("attach fexit program to %s: %w", function, err)
	}
	t.later(l)
	return nil
}
