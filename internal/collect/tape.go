package collect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/snapshot"
)

// smallMax bounds what a tape holds in memory: all of a snapshot but its table.
const smallMax = 64 << 20

// maxSpan is the longest time between two snapshots, in seconds: ten years.
const maxSpan = 10 * 365 * 86400

// memberCost is what a member takes beside its name and content, about.
const memberCost = 256

// tape answers from one snapshot's folder of a bundle. The table is read from the
// bundle while it is asked for.
type tape struct {
	bundle *snapshot.BundleReader
	index  int
	files  map[string][]byte
	head   head
	tail   tail
	// err is why the bundle cannot be read on.
	err error
}

// newTape reads the folder up to its table.
func newTape(b *snapshot.BundleReader, index int) (*tape, error) {
	t := &tape{bundle: b, index: index, files: map[string][]byte{}}
	for held := 0; held < smallMax; {
		name, data, err := t.next()
		if err != nil {
			return nil, err
		}
		if name == headName {
			return t, t.parse(headName, data, &t.head)
		}
		held += len(data) + len(name) + memberCost
		t.files[name] = data
	}
	return nil, fmt.Errorf("more than %d bytes before %s", smallMax, member(index, headName))
}

// next is the next member of this snapshot's folder.
func (t *tape) next() (string, []byte, error) {
	name, data, err := t.bundle.Next()
	if errors.Is(err, io.EOF) {
		return "", nil, fmt.Errorf("it ends before %s", member(t.index, tailName))
	}
	if err != nil {
		return "", nil, err
	}
	folder := member(t.index, "")
	if !strings.HasPrefix(name, folder) {
		return "", nil, fmt.Errorf("%q where %s… was due", name, folder)
	}
	return strings.TrimPrefix(name, folder), data, nil
}

func (t *tape) parse(name string, data []byte, v any) error {
	err := t.bundle.Unmarshal(data, v)
	if err != nil {
		err = fmt.Errorf("%s: %w", member(t.index, name), err)
	}
	if errors.Is(err, snapshot.ErrBudget) { // no part that is missing
		t.err = err
	}
	return err
}

func (t *tape) failure(what string) error {
	if f := t.head.Failures[what]; f != nil {
		return f
	}
	return nil
}

func (t *tape) inside(fn func() error) error { return fn() }

func (t *tape) readFile(path string) ([]byte, error) {
	if err := t.failure(path); err != nil {
		return nil, err
	}
	data, ok := t.files[fileFolder+path]
	if !ok {
		return nil, errNotRecorded{path}
	}
	return data, nil
}

// readStart: the bundle has what was read.
func (t *tape) readStart(path string, max int, _ time.Duration) ([]byte, bool, error) {
	data, err := t.readFile(path)
	whole := !slices.Contains(t.head.Cut, path) && len(data) <= max
	return data[:min(len(data), max)], whole, err
}

func (t *tape) list(dir, prefix string) ([]string, error) {
	what := askedList(dir, prefix)
	if err := t.failure(what); err != nil {
		return nil, err
	}
	names, ok := t.head.Lists[what]
	if !ok {
		return nil, errNotRecorded{dir}
	}
	return names, nil
}

func (t *tape) machine() (machine, error) { return t.head.Machine, t.failure(askedMachine) }

func (t *tape) structSize(name string) (int, error) {
	if err := t.failure(askedStruct(name)); err != nil {
		return 0, err
	}
	n, ok := t.head.StructSizes[name]
	if !ok || n <= 0 || n > math.MaxInt16 {
		return 0, errNotRecorded{"struct " + name}
	}
	return n, nil
}

// traced is nil where nothing was traced, as in bundles of a natkit that could not.
func (t *tape) traced(*snapshot.Trace) (*snapshot.Trace, error) {
	data, ok := t.files[traceName]
	if !ok {
		return nil, nil
	}
	trace := &snapshot.Trace{}
	return trace, t.parse(traceName, data, trace)
}

func (t *tape) clock(label string) instant {
	if now, ok := t.head.Clocks[label]; ok {
		return now
	}
	return t.tail.Clocks[label]
}

func (t *tape) counters(_ context.Context, fn func([]byte) error) error {
	return replay(t.files[countersName], t.failure(askedCounters), fn)
}

// replay passes on what came before an error, and the error.
func replay(msgs []byte, failure error, fn func([]byte) error) error {
	if len(msgs) > 0 {
		if err := fn(msgs); err != nil && !errors.Is(err, dump.ErrStop) {
			return err
		}
	}
	return failure
}

func (t *tape) kernelLog(fn func([]byte) bool) (uint64, error) {
	text := t.files[kernelLogName]
	for len(text) > 0 {
		n := recordLen(text)
		fn(text[:n])
		text = text[n:]
	}
	return t.head.KernelLogNext, t.failure(askedKernelLog)
}

// recordLen is the length of the first record: a line, and the lines behind it
// that begin with a space.
func recordLen(text []byte) int {
	for n := 0; ; {
		end := bytes.IndexByte(text[n:], '\n')
		if end < 0 {
			return len(text)
		}
		n += end + 1
		if n == len(text) || text[n] != ' ' {
			return n
		}
	}
}

func (t *tape) table(_ context.Context, fn func([]byte) error) (dump.Result, error) {
	var wrong error
	for {
		name, data, err := t.next()
		if err == nil && name == tailName {
			if err = t.parse(tailName, data, &t.tail); err == nil {
				return t.ended(wrong)
			}
		}
		if err == nil && !strings.HasPrefix(name, tableFolder+"/") {
			err = fmt.Errorf("%q in a table", name)
		}
		if err != nil {
			t.err = cmp.Or(t.err, err)
			return dump.Result{}, err
		}
		// The recorder stopped where it was told to; what is here was all counted.
		if wrong == nil {
			if err := fn(data); err != nil && !errors.Is(err, dump.ErrStop) {
				wrong = fmt.Errorf("%s: %w", member(t.index, name), err)
			}
		}
	}
}

// ended is how the dump went when it was recorded, or else what is wrong with it.
func (t *tape) ended(wrong error) (dump.Result, error) {
	r := dump.Result{Complete: t.tail.Complete, Interrupted: t.tail.Interrupted}
	if t.tail.Failure != nil {
		return r, t.tail.Failure
	}
	return r, wrong
}

// ReadBundle reads what WriteBundle wrote with the collectors that read the
// running kernel. A damaged bundle is an error, never half a recording, and so is one
// that takes more memory than the budget has (nil: the default one).
func ReadBundle(r io.Reader, budget *snapshot.Budget) (*snapshot.Recording, error) {
	if budget == nil {
		budget = snapshot.NewBudget(snapshot.DefaultBudget)
	}
	b, err := snapshot.NewBundleReader(r, budget)
	if err != nil {
		return nil, err
	}
	var current *tape
	// What was recorded was bounded when it was written.
	o := RecordOptions{Options: Options{MaxEntries: math.MaxInt}}
	rec, err := record(context.Background(), o, func(i int) (source, error) {
		if current != nil && current.err != nil {
			return nil, current.err
		}
		var err error
		current, err = newTape(b, i)
		return current, err
	})
	if err != nil {
		return nil, err
	}
	if current.err != nil {
		return nil, current.err
	}
	if err := skipRest(b); err != nil {
		return nil, err
	}
	if s := rec.Seconds(); !(s >= 0 && s <= maxSpan) {
		return nil, fmt.Errorf("its two snapshots are %g seconds apart", s)
	}
	return rec, nil
}

// skipRest reads to the end, which proves that the bundle is whole.
func skipRest(b *snapshot.BundleReader) error {
	for {
		if _, _, err := b.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
