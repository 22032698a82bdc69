// Package kallsyms tells which function of the kernel an address lies in, and
// where a function of a name is.
package kallsyms

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/natkit/natkit/internal/privilege"
)

// Symbol is the place of an address.
type Symbol struct {
	Name string
	// Module is empty for the kernel proper, "bpf" for loaded eBPF programs.
	Module string
	// Offset is the distance from the start of the function, in bytes.
	Offset uint64
}

// Function is a symbol of executable code.
type Function struct {
	Name, Module string
	Addr         uint64
}

// Table has the functions of a running kernel, in about 40 bytes each. It may be
// read by several goroutines at a time.
type Table struct {
	names   string  // all names, one after the other
	entries []entry // by address; aliases in the kernel's own order
	modules []string
}

// entry is a function, or where functions end: those have no name.
type entry struct {
	addr   uint64
	name   uint32 // where in names
	length uint16
	module uint16
}

// maxFunction bounds a function's length in bytes. There are no lengths in
// kallsyms, and what lies that far behind the last symbol belongs to none.
const maxFunction = 1 << 20

// ErrHidden says that the kernel shows no addresses to this process.
var ErrHidden = privilege.Advise(errors.New("the kernel hides the addresses of its functions (kernel.kptr_restrict must be 0 or 1)"), privilege.Syslog)

// Read reads the symbols of the running kernel below root, which is "/proc". It
// takes some 0.1 s; the error is ErrHidden where there are no addresses in it.
func Read(root string) (*Table, error) {
	f, err := os.Open(filepath.Join(root, "kallsyms"))
	if err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w (needs CONFIG_KALLSYMS)", err)
	}
	defer f.Close()
	t, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's symbols from %s: %w", f.Name(), err)
	}
	return t, nil
}

// probeBytes are some hundred lines: far more than those at address 0 that other
// kernels begin with (per-CPU data of amd64).
const probeBytes = 1 << 20

// Check tells what would keep Read from its work, faster than Read does: it reads
// no further than the first function with an address.
func Check(root string) error {
	f, err := os.Open(filepath.Join(root, "kallsyms"))
	if err != nil {
		return fmt.Errorf("read the kernel's symbols: %w (needs CONFIG_KALLSYMS)", err)
	}
	defer f.Close()
	if err := probe(io.LimitReader(f, probeBytes)); err != nil {
		return fmt.Errorf("read the kernel's symbols from %s: %w", f.Name(), err)
	}
	return nil
}

// Lookup tells the function that addr lies in; false where it is in none: data, a
// gap, a program that is not loaded any more.
func (t *Table) Lookup(addr uint64) (Symbol, bool) {
	after := len(t.entries)
	if addr < math.MaxUint64 {
		after, _ = slices.BinarySearchFunc(t.entries, addr+1, byAddress)
	}
	if after == 0 {
		return Symbol{}, false
	}
	first, _ := slices.BinarySearchFunc(t.entries, t.entries[after-1].addr, byAddress)
	e := t.entries[first]
	if e.length == 0 || addr-e.addr >= maxFunction {
		return Symbol{}, false
	}
	return Symbol{Name: t.name(e), Module: t.modules[e.module], Offset: addr - e.addr}, true
}

// Named returns those functions that have one of the names. A name can stand for
// several: static functions of different files.
func (t *Table) Named(names ...string) map[string][]Function {
	wanted := make(map[string][]Function, len(names))
	for _, name := range names {
		wanted[name] = nil
	}
	for f := range t.All() {
		if list, ok := wanted[f.Name]; ok {
			wanted[f.Name] = append(list, f)
		}
	}
	for name, list := range wanted {
		if list == nil {
			delete(wanted, name)
		}
	}
	return wanted
}

// All lists the functions by address.
func (t *Table) All() iter.Seq[Function] {
	return func(yield func(Function) bool) {
		for _, e := range t.entries {
			if e.length > 0 && !yield(Function{t.name(e), t.modules[e.module], e.addr}) {
				return
			}
		}
	}
}

func (t *Table) name(e entry) string { return t.names[e.name : e.name+uint32(e.length)] }

func byAddress(e entry, addr uint64) int { return cmp.Compare(e.addr, addr) }
