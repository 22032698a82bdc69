package pktgen

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Forwarder sends every frame that comes in at one interface out at another, with
// new Ethernet addresses and nothing else changed: the least that a router can do,
// and so the limit of what a faster one could reach.
type Forwarder struct {
	program *ebpf.Program
	link    link.Link
}

// Forward attaches a Forwarder to an interface of the namespace in which to lies.
func Forward(interfaceName string, to Egress) (*Forwarder, error) {
	port := Port{Netns: to.Netns, Interface: interfaceName}
	f := &Forwarder{}
	if err := f.attach(port, to); err != nil {
		return nil, errors.Join(fmt.Errorf("forward from %v: %w", port, err), f.Close())
	}
	return f, nil
}

func (f *Forwarder) attach(port Port, to Egress) error {
	index, err := interfaceIndex(port)
	if err != nil {
		return err
	}
	spec, err := programs()
	if err != nil {
		return err
	}
	if err := set(spec, map[string]any{
		pktgenVarOutIfindex: uint32(to.Index), pktgenVarMacWords: words(to.NextMAC, to.MAC),
	}); err != nil {
		return err
	}
	var objects struct {
		Forward *ebpf.Program `ebpf:"forward"`
	}
	if err := loadPrograms(spec, &objects, nil); err != nil {
		return err
	}
	f.program = objects.Forward
	f.link, err = attach(port.Netns, index, f.program)
	return err
}

// Close detaches it.
func (f *Forwarder) Close() error {
	var errs []error
	if f.link != nil {
		errs = append(errs, f.link.Close())
	}
	if f.program != nil {
		errs = append(errs, f.program.Close())
	}
	return errors.Join(errs...)
}
