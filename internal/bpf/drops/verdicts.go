package drops

import (
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
	t.noteMissing(t.attachVerdict(s, dropsProgVerdictNat), "packets that could not be translated count as a rule's drops")
	if err := s.Variables[dropsVarHasVerdicts].Set(true); err != nil {
		t.note(fmt.Sprintf("cannot tell NAT's drops apart: %v", err))
		t.verdicts = false
	}
}

func (t *Tracer) noteMissing(err error, consequence string) {
	if err != nil {
		t.note(fmt.Sprintf("%s: %v", consequence, err))
	}
}

func (t *Tracer) attachVerdict(s *ebpf.CollectionSpec, program string) error {
	function := s.Programs[program].AttachTo
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
