package kallsyms

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
)

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
