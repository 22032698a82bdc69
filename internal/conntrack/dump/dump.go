//go:build linux

package dump

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Dump reads the table of a namespace (nil: this one) in the order of its hash
// buckets. fn is called with whole netlink messages, as many as the kernel put
// into one datagram, on the calling goroutine while the next ones are received
// on another; it must not keep them. An error of fn ends the dump and is
// returned, except ErrStop. Needs CAP_NET_ADMIN.
//
// The kernel walks the hash of all namespaces and passes over the entries of
// the others, and those that have expired (ctnetlink_dump_table).
func Dump(ctx context.Context, ns *netns.Handle, fn func(msgs []byte) error) (Result, error) {
	return dumpFiltered(ctx, ns, conntrack.Filter{}, fn)
}

// DumpStats reads the tracker's counters as Dump does the entries, one message
// per CPU.
func DumpStats(ctx context.Context, ns *netns.Handle, fn func(msgs []byte) error) (Result, error) {
	return stream(ctx, ns, "read the connection tracker's counters", conntrack.GetStatsCPU, conntrack.Filter{}, fn)
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

// stream requests all messages of a type, or those that a filter selects.
func stream(ctx context.Context, ns *netns.Handle, what string, kind uint16, f conntrack.Filter, fn func([]byte) error) (r Result, err error) {
	c, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if err == nil {
		defer c.Close()
		b := conntrack.AppendHeader(nil, kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, c.NextSeq(), f.Family)
		err = c.Send(netlink.End(f.Append(b), 0))
	}
	if err == nil {
		r, err = receive(ctx, c, fn)
	}
	if err != nil && !errors.Is(err, ErrStop) {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	return r, nil
}

// datagram is what the receiving goroutine passes on: bytes with what their headers say
// of the dump, or an error.
type datagram struct {
	bytes            []byte
	end, interrupted bool
	err              error
}

// receive passes the datagrams of a dump to fn, while a goroutine receives the next ones.
func receive(ctx context.Context, c *socket.Conn, fn func([]byte) error) (r Result, err error) {
	r.Attempts = 1
	const ahead = 4
	free, filled := make(chan []byte, ahead), make(chan datagram, ahead)
	for range ahead {
		free <- make([]byte, socket.DatagramMax)
	}
	ctx, cancel := context.WithCancel(ctx)
	var receiver sync.WaitGroup
	receiver.Go(func() { receiveAll(ctx, c, free, filled) })
	// The receiver never blocks on filled, which is as long as there are buffers, and ends
	// with the context.
	defer receiver.Wait()
	defer cancel()
	for {
		d := <-filled
		r.Interrupted = r.Interrupted || d.interrupted
		if d.err != nil {
			return r, d.err
		}
		r.Bytes += int64(len(d.bytes))
		err := fn(d.bytes)
		// Stopping at the last datagram leaves nothing out.
		r.Complete = d.end && (err == nil || errors.Is(err, ErrStop))
		if err != nil || d.end {
			return r, err
		}
		free <- d.bytes[:cap(d.bytes)]
	}
}

// receiveAll fills buffers until the end of the dump or an error.
func receiveAll(ctx context.Context, c *socket.Conn, free <-chan []byte, filled chan<- datagram) {
	for {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			filled <- datagram{err: ctx.Err()}
			return
		}
		b, err := c.Receive(ctx, buf)
		d := datagram{err: err}
		if err == nil {
			d = readHeaders(b)
		}
		filled <- d
		if d.err != nil || d.end {
			return
		}
	}
}

// readHeaders reads what the headers of a datagram say of the dump itself. The kernel
// sends NLMSG_DONE or NLMSG_ERROR alone or behind the last entries.
func readHeaders(b []byte) datagram {
	d := datagram{bytes: b}
	for len(b) > 0 {
		m, rest, err := netlink.Next(b)
		if err != nil {
			d.err = err
			return d
		}
		b = rest
		d.interrupted = d.interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		if m.Type != unix.NLMSG_ERROR && m.Type != unix.NLMSG_DONE {
			continue
		}
		d.end = true
		// NLMSG_DONE has carried the dump's error since Linux 4.15; before that it may be
		// empty.
		if m.Type == unix.NLMSG_DONE && len(m.Body) < 4 {
			continue
		}
		errno, err := m.Errno()
		if err == nil && errno != 0 {
			err = explain(errno)
		}
		if err != nil {
			d.err = err
			return d
		}
	}
	return d
}

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
func Each(ctx context.Context, ns *netns.Handle, f *conntrack.Filter, fn func(*conntrack.Entry) error) (Result, error) {
	return undoubted(f.Request(), func(k conntrack.Filter) (Result, int64, error) { return each(ctx, ns, f, k, fn) })
}

// EachSure is EachWhole on kernels that filter by the reply direction as they should, from Linux 5.16 on: where they choose
// nothing there is nothing, and nothing is asked again.
func EachSure(ctx context.Context, ns *netns.Handle, f *conntrack.Filter, restart func(), fn func(*conntrack.Entry) error) (Result, error) {
	return whole(ctx, restart, func() (Result, error) {
		r, _, err := each(ctx, ns, f, f.Request(), fn)
		return r, err
	})
}

// each dumps what the kernel chooses by k, and calls fn with what f chooses of it.
func each(ctx context.Context, ns *netns.Handle, f *conntrack.Filter, k conntrack.Filter, fn func(*conntrack.Entry) error) (r Result, chosen int64, err error) {
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
}

// Matching counts the entries of a namespace (nil: this one) that a filter matches. Needs
// CAP_NET_ADMIN.
func Matching(ctx context.Context, ns *netns.Handle, f *conntrack.Filter) (n int64, err error) {
	_, err = Each(ctx, ns, f, func(*conntrack.Entry) error { n++; return nil })
	return n, err
}

// undoubted dumps by k; where that chose none, and a kernel that gets k wrong would
// let none through, also by what is left of k that all kernels get right.
func undoubted(k conntrack.Filter, dump func(conntrack.Filter) (Result, int64, error)) (Result, error) {
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
func EachWhole(ctx context.Context, ns *netns.Handle, f *conntrack.Filter, restart func(), fn func(*conntrack.Entry) error) (Result, error) {
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
func dumpFiltered(ctx context.Context, ns *netns.Handle, f conntrack.Filter, fn func([]byte) error) (Result, error) {
	before, resized, datagrams := buckets(), false, 0
	watching := func(msgs []byte) error {
		if datagrams++; datagrams%bucketsEvery == 0 {
			resized = resized || before != buckets()
		}
		return fn(msgs)
	}
	r, err := passes(f, watching, func(f conntrack.Filter, fn func([]byte) error) (Result, error) {
		return stream(ctx, ns, "dump the connection table", conntrack.Get, f, fn)
	})
	r.Interrupted = r.Interrupted || resized || before != buckets()
	return r, err
}

// dumper is one dump by the kernel's filter.
type dumper func(conntrack.Filter, func([]byte) error) (Result, error)

// passes dumps what f lets through, in as many dumps as that takes.
func passes(f conntrack.Filter, fn func([]byte) error, dump dumper) (sum Result, err error) {
	stopped := false
	stopping := func(msgs []byte) error {
		err := fn(msgs)
		stopped = stopped || errors.Is(err, ErrStop)
		return err
	}
	sum.Attempts = 1
	all := f.Passes()
	for i, pass := range all {
		r, err := dump(pass, stopping)
		// A kernel may refuse a filter, which its family alone is not.
		if family := (conntrack.Filter{Family: pass.Family}); pass != family && r.Bytes == 0 && refusesFilter(err) {
			r, err = dump(family, stopping)
		}
		sum.Bytes += r.Bytes
		sum.Complete = r.Complete && i == len(all)-1
		sum.Interrupted = sum.Interrupted || r.Interrupted
		if err != nil || stopped {
			return sum, err
		}
	}
	return sum, nil
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
	n, err := netns.Sysctl(nil, "net.netfilter.nf_conntrack_buckets")
	if err != nil {
		return ""
	}
	return n
}

// explain adds to an error of ctnetlink that does not concern one entry what it means.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return netns.Denied(err, netns.NetAdmin)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (a kernel without CONFIG_NF_CT_NETLINK, or the module nf_conntrack_netlink is not there)", err)
	}
	return err
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
	return usage(c)
}

func usage(c *socket.Conn) (u Usage, err error) {
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

// CountAndStats is Count and Stats of the calling thread's namespace by one socket, for who reads
// very many of them. The counters of an empty table are left out if skip is set.
func CountAndStats(skip bool) (u Usage, cpus []map[string]uint64, err error) {
	c, err := socket.Dial(nil, unix.NETLINK_NETFILTER)
	if err == nil {
		defer c.Close()
		u, err = usage(c)
	}
	if err != nil || skip && u.Entries == 0 {
		return u, nil, err
	}
	answers, err := c.Ask(conntrack.GetStatsCPU, unix.NLM_F_DUMP, netlink.AppendNetfilter(nil, unix.AF_UNSPEC, 0))
	for _, m := range answers {
		cpu, err := conntrack.StatsCPU(m.Body)
		if err != nil {
			return u, nil, err
		}
		cpus = append(cpus, cpu)
	}
	return u, cpus, err
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
