package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// fleetNodes are compared, each with fleetEntries connections in each of its two samples.
	fleetNodes   = 1000
	fleetEntries = 5000
)

// fleetSuite measures doctor on the bundles of many nodes.
func fleetSuite(natkit string) bench.Suite {
	const subject = "natkit doctor --from a directory of bundles"
	f := &fleetBench{natkit: natkit}
	return bench.Suite{
		Name: "fleet", Title: "natkit doctor on the bundles of many nodes",
		About: "What `natkit doctor --from DIR` takes to diagnose and compare " + units.Count(fleetNodes) + " nodes: bundles of `natkit snapshot` of a namespace with\n" +
			units.Count(fleetEntries) + " connections, each with a boot, a name, a kernel and sysctls of its own.",
		Method: "a directory of " + units.Count(fleetNodes) + " bundles, read from the page cache",
		Quantities: []bench.Quantity{takes, {Name: cpuSeconds, Label: "own CPU time", Better: bench.Lower,
			Text: func(v float64) string { return units.Fixed(v, 3) + " s" }}, peaks},
		Subjects:   []bench.Subject{{Name: subject, Run: f.run}},
		Claims:     []bench.Claim{{Subject: subject, Quantity: took, Bound: 60}, {Subject: subject, Quantity: peakMemory, Bound: 512 << 20}},
		Rounds:     3,
		Parameters: map[string]any{"nodes": fleetNodes, "entries": fleetEntries},
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      f.setUp,
	}
}

type fleetBench struct{ natkit, dir string }

func (f *fleetBench) setUp(ctx context.Context) (func(context.Context) error, error) {
	var err error
	if f.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return nil, err
	}
	tearDown := func(context.Context) error { return os.RemoveAll(f.dir) }
	if err = f.write(ctx); err != nil {
		return nil, errors.Join(err, tearDown(ctx))
	}
	return tearDown, nil
}

// write takes one bundle and makes those of all nodes of it.
func (f *fleetBench) write(ctx context.Context) error {
	full, err := newTableFor(ctx, fleetEntries)
	if err != nil {
		return err
	}
	one := filepath.Join(f.dir, "one.tar.gz")
	if err = full.add(ctx, 0, fleetEntries); err == nil {
		err = writeSnapshot(ctx, one, full.ns)
	}
	if err = errors.Join(err, full.close()); err != nil {
		return err
	}
	header, members, err := membersOf(one)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(f.dir, "nodes"), 0o700); err != nil {
		return err
	}
	for i := range fleetNodes {
		if err := writeNode(filepath.Join(f.dir, "nodes"), i, header, members); err != nil {
			return err
		}
	}
	return nil
}

func membersOf(path string) (h snapshot.BundleHeader, all []snapshot.BundleMember, err error) {
	in, err := os.Open(path)
	if err != nil {
		return h, nil, err
	}
	defer in.Close()
	b, err := snapshot.NewBundleReader(in, nil)
	if err != nil {
		return h, nil, err
	}
	for {
		name, data, err := b.Next()
		if errors.Is(err, io.EOF) {
			return b.Header, all, nil
		}
		if err != nil {
			return h, nil, err
		}
		all = append(all, snapshot.BundleMember{Name: name, Data: data})
	}
}

// writeNode writes the bundle of a node: one in forty is small for its connections.
func writeNode(dir string, i int, h snapshot.BundleHeader, members []snapshot.BundleMember) error {
	h.Host = snapshot.Host{Name: fmt.Sprintf("node-%04d", i), Distribution: []string{"debian 12", "ubuntu 24.04"}[i%2]}
	limit := "1048576"
	if i%40 == 0 {
		limit = fmt.Sprint(fleetEntries)
	}
	values := map[string]string{
		"kernel/random/boot_id":          fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1),
		"kernel/osrelease":               []string{"6.1.0-13-cloud-amd64", "6.8.0-45-generic"}[i%2],
		"net/netfilter/nf_conntrack_max": limit,
	}
	out, err := os.Create(filepath.Join(dir, h.Host.Name+".tar.gz"))
	if err != nil {
		return err
	}
	b, err := snapshot.NewBundleWriter(out, h)
	for _, m := range members {
		if err != nil {
			break
		}
		data := m.Data
		for name, value := range values {
			if strings.HasSuffix(m.Name, "files/proc/sys/"+name) {
				data = []byte(value + "\n")
			}
		}
		err = b.Add(m.Name, data)
	}
	if err == nil {
		err = b.Close()
	}
	return errors.Join(err, out.Close())
}

func (f *fleetBench) run(ctx context.Context) (bench.Sample, error) {
	out := filepath.Join(f.dir, "report.json")
	p := bench.Program{Args: []string{"sh", "-c", `exec "$0" doctor --from "$1" --json > "$2"`, f.natkit, filepath.Join(f.dir, "nodes"), out}, Accept: []int{exitFindings, exitIncomplete}}
	_, u, err := p.Run(ctx)
	return bench.Sample{Values: bench.Values{took: u.Seconds, cpuSeconds: u.OwnSeconds, peakMemory: float64(u.PeakBytes)}}, err
}
