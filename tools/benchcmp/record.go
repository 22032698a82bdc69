package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// recordedFor is how long is recorded in a run.
	recordedFor = 3 * time.Minute
	// renewed connections take the place of others in a second, where they do.
	renewed = 500
)

// Quantities of a recording.
const (
	recordShare = "cpu_share"
	ringGrowth  = "ring_bytes_per_minute"
	interval    = "seconds_per_snapshot"
)

// recordSuite measures what natkit record costs.
func recordSuite(natkit string) bench.Suite {
	var gateways []*busyGateway
	var subjects []bench.Subject
	var claims []bench.Claim
	for _, kind := range []struct {
		name    string
		renewed int
	}{{"recorded: nothing changes", 0}, {fmt.Sprintf("recorded: %s new connections/s", units.Count(renewed)), renewed}} {
		g := &busyGateway{networks: someNetworks}
		gateways = append(gateways, g)
		subjects = append(subjects, bench.Subject{Name: kind.name, Run: func(ctx context.Context) (bench.Sample, error) { return g.record(ctx, natkit, kind.renewed) }})
		claims = append(claims, bench.Claim{Subject: kind.name, Quantity: recordShare, Bound: 0.01}, bench.Claim{Subject: kind.name, Quantity: ringGrowth, Bound: 5e6},
			bench.Claim{Subject: kind.name, Quantity: peakMemory, Bound: 192 << 20})
	}
	return bench.Suite{
		Name: "record", Title: "natkit record on a busy gateway",
		About: "A recorder at its usual interval in a namespace with many connections, with headers of packets and drops. The CPU\n" +
			"time is that of the process, in the kernel too, its start included. Where snapshots cost more than 1 % of a CPU they\n" +
			"come later than every 5 s: the time from one to the next says so.",
		Method: fmt.Sprintf("natkit record for %s, a snapshot every 5 s or later; %s connections, %s", recordedFor, units.Count(watchedEntries), sizeOf(someNetworks)),
		Quantities: []bench.Quantity{
			{Name: recordShare, Label: "of one CPU", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v*100, 2) + " %" }},
			{Name: ringGrowth, Label: "ring a minute", Better: bench.Lower, Text: units.Bytes[float64]},
			{Name: interval, Label: "from one snapshot to the next", Better: bench.Lower, Text: units.Seconds},
			peaks,
		},
		Subjects:   subjects,
		Claims:     claims,
		Rounds:     3,
		Parameters: map[string]any{"entries": watchedEntries, "networks": someNetworks, "seconds": recordedFor.Seconds(), "new_per_second": []int{0, renewed}},
		Programs:   [][]string{{natkit, "--version"}, {"nft", "--version"}},
		Setup:      func(ctx context.Context) (func(context.Context) error, error) { return setUpAll(ctx, gateways) },
	}
}

// record runs a recorder, while connections come where that is wanted.
func (g *busyGateway) record(ctx context.Context, natkit string, renewed int) (bench.Sample, error) {
	dir, err := os.MkdirTemp("", "natkit-bench-")
	if err != nil {
		return bench.Sample{}, err
	}
	defer os.RemoveAll(dir)
	renewing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- g.renew(renewing, renewed) }()
	p := bench.Program{Netns: g.ns, Args: []string{"timeout", "-s", "INT", fmt.Sprint(recordedFor.Seconds()), natkit, "record", "--dir", dir, "--on", "none"}, Accept: []int{exitTimeout}}
	_, u, err := p.Run(ctx)
	stop()
	if errRenew := <-ended; err == nil {
		err = errRenew
	}
	if err != nil {
		return bench.Sample{}, err
	}
	text, err := exec.CommandContext(ctx, natkit, "record", "show", "--json", dir).Output()
	if err != nil {
		return bench.Sample{}, fmt.Errorf("show what was recorded: %w", err)
	}
	var c ring.Contents
	if err := json.Unmarshal(text, &c); err != nil || c.Snapshots < 2 {
		return bench.Sample{}, fmt.Errorf("%d snapshots were recorded: %w", c.Snapshots, err)
	}
	span := c.To.Sub(c.From)
	return bench.Sample{
		Values: bench.Values{recordShare: u.OwnSeconds / recordedFor.Seconds(), ringGrowth: float64(c.Bytes) / span.Minutes(),
			interval: span.Seconds() / float64(c.Snapshots-1), peakMemory: float64(u.PeakBytes)},
		Failures: int64(len(c.Damaged)),
	}, nil
}

// renew adds connections that end soon, so many a second, until ctx ends.
func (g *busyGateway) renew(ctx context.Context, perSecond int) error {
	if perSecond == 0 {
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		i := 0
		if _, err := dump.Insert(ctx, g.ns, func(e *conntrack.Entry) bool {
			orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 19, byte(n >> 8), byte(n)}), Dst: netip.AddrFrom4([4]byte{203, 0, 113, 9}),
				Proto: unix.IPPROTO_TCP, SrcPort: uint16(1024 + i), DstPort: 443}
			*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Status: conntrack.SeenReply | conntrack.Assured, TCPState: conntrack.TCPTimeWait, Timeout: 20}
			i++
			return i <= perSecond
		}); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
