package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// captureBytes is the size of the capture, and captureMemory the bound that natkit is to
// keep to: its usual --memory, with what Go's collector and the program itself take.
const (
	captureBytes  = int64(1 << 30)
	captureMemory = 512 << 20
)

// captureRate is how much of a capture is read in a minute.
const captureRate = "bytes_per_minute"

// printAll is what people read a capture with.
const printAll = "tcpdump -nr FILE >/dev/null"

// pcapSuite measures natkit pcap on a large capture, on one CPU, beside tcpdump.
func pcapSuite(natkit string) bench.Suite {
	const report, narrow, zipped = "natkit pcap", "natkit pcap --memory 32M", "natkit pcap, gzip"
	p := &pcapBench{natkit: natkit}
	return bench.Suite{
		Name: "pcap", Title: "Reading a capture",
		About: "What `natkit pcap` takes for a capture of " + units.Bytes(captureBytes) + " of short connections behind one address, on\n" +
			"one CPU: with ports that come back after 42 s, from three machines with clocks of their\n" +
			"own, and a SYN in a hundred rejected by TIME_WAIT, each of which it has to name. tcpdump only\n" +
			"prints the packets.",
		Method: "the whole file, read from the page cache, on one CPU",
		Quantities: []bench.Quantity{takes, peaks,
			{Name: captureRate, Label: "a minute", Better: bench.Higher, Text: units.Bytes[float64]}},
		Subjects: []bench.Subject{
			{Name: report, Run: p.report(p.plain)},
			{Name: narrow, Run: p.report(p.plain, "--memory", "32M")},
			{Name: zipped, Run: p.report(p.zipped)},
			{Name: printAll, Run: p.tcpdump},
		},
		Claims: []bench.Claim{
			{Subject: report, Quantity: captureRate, Bound: 1e9},
			{Subject: report, Quantity: took, Than: printAll, Bound: 0.5},
			{Subject: report, Quantity: peakMemory, Bound: captureMemory},
			{Subject: narrow, Quantity: peakMemory, Bound: 160 << 20},
			{Subject: zipped, Quantity: captureRate, Bound: 1e9},
		},
		Rounds: 9, WarmUp: 1,
		Parameters: map[string]any{"file_bytes": captureBytes, "ports": capturePorts, "machines": captureMachines, "connections_per_rejected_syn": captureRejected},
		Programs:   [][]string{{natkit, "--version"}, {"tcpdump", "--version"}},
		Setup:      p.setUp,
	}
}

// pcapBench has the capture, plain and gzipped.
type pcapBench struct {
	natkit, dir string
	file        *captureFile
}

func (p *pcapBench) plain() string  { return filepath.Join(p.dir, "capture.pcap") }
func (p *pcapBench) zipped() string { return p.plain() + ".gz" }

func (p *pcapBench) setUp(ctx context.Context) (func(context.Context) error, error) {
	var err error
	if p.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return nil, err
	}
	tearDown := func(context.Context) error { return os.RemoveAll(p.dir) }
	if p.file, err = writeCapture(p.plain(), captureBytes); err == nil {
		_, _, err = bench.Program{Args: []string{"gzip", "-1", "-k", p.plain()}}.Run(ctx)
	}
	if err != nil {
		_ = tearDown(ctx)
		return nil, err
	}
	return tearDown, nil
}

// report measures natkit, which must have read all packets and named each rejected SYN.
// Its document goes into a file: what this process takes counts for its children
// (ru_maxrss lives on through exec).
func (p *pcapBench) report(file func() string, flags ...string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		out := filepath.Join(p.dir, "report.json")
		args := []string{"taskset", "-c", "0", "sh", "-c", `out=$1; shift; exec "$@" >"$out"`, "sh", out, p.natkit, "pcap", "--json"}
		const foundSomething = 3
		_, u, err := bench.Program{Args: append(append(args, flags...), file()), Accept: []int{foundSomething}}.Run(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		packets, rejected, err := readCounts(out)
		if err != nil {
			return bench.Sample{}, err
		}
		wrong := max(p.file.packets-packets, packets-p.file.packets)
		if len(flags) == 0 { // with less memory, former connections are forgotten
			wrong += max(p.file.rejected-rejected, rejected-p.file.rejected)
		}
		return p.sample(u, wrong), nil
	}
}

// readCounts reads a report's counts, which stand before its incidents.
func readCounts(path string) (packets, rejected int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	into := map[json.Token]*int64{"packets": &packets, "syns_rejected_by_paws": &rejected}
	for d := json.NewDecoder(f); len(into) > 0; {
		token, err := d.Token()
		if err != nil {
			return 0, 0, fmt.Errorf("read natkit's document: %w", err)
		}
		if _, isWord := token.(string); !isWord || into[token] == nil {
			continue
		}
		if err := d.Decode(into[token]); err != nil {
			return 0, 0, fmt.Errorf("read natkit's document: %w", err)
		}
		delete(into, token)
	}
	return packets, rejected, nil
}

func (p *pcapBench) sample(u bench.Usage, failures int64) bench.Sample {
	return bench.Sample{Failures: failures, Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes),
		captureRate: float64(p.file.bytes) / u.Seconds * 60}}
}

func (p *pcapBench) tcpdump(ctx context.Context) (bench.Sample, error) {
	_, u, err := bench.Program{Args: []string{"taskset", "-c", "0", "sh", "-c", `exec tcpdump -nr "$1" >/dev/null`, "sh", p.plain()}}.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	return p.sample(u, 0), nil
}
