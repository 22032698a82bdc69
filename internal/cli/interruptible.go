package cli

import (
	"context"
	"io"
)

// interruptible reads another reader on a goroutine of its own, so that an interrupt
// need not wait for input. That goroutine then ends with the process.
type interruptible struct {
	ctx   context.Context
	full  <-chan chunk
	empty chan<- []byte
	chunk chunk
	at    int
}

// chunk is the outcome of one Read.
type chunk struct {
	buf []byte
	n   int
	err error
}

const (
	chunkSize = 256 << 10
	chunks    = 2
)

func newInterruptible(ctx context.Context, from io.Reader) *interruptible {
	full, empty := make(chan chunk, chunks), make(chan []byte, chunks)
	for range chunks {
		empty <- make([]byte, chunkSize)
	}
	go func() {
		for buf := range empty {
			n, err := from.Read(buf)
			full <- chunk{buf, n, err}
			if err != nil {
				return
			}
		}
	}()
	return &interruptible{ctx: ctx, full: full, empty: empty}
}

func (r *interruptible) Read(p []byte) (int, error) {
	for r.at == r.chunk.n {
		if err := r.chunk.err; err != nil {
			return 0, err
		}
		if r.chunk.buf != nil {
			r.empty <- r.chunk.buf
		}
		select {
		case r.chunk = <-r.full:
			r.at = 0
		case <-r.ctx.Done():
			r.chunk, r.at = chunk{err: r.ctx.Err()}, 0
		}
	}
	n := copy(p, r.chunk.buf[r.at:r.chunk.n])
	r.at += n
	return n, nil
}
