package collect

import (
	"context"
	"io/fs"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// fixture is a source of literals.
type fixture struct {
	files   map[string]string
	lists   map[string][]string
	structs map[string]int
}

func (f *fixture) inside(fn func() error) error { return fn() }

func (f *fixture) readStart(path string, max int, _ time.Duration) ([]byte, bool, error) {
	text, ok := f.files[path]
	if !ok {
		return nil, false, explainFile(path, fs.ErrNotExist)
	}
	return []byte(text[:min(len(text), max)]), len(text) <= max, nil
}

func (f *fixture) answer(q question, _ any, _ func() error) error { return errNotRecorded{q.what} }

func (f *fixture) list(dir, prefix string) ([]string, error) {
	names, ok := f.lists[askedList(dir, prefix)]
	if !ok {
		return nil, explainFile(dir, fs.ErrNotExist)
	}
	return names, nil
}

func (f *fixture) namer() func(context.Context) *snapshot.Names { return nil }

func (f *fixture) judged() ([]*ruleset.Table, error) { return nil, fs.ErrNotExist }
func (f *fixture) world() (world, error)             { return nil, fs.ErrNotExist }

func (f *fixture) structSize(name string) (int, error) {
	n, ok := f.structs[name]
	if !ok {
		return 0, fs.ErrNotExist
	}
	return n, nil
}

func (f *fixture) counters(context.Context, func([]byte) error) error { return fs.ErrNotExist }

func (f *fixture) table(context.Context, func([]byte) error) (dump.Result, error) {
	return dump.Result{}, fs.ErrNotExist
}

func (f *fixture) kernelLog(func([]byte) bool) (uint64, error) { return 0, fs.ErrNotExist }
func (f *fixture) traced(now *snapshot.Trace) (*snapshot.Trace, error) {
	return now, nil
}
func (f *fixture) machine() (machine, error) { return machine{}, nil }
func (f *fixture) clock(string) instant      { return instant{} }
