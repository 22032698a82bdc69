package bpf

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/netns"
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

// Table has the functions of a running kernel. Several goroutines may read it.
type Table struct {
	// functions are sorted by address, aliases in the kernel's own order. Those without a name
	// mark where functions end.
	functions []Function
}

// Bounds of the table: some ten times the symbols of large kernels, and a distance in bytes
// from the last symbol, as kallsyms has no lengths.
const (
	maxSymbols  = 4 << 20
	maxFunction = 1 << 20
	// usual is the number of a distribution's kernel with its modules.
	usual = 1 << 16
)

// ErrHidden is the error of a kernel that shows no addresses to this process.
var ErrHidden = netns.Advise(errors.New("the kernel hides the addresses of its functions (kernel.kptr_restrict must be 0 or 1)"), netns.Syslog)

var errNoFunctions = errors.New("no line in it is a function with its address")

// ReadSymbols reads the symbols of the running kernel below root, which is "/proc". It takes
// some 0.1 s; the error is ErrHidden where it has no addresses.
func ReadSymbols(root string) (*Table, error) { return readSymbols(root, parseSymbols) }

// CheckSymbols returns the error that ReadSymbols would return of a kernel that hides its addresses. It reads no
// further than to the first function that has one.
func CheckSymbols(root string) error {
	_, err := readSymbols(root, func(r io.Reader) (*Table, error) {
		hidden, lines := false, bufio.NewScanner(r)
		for lines.Scan() {
			kind, f, ok := parseSymbol(lines.Bytes(), map[string]string{})
			if ok && isText(kind) && f.Addr != 0 {
				return nil, nil
			}
			hidden = hidden || ok && isText(kind)
		}
		return nil, cmp.Or(lines.Err(), map[bool]error{true: ErrHidden, false: errNoFunctions}[hidden])
	})
	return err
}

func readSymbols(root string, parse func(io.Reader) (*Table, error)) (*Table, error) {
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

// parseSymbols reads the text of /proc/kallsyms, and skips lines of another form.
func parseSymbols(r io.Reader) (*Table, error) {
	t, hidden, named, modules := &Table{functions: make([]Function, 0, usual)}, false, false, map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		kind, f, ok := parseSymbol(lines.Bytes(), modules)
		switch {
		case !ok:
		case isText(kind) && f.Addr == 0:
			hidden = true
		case len(t.functions) == maxSymbols:
			return nil, fmt.Errorf("more than %d symbols", maxSymbols)
		case isEnd(kind, &f):
			t.functions = append(t.functions, Function{Addr: f.Addr})
		case isText(kind) && !isPadding(f.Name):
			t.functions = append(t.functions, f)
			named = true
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, err
	case !named && hidden:
		return nil, ErrHidden
	case !named:
		return nil, errNoFunctions
	}
	// At one address ends are behind functions: data begin where an empty function would.
	slices.SortStableFunc(t.functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(min(len(b.Name), 1), min(len(a.Name), 1)))
	})
	t.functions = slices.Clip(slices.CompactFunc(t.functions, func(a, b Function) bool { return a.Name == "" && b.Name == "" }))
	return t, nil
}

// parseSymbol reads a line: address, type, name, a tab and the module in brackets. Names of data are left out:
// there are as many of them as of functions.
func parseSymbol(line []byte, modules map[string]string) (kind byte, f Function, ok bool) {
	digits, rest, _ := bytes.Cut(line, space)
	if len(rest) < 3 || rest[1] != ' ' {
		return 0, f, false
	}
	kind = rest[0]
	if f.Addr, ok = parseHex(digits); !ok || !isText(kind) {
		return kind, f, ok
	}
	name, module, _ := bytes.Cut(rest[2:], tab)
	if len(name) == 0 || !isPrintable(name) {
		return 0, f, false
	}
	f.Name = string(name)
	if module, _, _ = bytes.Cut(module, space); len(module) > 0 {
		module = bytes.Trim(module, "[]")
		if f.Module, ok = modules[string(module)]; !ok && isPrintable(module) {
			f.Module = string(module)
			modules[f.Module] = f.Module
		}
	}
	return kind, f, true
}

var space, tab = []byte{' '}, []byte{'\t'}

// parseHex reads an address of up to 64 bits.
func parseHex(digits []byte) (n uint64, ok bool) {
	for _, d := range digits {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		default:
			return 0, false
		}
		n = n<<4 | uint64(d)
	}
	return n, len(digits) > 0 && len(digits) <= 16
}

// isPrintable rejects names that would control a terminal.
func isPrintable(name []byte) bool {
	return !bytes.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
}

// isText reports whether a type, as in nm(1), is that of functions.
func isText(kind byte) bool { return strings.IndexByte("tTwW", kind) >= 0 }

// isEnd reports whether no code follows a symbol: data, and the linker's marks at the ends of
// the kernel's text.
func isEnd(kind byte, f *Function) bool {
	if strings.IndexByte("dDbBrR", kind) >= 0 {
		return f.Addr != 0
	}
	return f.Module == "" && (f.Name == "_etext" || f.Name == "_einittext")
}

// isPadding reports whether a symbol is no function: the bytes before one (since 6.2, amd64),
// or a mark where the kernel's text begins.
func isPadding(name string) bool {
	switch name {
	case "_text", "_stext", "_head", "_sinittext":
		return true
	}
	return strings.HasPrefix(name, "__pfx_") || strings.HasPrefix(name, "__cfi_")
}

// Lookup returns the function that addr lies in; false where it is in none, such as data or a
// program that is no longer loaded.
func (t *Table) Lookup(addr uint64) (Symbol, bool) {
	after := len(t.functions)
	if addr < math.MaxUint64 {
		after = t.search(addr + 1)
	}
	if after == 0 {
		return Symbol{}, false
	}
	f := &t.functions[t.search(t.functions[after-1].Addr)]
	if f.Name == "" || addr-f.Addr >= maxFunction {
		return Symbol{}, false
	}
	return Symbol{Name: f.Name, Module: f.Module, Offset: addr - f.Addr}, true
}

// search returns the index of the first function at addr or behind it.
func (t *Table) search(addr uint64) int {
	i, _ := slices.BinarySearchFunc(t.functions, addr, func(f Function, addr uint64) int { return cmp.Compare(f.Addr, addr) })
	return i
}

// End is behind the last byte of the function at addr.
func (t *Table) End(addr uint64) uint64 {
	if next := t.search(addr + 1); next < len(t.functions) {
		return min(t.functions[next].Addr, addr+maxFunction)
	}
	return addr + maxFunction
}

// Place is Lookup with the address as the name where it lies in no function. A nil table has none.
func (t *Table) Place(addr uint64) Symbol {
	if t != nil {
		if s, ok := t.Lookup(addr); ok {
			return s
		}
	}
	return Symbol{Name: fmt.Sprintf("%#x", addr)}
}

// Named returns those functions that have one of the names. Static functions of different files
// may share one.
func (t *Table) Named(names ...string) map[string][]Function {
	found := map[string][]Function{}
	for f := range t.All() {
		if slices.Contains(names, f.Name) {
			found[f.Name] = append(found[f.Name], f)
		}
	}
	return found
}

// All lists the functions by address.
func (t *Table) All() iter.Seq[Function] {
	return func(yield func(Function) bool) {
		for _, f := range t.functions {
			if f.Name != "" && !yield(f) {
				return
			}
		}
	}
}
