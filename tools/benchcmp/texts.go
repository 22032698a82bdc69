package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// textEntries is how many connections the list has.
const textEntries = 1_000_000

// textsSuite measures doctor on what other programs printed.
func textsSuite(natkit string) bench.Suite {
	const plain, packed, bundle = "natkit doctor --from a directory", "natkit doctor --from a tar.gz", "natkit doctor --from a bundle"
	t := &textsBench{natkit: natkit}
	return bench.Suite{
		Name: "texts", Title: "natkit doctor on other people's data",
		About:  "What `natkit doctor --from` takes for a list of " + units.Count(textEntries) + " connections, as `conntrack -L -o extended,id`\nprints them, beside sysctls and counters, and for a bundle of `natkit snapshot` with as many in each of its two samples.",
		Method: "the whole list, read from the page cache, as a text twice: to recognise it, and to summarise it",
		Quantities: []bench.Quantity{takes, {Name: cpuSeconds, Label: "CPU time", Better: bench.Lower,
			Text: func(v float64) string { return units.Fixed(v, 3) + " s" }}, peaks},
		Subjects: []bench.Subject{{Name: plain, Run: t.by(func() string { return t.dir + "/host" })}, {Name: packed, Run: t.by(func() string { return t.dir + "/host.tar.gz" })},
			{Name: bundle, Run: t.by(func() string { return t.dir + "/bundle.tar.gz" })}},
		Claims: []bench.Claim{
			{Subject: plain, Quantity: took, Bound: 3}, {Subject: plain, Quantity: peakMemory, Bound: 256 << 20},
			{Subject: packed, Quantity: peakMemory, Bound: 256 << 20},
			{Subject: bundle, Quantity: took, Bound: 3}, {Subject: bundle, Quantity: peakMemory, Bound: 256 << 20},
		},
		Rounds: 9, WarmUp: 1,
		Parameters: map[string]any{"entries": textEntries},
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      t.setUp,
	}
}

// textsBench has the texts, in a directory and in an archive.
type textsBench struct{ natkit, dir string }

func (t *textsBench) setUp(ctx context.Context) (func(context.Context) error, error) {
	var err error
	if t.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return nil, err
	}
	tearDown := func(context.Context) error { return os.RemoveAll(t.dir) }
	if err = t.write(filepath.Join(t.dir, "host")); err == nil {
		_, _, err = bench.Program{Args: []string{"tar", "-C", t.dir, "-czf", t.dir + "/host.tar.gz", "host"}}.Run(ctx)
	}
	if err == nil {
		err = t.snapshot(ctx)
	}
	if err != nil {
		_ = tearDown(ctx)
		return nil, err
	}
	return tearDown, nil
}

// snapshot writes the bundle.
func (t *textsBench) snapshot(ctx context.Context) error {
	full, err := newTableFor(ctx, textEntries)
	if err != nil {
		return err
	}
	if err = full.add(ctx, 0, textEntries); err == nil {
		err = writeSnapshot(ctx, t.dir+"/bundle.tar.gz", full.ns)
	}
	return errors.Join(err, full.close())
}

func writeSnapshot(ctx context.Context, path string, ns *netns.Handle) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = collect.WriteBundle(ctx, f, collect.RecordOptions{Options: collect.Options{Netns: ns, MaxEntries: math.MaxInt}, For: time.Second})
	return errors.Join(err, f.Close())
}

func (t *textsBench) write(host string) error {
	if err := os.Mkdir(host, 0o700); err != nil {
		return err
	}
	sysctls := fmt.Sprintf("net.netfilter.nf_conntrack_max = %d\nnet.netfilter.nf_conntrack_count = %d\n", 2*textEntries, textEntries)
	if err := os.WriteFile(filepath.Join(host, "sysctl"), []byte(sysctls), 0o600); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(host, "conntrack"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	states := []string{"ESTABLISHED", "TIME_WAIT", "SYN_RECV", "CLOSE"}
	for i := range textEntries {
		client, server, port := fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), fmt.Sprintf("198.19.0.%d", i%250), 1024+i%60000
		fmt.Fprintf(w, "ipv4     2 tcp      6 %d %s src=%s dst=%s sport=%d dport=443 src=%s dst=198.18.0.1 sport=443 dport=%d [ASSURED] mark=0 use=1 id=%d\n",
			i%432000, states[i%len(states)], client, server, port, server, port, uint32(i)*2654435761)
	}
	return w.Flush()
}

func (t *textsBench) by(from func() string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		out := filepath.Join(t.dir, "report.json")
		p := bench.Program{Args: []string{"sh", "-c", `exec "$0" doctor --from "$1" --json > "$2"`, t.natkit, from(), out}, Accept: []int{exitFindings, exitIncomplete}}
		_, u, err := p.Run(ctx)
		return bench.Sample{Values: bench.Values{took: u.Seconds, cpuSeconds: u.CPUSeconds, peakMemory: float64(u.PeakBytes)}}, err
	}
}
