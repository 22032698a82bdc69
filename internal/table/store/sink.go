package store

import (
	"cmp"
	"errors"
	"sync/atomic"

	"github.com/natkit/natkit/internal/table"
)

// batchRows are handed on together; there are batches of them that wait, so that memory is bounded.
const (
	batchRows = 2048
	batches   = 2
)

// mostDays are written at the same time, of whichever nodes; rows come about in the order of time, and a day that comes again
// gets another file.
const mostDays = 3

// Sink takes the rows of one table. Rows are encoded by a goroutine of its own while others are made.
type Sink[T table.Row] struct {
	store *Store
	batch []T
	to    chan []T
	free  chan []T
	done  chan error
	days  []*dayFile[T]
	ended bool
	err   error
	// stopped has what waits thrown away.
	stopped atomic.Bool
}

// dayFile is the file of one day of one node.
type dayFile[T table.Row] struct {
	day, node string
	to        *reporting
	*table.Writer[T]
}

// reporting keeps the error of a file, which the form of the file would wrap in words of its own.
type reporting struct {
	file
	err error
}

func (r *reporting) Write(b []byte) (int, error) {
	n, err := r.file.Write(b)
	r.err = cmp.Or(r.err, err)
	return n, err
}

// write and end return the error of the file, where it has one.
func (d *dayFile[T]) write(rows []T) error { return d.cause(d.Write(rows)) }
func (d *dayFile[T]) end() error           { return d.cause(d.Close()) }

func (d *dayFile[T]) cause(err error) error {
	if err != nil && d.to.err != nil {
		return d.to.err
	}
	return err
}

// errStopped is the error of a sink that was stopped.
var errStopped = errors.New("stopped")

// Of is the sink of a table.
func Of[T table.Row](s *Store) *Sink[T] {
	k := &Sink[T]{store: s, to: make(chan []T, batches), free: make(chan []T, batches+1), done: make(chan error, 1)}
	s.sinks = append(s.sinks, k)
	go func() { k.done <- k.run() }()
	return k
}

// Add takes a row.
func (k *Sink[T]) Add(row T) error {
	if k.batch == nil {
		select {
		case k.batch = <-k.free:
		default:
			k.batch = make([]T, 0, batchRows)
		}
	}
	k.batch = append(k.batch, row)
	if len(k.batch) < batchRows {
		return nil
	}
	return k.flush()
}

// flush hands the batch on.
func (k *Sink[T]) flush() error {
	if k.ended || len(k.batch) == 0 {
		return k.err
	}
	select {
	case k.to <- k.batch:
		k.store.count(table.Name[T](), len(k.batch))
		k.batch = nil
		return nil
	case err := <-k.done:
		k.ended, k.err = true, k.store.failed(err)
		return k.err
	}
}

// end waits until all is written, and ends the files.
func (k *Sink[T]) end() error {
	err := k.flush()
	if k.ended {
		return err
	}
	close(k.to)
	k.ended = true
	if err := <-k.done; err != nil {
		k.err = k.store.failed(err)
	}
	return k.err
}

// stop waits until nothing is written any more.
func (k *Sink[T]) stop() {
	k.stopped.Store(true)
	k.batch = nil
	_ = k.end()
}

// run writes batches until there are no more.
func (k *Sink[T]) run() error {
	for batch := range k.to {
		if k.stopped.Load() {
			return errStopped
		}
		for rest := batch; len(rest) > 0; {
			n := sameDay(rest)
			w, err := k.day(rest[0].When().Day(), rest[0].Where())
			if err == nil {
				err = w.write(rest[:n])
			}
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		clear(batch)
		select {
		case k.free <- batch[:0]:
		default:
		}
	}
	if k.stopped.Load() {
		return errStopped
	}
	if len(k.days) == 0 && k.store.place.single() { // a file without rows has the columns
		if _, err := k.day(table.TimeOf(k.store.opt.Now).Day(), ""); err != nil {
			return err
		}
	}
	for _, d := range k.days {
		if err := d.end(); err != nil {
			return err
		}
	}
	return nil
}

// sameDay is how many rows at the beginning are of one day of one node.
func sameDay[T table.Row](rows []T) int {
	first, node := rows[0].When().Days(), rows[0].Where()
	for i := range rows {
		if rows[i].When().Days() != first || rows[i].Where() != node {
			return i
		}
	}
	return len(rows)
}

// day is the writer of a day of a node.
func (k *Sink[T]) day(day, node string) (*dayFile[T], error) {
	if k.store.place.single() && len(k.days) > 0 { // all days are in it
		return k.days[0], nil
	}
	for _, d := range k.days {
		if d.day == day && d.node == node {
			return d, nil
		}
	}
	if len(k.days) == mostDays {
		if err := k.days[0].end(); err != nil {
			return nil, err
		}
		k.days = k.days[1:]
	}
	f, err := k.store.begin(table.Name[T](), day, node)
	if err != nil {
		return nil, err
	}
	to := &reporting{file: f}
	d := &dayFile[T]{day, node, to, table.NewWriter[T](to, k.store.opt.Version)}
	k.days = append(k.days, d)
	return d, nil
}
