package drops

import (
	"fmt"

	"github.com/cilium/ebpf/btf"

	"github.com/natkit/natkit/internal/bpf/reasons"
	"github.com/natkit/natkit/internal/kallsyms"
)

// names tell what the running kernel's numbers and addresses stand for.
type names struct {
	symbols *kallsyms.Table // nil where there are none; note then says why
	note    string
	reasons *reasons.Table
	// Reasons up to consumed are none.
	consumed uint32
	// closed are the numbers of closedReasons.
	closed [len(closedReasons)]uint32
	// unspecified is the reason that says nothing.
	unspecified uint32
	harmless    [maxHarmless]dropsRange
}

func readNames() (*names, error) {
	n := &names{}
	read := make(chan error, 1)
	go func() (err error) {
		defer func() { read <- err }()
		n.symbols, err = kallsyms.Read("/proc")
		return err
	}()
	err := n.readReasons()
	if hidden := <-read; hidden != nil {
		n.note = fmt.Sprintf("places are shown by their address: %v", hidden)
	}
	if err != nil {
		return nil, err
	}
	n.findHarmless()
	return n, nil
}

// readReasons reads the numbers of the reasons that matter here, too.
func (n *names) readReasons() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's types from /sys/kernel/btf/vmlinux: %w (needs CONFIG_DEBUG_INFO_BTF)", err)
	}
	if n.reasons, err = reasons.Read(kernel); err != nil {
		return err
	}
	n.consumed, n.unspecified = n.reasons.Number("SKB_CONSUMED"), n.reasons.Number("NOT_SPECIFIED")
	for i, name := range closedReasons {
		n.closed[i] = n.reasons.Number(name)
	}
	return nil
}

// place is the function at an address.
func (n *names) place(location uint64) kallsyms.Symbol {
	if n.symbols != nil {
		if s, ok := n.symbols.Lookup(location); ok {
			return s
		}
	}
	return kallsyms.Symbol{Name: fmt.Sprintf("%#x", location)}
}
