//go:build linux

package dump

import (
	"context"
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// batchBytes is how much is sent at once. The kernel queues an answer for each refused
// message; those of a batch fit into net.core.rmem_default.
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
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("insert conntrack entries: %w", err)
	}
	defer c.Close()
	b := batch{c: c, buf: make([]byte, 0, batchBytes+1024)}
	taken, err := b.insertAll(ctx, next)
	if err != nil {
		return taken, fmt.Errorf("insert conntrack entry %d: %w", taken, full(ns, err))
	}
	return taken, nil
}

// full replaces ENOMEM, which the kernel returns for both, by ErrFull if the table is full.
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
	c        *socket.Conn
	buf      []byte
	messages int64
	lastAt   int // where the last message begins in buf
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
			sent, refused, err := b.flush(ctx)
			taken += sent - int64(len(refused))
			if err == nil && len(refused) > 0 {
				err = refusal(refused[0].Errno)
			}
			if err != nil || !more {
				return taken, err
			}
		}
	}
}

func (b *batch) add(e *conntrack.Entry) {
	b.lastAt = len(b.buf)
	b.messages++
	b.buf = conntrack.AppendInsert(b.buf, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL, b.c.NextSeq(), e)
}

func (b *batch) addDelete(k *conntrack.Key) {
	b.lastAt = len(b.buf)
	b.messages++
	b.buf = conntrack.AppendDelete(b.buf, unix.NLM_F_REQUEST, b.c.NextSeq(), k)
}

// flush sends the batch and returns the size of it and what the kernel refused.
func (b *batch) flush(ctx context.Context) (sent int64, refused []netlink.Refusal, err error) {
	if err := ctx.Err(); err != nil || b.messages == 0 {
		return 0, nil, err
	}
	netlink.AddFlags(b.buf[b.lastAt:], unix.NLM_F_ACK)
	refused, err = b.c.Transact(b.buf)
	if err == nil {
		sent = b.messages
	}
	b.buf, b.messages = b.buf[:0], 0
	return sent, refused, err
}

// refusal explains an errno for an entry to be made
// (ctnetlink_new_conntrack, ctnetlink_create_conntrack).
func refusal(errno unix.Errno) error {
	switch errno {
	case unix.EEXIST:
		return ErrExists
	case unix.ENOSPC: // chaintoolong, Linux 5.15 and later (nf_conntrack_hash_check_insert)
		return fmt.Errorf("%w (a hash chain is too long: nf_conntrack_buckets is too small for this number of entries)", errno)
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

// Deleted is what became of entries that were to be deleted.
type Deleted struct {
	Deleted int64
	// Gone were not there any more, or another entry had their tuples.
	Gone int64
	// Busy are offloaded to a flow table, whose entries the kernel does not delete
	// (EBUSY).
	Busy int64
}

// DeleteKeys deletes exactly these entries of a namespace (nil: this one), many with
// each system call. The result is valid also after an error, such as a cancelled
// context. Needs CAP_NET_ADMIN.
func DeleteKeys(ctx context.Context, ns *netns.Handle, keys []conntrack.Key) (Deleted, error) {
	var d Deleted
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err == nil {
		defer c.Close()
		err = d.all(ctx, batch{c: c, buf: make([]byte, 0, batchBytes+1024)}, keys)
	}
	if err != nil {
		return d, fmt.Errorf("delete conntrack entries: %w", err)
	}
	return d, nil
}

func (d *Deleted) all(ctx context.Context, b batch, keys []conntrack.Key) error {
	for i := range keys {
		b.addDelete(&keys[i])
		if len(b.buf) < batchBytes && i < len(keys)-1 {
			continue
		}
		sent, refused, err := b.flush(ctx)
		if err == nil {
			err = d.count(sent, refused)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteChunk is how many entries Delete deletes at a time.
const deleteChunk = 4096

// mostDumps bounds how often Delete reads the table.
const mostDumps = 10

// Delete deletes the entries of a namespace (nil: this one) that a filter matches, while it
// reads the table. Needs CAP_NET_ADMIN.
func Delete(ctx context.Context, ns *netns.Handle, f *conntrack.Filter) (sum Deleted, err error) {
	if f.Empty() {
		return sum, errors.New("delete conntrack entries: the filter matches every entry")
	}
	var keys []conntrack.Key
	flush := func() error {
		d, err := DeleteKeys(ctx, ns, keys)
		sum.Deleted, sum.Gone, sum.Busy = sum.Deleted+d.Deleted, sum.Gone+d.Gone, sum.Busy+d.Busy
		keys = keys[:0]
		return err
	}
	// A resize of the hash meanwhile lets a dump leave out entries: another one finds them.
	for range mostDumps {
		result, err := Each(ctx, ns, f, func(e *conntrack.Entry) error {
			if keys = append(keys, e.Key()); len(keys) < deleteChunk {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		if err != nil || !result.Interrupted {
			return sum, err
		}
	}
	return sum, errors.New("delete conntrack entries: the hash is resized all the time; run it again")
}

// Flush deletes every entry of a namespace (nil: this one) by one message, as 'conntrack -F' does
// (ctnetlink_flush_conntrack), and returns when they are deleted. Those that are offloaded to a flow
// table stay. Needs CAP_NET_ADMIN.
func Flush(ns *netns.Handle) error {
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err == nil {
		defer c.Close()
		_, err = c.Ask(conntrack.Delete, unix.NLM_F_ACK, netlink.AppendNetfilter(nil, unix.AF_UNSPEC, 0))
	}
	if err != nil {
		return fmt.Errorf("flush the connection table: %w", explain(err))
	}
	return nil
}

// count adds what became of n messages.
func (d *Deleted) count(n int64, refused []netlink.Refusal) (err error) {
	d.Deleted += n - int64(len(refused))
	for _, r := range refused {
		switch r.Errno {
		case unix.ENOENT:
			d.Gone++
		case unix.EBUSY:
			d.Busy++
		default:
			err = explain(r)
		}
	}
	return err
}
