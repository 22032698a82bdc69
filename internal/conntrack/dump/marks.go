package dump

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// ErrNoMarks is the cause where the kernel keeps no mark on connections.
var ErrNoMarks = errors.New("a kernel without CONFIG_NF_CONNTRACK_MARK")

// Marked counts the entries of a namespace (nil: this one) whose mark the filter
// chooses. Its error is ErrNoMarks where the kernel hands out others: it would
// delete others too. Needs CAP_NET_ADMIN.
func Marked(ctx context.Context, ns *netns.Handle, f conntrack.Filter) (n int64, err error) {
	var e conntrack.Entry
	_, err = stream(ctx, ns, "count conntrack entries of "+markOf(f), conntrack.Get, f.Kernel(), func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			n++
			return chosen(&f, e)
		})
	})
	return n, err
}

func markOf(f conntrack.Filter) string { return fmt.Sprintf("mark %#x/%#x", f.Mark, f.MarkMask) }

func chosen(f *conntrack.Filter, e *conntrack.Entry) error {
	if !f.Match(e) {
		return ErrNoMarks
	}
	return nil
}

// Delete removes exactly the entries of a namespace (nil: this one) whose mark the
// filter chooses, in one request; DeleteKeys deletes by other filters. Refused are a
// filter that would choose everything (MarkMask 0) or asks for more than a mark,
// which the kernel would not look at, and a kernel that would not look at the mark:
// one before 4.0, and one without CONFIG_NF_CONNTRACK_MARK (ErrNoMarks). Needs
// CAP_NET_ADMIN.
func Delete(ctx context.Context, ns *netns.Handle, f conntrack.Filter) error {
	if err := remove(ctx, ns, f); err != nil {
		return fmt.Errorf("delete conntrack entries of %s: %w", markOf(f), err)
	}
	return nil
}

func remove(ctx context.Context, ns *netns.Handle, f conntrack.Filter) error {
	switch (conntrack.Filter{Mark: f.Mark, MarkMask: f.MarkMask}) {
	case conntrack.Filter{}:
		return errors.New("the mask 0 chooses every entry")
	case f:
	default:
		return errors.New("the filter has more than a mark")
	}
	if err := needsMarkFilter(); err != nil {
		return err
	}
	if err := obeysMarks(ctx, ns, f); err != nil {
		return err
	}
	return transact(ns, func(seq uint32) []byte {
		b := conntrack.AppendHeader(nil, conntrack.Delete, unix.NLM_F_REQUEST|unix.NLM_F_ACK, seq, unix.AF_UNSPEC)
		return netlink.End(conntrack.AppendMarkFilter(b, f.Mark, f.MarkMask), 0)
	})
}

// transact sends one message.
func transact(ns *netns.Handle, message func(seq uint32) []byte) error {
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer c.Close()
	refused, err := c.Transact(message(c.NextSeq()))
	if err == nil && len(refused) > 0 {
		err = explain(refused[0])
	}
	return err
}

// needsMarkFilter refuses kernels whose ctnetlink_del_conntrack flushes the
// whole table whatever mark it is given.
func needsMarkFilter() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, _, _ := strings.Cut(release, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 4 {
		return fmt.Errorf("kernel %s: needs Linux 4.0", release)
	}
	return nil
}

// obeysMarks asks for the entries that are to be deleted: those that come first
// tell whether the kernel looked at their marks (ctnetlink_alloc_filter passes
// over the attribute where it keeps none).
func obeysMarks(ctx context.Context, ns *netns.Handle, f conntrack.Filter) error {
	var e conntrack.Entry
	_, err := stream(ctx, ns, "look at them before", conntrack.Get, f.Kernel(), func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, func(e *conntrack.Entry) error { return chosen(&f, e) }); err != nil {
			return err
		}
		return ErrStop
	})
	return err
}

// Usage is how full the table of a namespace is.
type Usage struct {
	// Entries is nf_conntrack_count.
	Entries int64
	// Max is nf_conntrack_max; 0 where the kernel does not tell it here (before
	// Linux 4.18) or where there is no limit.
	Max int64
}

// Count reads how full the table of a namespace (nil: this one) is
// (IPCTNL_MSG_CT_GET_STATS). Needs CAP_NET_ADMIN.
func Count(ns *netns.Handle) (Usage, error) {
	u, err := count(ns)
	if err != nil {
		return u, fmt.Errorf("count the connection table's entries: %w", err)
	}
	return u, nil
}

func count(ns *netns.Handle) (u Usage, err error) {
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return u, err
	}
	defer c.Close()
	answer, err := c.Ask(conntrack.GetStats, 0, netlink.AppendNetfilter(nil, unix.AF_UNSPEC, 0))
	if err != nil {
		return u, explain(err)
	}
	if len(answer) == 0 {
		return u, errors.New("the kernel's answer is empty")
	}
	stats, err := conntrack.StatsGlobal(answer[0].Body)
	return Usage{Entries: int64(stats["entries"]), Max: int64(stats["max_entries"])}, err
}

// Busiest is the network namespace that tracks the most connections, of all that
// netns.All finds: a lower nf_conntrack_max, which holds for each of them, meets
// this one first. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
func Busiest() (name string, entries int64, err error) {
	all, err := netns.All()
	if err != nil {
		return "", 0, err
	}
	defer netns.CloseAll(all)
	for _, ns := range all {
		usage, err := Count(ns)
		if err != nil {
			return "", 0, fmt.Errorf("network namespace %s (%d): %w", ns.Name(), ns.Inode(), err)
		}
		if name == "" || usage.Entries > entries {
			name, entries = fmt.Sprintf("%s (%d)", ns.Name(), ns.Inode()), usage.Entries
		}
	}
	return name, entries, nil
}
