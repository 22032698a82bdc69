package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/tools/bench"
)

// peer is a program of others that forwards packets by eBPF, measured where it is installed.
type peer struct {
	name     string
	version  []string
	subjects []bench.Subject
}

// peers are those that can do a part of the work: xdp-forward translates nothing, and einat makes all hosts inside
// appear as one, for which the kernel's masquerade stands beside it.
func (p *planes) peers(t traffic) []peer {
	masquerade := "table ip benchmark { chain translated { type nat hook postrouting priority srcnat\n ip saddr " + mappedInside[0].String() + " masquerade\n }\n}\n"
	return []peer{
		{"xdp-forward", []string{"xdp-forward", "load", "--version"}, []bench.Subject{
			{Name: "xdp-forward, no NAT", Run: func(ctx context.Context) (bench.Sample, error) { return p.runXDPForward(ctx, t.inside()) }},
		}},
		{"einat", []string{"sh", "-c", "echo einat $(einat --version)"}, []bench.Subject{
			{Name: "kernel masquerade", Run: func(ctx context.Context) (bench.Sample, error) {
				if err := p.rules(ctx, masquerade); err != nil {
					return bench.Sample{}, err
				}
				return p.through(ctx, t.masked(), true)
			}},
			{Name: "einat", Run: func(ctx context.Context) (bench.Sample, error) { return p.runEinat(ctx, t.masked()) }},
		}},
	}
}

// withPeers adds the peers that are installed to a suite, and says which ones are not.
func (p *planes) withPeers(s bench.Suite, t traffic) bench.Suite {
	for _, peer := range p.peers(t) {
		if _, err := exec.LookPath(peer.name); err != nil {
			s.Method += "; " + peer.name + " not found"
			continue
		}
		s.Subjects, s.Programs = append(s.Subjects, peer.subjects...), append(s.Programs, peer.version)
	}
	return s
}

// masked is the traffic outwards, where it is to have the gateway's address.
func (t traffic) masked() packets.Config {
	t.outwards = true
	c := t.config()
	c.Expect.Source = packets.End{Address: packets.Inside, Prefix: nat.Host(gatewayPublic.Addr())}
	return c
}

// runXDPForward has xdp-forward look up the route of each packet. libxdp's dispatcher, which lets several programs share
// an interface, is left out: it is no part of the work.
func (p *planes) runXDPForward(ctx context.Context, cfg packets.Config) (s bench.Sample, err error) {
	client, server, err := p.ports()
	if err == nil {
		err = p.rules(ctx, "")
	}
	if err != nil {
		return s, err
	}
	does := func(ctx context.Context, verb string) error {
		_, _, err := bench.Program{Netns: p.gateway, Args: []string{"env", "LIBXDP_SKIP_DISPATCHER=1", "xdp-forward", verb, client.Interface, server.Interface}}.Run(ctx)
		return err
	}
	if err := does(ctx, "load"); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, does(context.WithoutCancel(ctx), "unload")) }()
	return p.through(ctx, cfg, false)
}

// runEinat has einat translate. Packets that it does not translate count as lost: those of flows that it has no room for.
func (p *planes) runEinat(ctx context.Context, cfg packets.Config) (s bench.Sample, err error) {
	client, _, err := p.ports()
	if err == nil {
		err = p.rules(ctx, "")
	}
	if err != nil {
		return s, err
	}
	args := []string{p.natkit, "lab", "exec", "--lab", labName, "gateway", "--", "einat", "--ifname", client.Interface, "--ports", "10000-60000"}
	w, err := observer{name: "einat", args: args}.start(ctx)
	if err != nil {
		return s, fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	s, err = p.through(ctx, cfg, true)
	if err == nil {
		s.Values[lostShare] += float64(s.Failures) / packetsPerRun
		s.Failures = 0
	}
	return s, err
}
