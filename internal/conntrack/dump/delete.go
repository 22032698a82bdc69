package dump

import (
	"context"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Deleted tells what became of entries that were to be deleted.
type Deleted struct {
	Deleted int64
	// Gone were not there any more, or another entry had their tuples.
	Gone int64
	// Busy are offloaded to a flow table, whose entries the kernel does not delete
	// (EBUSY).
	Busy int64
}

// DeleteKeys deletes exactly these entries of a namespace (nil: this one), many with
// each system call. After an error, among them an ended context, the result
// still tells what was done. Needs CAP_NET_ADMIN.
func DeleteKeys(ctx context.Context, ns *netns.Handle, keys []conntrack.Key) (Deleted, error) {
	var d Deleted
	s, err := dial(ns)
	if err == nil {
		defer s.close()
		err = d.all(ctx, s, keys)
	}
	if err != nil {
		return d, fmt.Errorf("delete conntrack entries: %w", err)
	}
	return d, nil
}

func (d *Deleted) all(ctx context.Context, s *socket, keys []conntrack.Key) error {
	buf, answer := make([]byte, 0, batchBytes+1024), make([]byte, datagramMax)
	for len(keys) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := 0
		buf, n = s.deletions(buf[:0], keys)
		if err := s.send(buf); err != nil {
			return err
		}
		keys = keys[n:]
		if err := d.count(ctx, s, int64(n), answer); err != nil {
			return err
		}
	}
	return nil
}

// deletions fills a batch with messages for the first n keys, of which the last
// asks for an acknowledgement.
func (s *socket) deletions(buf []byte, keys []conntrack.Key) (_ []byte, n int) {
	for n < len(keys) && len(buf) < batchBytes {
		flags := uint16(unix.NLM_F_REQUEST)
		at := len(buf)
		s.seq++
		buf = conntrack.AppendDelete(buf, flags, s.seq, &keys[n])
		if n++; n == len(keys) || len(buf) >= batchBytes {
			conntrack.AddFlags(buf[at:], unix.NLM_F_ACK)
		}
	}
	return buf, n
}

// count reads the answers to a batch of n: a refusal for some, and one for the
// last in any case.
func (d *Deleted) count(ctx context.Context, s *socket, n int64, answer []byte) error {
	var other unix.Errno
	err := s.eachAnswer(ctx, answer, func(errno unix.Errno) {
		switch errno {
		case 0:
			return
		case unix.ENOENT:
			d.Gone++
		case unix.EBUSY:
			d.Busy++
		default:
			other = errno
		}
		n--
	})
	if err != nil {
		return err
	}
	d.Deleted += n
	if other != 0 {
		return explain(other)
	}
	return nil
}
