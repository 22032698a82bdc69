package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// chunkBytes is how much of a dump goes into one member of a bundle.
const chunkBytes = 1 << 20

// The members of a bundle: one folder per recording and in it one per snapshot, from 0 on. head.json stands
// behind the files and before the table, which tail.json ends, so that a table
// of any size passes through reader and writer without being held.
const (
	fileFolder    = "files"
	countersName  = "counters.bin"
	kernelLogName = "kmsg.txt"
	// traceName is in a folder where something was traced since the one before. A natkit
	// that does not know it passes over it, as over any file.
	traceName   = "trace.json"
	headName    = "head.json"
	tableFolder = "table"
	tailName    = "tail.json"
	// resultName is the recording, for people and other programs.
	resultName = "recording.json"
)

// place is the folder of a snapshot.
type place struct{ recording, snapshot int }

func (p place) member(name string) string {
	return fmt.Sprintf("%d/%d/%s", p.recording, p.snapshot, name)
}

// inRecording names a member of a recording that is of none of its snapshots.
func inRecording(n int, name string) string { return fmt.Sprintf("%d/%s", n, name) }

// head is what is not in a file of its own.
type head struct {
	Machine     machine             `json:"machine"`
	Clocks      map[string]instant  `json:"clocks"`
	Lists       map[string][]string `json:"lists"`
	StructSizes map[string]int      `json:"struct_sizes"`
	// KernelLogNext is the sequence number behind the last record of the log.
	KernelLogNext uint64 `json:"kernel_log_next"`
	// Owner is whose the namespace is, where all of them were read.
	Owner *snapshot.Owner `json:"owner,omitempty"`
	// More is whether another snapshot follows, beyond the second.
	More bool `json:"more,omitempty"`
	// CutShortOf is the time since the snapshot before that was asked for, in seconds,
	// where an interrupt ended it.
	CutShortOf float64 `json:"cut_short_of_seconds,omitempty"`
	// Cut are the files of which only the beginning was read.
	Cut []string `json:"cut,omitempty"`
	// Failures is why something could not be read, by what it was.
	Failures map[string]*failure `json:"failures"`
}

// tail ends a table.
type tail struct {
	Clocks      map[string]instant `json:"clocks"`
	Complete    bool               `json:"complete"`
	Interrupted bool               `json:"interrupted"`
	Failure     *failure           `json:"failure,omitempty"`
	// Answers are those to what was asked after the table, by their member; Failures is why one is
	// missing, by what was asked.
	Answers  map[string]json.RawMessage `json:"answers,omitempty"`
	Failures map[string]*failure        `json:"failures,omitempty"`
}

// Keys of head.Failures for what is not a path.
const (
	askedCounters  = "ctnetlink counters"
	askedKernelLog = "kernel log"
	askedMachine   = "machine"
)

func askedList(dir, prefix string) string { return "list " + dir + "/" + prefix }
func askedStruct(name string) string      { return "struct " + name }

// recorder passes on a source's answers and writes them into a bundle.
type recorder struct {
	source
	bundle members
	place
	head head
	tail tail
	// inTable is set once head is written.
	inTable bool
	chunk   []byte
	chunks  int
	// err is the first error of writing. It ends a recording, but not what the
	// collectors do meanwhile.
	err error
}

// members takes what a recorder writes.
type members interface {
	add(name string, data []byte) error
	addJSON(name string, v any) error
}

func newRecorder(src source, to members, at place, owner *snapshot.Owner) *recorder {
	return &recorder{source: src, bundle: to, place: at,
		head: head{
			Owner:  owner,
			Clocks: map[string]instant{}, Lists: map[string][]string{},
			StructSizes: map[string]int{}, Failures: map[string]*failure{},
		},
		tail: tail{Clocks: map[string]instant{}, Answers: map[string]json.RawMessage{}, Failures: map[string]*failure{}},
	}
}

func (r *recorder) add(name string, data []byte) {
	if r.err == nil {
		r.err = r.bundle.add(r.member(name), data)
	}
}

func (r *recorder) addJSON(name string, v any) {
	if r.err == nil {
		r.err = r.bundle.addJSON(r.member(name), v)
	}
}

// failed keeps an error and returns it in the form in which it is read back.
func (r *recorder) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	f := newFailure(err)
	if r.inTable {
		r.tail.Failures[what] = f
	} else {
		r.head.Failures[what] = f
	}
	return f
}

func (r *recorder) readStart(path string, max int, patience time.Duration) ([]byte, bool, error) {
	data, whole, err := r.source.readStart(path, max, patience)
	if err != nil {
		return nil, false, r.failed(path, err)
	}
	r.add(fileFolder+path, data)
	if !whole {
		r.head.Cut = append(r.head.Cut, path)
	}
	return data, whole, nil
}

func (r *recorder) list(dir, prefix string) ([]string, error) {
	names, err := r.source.list(dir, prefix)
	if err != nil {
		return nil, r.failed(askedList(dir, prefix), err)
	}
	r.head.Lists[askedList(dir, prefix)] = names
	return names, nil
}

func (r *recorder) machine() (machine, error) {
	m, err := r.source.machine()
	r.head.Machine = m
	return m, r.failed(askedMachine, err)
}

// answer refuses what no bundle has room for, which does not spoil the rest.
func (r *recorder) answer(q question, v any, ask func() error) error {
	err := r.source.answer(q, v, ask)
	var data []byte
	if err == nil {
		data, err = json.Marshal(v)
	}
	if err == nil && len(data) > snapshot.MemberMax {
		err = fmt.Errorf("write %s: %d bytes are more than fit into a bundle", q.what, len(data))
	}
	if err != nil {
		return r.failed(q.what, err)
	}
	if r.inTable {
		r.tail.Answers[q.member] = data
		return nil
	}
	r.add(q.member, data)
	return nil
}

func (r *recorder) structSize(name string) (int, error) {
	n, err := r.source.structSize(name)
	r.head.StructSizes[name] = n
	return n, r.failed(askedStruct(name), err)
}

func (r *recorder) traced(now *snapshot.Trace) (*snapshot.Trace, error) {
	if now != nil {
		r.addJSON(traceName, now)
	}
	return now, r.err
}

func (r *recorder) clock(label string) instant {
	now := r.source.clock(label)
	if r.inTable {
		r.tail.Clocks[label] = now
	} else {
		r.head.Clocks[label] = now
	}
	return now
}

func (r *recorder) counters(ctx context.Context, fn func([]byte) error) error {
	var all []byte
	err := r.source.counters(ctx, func(msgs []byte) error {
		all = appendMessages(all, msgs)
		return fn(msgs)
	})
	r.add(countersName, all)
	return r.failed(askedCounters, err)
}

func (r *recorder) kernelLog(fn func([]byte) bool) (uint64, error) {
	var kept bytes.Buffer
	next, err := r.source.kernelLog(func(record []byte) bool {
		keep := fn(record)
		if keep && kept.Len()+len(record) < snapshot.MemberMax {
			kept.Write(record)
		}
		return keep
	})
	r.add(kernelLogName, kept.Bytes())
	r.head.KernelLogNext = next
	return next, r.failed(askedKernelLog, err)
}

func (r *recorder) table(ctx context.Context, fn func([]byte) error) (dump.Result, error) {
	r.addJSON(headName, r.head)
	r.inTable = true
	res, err := r.source.table(ctx, func(msgs []byte) error {
		r.chunk = appendMessages(r.chunk, msgs)
		if len(r.chunk) >= chunkBytes {
			r.flush()
		}
		if r.err != nil {
			return r.err
		}
		return fn(msgs)
	})
	r.flush()
	r.tail.Complete, r.tail.Interrupted = res.Complete, res.Interrupted
	if err != nil {
		r.tail.Failure = newFailure(err)
		err = r.tail.Failure
	}
	return res, err
}

func (r *recorder) flush() {
	if len(r.chunk) > 0 {
		r.add(fmt.Sprintf("%s/%06d", tableFolder, r.chunks), r.chunk)
		r.chunks++
		r.chunk = r.chunk[:0]
	}
}

// end writes what ends the snapshot's folder.
func (r *recorder) end() error {
	r.addJSON(tailName, r.tail)
	return r.err
}

// appendMessages keeps netlink messages aligned where datagrams are put together.
func appendMessages(to, msgs []byte) []byte {
	to = append(to, msgs...)
	for len(to)%4 != 0 {
		to = append(to, 0)
	}
	return to
}

// smallMax bounds what a tape holds in memory: all of a snapshot but its table.
const smallMax = 64 << 20

// maxSpan is the longest time of a recording, in seconds: ten years.
const maxSpan = 10 * 365 * 86400

// memberCost is what a member takes beside its name and content, about.
const memberCost = 256

// tape answers from one snapshot's folder of a bundle. The table is read from the
// bundle while it is asked for.
type tape struct {
	bundle *snapshot.BundleReader
	place
	files map[string][]byte
	head  head
	tail  tail
	// err is why the bundle cannot be read on, damage why this snapshot's folder is not whole.
	err    error
	damage *snapshot.DamageError
}

// newTape reads the folder up to its table.
func newTape(b *snapshot.BundleReader, at place) (*tape, error) {
	t := &tape{bundle: b, place: at, files: map[string][]byte{}}
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
	return nil, fmt.Errorf("more than %d bytes before %s", smallMax, at.member(headName))
}

// next is the next member of this snapshot's folder.
func (t *tape) next() (string, []byte, error) {
	name, data, err := t.bundle.Next()
	if errors.Is(err, io.EOF) {
		return "", nil, fmt.Errorf("it ends before %s", t.member(tailName))
	}
	if err != nil {
		return "", nil, err
	}
	folder := t.member("")
	if !strings.HasPrefix(name, folder) {
		return "", nil, fmt.Errorf("%q where %s… was due", name, folder)
	}
	return strings.TrimPrefix(name, folder), data, nil
}

func (t *tape) parse(name string, data []byte, v any) error {
	err := t.bundle.Unmarshal(data, v)
	if err != nil {
		err = fmt.Errorf("%s: %w", t.member(name), err)
	}
	if errors.Is(err, snapshot.ErrBudget) { // no part that is missing
		t.err = err
	}
	return err
}

func (t *tape) failure(what string) error {
	if f := cmp.Or(t.head.Failures[what], t.tail.Failures[what]); f != nil {
		return f
	}
	return nil
}

func (t *tape) inside(fn func() error) error { return fn() }

// readStart: the bundle has what was read.
func (t *tape) readStart(path string, max int, _ time.Duration) ([]byte, bool, error) {
	if err := t.failure(path); err != nil {
		return nil, false, err
	}
	data, ok := t.files[fileFolder+path]
	if !ok {
		return nil, false, errNotRecorded{path}
	}
	return data[:min(len(data), max)], len(data) <= max && !slices.Contains(t.head.Cut, path), nil
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

func (t *tape) judged() ([]*ruleset.Table, error) { return nil, errNotRecorded{"rules"} }

// namer is not called: answer has what it returned.
func (t *tape) namer() func(context.Context) *snapshot.Names {
	if t.files[namesMember] == nil {
		return nil
	}
	return func(context.Context) *snapshot.Names { return nil }
}

func (t *tape) world() (world, error) { return nil, errNotRecorded{"the namespace"} }

func (t *tape) machine() (machine, error) { return t.head.Machine, t.failure(askedMachine) }

// answer is not in bundles of a natkit that did not ask.
func (t *tape) answer(q question, v any, _ func() error) error {
	if err := t.failure(q.what); err != nil {
		return err
	}
	data, ok := t.files[q.member]
	if !ok {
		data, ok = t.tail.Answers[q.member]
	}
	if !ok {
		return errNotRecorded{q.what}
	}
	return t.parse(q.member, data, v)
}

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
	if t.damage != nil { // what the tail had
		return t.head.Clocks[snapshot.PartTable]
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
		if errors.As(err, &t.damage) {
			return dump.Result{}, fmt.Errorf("read the connection table: %w", err)
		}
		if err != nil {
			t.err = cmp.Or(t.err, err)
			return dump.Result{}, err
		}
		t.bundle.Release(int64(len(data))) // the next one takes its place
		// The recorder ended the dump; all that is here was counted.
		if wrong == nil {
			if err := fn(data); err != nil && !errors.Is(err, dump.ErrStop) {
				wrong = fmt.Errorf("%s: %w", t.member(name), err)
			}
		}
	}
}

// ended returns the recorded outcome of the dump, or else what is wrong with it.
func (t *tape) ended(wrong error) (dump.Result, error) {
	r := dump.Result{Complete: t.tail.Complete, Interrupted: t.tail.Interrupted}
	if t.tail.Failure != nil {
		return r, t.tail.Failure
	}
	return r, wrong
}

// Entries calls fn for the entries of a connection table that the members of one snapshot have: a part of the table, where
// it was larger than what was recorded. They must not be kept.
func Entries(members []snapshot.BundleMember, fn func(*conntrack.Entry) error) error {
	var e conntrack.Entry
	for _, m := range members {
		if !strings.HasPrefix(m.Name, tableFolder+"/") || strings.HasSuffix(m.Name, ".json") {
			continue
		}
		if err := conntrack.Each(m.Data, &e, fn); err != nil {
			return fmt.Errorf("read the connection table: %s: %w", m.Name, err)
		}
	}
	return nil
}
