package pktgen

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netns"
)

// anchor keeps a program attached to an interface that carries nothing, in a
// namespace that nobody else sees. The kernel patches its XDP dispatcher whenever a
// program comes into use that is attached nowhere, and waits for all CPUs
// (bpf_prog_change_xdp, called by bpf_prog_test_run_xdp): about 24 ms for each call
// that sends packets. An attached program is there already.
type anchor struct {
	ns   *netns.Handle
	link link.Link
}

func newAnchor(program *ebpf.Program) (*anchor, error) {
	ns, err := netns.New("generator")
	if err != nil {
		return nil, err
	}
	a := &anchor{ns: ns}
	if err := a.attach(program); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the generator to an interface of its own: %w", err), ns.Close())
	}
	return a, nil
}

func (a *anchor) attach(program *ebpf.Program) error {
	return a.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "anchor"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("anchor")
		if err != nil {
			return err
		}
		a.link, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

func (a *anchor) close() error { return errors.Join(a.link.Close(), a.ns.Close()) }
