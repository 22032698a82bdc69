package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

// madeUpAccuracy has a row of each kind; its figures are made up.
func madeUpAccuracy() *lab.Accuracy {
	a := &lab.Accuracy{
		Version: "test", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 123.4, Kernel: "6.18.0", CPUs: 2,
		Rules: []string{"ct-table-full", "ct-flood", "snat-race"},
	}
	for _, row := range []lab.AccuracyRow{
		{Scenario: "table-full", Injected: "ct-table-full", Found: []string{"ct-table-full"}, Unchecked: []string{"snat-race"}, Cured: lab.Cured, State: lab.RowPassed, Seconds: 25.1},
		{Scenario: "flood", Injected: "ct-flood", Found: []string{"ct-flood", "ct-table-full"}, Cured: lab.AdviceOnly, State: lab.RowPassed, Seconds: 4},
		{Scenario: "race", Injected: "snat-race", Found: []string{"ct-flood"}, False: []string{"ct-flood"}, State: lab.RowFailed, Seconds: 9,
			Why: "doctor finds snat-race: found ct-flood"},
		{Scenario: "not-cured", Injected: "ct-flood", Found: []string{"ct-flood"}, Cured: lab.NotCured, State: lab.RowFailed, Seconds: 9, Why: "in stage fixed ct-flood is gone: still found"},
		{Scenario: "healthy-idle", Found: []string{}, State: lab.RowPassed, Seconds: 1.5},
		{Scenario: "healthy-bridge", Found: []string{}, State: lab.RowNotRun, Seconds: 0.1, Why: "br_netfilter is not loaded"},
		{Scenario: "healthy-tuned", Found: []string{}, State: lab.RowLeftOut, Why: "it changes values of the whole host: --allow-host allows it"},
	} {
		a.Add(row)
	}
	return a
}

func TestAccuracy(t *testing.T) {
	for name, a := range map[string]*lab.Accuracy{
		"accuracy.txt":       madeUpAccuracy(),
		"accuracy-empty.txt": {Rules: []string{"ct-flood"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Accuracy(&out, Style{}, a); err != nil {
				t.Fatal(err)
			}
			golden(t, name, out.Bytes())
			for line := range strings.Lines(out.String()) {
				if n := textWidth(strings.TrimSuffix(line, "\n")); n > Width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
		})
	}
}

// otherLoadsReport is one of a scenario whose loads are not only requests.
func otherLoadsReport() *lab.Report {
	stage := func(name string, r load.Result, loads ...lab.LoadReport) lab.StageReport {
		r.FirstFailureSeconds = -1
		return lab.StageReport{Name: name, About: "made up", Result: r, Loads: loads, TableEntries: 200, TableMax: 262144, Counters: map[string]uint64{"drop": 0}}
	}
	http := load.Times{Min: 0.1, Mean: 1, SD: 0.5, Median: 0.9, P90: 2, P95: 3, P99: 4, P999: 5, Max: 6}
	return &lab.Report{
		Scenario: "mixed", Title: "datagrams, packets and requests", Version: "test", Kernel: "6.18.0", CPUs: 2,
		Stages: []lab.StageReport{
			stage("requests", load.Result{Config: load.Config{Concurrency: 10, Requests: 1000}, Completed: 1000, Seconds: 2, RequestsPerSecond: 500, Connect: http, Processing: http, Waiting: http, Total: http},
				lab.LoadReport{Kind: lab.LoadHTTP, From: "client", Asked: "1,000 requests, 10 concurrent", Sent: 1000, Answered: 1000}),
			stage("datagrams", load.Result{Completed: 180, Failed: 20, Seconds: 2, RequestsPerSecond: 90, Total: http},
				lab.LoadReport{Kind: lab.LoadUDP, From: "client", Asked: "datagrams to 198.18.0.1:53, 100.0/s, for 2s", Sent: 200, Answered: 180, Failed: 20},
				lab.LoadReport{Kind: lab.LoadHold, From: "client", Asked: "7 connections held to 198.19.0.2:80", Sent: 7, Answered: 7}),
			stage("flood", load.Result{Completed: 5000, Seconds: 1, RequestsPerSecond: 5000},
				lab.LoadReport{Kind: lab.LoadPackets, From: "client", Asked: "TCP packets (syn) to 198.18.0.1:81, 5,000 in all", Sent: 5000}),
			stage("idle", load.Result{Seconds: 1}, lab.LoadReport{Kind: lab.LoadNone, Asked: "nothing for 1s"}),
		},
		ExpectationMet: true, Verdict: []lab.Verdict{{Expected: "doctor finds nothing", Seen: "nothing found", Met: true}},
	}
}

func TestOtherLoads(t *testing.T) {
	var out, page bytes.Buffer
	if err := Lab(&out, Style{}, otherLoadsReport()); err != nil {
		t.Fatal(err)
	}
	golden(t, "other-loads.txt", out.Bytes())
	if err := LabHTML(&page, otherLoadsReport()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Requests, datagrams or packets per second", "packets from client sent", "nothing completed"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}
