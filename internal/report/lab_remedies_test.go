package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

// remediesReport is of realistic size. Its figures are made up, not measured: they serve
// the layout only.
func remediesReport() *lab.Report {
	r := &lab.Report{Scenario: "port-reuse-paws", Title: "ports that come back too soon", Kernel: "6.12.0", CPUs: 4, Version: "v0", ExpectationMet: true}
	add := func(name string, effect lab.Effect, late, failed int64, resent, rejected uint64) {
		s := lab.StageReport{Name: name, About: "what is special in " + name}
		s.Config = load.Config{Concurrency: 180, Requests: 1260, Batch: 180}
		s.Completed, s.Failed, s.ConnectLate, s.Seconds = 1260-failed, failed, late, 20
		s.Connect = load.Times{Median: 0.014, P99: 0.1 + 50*float64(late), Max: 0.5 + 70*float64(late)}
		s.Handshakes = &lab.Handshakes{Opened: 1260, Accepted: 1260, Late: late, SYNRetransmits: resent, Rejected: rejected,
			RejectedBy: "TcpExtPAWSTimewait", RejectRate: float64(rejected) / 1260, TimeWait: 164, PerSecond: 63}
		if effect != "" {
			s.Remedy = &lab.RemedyReport{Against: "fault", Effect: effect, Cost: "a cost of " + name, Risk: "a risk that takes some more words to explain than fit into one line of a terminal",
				Words: "a number of SYNs sent again"}
		}
		r.Stages = append(r.Stages, s)
	}
	add("healthy", "", 0, 0, 0, 0)
	add("fault", "", 44, 7, 533, 540)
	add("more-addresses", lab.Reduces, 53, 0, 263, 263)
	add("client-closes", lab.Cures, 0, 0, 0, 0)
	r.Stages[3].Config.Close = load.CloseClient
	add("timestamps-off", lab.HidesCounter, 41, 6, 522, 0)
	add("no-effect-at-all", lab.NoEffect, 48, 1, 546, 547)
	add("hold-down", lab.Trades, 0, 900, 0, 0)
	r.Stages = append(r.Stages, lab.StageReport{Name: "not-measured", About: "nothing was requested", Remedy: &lab.RemedyReport{
		Against: "fault", Cost: "a cost", Risk: "a risk", Words: "nothing to compare"}})
	return r
}

func TestLabRemedies(t *testing.T) {
	var out bytes.Buffer
	if err := Lab(&out, Style{}, remediesReport()); err != nil {
		t.Fatal(err)
	}
	golden(t, "remedies.txt", out.Bytes())
	for line := range strings.Lines(out.String()) {
		if n := textWidth(strings.TrimSuffix(line, "\n")); n > Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestLabRemediesHTML: the page shows the same, in a section of its own.
func TestLabRemediesHTML(t *testing.T) {
	var page bytes.Buffer
	if err := LabHTML(&page, remediesReport()); err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(page.String(), `id="remedies"`)
	if !found {
		t.Fatal("the page has no remedies")
	}
	section, _, _ = strings.Cut(section, "</section>")
	for _, v := range remedyViews(remediesReport()) {
		for _, text := range []string{v.Stage, v.Effect, v.Words, v.Cost, v.Risk} {
			if !strings.Contains(section, text) {
				t.Errorf("the page does not say %q of %s", text, v.Stage)
			}
		}
	}
	if page.Reset(); LabHTML(&page, madeUpReport(t)) == nil && strings.Contains(page.String(), `id="remedies"`) {
		t.Error("a page without remedies has a section for them")
	}
}

// TestRejectedByPAWSEstab: a counter that also counts other segments is not reported as SYNs.
func TestRejectedByPAWSEstab(t *testing.T) {
	r := remediesReport()
	for i := range r.Stages {
		if h := r.Stages[i].Handshakes; h != nil {
			h.RejectedBy = "TcpExtPAWSEstab"
		}
	}
	const want = "In stage fault the server rejected 540 segments, SYNs and late ones of open connections, for 1,260 connections"
	if got := rejectedSentences(r); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
}
