package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// swallower takes the packets that come to an interface from the kernel, without a
// drop: what a classifier steals the kernel consumes (TC_ACT_STOLEN in
// sch_handle_ingress, net/core/dev.c). An XDP program can only drop them, and its
// drops would be counted. A tcx program cannot steal.
type swallower struct {
	ns    *netns.Handle
	iface string
	qdisc netlink.Qdisc
}

func swallow(ns *netns.Handle, iface string) (*swallower, error) {
	const stolen = 4 // TC_ACT_STOLEN, include/uapi/linux/pkt_cls.h
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, stolen), asm.Return()}})
	if err != nil {
		return nil, fmt.Errorf("load a program that takes packets: %w", err)
	}
	defer p.Close()
	s := &swallower{ns: ns, iface: iface}
	return s, ns.Do(func() error { return s.attach(p) })
}

func (s *swallower) attach(p *ebpf.Program) error {
	dev, err := netlink.LinkByName(s.iface)
	if err != nil {
		return fmt.Errorf("attach a program that takes packets to %s: %w", s.iface, err)
	}
	at := dev.Attrs().Index
	s.qdisc = &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: at, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err = netlink.QdiscAdd(s.qdisc); err == nil {
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: at, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
			Fd:          p.FD(), Name: "swallow", DirectAction: true,
		})
	}
	if err != nil {
		return fmt.Errorf("attach a program that takes packets to %s: %w", s.iface, err)
	}
	return nil
}

func (s *swallower) Close() error {
	return s.ns.Do(func() error { return netlink.QdiscDel(s.qdisc) })
}

// received returns the number of packets received, once no more arrive.
func (s *swallower) received() (n uint64, err error) {
	const quiet, limit = 20 * time.Millisecond, 2 * time.Second
	err = s.ns.Do(func() error {
		for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(quiet) {
			dev, err := netlink.LinkByName(s.iface)
			if err != nil {
				return fmt.Errorf("read the counters of %s: %w", s.iface, err)
			}
			before := n
			if n = dev.Attrs().Statistics.RxPackets; n == before {
				return nil
			}
		}
		return errors.New("packets still come to " + s.iface + " after " + limit.String())
	})
	return n, err
}
