package dump

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// ErrNoMarks is the cause where the kernel keeps no mark on connections.
var ErrNoMarks = errors.New("a kernel without CONFIG_NF_CONNTRACK_MARK")

// Marked counts the entries of a namespace (nil: this one) whose mark the filter
// chooses. Its error is ErrNoMarks where the kernel hands out others: it would
// delete others too. Needs CAP_NET_ADMIN.
func Marked(ctx context.Context, ns *netns.Handle, f match.Filter) (n int64, err error) {
	var e conntrack.Entry
	_, err = stream(ctx, ns, "count conntrack entries of "+markOf(f), conntrack.Get, f.Kernel(), func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			n++
			return chosen(&f, e)
		})
	})
	return n, err
}

func markOf(f match.Filter) string { return fmt.Sprintf("mark %#x/%#x", f.Mark, f.MarkMask) }

func chosen(f *match.Filter, e *conntrack.Entry) error {
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
func Delete(ctx context.Context, ns *netns.Handle, f match.Filter) error {
	if err := remove(ctx, ns, f); err != nil {
		return fmt.Errorf("delete conntrack entries of %s: %w", markOf(f), err)
	}
	return nil
}

func remove(ctx context.Context, ns *netns.Handle, f match.Filter) error {
	switch (match.Filter{Mark: f.Mark, MarkMask: f.MarkMask}) {
	case match.Filter{}:
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
	s, err := dial(ns)
	if err != nil {
		return err
	}
	defer s.close()
	s.seq++
	b := conntrack.AppendHeader(nil, conntrack.Delete, unix.NLM_F_REQUEST|unix.NLM_F_ACK, s.seq, unix.AF_UNSPEC)
	b = conntrack.FinishMessage(conntrack.AppendMarkFilter(b, f.Mark, f.MarkMask), 0)
	if err := s.send(b); err != nil {
		return err
	}
	_, errno, err := s.answers(ctx, make([]byte, datagramMax))
	if err != nil || errno == 0 {
		return err
	}
	return explain(errno)
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
func obeysMarks(ctx context.Context, ns *netns.Handle, f match.Filter) error {
	var e conntrack.Entry
	_, err := stream(ctx, ns, "look at them before", conntrack.Get, f.Kernel(), func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, func(e *conntrack.Entry) error { return chosen(&f, e) }); err != nil {
			return err
		}
		return ErrStop
	})
	return err
}
