package main

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/tools/bench"
)

// runEngine has the programs of the eBPF engine translate what kernel DNAT does, beside so many other mappings.
func (p *planes) runEngine(ctx context.Context, mode plane.Mode, others int) (s bench.Sample, err error) {
	if err := p.rules(ctx, ""); err != nil {
		return s, err
	}
	down, err := attachEngine(p.gateway, mode, dnatTables(others))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, down()) }()
	cfg := p.config(gatewayPublic)
	cfg.Expect = unchanged
	if cfg.Expect.Destination, err = packets.ParseEnd(serverAddress.String()); err != nil {
		return s, err
	}
	return p.through(ctx, cfg)
}

// dnatTables are what a dnat rule becomes, and others for addresses that no packet has.
func dnatTables(others int) plane.Tables {
	public, inside := nat.Host(gatewayPublic.Addr()), nat.Host(serverAddress.Addr())
	t := plane.Tables{Rules: 1,
		Destinations: []plane.Mapping{{Match: public, Protocol: unix.IPPROTO_UDP, Port: gatewayPublic.Port(), To: inside, ToPort: serverAddress.Port(), Roles: plane.AnyRole, Rule: 1}},
		Sources:      []plane.Mapping{{Match: inside, Protocol: unix.IPPROTO_UDP, Port: serverAddress.Port(), To: public, ToPort: gatewayPublic.Port(), Roles: plane.AnyRole, Rule: 1}}}
	out, in := netip.MustParseAddr("203.0.0.0"), netip.MustParseAddr("10.0.0.0")
	for range others {
		out, in = out.Next(), in.Next()
		t.Destinations = append(t.Destinations, plane.Mapping{Match: nat.Host(out), To: nat.Host(in), Roles: plane.AnyRole, Rule: 1})
		t.Sources = append(t.Sources, plane.Mapping{Match: nat.Host(in), To: nat.Host(out), Roles: plane.AnyRole, Rule: 1})
	}
	return t
}

// attachEngine attaches the programs to all interfaces of a namespace; down detaches them.
func attachEngine(ns *netns.Handle, mode plane.Mode, t plane.Tables) (down func() error, err error) {
	pins := plane.PinsOf("bench")
	err = ns.Do(func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		c, ports := plane.Config{Tables: t, Marks: plane.MarksOf(3 << 30)}, []plane.Port(nil)
		for _, f := range found {
			f.Roles = plane.AnyRole &^ plane.Inside
			f.Redirect = true // the other ends get programs with NAPI when the load comes
			c.Interfaces = append(c.Interfaces, f.Interface)
			ports = append(ports, plane.Port{Index: f.Index, Name: f.Name, Mode: mode, NoEthernet: f.NoEthernet})
		}
		programs, err := plane.Load(c)
		if err != nil {
			return err
		}
		_, err = pins.Attach(programs, ports)
		return errors.Join(err, programs.Close())
	})
	return func() error { return ns.Do(pins.Remove) }, err
}
