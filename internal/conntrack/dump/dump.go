// Package dump speaks ctnetlink with the kernel: it reads the connection table
// and its counters, and writes and deletes entries. Only Watch subscribes to
// events, which slows the tracker down for everybody; nothing else here does.
package dump

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// ErrStop ends a Dump early without an error when fn returns it.
var ErrStop = errors.New("stop the dump")

// Result tells how a Dump went.
type Result struct {
	// Bytes were handed to fn.
	Bytes int64
	// Complete is true where the kernel said that there are no more entries.
	Complete bool
	// Interrupted: entries may be missing or doubled, as the hash table was resized
	// meanwhile (nf_conntrack_buckets is not what it was before), or the kernel
	// says so (NLM_F_DUMP_INTR).
	Interrupted bool
	// Filtered is whether the kernel was asked to leave entries out and did not
	// refuse.
	Filtered bool
	// Attempts is how often the dump was begun, 1 unless it was begun again.
	Attempts int
}

// Dump reads the table of a namespace (nil: this one) in the order of its hash
// buckets. fn is called with whole netlink messages, as many as the kernel put
// into one datagram, on the calling goroutine while the next ones are received
// on another; it must not keep them. An error of fn ends the dump and is
// returned, except ErrStop. Needs CAP_NET_ADMIN.
//
// The kernel walks the hash of all namespaces and passes over the entries of
// the others, and those that have expired (ctnetlink_dump_table).
func Dump(ctx context.Context, ns *netns.Handle, fn func(msgs []byte) error) (Result, error) {
	return dumpFiltered(ctx, ns, conntrack.KernelFilter{}, fn)
}

// DumpStats reads the tracker's counters as Dump does the entries, one message
// per CPU.
func DumpStats(ctx context.Context, ns *netns.Handle, fn func(msgs []byte) error) (Result, error) {
	return stream(ctx, ns, "read the connection tracker's counters", conntrack.GetStatsCPU, conntrack.KernelFilter{}, fn)
}

// Stats reads the tracker's counters of a namespace (nil: this one), one map per
// CPU, under the kernel's names. Needs CAP_NET_ADMIN.
func Stats(ns *netns.Handle) ([]map[string]uint64, error) {
	var cpus []map[string]uint64
	_, err := DumpStats(context.Background(), ns, func(msgs []byte) (err error) {
		cpus, err = AppendStats(cpus, msgs)
		return err
	})
	return cpus, err
}

// AppendStats decodes the counters in a datagram of DumpStats.
func AppendStats(cpus []map[string]uint64, msgs []byte) ([]map[string]uint64, error) {
	for len(msgs) > 0 {
		m, rest, err := conntrack.Next(msgs)
		if err != nil {
			return nil, err
		}
		msgs = rest
		if !m.Is(conntrack.GetStatsCPU) {
			continue
		}
		cpu, err := conntrack.StatsCPU(m.Body)
		if err != nil {
			return nil, err
		}
		cpus = append(cpus, cpu)
	}
	return cpus, nil
}

// stream asks for all messages of a kind, or those that a filter chooses.
func stream(ctx context.Context, ns *netns.Handle, what string, t conntrack.MessageType, f conntrack.KernelFilter, fn func([]byte) error) (Result, error) {
	s, err := dial(ns)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", what, err)
	}
	defer s.close()
	r, err := s.stream(ctx, s.filtered(t, f), fn)
	if err != nil && !errors.Is(err, ErrStop) {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	return r, nil
}

// datagram is what the receiving goroutine passes on: bytes, or why it ended.
type datagram struct {
	buf []byte
	n   int
	err error
}

func (s *socket) stream(ctx context.Context, request []byte, fn func([]byte) error) (Result, error) {
	if err := s.send(request); err != nil {
		return Result{}, err
	}
	return s.collect(ctx, fn)
}

// collect receives a dump that was asked for.
func (s *socket) collect(ctx context.Context, fn func([]byte) error) (r Result, err error) {
	r.Attempts = 1
	const ahead = 4
	free, filled := make(chan []byte, ahead), make(chan datagram, ahead)
	for range ahead {
		free <- make([]byte, datagramMax)
	}
	ctx, cancel := context.WithCancel(ctx)
	var receiver sync.WaitGroup
	receiver.Go(func() { s.receiveAll(ctx, free, filled) })
	// The receiver ends at its next datagram: free is never closed, so it is the
	// context that tells it, and the channel is as long as there are buffers.
	defer receiver.Wait()
	defer cancel()
	for {
		d := <-filled
		if d.err != nil {
			return r, d.err
		}
		end, err := r.look(d.buf[:d.n])
		if err != nil {
			return r, err
		}
		r.Bytes += int64(d.n)
		err = fn(d.buf[:d.n])
		// Stopping at the last datagram leaves nothing out.
		r.Complete = end && (err == nil || errors.Is(err, ErrStop))
		if err != nil || end {
			return r, err
		}
		free <- d.buf
	}
}

// receiveAll fills buffers until an error, of the socket or of the context.
func (s *socket) receiveAll(ctx context.Context, free <-chan []byte, filled chan<- datagram) {
	for {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
		}
		if err := ctx.Err(); err != nil {
			filled <- datagram{err: err}
			return
		}
		got, err := s.receive(ctx, buf)
		filled <- datagram{buf, len(got), err}
		if err != nil || last(got) {
			return
		}
	}
}

// last reports whether a datagram ends a dump: the kernel sends NLMSG_DONE or
// NLMSG_ERROR alone or behind the last entries.
func last(b []byte) bool {
	for len(b) > 0 {
		m, rest, err := conntrack.Next(b)
		if err != nil || m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
			return true
		}
		b = rest
	}
	return false
}

// look reads what the headers of a datagram say of the dump itself.
func (r *Result) look(b []byte) (end bool, err error) {
	for len(b) > 0 {
		m, rest, err := conntrack.Next(b)
		if err != nil {
			return true, err
		}
		b = rest
		if m.Flags&unix.NLM_F_DUMP_INTR != 0 {
			r.Interrupted = true
		}
		switch m.Type {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			end = true
			// NLMSG_DONE has carried the dump's error since Linux 4.15; before that
			// it may be empty.
			if m.Type == unix.NLMSG_DONE && len(m.Body) < 4 {
				continue
			}
			errno, err := m.Errno()
			if err == nil && errno != 0 {
				err = explain(errno)
			}
			if err != nil {
				return true, err
			}
		}
	}
	return end, nil
}
