package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netns"
)

// swallower takes the packets that come to an interface from the kernel, without a
// drop: where they are stolen at ingress the kernel consumes them (TC_ACT_STOLEN,
// net/core/dev.c). An XDP program that drops them would be counted as one who drops.
type swallower struct {
	ns    *netns.Handle
	iface string
	link  link.Link
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
	return s, ns.Do(func() error {
		dev, err := net.InterfaceByName(iface)
		if err != nil {
			return err
		}
		s.link, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach a program that takes packets to %s (Linux 6.6): %w", iface, err)
		}
		return nil
	})
}

func (s *swallower) Close() error { return s.link.Close() }

// received is how many packets have come, once no more do.
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
