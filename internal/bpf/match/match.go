// Package match puts packet filters into eBPF programs: those that include flow.h ask
// its subprogram flow_matches, of which it exchanges the body before they are loaded.
package match

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/natkit/natkit/internal/filter"
)

// subprogram is the function of flow.h that has a filter's place.
const subprogram = "flow_matches"

// Install makes flow_matches in a program the filter e. With nil it stays as it is:
// it matches all. The program has to be one that calls it.
func Install(spec *ebpf.ProgramSpec, e *filter.Expr) error {
	if e == nil {
		return nil
	}
	begin, end := find(spec.Instructions)
	if begin < 0 {
		return fmt.Errorf("install a filter into the eBPF program %s: it has no subprogram %s", spec.Name, subprogram)
	}
	body := generate(e, order(spec))
	// The symbol is what calls refer to; the function and its line have to begin there
	// for the kernel to take the program's BTF.
	body[0] = body[0].WithMetadata(spec.Instructions[begin].Metadata)
	spec.Instructions = slices.Concat(spec.Instructions[:begin], body, spec.Instructions[end:])
	return nil
}

// find tells where flow_matches begins and where the function after it does; -1
// where it is not.
func find(instructions asm.Instructions) (begin, end int) {
	begin = slices.IndexFunc(instructions, func(i asm.Instruction) bool { return i.Symbol() == subprogram })
	if begin < 0 {
		return -1, -1
	}
	for end = begin + 1; end < len(instructions); end++ {
		if btf.FuncMetadata(&instructions[end]) != nil {
			break
		}
	}
	return begin, end
}

// order is the byte order that the program's loads have.
func order(spec *ebpf.ProgramSpec) binary.ByteOrder {
	if spec.ByteOrder != nil {
		return spec.ByteOrder
	}
	return binary.NativeEndian
}
