package main

import (
	"context"
	"errors"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/tools/bench"
)

// runEngine has the programs of the eBPF engine translate.
func (p *planes) runEngine(ctx context.Context, mode plane.Mode, t traffic) (s bench.Sample, err error) {
	if err := p.rules(ctx, ""); err != nil {
		return s, err
	}
	down, err := attachEngine(p.gateway, mode, t.tables())
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, down()) }()
	return p.through(ctx, t.config(), t.outwards)
}

// attachEngine attaches the programs to all interfaces of a namespace; down detaches them.
func attachEngine(ns *netns.Handle, mode plane.Mode, t plane.Tables) (down func() error, err error) {
	programs, ports, err := loadEngine(ns, mode, t)
	if err != nil {
		return nil, err
	}
	pins := plane.PinsOf("bench")
	err = ns.Do(func() error {
		_, err := pins.Attach(programs, ports)
		return errors.Join(err, programs.Close())
	})
	return func() error { return ns.Do(pins.Remove) }, err
}

// loadEngine loads the programs for all interfaces of a namespace.
func loadEngine(ns *netns.Handle, mode plane.Mode, t plane.Tables) (programs *plane.Programs, ports []plane.Port, err error) {
	err = ns.Do(func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		c := plane.Config{Tables: t, Marks: plane.MarksOf(3 << 30)}
		for _, f := range found {
			f.Roles = plane.AnyRole &^ plane.Inside
			f.Redirect = true // the other ends get programs with NAPI when the load comes
			c.Interfaces = append(c.Interfaces, f.Interface)
			ports = append(ports, plane.Port{Index: f.Index, Name: f.Name, Mode: mode, NoEthernet: f.NoEthernet})
		}
		programs, err = plane.Load(c)
		return err
	})
	return programs, ports, err
}
