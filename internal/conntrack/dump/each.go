package dump

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// attempts bounds how often EachWhole reads a table that is resized meanwhile.
const attempts = 3

// Each calls fn with every entry of a namespace (nil: this one) that the filter
// (nil: all) chooses, in the order of the table's hash buckets, on the calling
// goroutine while the next ones are received on another. fn must not keep the
// entry, which is filled anew each time. An error of fn ends it and is returned,
// except ErrStop. Needs CAP_NET_ADMIN.
//
// The kernel is asked to filter; what it lets through is looked at again, as
// older ones pass over some or all of the request. Entries come and go while it
// reads: one that is made or ends meanwhile may be there or not, and one may come
// twice where the entry ended at which the kernel had stopped (it begins that
// bucket again).
//
// What was given out cannot be taken back where the result says that the dump was
// interrupted: EachWhole begins again then.
func Each(ctx context.Context, ns *netns.Handle, f *match.Filter, fn func(*conntrack.Entry) error) (Result, error) {
	return undoubted(f.Kernel(), func(k conntrack.KernelFilter) (r Result, chosen int64, err error) {
		var e conntrack.Entry
		r, err = dumpFiltered(ctx, ns, k, func(msgs []byte) error {
			return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
				if !f.Match(e) {
					return nil
				}
				chosen++
				return fn(e)
			})
		})
		return r, chosen, err
	})
}

// undoubted dumps by k; where that chose none, and a kernel that gets k wrong would
// let none through, also by what is left of k that all kernels get right.
func undoubted(k conntrack.KernelFilter, dump func(conntrack.KernelFilter) (Result, int64, error)) (Result, error) {
	r, chosen, err := dump(k)
	without, doubtful := k.Doubtful()
	if err != nil || chosen > 0 || !doubtful {
		return r, err
	}
	again, _, err := dump(without)
	again.Bytes += r.Bytes
	return again, err
}

// EachWhole is Each for consumers that can begin again: restart is called before
// the second and third attempt, after which it gives up and leaves Interrupted
// set. A receive buffer that overflowed counts as an interruption.
func EachWhole(ctx context.Context, ns *netns.Handle, f *match.Filter, restart func(), fn func(*conntrack.Entry) error) (Result, error) {
	return whole(ctx, restart, func() (Result, error) { return Each(ctx, ns, f, fn) })
}

// whole dumps until a dump is not interrupted, at most attempts times.
func whole(ctx context.Context, restart func(), dump func() (Result, error)) (Result, error) {
	for n := 1; ; n++ {
		r, err := dump()
		r.Attempts = n
		again := r.Interrupted && err == nil || errors.Is(err, unix.ENOBUFS)
		if !again || n == attempts || ctx.Err() != nil {
			return r, err
		}
		restart()
	}
}

// bucketsEvery is how many datagrams pass between two looks at the number of buckets:
// some thousand entries, beside which a look takes no time, and few enough to see a
// table that is resized and put back during one dump.
const bucketsEvery = 16

// dumpFiltered asks the kernel to filter.
func dumpFiltered(ctx context.Context, ns *netns.Handle, f conntrack.KernelFilter, fn func([]byte) error) (Result, error) {
	before, resized, datagrams := buckets(), false, 0
	watching := func(msgs []byte) error {
		if datagrams++; datagrams%bucketsEvery == 0 {
			resized = resized || before != buckets()
		}
		return fn(msgs)
	}
	r, err := passes(f, watching, func(f conntrack.KernelFilter, fn func([]byte) error) (Result, error) {
		return stream(ctx, ns, "dump the connection table", conntrack.Get, f, fn)
	})
	r.Interrupted = r.Interrupted || resized || before != buckets()
	return r, err
}

// dumper is one dump by the kernel's filter.
type dumper func(conntrack.KernelFilter, func([]byte) error) (Result, error)

// passes dumps what f lets through, in as many dumps as that takes.
func passes(f conntrack.KernelFilter, fn func([]byte) error, dump dumper) (sum Result, err error) {
	stopped := false
	stopping := func(msgs []byte) error {
		err := fn(msgs)
		stopped = stopped || errors.Is(err, ErrStop)
		return err
	}
	sum = Result{Attempts: 1, Filtered: f != conntrack.KernelFilter{}}
	all := f.Passes()
	for i, pass := range all {
		r, filtered, err := orWithout(pass, stopping, dump)
		sum.Bytes += r.Bytes
		sum.Complete = r.Complete && i == len(all)-1
		sum.Interrupted = sum.Interrupted || r.Interrupted
		sum.Filtered = sum.Filtered && filtered
		if err != nil || stopped {
			return sum, err
		}
	}
	return sum, nil
}

// orWithout dumps by f, or by no more than its family where the kernel refuses it.
func orWithout(f conntrack.KernelFilter, fn func([]byte) error, dump dumper) (r Result, filtered bool, err error) {
	r, err = dump(f, fn)
	family := conntrack.KernelFilter{Family: f.Family}
	if f == family || r.Bytes > 0 || !refusesFilter(err) {
		return r, true, err
	}
	r, err = dump(family, fn)
	return r, false, err
}

// refusesFilter reports whether the kernel may have failed because of a filter: no
// marks (EOPNOTSUPP) or no zones in this kernel, or attributes in a form that
// another version wants (EINVAL, ERANGE).
func refusesFilter(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE)
}

// buckets is the size of the hash table, one for all namespaces, or empty where
// it cannot be read. The kernel walks the table by bucket number and does not say
// when those change (nf_conntrack_hash_resize).
func buckets() string {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_buckets")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Interruption says what an interrupted dump is worth; empty where it was none.
func (r Result) Interruption() string {
	switch {
	case !r.Interrupted:
		return ""
	case r.Attempts > 1:
		return fmt.Sprintf("the table was resized during each of %d dumps: entries may be missing or doubled", r.Attempts)
	default:
		return "the table was resized during the dump: entries may be missing or doubled"
	}
}
