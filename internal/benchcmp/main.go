// Command benchcmp compares `natkit bench http` with ab and wrk through the lab's
// DNAT, and the lab and doctor with their limits. It rewrites the measured parts
// of docs/benchmarks.md. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "benchcmp: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	natkit := flag.String("natkit", "bin/natkit", "the program to measure")
	doc := flag.String("doc", "", "rewrite the figures in this document; empty prints them")
	rounds := flag.Int("rounds", 15, "how often each tool runs")
	requests := flag.Int("requests", 50000, "requests per run")
	concurrency := flag.Int("concurrency", 1000, "connections at a time")
	url := flag.String("url", "http://198.18.0.1:8080/", "the lab's gateway")
	only := flag.String("only", "", "take only one part: http or limits")
	flag.Parse()
	path, err := filepath.Abs(*natkit)
	if err != nil {
		return err
	}
	b := bench{natkit: path, setup: setup{
		Rounds: *rounds, Requests: *requests, Concurrency: *concurrency,
		ManyConnections: 5000, TracedRequests: 10000, URL: *url,
	}}
	where, err := describe(ctx, path)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		skip  bool
		write func() (string, error)
	}{
		{"limits", *only == "http", func() (string, error) { return checkLimits(ctx, path, where) }},
		{"bench http", *only == "limits", func() (string, error) { return compareTools(ctx, b, where) }},
	} {
		if part.skip {
			continue
		}
		section, err := part.write()
		if err != nil {
			return err
		}
		if *doc == "" {
			fmt.Println(section)
		} else if err := rewrite(*doc, part.name, section); err != nil {
			return err
		}
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func checkLimits(ctx context.Context, natkit string, where machine) (string, error) {
	verdicts, err := limits(ctx, natkit, progress)
	if err != nil {
		return "", err
	}
	return where.String() + "; the worst of three runs of each.\n\n" + verdictTable(verdicts), nil
}

func compareTools(ctx context.Context, b bench, where machine) (section string, err error) {
	if err := b.up(ctx); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, b.down(ctx)) }()
	tools, err := b.compare(ctx, tools(b.natkit), progress)
	if err != nil {
		return "", err
	}
	return comparison{Machine: where, Setup: b.setup, Tools: tools}.section()
}

func rewrite(doc, name, section string) error {
	old, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	updated, err := replaceSection(old, name, section)
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", doc, err)
	}
	return os.WriteFile(doc, updated, 0o644)
}

// describe tells the machine and the versions of all programs.
func describe(ctx context.Context, natkit string) (machine, error) {
	m := machine{CPUs: runtime.NumCPU(), Date: time.Now()}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPU = cpuModel(string(cpuinfo))
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	m.Kernel = strings.TrimSpace(string(kernel))
	own, err := exec.CommandContext(ctx, natkit, "--version").Output()
	if err != nil {
		return m, fmt.Errorf("%s --version: %w", natkit, err)
	}
	m.Version = strings.TrimPrefix(strings.TrimSpace(string(own)), "natkit ")
	for _, args := range [][]string{{"nginx", "-v"}, {"ab", "-V"}, {"wrk", "-v"}} {
		// wrk exits with 1 after its version; a missing program has no output.
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
		line, _, _ := strings.Cut(string(out), "\n")
		if line == "" {
			return m, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
		m.Versions = append(m.Versions, programVersion(line))
	}
	return m, nil
}

// programVersion cuts a program's first line down to name and version.
func programVersion(line string) string {
	line = strings.TrimPrefix(strings.TrimPrefix(line, "nginx version: "), "This is ")
	for _, end := range []string{" [", " <", " ("} {
		line, _, _ = strings.Cut(line, end)
	}
	return line
}

func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
