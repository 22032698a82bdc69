package main

import (
	"cmp"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/natkit/natkit/internal/table"
)

// files writes rows in the order of time into the files of their days and nodes.
type files[T table.Row] struct {
	dir  string
	head func(*T) table.Head
	file *os.File
	to   *table.Writer[T]
	day  string
	node string
	some []T
	rows int64
}

// batch is how many rows are given to the writer at once.
const batch = 4096

func (w *files[T]) write(row T) error {
	h := w.head(&row)
	if w.to == nil || h.Time.Day() != w.day || h.Node != w.node {
		if err := w.close(); err != nil {
			return err
		}
		if err := w.open(h); err != nil {
			return err
		}
	}
	w.rows++
	if w.some = append(w.some, row); len(w.some) < batch {
		return nil
	}
	return w.flush()
}

func (w *files[T]) open(h table.Head) (err error) {
	w.day, w.node = h.Time.Day(), h.Node
	dir := filepath.Join(w.dir, table.Name[T](), "day="+w.day, "node="+w.node)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	already, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return err
	}
	if w.file, err = os.Create(filepath.Join(dir, fmt.Sprintf("part-%03d.parquet", len(already)))); err != nil {
		return err
	}
	w.to = table.NewWriter[T](w.file, "simulated")
	return nil
}

func (w *files[T]) flush() error {
	err := w.to.Write(w.some)
	w.some = w.some[:0]
	return err
}

func (w *files[T]) close() error {
	if w.to == nil {
		return nil
	}
	err := cmp.Or(w.flush(), w.to.Close(), w.file.Close())
	w.to = nil
	return err
}

// writeAll writes rows, which are in the order of time, and returns their number.
func writeAll[T table.Row](dir string, head func(*T) table.Head, rows iter.Seq[T]) (int64, error) {
	w := files[T]{dir: dir, head: head}
	for row := range rows {
		if err := w.write(row); err != nil {
			return w.rows, err
		}
	}
	return w.rows, w.close()
}

func entryHead(r *table.Entry) table.Head     { return r.Head }
func logHead(r *table.NATLog) table.Head      { return r.Head }
func sampleHead(r *table.Sample) table.Head   { return r.Head }
func serviceHead(r *table.Service) table.Head { return r.Head }

// Write writes the tables that are named, so many nodes at a time, and returns the rows of all.
func (f Fleet) Write(dir string, tables []string, workers int) (rows int64, err error) {
	var group sync.WaitGroup
	var mutex sync.Mutex
	nodes := make(chan int)
	for range workers {
		group.Go(func() {
			for n := range nodes {
				wrote, failed := f.writeNode(dir, n, tables)
				mutex.Lock()
				rows, err = rows+wrote, cmp.Or(err, failed)
				mutex.Unlock()
			}
		})
	}
	for n := range f.Nodes {
		nodes <- n
	}
	close(nodes)
	group.Wait()
	if err != nil || !slices.Contains(tables, table.NATLogs) {
		return rows, err
	}
	wrote, err := writeAll(dir, logHead, slices.Values(f.sortedPlanted()))
	return rows + wrote, err
}

func (f Fleet) sortedPlanted() []table.NATLog {
	rows := f.Planted()
	slices.SortStableFunc(rows, func(a, b table.NATLog) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Time, b.Time)) })
	return rows
}

func (f Fleet) writeNode(dir string, n int, tables []string) (rows int64, err error) {
	for _, name := range tables {
		var wrote int64
		switch name {
		case table.NATLogs:
			wrote, err = writeAll(dir, logHead, f.NATLog(n))
		case table.Entries:
			wrote, err = writeAll(dir, entryHead, f.Entries(n))
		case table.Samples:
			wrote, err = writeAll(dir, sampleHead, f.Samples(n))
		case table.Services:
			wrote, err = writeAll(dir, serviceHead, f.Services(n))
		default:
			err = fmt.Errorf("table %s: a simulated fleet has none", name)
		}
		if rows += wrote; err != nil {
			return rows, err
		}
	}
	return rows, nil
}
