package main

import (
	"strings"
	"testing"
	"time"
)

func TestSection(t *testing.T) {
	c := comparison{
		Machine: machine{CPU: "Test CPU", CPUs: 2, Kernel: "6.1.0", Version: "v1", Date: time.Date(2031, 2, 3, 0, 0, 0, 0, time.UTC),
			Versions: []string{"nginx/1.22.1", "ab 2.3"}},
		Setup: setup{Rounds: 2, Requests: 10, Concurrency: 5, ManyConnections: 5000},
		Tools: []figures{
			{Tool: "natkit", PerSecond: []float64{210, 420}, CPUMicrosPerRequest: []float64{9, 9}, SystemCallsPerRequest: 6, PeakBytes: 30 << 20},
			{Tool: "ab", PerSecond: []float64{100, 200}, CPUMicrosPerRequest: []float64{10, 10}, SystemCallsPerRequest: 14, PeakBytes: 72 << 20},
			{Tool: "wrk", PerSecond: []float64{205, 410}, CPUMicrosPerRequest: []float64{8, 8}, SystemCallsPerRequest: 6, Failed: 3, PeakBytes: 20 << 20},
		},
	}
	got, err := c.section()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Taken on 2031-02-03 by `make bench`: Test CPU, 2 CPUs, Linux 6.1.0, natkit v1, nginx/1.22.1, ab 2.3:\n",
		"| | natkit | ab | wrk |\n|---|---:|---:|---:|\n",
		"| requests/s, median | 315 | 150 | 308 |\n",
		"| failed requests, all runs | 0 | 0 | 3 |\n",
		"| requests/s ≥ 1.05 × ab | 2.100 (2.100 to 2.100) | met |\n",
		"| requests/s ≥ 1.05 × wrk | 1.024 (1.024 to 1.024) | **not met** |\n",
		"| machine CPU per request ≤ 1 × wrk | 1.125 (1.125 to 1.125) | **not met** |\n",
		"| fewer system calls per request than wrk | 6.00 against 6.00 | **not met** |\n",
		"| peak memory ≤ 0.5 × ab | 0.42 | met |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the section lacks %q:\n%s", want, got)
		}
	}
}

func TestReplaceSection(t *testing.T) {
	const doc = "# Title\n<!-- a: begin -->\nold\n<!-- a: end -->\nrest\n<!-- b: begin -->\n"
	got, err := replaceSection([]byte(doc), "a", "new\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(doc, "old", "new", 1); string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range []string{"b", "c"} {
		if got, err := replaceSection([]byte(doc), name, "new\n"); err == nil {
			t.Errorf("section %s without both markers gave %q", name, got)
		}
	}
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 300 99999 8888 7 50 3 2 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if want := 4.77; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, text := range []string{"", "intr 1 2 3 4 5 6 7 8 9\n", "cpu 1 2\n", "cpu 1 2 x 4 5 6 7 8\n"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q gave %v", text, got)
		}
	}
}

func TestProgramVersion(t *testing.T) {
	for line, want := range map[string]string{
		"nginx version: nginx/1.22.1":                                  "nginx/1.22.1",
		"This is ApacheBench, Version 2.3 <$Revision$>":                "ApacheBench, Version 2.3",
		"wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer": "wrk debian/4.1.0-3+b2",
	} {
		if got := programVersion(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
