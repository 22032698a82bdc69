// Package symbols has the names of the running kernel: which function an address lies in
// and where a function is (Table), and why packets are dropped (Reasons).
package symbols

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
var ErrHidden = netns.Advise(errors.New("the kernel hides the addresses of its functions (kernel.kptr_restrict must be 0 or 1)"), netns.Syslog)

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

// line is a symbol as /proc/kallsyms shows it; names point into the text.
type line struct {
	addr         uint64
	kind         byte
	name, module []byte
}

// split reads a line; false where it is none.
func split(text []byte) (line, bool) {
	addr, rest, ok := hex(text)
	if !ok || len(rest) < 4 || rest[0] != ' ' || rest[2] != ' ' {
		return line{}, false
	}
	l := line{addr: addr, kind: rest[1]}
	name, module, inModule := bytes.Cut(rest[3:], []byte("\t"))
	l.name = name
	if inModule {
		if l.module, ok = unbracket(module); !ok {
			return line{}, false
		}
	}
	return l, isName(l.name) && (!inModule || isName(l.module))
}

// hex reads the number that text begins with, of at most 16 digits.
func hex(text []byte) (n uint64, rest []byte, ok bool) {
	for i, c := range text {
		digit, ok := hexDigit(c)
		if !ok {
			return n, text[i:], i > 0
		}
		if i == 16 {
			return 0, nil, false
		}
		n = n<<4 | uint64(digit)
	}
	return 0, nil, false
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// unbracket takes the name out of "[name]"; what follows the bracket (a build ID,
// on some kernels) is left out.
func unbracket(text []byte) ([]byte, bool) {
	if len(text) < 3 || text[0] != '[' {
		return nil, false
	}
	name, _, ok := bytes.Cut(text[1:], []byte("]"))
	return name, ok
}

// isName keeps out what would do something to a terminal.
func isName(name []byte) bool {
	if len(name) == 0 || len(name) > maxName {
		return false
	}
	for _, c := range name {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// isText tells functions by their type, as nm prints it.
func isText(kind byte) bool { return kind == 't' || kind == 'T' || kind == 'w' || kind == 'W' }

// isEnd tells symbols behind which there is no code: data, and the linker's marks
// at the ends of the kernel's text.
func isEnd(l line) bool {
	switch l.kind {
	case 'd', 'D', 'b', 'B', 'r', 'R':
		return l.addr != 0
	}
	return len(l.module) == 0 && (string(l.name) == "_etext" || string(l.name) == "_einittext")
}

// paddings are the symbols of the bytes before a function (since 6.2, amd64),
// which are never run and would double the table.
var paddings = [][]byte{[]byte("__pfx_"), []byte("__cfi_")}

// isPadding also tells the marks where the kernel's text begins: they name no
// function, and share their address with the first.
func isPadding(name []byte) bool {
	for _, prefix := range paddings {
		if bytes.HasPrefix(name, prefix) {
			return true
		}
	}
	switch string(name) {
	case "_text", "_stext", "_head", "_sinittext":
		return true
	}
	return false
}

// Bounds of what is kept, some ten times what large kernels have, so that no text
// makes natkit use memory without end.
const (
	maxEntries = 4 << 20
	maxNames   = 256 << 20
	maxModules = 1 << 16
	maxName    = 512 // KSYM_NAME_LEN since 6.1; 128 before
)

// builder collects the entries of a table.
type builder struct {
	names   []byte
	entries []entry
	modules []string
	index   map[string]uint16 // of modules
	hidden  int               // functions at address 0
}

// parse reads the text of /proc/kallsyms: address, type, name, a tab and the
// module in brackets. What is no such line is left out.
func parse(r io.Reader) (*Table, error) {
	b := &builder{modules: []string{""}, index: map[string]uint16{"": 0}}
	if err := eachLine(r, b.add); err != nil {
		return nil, err
	}
	if len(b.names) == 0 {
		return nil, b.nothing()
	}
	slices.SortFunc(b.entries, compareEntries)
	return &Table{names: string(b.names), entries: withoutDoubleEnds(b.entries), modules: b.modules}, nil
}

// errFound ends a probe.
var errFound = errors.New("found")

// probe reads up to the first function with an address.
func probe(r io.Reader) error {
	b := &builder{}
	err := eachLine(r, func(line []byte) error {
		l, ok := split(line)
		switch {
		case !ok || !isText(l.kind):
		case l.addr == 0:
			b.hidden++
		default:
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return nil
	}
	return cmp.Or(err, b.nothing())
}

// nothing says why there is no function.
func (b *builder) nothing() error {
	if b.hidden > 0 {
		return ErrHidden
	}
	return errors.New("no line in it is a function with its address")
}

// eachLine calls f with every line but those that are too long to be one.
func eachLine(r io.Reader, f func([]byte) error) error {
	buffered := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := buffered.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if err = skipLine(buffered); err == nil {
				continue
			}
			line = nil
		}
		if len(line) > 0 {
			if err := f(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func skipLine(r *bufio.Reader) error {
	for {
		_, err := r.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

func (b *builder) add(text []byte) error {
	l, ok := split(text)
	switch {
	case !ok:
		return nil
	case isText(l.kind) && l.addr == 0:
		b.hidden++
		return nil
	case len(b.entries) == maxEntries || len(b.names) > maxNames:
		return fmt.Errorf("more than %d symbols", maxEntries)
	case isEnd(l):
		b.addEnd(l)
	case isText(l.kind) && !isPadding(l.name):
		b.addFunction(l)
	}
	return nil
}

// addEnd keeps where data begin, once for neighbours: those of the kernel proper
// come by address, those of modules do not.
func (b *builder) addEnd(l line) {
	n := len(b.entries)
	if n > 0 && len(l.module) == 0 && b.entries[n-1].length == 0 && b.entries[n-1].addr <= l.addr {
		return
	}
	b.entries = append(b.entries, entry{addr: l.addr})
}

func (b *builder) addFunction(l line) {
	b.entries = append(b.entries, entry{l.addr, uint32(len(b.names)), uint16(len(l.name)), b.module(l.module)})
	b.names = append(b.names, l.name...)
}

func (b *builder) module(name []byte) uint16 {
	if n, ok := b.index[string(name)]; ok {
		return n
	}
	if len(b.modules) == maxModules {
		return 0
	}
	n := uint16(len(b.modules))
	b.modules = append(b.modules, string(name))
	b.index[string(name)] = n
	return n
}

// compareEntries sorts by address. At one address the order is the file's, so
// that natkit calls a function as the kernel does, with ends behind functions:
// data begins where an empty function would.
func compareEntries(a, b entry) int {
	if c := cmp.Compare(a.addr, b.addr); c != 0 {
		return c
	}
	if (a.length == 0) != (b.length == 0) {
		return cmp.Compare(b.length, a.length)
	}
	return cmp.Compare(a.name, b.name)
}

func withoutDoubleEnds(entries []entry) []entry {
	return slices.Clip(slices.CompactFunc(entries, func(a, b entry) bool { return a.length == 0 && b.length == 0 }))
}
