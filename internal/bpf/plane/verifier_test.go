package plane

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/natkit/natkit/internal/testutil"
)

// TestVerifierHasLittleToDo keeps the programs far from the verifier's limit of a million instructions: older kernels find
// fewer of its states equal. The figure is about what it is now, twice.
func TestVerifierHasLittleToDo(t *testing.T) {
	testutil.NeedRoot(t)
	const most = 100_000
	one, all := netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("203.0.113.0/24")
	every := []Mapping{{Match: one, To: one, Roles: AnyRole}, {Match: one, To: one, Protocol: tcp, Port: 80, Roles: AnyRole}, {Match: all, To: all, Roles: AnyRole}}
	for name, tables := range map[string]Tables{"nothing": {}, "hosts": {Destinations: every[:1], Sources: every[:1]}, "everything": {Destinations: every, Sources: every}} {
		p, err := Load(Config{Tables: tables, Marks: MarksOf(3)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for _, program := range []*ebpf.Program{p.Forward, p.Ingress, p.IngressWithoutEthernet, p.Egress, p.EgressWithoutEthernet} {
			info, err := program.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, known := info.VerifiedInstructions()
			if !known {
				t.Skip("before Linux 5.16 the kernel does not report the number of verified instructions; it took the programs")
			}
			t.Logf("%s, %s: %d", name, info.Name, n)
			if n > most {
				t.Errorf("%s, %s: the verifier went through %d instructions", name, info.Name, n)
			}
		}
	}
}

// TestStackFits: the functions that call each other share a stack of 512 bytes, of which each takes a multiple of 32 and at
// least that (check_max_stack_depth in kernel/bpf/verifier.c; since Linux 6.7 of 16, where the JIT allows it). The kernels of
// most tests are newer than those that count so.
func TestStackFits(t *testing.T) {
	const most, least = 512, 32
	spec, err := loadPlane()
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range spec.Programs {
		if depth := stackOf(functionsOf(program.Instructions), program.Instructions[0].Symbol(), least); depth <= least || depth > most {
			t.Errorf("%s: %d bytes", name, depth)
		}
	}
}

func functionsOf(all asm.Instructions) map[string]asm.Instructions {
	functions, name := map[string]asm.Instructions{}, ""
	for _, i := range all {
		if i.Symbol() != "" {
			name = i.Symbol()
		}
		functions[name] = append(functions[name], i)
	}
	return functions
}

// stackOf is what a function and those that it calls take. The stack is used by an address relative to R10, in an
// instruction of memory or in one that adds to a copy of it.
func stackOf(functions map[string]asm.Instructions, name string, unit int) int {
	lowest, deepest, copied := 0, 0, map[asm.Register]bool{}
	for _, i := range functions[name] {
		op := i.OpCode
		switch {
		case i.IsFunctionCall():
			deepest = max(deepest, stackOf(functions, i.Reference(), unit))
		case op.Class().IsLoad() && i.Src == asm.R10, op.Class().IsStore() && i.Dst == asm.R10:
			lowest = min(lowest, int(i.Offset))
		case op.ALUOp() == asm.Mov:
			copied[i.Dst] = op.Source() == asm.RegSource && i.Src == asm.R10
		case op.ALUOp() == asm.Add && copied[i.Dst]:
			lowest = min(lowest, int(i.Constant))
		}
	}
	return max((unit-1-lowest)/unit, 1)*unit + deepest
}
