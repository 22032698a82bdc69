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

// Filter chooses entries by mark: those with mark&Mask == Mark.
type Filter struct{ Mark, Mask uint32 }

func (f Filter) match() *match.Filter { return &match.Filter{Mark: f.Mark, MarkMask: f.Mask} }

// ErrNoMarks is the cause where the kernel keeps no mark on connections.
var ErrNoMarks = errors.New("a kernel without CONFIG_NF_CONNTRACK_MARK")

// Marked counts the entries of a namespace (nil: this one) that the filter
// chooses. Its error is ErrNoMarks where the kernel hands out others: it would
// delete others too. Needs CAP_NET_ADMIN.
func Marked(ctx context.Context, ns *netns.Handle, f Filter) (n int64, err error) {
	var e conntrack.Entry
	_, err = stream(ctx, ns, fmt.Sprintf("count conntrack entries of mark %#x/%#x", f.Mark, f.Mask), conntrack.Get, f.match().Kernel(), func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			n++
			return f.chose(e)
		})
	})
	return n, err
}

func (f Filter) chose(e *conntrack.Entry) error {
	if !f.match().Match(e) {
		return ErrNoMarks
	}
	return nil
}

// Delete removes exactly the entries of a namespace (nil: this one) that the
// filter chooses, in one request. A filter that would choose everything (Mask 0)
// is refused, and so is a kernel that would not look at the mark: one before 4.0,
// and one without CONFIG_NF_CONNTRACK_MARK (ErrNoMarks). Needs CAP_NET_ADMIN.
func Delete(ctx context.Context, ns *netns.Handle, f Filter) error {
	if err := remove(ctx, ns, f); err != nil {
		return fmt.Errorf("delete conntrack entries of mark %#x/%#x: %w", f.Mark, f.Mask, err)
	}
	return nil
}

func remove(ctx context.Context, ns *netns.Handle, f Filter) error {
	if f.Mask == 0 {
		return errors.New("the mask 0 chooses every entry")
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
	b = conntrack.FinishMessage(conntrack.AppendMarkFilter(b, f.Mark, f.Mask), 0)
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
func obeysMarks(ctx context.Context, ns *netns.Handle, f Filter) error {
	var e conntrack.Entry
	_, err := stream(ctx, ns, "look at them before", conntrack.Get, f.match().Kernel(), func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, f.chose); err != nil {
			return err
		}
		return ErrStop
	})
	return err
}
