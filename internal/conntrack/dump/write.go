package dump

import (
	"context"
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// batchBytes is how much is sent at once. The kernel handles a batch before
// send returns and queues an answer for each refused message; so many small
// answers fit into receiveBuffer, and into net.core.rmem_default as well.
const batchBytes = 32 << 10

// ErrExists is the cause where an inserted entry's tuples are taken.
var ErrExists = errors.New("an entry with these tuples exists")

// ErrFull is the cause where the table of the namespace holds nf_conntrack_max
// entries.
var ErrFull = errors.New("the table is full")

// Insert writes entries into the table of a namespace (nil: this one) until next
// returns false or the kernel refuses one, and returns how many the kernel took.
// next fills the entry that it is given; it gets back what it filled last. What
// follows a refused entry in the same batch (about 150 entries) may have been
// taken. Needs CAP_NET_ADMIN.
//
// The table's limit holds for ctnetlink as for packets (__nf_conntrack_alloc):
// beyond it the kernel evicts an entry that is not assured, or refuses and logs
// its "table full" line. Inserted entries count in `insert`, refused ones in no
// counter.
func Insert(ctx context.Context, ns *netns.Handle, next func(*conntrack.Entry) bool) (int64, error) {
	s, err := dial(ns)
	if err != nil {
		return 0, fmt.Errorf("insert conntrack entries: %w", err)
	}
	defer s.close()
	b := batch{s: s, buf: make([]byte, 0, batchBytes+1024), answer: make([]byte, datagramMax)}
	taken, err := b.insertAll(ctx, next)
	if err != nil {
		return taken, fmt.Errorf("insert conntrack entry %d: %w", taken, full(ns, err))
	}
	return taken, nil
}

// full replaces ENOMEM, which the kernel says for both, by ErrFull where it is so.
func full(ns *netns.Handle, err error) error {
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	u, countErr := Count(ns)
	if countErr != nil || u.Max == 0 || u.Entries < u.Max {
		return fmt.Errorf("%w (no memory, or the table holds nf_conntrack_max entries)", err)
	}
	return fmt.Errorf("%w: %d entries, nf_conntrack_max is %d", ErrFull, u.Entries, u.Max)
}

// batch is messages that are sent together.
type batch struct {
	s           *socket
	buf, answer []byte
	// messages are in buf; the last one begins at lastAt.
	messages int64
	lastAt   int
}

func (b *batch) insertAll(ctx context.Context, next func(*conntrack.Entry) bool) (taken int64, err error) {
	var e conntrack.Entry
	for {
		more := next(&e)
		if more {
			if err := e.Check(); err != nil {
				return taken, err
			}
			b.add(&e)
		}
		if !more || len(b.buf) >= batchBytes {
			n, err := b.flush(ctx)
			taken += n
			if err != nil || !more {
				return taken, err
			}
		}
	}
}

func (b *batch) add(e *conntrack.Entry) {
	b.s.seq++
	b.lastAt = len(b.buf)
	b.messages++
	b.buf = conntrack.AppendInsert(b.buf, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL, b.s.seq, e)
}

// flush sends the batch and reads its answers.
func (b *batch) flush(ctx context.Context) (taken int64, err error) {
	if err := ctx.Err(); err != nil || b.messages == 0 {
		return 0, err
	}
	conntrack.AddFlags(b.buf[b.lastAt:], unix.NLM_F_ACK)
	if err := b.s.send(b.buf); err != nil {
		return 0, err
	}
	taken = b.messages
	b.buf, b.messages = b.buf[:0], 0
	refused, first, err := b.s.answers(ctx, b.answer)
	if err == nil {
		err = refusal(first)
	}
	return taken - refused, err
}

// answers reads until the answer to the message that was sent last; the answers
// to those before it come first. It counts the refused ones and returns why the
// first was.
func (s *socket) answers(ctx context.Context, buf []byte) (refused int64, first unix.Errno, err error) {
	err = s.eachAnswer(ctx, buf, func(errno unix.Errno) {
		if errno != 0 {
			refused++
			if first == 0 {
				first = errno
			}
		}
	})
	return refused, first, err
}

// eachAnswer calls fn with what the kernel says to messages, until that to the one
// that was sent last.
func (s *socket) eachAnswer(ctx context.Context, buf []byte, fn func(unix.Errno)) error {
	for {
		got, err := s.receive(ctx, buf)
		if err != nil {
			return fmt.Errorf("receive the kernel's answer: %w", err)
		}
		for len(got) > 0 {
			m, rest, err := conntrack.Next(got)
			if err != nil {
				return err
			}
			got = rest
			seq, errno, err := m.Answer()
			if err != nil {
				return err
			}
			fn(errno)
			if seq == s.seq {
				return nil
			}
		}
	}
}

// refusal says what an errno means for an entry to be made
// (ctnetlink_new_conntrack, ctnetlink_create_conntrack).
func refusal(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EEXIST:
		return ErrExists
	case unix.ENOSPC: // chaintoolong, Linux 5.15 and later (nf_conntrack_hash_check_insert)
		return fmt.Errorf("%w (a hash chain is too long: nf_conntrack_buckets is too small for so many entries)", errno)
	case unix.ERANGE:
		return fmt.Errorf("%w (a TCP state that the kernel does not have)", errno)
	case unix.EINVAL:
		return fmt.Errorf("%w (an entry that the kernel cannot hold, or a kernel without CONFIG_NF_CT_NETLINK)", errno)
	case unix.EOPNOTSUPP:
		return fmt.Errorf("%w (NAT without CONFIG_NF_NAT, or a zone or mark without CONFIG_NF_CONNTRACK_ZONES or _MARK)", errno)
	default:
		return explain(errno)
	}
}

// Remove deletes the entry that has e's original tuple; e's ID, where it has one,
// must be the same. Needs CAP_NET_ADMIN.
func Remove(ctx context.Context, ns *netns.Handle, e *conntrack.Entry) error {
	s, err := dial(ns)
	if err != nil {
		return fmt.Errorf("delete a conntrack entry: %w", err)
	}
	defer s.close()
	s.seq++
	if err := s.send(conntrack.Append(nil, conntrack.Delete, unix.NLM_F_REQUEST|unix.NLM_F_ACK, s.seq, e)); err != nil {
		return fmt.Errorf("delete a conntrack entry: %w", err)
	}
	_, errno, err := s.answers(ctx, make([]byte, datagramMax))
	if err == nil && errno != 0 {
		err = explain(errno)
	}
	if err != nil {
		return fmt.Errorf("delete a conntrack entry: %w", err)
	}
	return nil
}

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
