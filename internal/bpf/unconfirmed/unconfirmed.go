// Package unconfirmed counts the first packets of connections that the kernel drops
// after NAT translated their source and before the connection tracker has entered
// them: those that clash with another connection, or found no free port. An eBPF
// program on the tracepoint skb:kfree_skb does it, so that nothing is paid by packets
// that are not dropped.
//
// Where every port is taken, the kernel goes on with the last tuple that it tried
// (get_unique_tuple in nf_nat_core.c returns nothing), and finds it taken when it
// enters the connection behind all rules (__nf_conntrack_confirm, priority INT_MAX).
// Who asks there has both of the connection's tuples, as no counter does.
package unconfirmed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v2" -type connection -target bpfel unconfirmed unconfirmed.bpf.c

// room is the number of different connections from one Take to the next.
const room = 16384

// Tracer counts from Start to Close.
type Tracer struct {
	objects unconfirmedObjects
	link    link.Link
	// overflow is the part that Take has returned.
	overflow uint64
}

// Start counts in a namespace; nil is the one natkit runs in. It needs CAP_BPF and
// CAP_PERFMON or CAP_SYS_ADMIN, and Linux 5.4 with BTF, which has the tracker's types
// also where it is a module.
func Start(ns *netns.Handle) (*Tracer, error) { return start(ns, room) }

func start(ns *netns.Handle, room uint32) (*Tracer, error) {
	err := netns.CheckPrivilege(
		netns.Need{Any: netns.BPF, Why: "to load an eBPF program"},
		netns.Need{Any: netns.PerfMon, Why: "to attach it to the kernel's tracepoint"},
	)
	t := &Tracer{}
	if err == nil {
		err = t.start(ns, room)
	}
	if err != nil {
		return nil, fmt.Errorf("count connections that are not confirmed: %w", err)
	}
	return t, nil
}

func (t *Tracer) start(ns *netns.Handle, room uint32) error {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("allow memory for eBPF maps (before Linux 5.11): %w", netns.Denied(err, netns.Resource))
	}
	spec, err := loadUnconfirmed()
	if err != nil {
		return err
	}
	spec.Maps[unconfirmedMapConnections].MaxEntries = room
	if err := spec.Variables[unconfirmedVarOnlyNetns].Set(uint32(inode)); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&t.objects, nil); err != nil {
		return fmt.Errorf("load the eBPF program (needs Linux 5.4 with CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	t.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: t.objects.Unconfirmed})
	if err != nil {
		return errors.Join(fmt.Errorf("attach to the tracepoint skb:kfree_skb: %w", err), t.objects.Close())
	}
	return nil
}

// Take hands over what was counted since the last time: connections with all that
// determines which rule translated them, their own ports at the client's side left out.
// Overflow are packets of connections beyond those that there is room for.
func (t *Tracer) Take(each func(e *conntrack.Entry, packets uint64)) (overflow uint64, err error) {
	var all []unconfirmedConnection
	var c unconfirmedConnection
	var n uint64
	it := t.objects.Connections.Iterate()
	for it.Next(&c, &n) {
		all = append(all, c)
	}
	if err := it.Err(); err != nil {
		return 0, fmt.Errorf("read connections that were not confirmed: %w", err)
	}
	for i := range all { // what is deleted while a map is read makes reading begin anew
		packets, err := take(t.objects.Connections, &all[i])
		if err != nil {
			return 0, fmt.Errorf("take a connection that was not confirmed: %w", err)
		}
		each(entry(&all[i]), packets)
	}
	var now uint64
	if err := t.objects.Overflow.Lookup(uint32(0), &now); err != nil {
		return 0, fmt.Errorf("read how many found no room: %w", err)
	}
	overflow, t.overflow = now-t.overflow, now
	return overflow, nil
}

// take reads and deletes; in two steps before Linux 5.14, where what comes between
// them is not reported.
func take(m *ebpf.Map, key *unconfirmedConnection) (packets uint64, err error) {
	if err := m.LookupAndDelete(key, &packets); err == nil {
		return packets, nil
	}
	if err := m.Lookup(key, &packets); err != nil {
		return 0, err
	}
	return packets, m.Delete(key)
}

func entry(c *unconfirmedConnection) *conntrack.Entry {
	e := &conntrack.Entry{
		Family: uint8(c.Family),
		Orig:   conntrack.Tuple{Src: address(c.From, c.Family), Dst: address(c.To, c.Family), Proto: c.Protocol},
		Reply:  conntrack.Tuple{Src: address(c.AnswersFrom, c.Family), Dst: address(c.AnswersTo, c.Family), Proto: c.Protocol},
	}
	if c.Protocol != unix.IPPROTO_ICMP && c.Protocol != unix.IPPROTO_ICMPV6 { // these have types in that place
		e.Orig.DstPort, e.Reply.SrcPort = port(c.ToPort), port(c.AnswersFromPort)
	}
	return e
}

func address(words [4]uint32, family uint16) netip.Addr {
	var b [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// port is a number in network byte order.
func port(n uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return binary.BigEndian.Uint16(b[:])
}

// Close detaches the program.
func (t *Tracer) Close() error { return errors.Join(t.link.Close(), t.objects.Close()) }
