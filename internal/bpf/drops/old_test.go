package drops

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestNoNewerAtomics: what an atomic operation found in memory can only be asked for
// since Linux 5.12, and a verifier before that refuses all of the program. The compiler
// takes such an instruction wherever the result of __sync_fetch_and_add is used.
func TestNoNewerAtomics(t *testing.T) {
	spec, err := loadDrops()
	if err != nil {
		t.Fatal(err)
	}
	atomics := 0
	for name, program := range spec.Programs {
		for _, i := range program.Instructions {
			if i.OpCode.Class() != asm.StXClass || i.OpCode.Mode() != asm.AtomicMode {
				continue
			}
			atomics++
			if op := i.OpCode.AtomicOp(); op != asm.AddAtomic {
				t.Errorf("%s has the atomic operation %v: %v", name, op, i)
			}
		}
	}
	if atomics == 0 {
		t.Error("no atomic operation was found at all")
	}
}
