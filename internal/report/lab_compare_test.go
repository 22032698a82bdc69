package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
)

// comparedReport is of realistic size. Its figures are made up, not measured.
func comparedReport() *lab.Report {
	r := &lab.Report{Scenario: "stateless", Title: "one fixed mapping", Kernel: "6.12.0", CPUs: 2, Version: "v0", ExpectationMet: true,
		Compared: &lab.Compare{With: "conntrack", Alone: "alone", Rounds: 3}}
	add := func(name string, rate, cost, times float64, entries, lost, wrong int64, translates bool) {
		r.Stages = append(r.Stages, lab.StageReport{Name: name, About: "what is special in " + name, TableEntries: entries,
			Result:     load.Result{Completed: 3_000_000, RequestsPerSecond: rate},
			Comparison: &lab.Comparison{PerSecond: rate, GatewayNanoseconds: cost, Times: times},
			Loads: []lab.LoadReport{{Kind: lab.LoadPackets, From: "client", Asked: "UDP packets", Sent: 3_000_000,
				Delivery: &lab.Delivery{Node: "server", Delivery: packets.Delivery{Sent: 3_000_000, Received: 3_000_000 - lost, Lost: lost, Misdelivered: wrong}, Translates: translates}}}})
	}
	add("conntrack", 1_000_000, 500, 1, 10_000, 0, 0, true)
	add("notrack", 1_500_000, 250, 1.5, 0, 0, 0, false)
	add("nftables", 900_000, 600, 0.9, 0, 3_000, 7, true)
	add("xdp", 4_000_000, 75, 4, 0, 0, 0, true)
	add("limit", 5_000_000, 25, 5, 0, 0, 0, false)
	add("alone", 6_000_000, 0, 6, 0, 0, 0, false)
	r.Stages = append(r.Stages, lab.StageReport{Name: "watched", About: "with doctor"})
	return r
}

func TestLabComparison(t *testing.T) {
	var out bytes.Buffer
	if err := Lab(&out, Style{}, comparedReport()); err != nil {
		t.Fatal(err)
	}
	golden(t, "compared.txt", out.Bytes())
	for line := range strings.Lines(out.String()) {
		if n := textWidth(strings.TrimSuffix(line, "\n")); n > Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	var page bytes.Buffer
	if err := LabHTML(&page, comparedReport()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<h2 id="comparison">`, "4.00 ×", "of conntrack"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// TestComparisonSummary has no other result than the figures.
func TestComparisonSummary(t *testing.T) {
	slower := comparedReport()
	slower.Stage("xdp").Comparison = &lab.Comparison{PerSecond: 500_000, GatewayNanoseconds: -3, Times: 0.5}
	none := comparedReport()
	none.Stages = none.Stages[:2]
	for _, tc := range []struct {
		r    *lab.Report
		want string
	}{
		{comparedReport(), "With the mapping fixed, xdp translates 4.00 × as many packets/s as conntrack, in 15 % of the gateway's time (75 ns instead of 500), with 0 entries instead of 10,000 in the connection table; nftables 0.90 ×; without translation notrack 1.50 × and limit 5.00 ×."},
		{slower, "With the mapping fixed, nftables translates 0.90 × as many packets/s as conntrack, in 120 % of the gateway's time (600 ns instead of 500), with 0 entries instead of 10,000 in the connection table; xdp 0.50 ×; without translation notrack 1.50 × and limit 5.00 ×."},
		{none, ""},
	} {
		if got := strings.Join(comparisonSummary(tc.r), " "); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}
