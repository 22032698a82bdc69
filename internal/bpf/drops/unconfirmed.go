package drops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v2" -type connection -target bpfel unconfirmed unconfirmed.bpf.c

// room is the number of different connections from one Take to the next.
const room = 16384

// Unconfirmed counts the first packets of connections that the kernel drops after NAT translated
// their source and before conntrack has entered them: those that clash with another connection,
// or found no free port. A program on the tracepoint skb:kfree_skb does it, so that packets that
// are not dropped cost nothing.
//
// Where every port is taken, the kernel goes on with the last tuple that it tried
// (get_unique_tuple, nf_nat_core.c), and finds it taken when it enters the connection behind all
// rules (__nf_conntrack_confirm, priority INT_MAX), where both tuples are known.
type Unconfirmed struct {
	objects unconfirmedObjects
	link    link.Link
	// overflow is the part that Take has returned.
	overflow uint64
}

// StartUnconfirmed counts in a namespace, nil is natkit's own, until Close. It needs CAP_BPF and
// CAP_PERFMON or CAP_SYS_ADMIN, and Linux 5.4 with BTF, of a module nf_conntrack too.
func StartUnconfirmed(ns *netns.Handle) (*Unconfirmed, error) { return startUnconfirmed(ns, room) }

func startUnconfirmed(ns *netns.Handle, room uint32) (*Unconfirmed, error) {
	t := &Unconfirmed{}
	err := CheckPrivilege()
	if err == nil {
		err = t.start(ns, room)
	}
	if err != nil {
		return nil, fmt.Errorf("count connections that are not confirmed: %w", err)
	}
	return t, nil
}

func (t *Unconfirmed) start(ns *netns.Handle, room uint32) error {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return err
	}
	spec, err := loadUnconfirmed()
	if err != nil {
		return err
	}
	spec.Maps[unconfirmedMapConnections].MaxEntries = room
	if err := bpf.Prepare(spec, map[string]any{unconfirmedVarOnlyNetns: uint32(inode)}); err != nil {
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
func (t *Unconfirmed) Take(each func(e *conntrack.Entry, packets uint64)) (overflow uint64, err error) {
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
	etherType := uint16(unix.ETH_P_IP)
	if c.Family == unix.AF_INET6 {
		etherType = unix.ETH_P_IPV6
	}
	address := func(words [4]uint32) netip.Addr { return bpf.Address(etherType, words) }
	e := &conntrack.Entry{
		Family: uint8(c.Family),
		Orig:   conntrack.Tuple{Src: address(c.From), Dst: address(c.To), Proto: c.Protocol},
		Reply:  conntrack.Tuple{Src: address(c.AnswersFrom), Dst: address(c.AnswersTo), Proto: c.Protocol},
	}
	if !nat.IsICMP(c.Protocol) { // these have types in that place
		e.Orig.DstPort, e.Reply.SrcPort = port(c.ToPort), port(c.AnswersFromPort)
	}
	return e
}

// port is a number in network byte order.
func port(n uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n))
}

// Close detaches the program.
func (t *Unconfirmed) Close() error { return errors.Join(t.link.Close(), t.objects.Close()) }
