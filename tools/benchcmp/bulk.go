package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	bitRate = "bits_per_second"
	// bulkTime is how long a run sends, bulkPatience how long the rest may take to arrive.
	bulkTime, bulkPatience = 2 * time.Second, 30 * time.Second
	bulkBuffer             = 256 << 10
	onAWire                = ", as on a wire"
)

// bulkSuite measures one TCP connection that sends as fast as it can, where the kernel handles many packets as one
// (TSO, GRO), and where it cannot.
func bulkSuite(natkit string) bench.Suite {
	b := &bulk{planes{packetRuns: packetRuns{natkit: natkit}}, bulkTime}
	return bench.Suite{
		Name: "bulk", Title: "TCP in bulk through the data planes",
		About: "One TCP connection through the lab's gateway, client and server beside it on the same\n" +
			"CPUs. On a veth pair the kernel hands on up to 64 KiB as one packet, and what works on\n" +
			"packets has little to do. As on a wire: the hosts send packets of the MTU (1,500) with\n" +
			"complete checksums, which XDP needs, and receive by GRO.",
		Method:     fmt.Sprintf("one connection that sends for %.0f s, 10,000 addresses outside that stand for one inside each", bulkTime.Seconds()),
		Quantities: []bench.Quantity{{Name: bitRate, Label: "Gbit/s", Better: bench.Higher, Text: func(v float64) string { return units.Fixed(v/1e9, 2) }}},
		Subjects:   b.subjects(traffic{mappings: manyMappings}),
		Baseline:   kernelDNAT,
		Rounds:     15, WarmUp: 1,
		Parameters: map[string]any{"seconds": bulkTime.Seconds(), "connections": 1, "write_bytes": bulkBuffer, "mappings": manyMappings},
		Programs:   [][]string{{natkit, "--version"}, {"nft", "--version"}},
		Setup:      b.build,
	}
}

type bulk struct {
	planes
	time time.Duration // of a run
}

func (b *bulk) subjects(to traffic) []bench.Subject {
	nat := to.nft(natHook, natRule)
	answers := nftTable("answers", "saddr", mappedInside[0], to.addresses(mappedInside[0]), to.addresses(mappedOutside[0]),
		"type filter hook postrouting priority srcnat", "ip saddr set ip saddr map @mappings")
	return []bench.Subject{
		{Name: "no gateway", Run: b.runAlone},
		b.kernel("kernel forwarding", "", false),
		b.kernel(nftStateless, to.nft(rawHook, statelessRule)+answers, false),
		b.engine(engineTC, plane.TC, to, false),
		b.kernel(kernelDNAT, nat, false),
		b.kernel(kernelDNAT+onAWire, nat, true),
		b.engine(engineTC+onAWire, plane.TC, to, true),
		b.engine(engineXDP+onAWire, plane.XDP, to, true),
	}
}

// bulkOutside is what clients connect to, bulkInside the server's address that it stands for.
var bulkOutside, bulkInside = netip.AddrPortFrom(mappedOutside[0].Addr().Next(), 9000), netip.AddrPortFrom(mappedInside[0].Addr().Next(), 9000)

// build makes the lab of the planes, whose server has an address that one outside stands for.
func (b *bulk) build(ctx context.Context) (func(context.Context) error, error) {
	down, err := b.planes.build(ctx)
	if err != nil {
		return nil, err
	}
	add := bench.Program{Netns: b.server, Args: []string{"ip", "addr", "add", bulkInside.Addr().String(), "dev", "lo"}}
	if _, _, err := add.Run(ctx); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return down, nil
}

// runAlone sends to the first hop.
func (b *bulk) runAlone(ctx context.Context) (bench.Sample, error) {
	if err := b.rules(ctx, ""); err != nil {
		return bench.Sample{}, err
	}
	at := netip.AddrPortFrom(gatewayPublic.Addr(), bulkInside.Port())
	return transfer(ctx, b.client, b.gateway, at, at, b.time)
}

// kernel is a subject that the kernel forwards for, by rules that translate or without any.
func (b *bulk) kernel(name, rules string, wire bool) bench.Subject {
	to := bulkOutside
	if rules == "" {
		to = bulkInside
	}
	return bench.Subject{Name: name, Run: func(ctx context.Context) (bench.Sample, error) {
		if err := b.rules(ctx, rules); err != nil {
			return bench.Sample{}, err
		}
		return b.through(ctx, to, wire)
	}}
}

// engine is a subject that programs translate for.
func (b *bulk) engine(name string, mode plane.Mode, t traffic, wire bool) bench.Subject {
	return bench.Subject{Name: name, Run: func(ctx context.Context) (s bench.Sample, err error) {
		if err := b.rules(ctx, ""); err != nil {
			return s, err
		}
		down, err := attachEngine(b.gateway, mode, t.tables())
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, down()) }()
		return b.through(ctx, bulkOutside, wire)
	}}
}

// through sends through the gateway.
func (b *bulk) through(ctx context.Context, to netip.AddrPort, wire bool) (s bench.Sample, err error) {
	if wire {
		undo, err := b.asOnAWire()
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	return transfer(ctx, b.client, b.server, bulkInside, to, b.time)
}

// asOnAWire has client and server send packets of the MTU with complete checksums, and receive by GRO, which takes what
// XDP redirects to them.
func (b *bulk) asOnAWire() (undo func() error, err error) {
	client, err := pktgen.ReadEgress(pktgen.Route{Netns: b.client}, gatewayPublic.Addr())
	if err != nil {
		return nil, err
	}
	server, err := pktgen.ReadEgress(pktgen.Route{Netns: b.server}, gatewayInside)
	if err != nil {
		return nil, err
	}
	undo = func() error {
		return errors.Join(b.client.LeaveChecksums(client.Interface), b.server.LeaveChecksums(server.Interface),
			b.client.SetGRO(client.Interface, false), b.server.SetGRO(server.Interface, false))
	}
	err = errors.Join(b.client.CompleteChecksums(client.Interface), b.server.CompleteChecksums(server.Interface),
		b.client.SetGRO(client.Interface, true), b.server.SetGRO(server.Interface, true))
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// transfer sends by a connection to an address, which is listened at by another one, for a time. What did not arrive is
// a failure.
func transfer(ctx context.Context, from, to *netns.Handle, listen, dial netip.AddrPort, d time.Duration) (s bench.Sample, err error) {
	server, client, err := connect(ctx, from, to, listen, dial)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	start := time.Now()
	sent := make(chan int64, 1)
	go func() { sent <- sendUntil(client, start.Add(d)) }()
	if err := server.SetReadDeadline(start.Add(d + bulkPatience)); err != nil {
		return s, err
	}
	received := int64(0)
	for buffer := make([]byte, bulkBuffer); err == nil; {
		var n int
		n, err = server.Read(buffer)
		received += int64(n)
	}
	seconds := time.Since(start).Seconds()
	if !errors.Is(err, io.EOF) {
		return s, errors.Join(fmt.Errorf("receive %d bytes at %v: %w", received, listen, err), client.Close())
	}
	s.Values = bench.Values{bitRate: 8 * float64(received) / seconds}
	if <-sent != received {
		s.Failures = 1
	}
	return s, nil
}

// sendUntil sends until a time, closes the connection and returns how many bytes it took.
func sendUntil(c net.Conn, end time.Time) (bytes int64) {
	defer c.Close()
	if c.SetWriteDeadline(end) != nil {
		return 0
	}
	for buffer := make([]byte, bulkBuffer); ; {
		n, err := c.Write(buffer)
		bytes += int64(n)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return bytes
		case err != nil:
			return -1
		}
	}
}

// connect makes a connection between two namespaces.
func connect(ctx context.Context, from, to *netns.Handle, listen, dial netip.AddrPort) (server, client net.Conn, err error) {
	var l *net.TCPListener
	if err := to.Do(func() (err error) {
		l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(listen))
		return err
	}); err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if err := from.Do(func() (err error) {
		client, err = (&net.Dialer{Timeout: bulkPatience}).DialContext(ctx, "tcp4", dial.String())
		return err
	}); err != nil {
		return nil, nil, err
	}
	if err := l.SetDeadline(time.Now().Add(bulkPatience)); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	if server, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return server, client, nil
}
