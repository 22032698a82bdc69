// Package dump speaks ctnetlink with the kernel: it reads the connection table
// and its counters, and writes and deletes entries.
package dump

import (
	"context"
	"errors"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
)

// Stop ends a Dump early without an error when fn returns it.
var Stop = errors.New("stop the dump")

// Result tells how a Dump went.
type Result struct {
	// Bytes and Messages were handed to fn.
	Bytes, Messages int64
	// Complete is true where the kernel said that there are no more entries.
	Complete bool
	// Interrupted is NLM_F_DUMP_INTR: the kernel says that the table changed in a
	// way that makes the dump inconsistent.
	Interrupted bool
}

// Dump reads the table of a namespace (nil: this one) in the order of its hash
// buckets. fn is called with whole netlink messages, as many as the kernel put
// into one datagram; it must not keep them. Needs CAP_NET_ADMIN.
func Dump(ctx context.Context, ns *netns.Handle, fn func(msgs []byte) error) (Result, error) {
	return Result{}, errors.New("dump: not built yet")
}

// Stats reads the tracker's counters, one map per CPU, under the kernel's names.
func Stats(ns *netns.Handle) ([]map[string]uint64, error) {
	return nil, errors.New("stats: not built yet")
}

// Usage is how full the table of a namespace is.
type Usage struct {
	Entries int64
	// Max is nf_conntrack_max; 0 where the kernel does not tell it here (< 5.2).
	Max int64
}

// Count reads the number of entries of a namespace (nil: this one).
func Count(ns *netns.Handle) (Usage, error) { return Usage{}, errors.New("count: not built yet") }

// Insert writes entries into the table of a namespace until next returns false,
// and returns how many the kernel took. next fills the entry that it is given,
// which it gets back unchanged from the call before.
func Insert(ctx context.Context, ns *netns.Handle, next func(*conntrack.Entry) bool) (int64, error) {
	return 0, errors.New("insert: not built yet")
}

// Filter chooses entries by mark: those with mark&Mask == Mark. The zero Filter
// chooses nothing.
type Filter struct{ Mark, Mask uint32 }

// Delete removes exactly the entries of a namespace that the filter chooses.
func Delete(ctx context.Context, ns *netns.Handle, f Filter) error {
	return errors.New("delete: not built yet")
}
