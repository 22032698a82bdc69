package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/name, or writes it with -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/report -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); go test ./internal/report -update accepts it:\n%s", path, diff)
	}
}

// madeUpReport is a report of realistic size. Its figures are made up, not
// measured: they serve the layout only.
func madeUpReport(t testing.TB) *lab.Report {
	t.Helper()
	text, err := os.ReadFile("testdata/table-full.json")
	if err != nil {
		t.Fatal(err)
	}
	r := new(lab.Report)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// unmetReport is one in which nothing worked: no finding, no fix, a host value
// that did not come back, stages without a completed request.
func unmetReport(t testing.TB) *lab.Report {
	r := madeUpReport(t)
	r.Findings, r.ExpectationMet, r.Fix.Restored, r.Fix.SeenBytesPerEntry = nil, false, false, 0
	r.Verdict[0] = lab.Verdict{Expected: "doctor names ct-table-full", Seen: "it found nothing"}
	fault := r.Stage("fault")
	fault.Completed, fault.RequestsPerSecond, fault.AfterFirstFailurePerSecond = 0, 0, 0
	fault.Counters = map[string]uint64{"chaintoolong": 7}
	fault.GeneratorLimit = "its two threads used 98 % of two CPUs"
	fault.Failures = nil
	for _, reason := range strings.Fields("a b c d e f g h i j") {
		fault.Failures = append(fault.Failures, load.Failure{Phase: load.Connect, Reason: "errno " + reason, Count: int64(reason[0])})
	}
	return r
}

func TestLab(t *testing.T) {
	for _, tc := range []struct {
		golden string
		style  Style
		report *lab.Report
	}{
		{"table-full.txt", Style{}, madeUpReport(t)},
		{"table-full-colour.txt", Style{Colour: true}, madeUpReport(t)},
		{"unmet.txt", Style{}, unmetReport(t)},
		{"empty.txt", Style{}, &lab.Report{Scenario: "none"}},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			var out bytes.Buffer
			if err := Lab(&out, tc.style, tc.report); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.golden, out.Bytes())
			if tc.style.Colour {
				return
			}
			for line := range strings.Lines(out.String()) {
				if n := textWidth(strings.TrimSuffix(line, "\n")); n > Width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
		})
	}
}

// TestColourChangesNothingElse strips the sequences and compares.
func TestColourChangesNothingElse(t *testing.T) {
	var plain, coloured bytes.Buffer
	if err := Lab(&plain, Style{}, madeUpReport(t)); err != nil {
		t.Fatal(err)
	}
	if err := Lab(&coloured, Style{Colour: true}, madeUpReport(t)); err != nil {
		t.Fatal(err)
	}
	stripped := coloured.String()
	for _, tone := range []Tone{Bold, Dim, Good, Warn, Bad, Alarm} {
		stripped = strings.ReplaceAll(stripped, "\x1b["+string(tone)+"m", "")
	}
	stripped = strings.ReplaceAll(stripped, "\x1b[0m", "")
	if diff := cmp.Diff(plain.String(), stripped); diff != "" {
		t.Error(diff)
	}
}

// TestPerRequest holds the two means to ab's arithmetic: for the run in
// which ab printed 6576.21 requests/s, 760.317 ms and 0.152 ms.
func TestPerRequest(t *testing.T) {
	r := &lab.Report{Stages: []lab.StageReport{{Result: load.Result{
		Config: load.Config{Concurrency: 5000}, Completed: 100_000, Seconds: 100_000 / 6576.21,
	}}}}
	var got []string
	for _, m := range perRequestRows(r) {
		got = append(got, m.Cells[0].Text)
	}
	if want := []string{"760.3", "0.152"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLabWithCaution: figures of a machine that was not quiet are not shown as success.
func TestLabWithCaution(t *testing.T) {
	r := madeUpReport(t)
	r.ExpectationMet = true
	quiet, disturbed := labText(t, r), ""
	r.Stage("fixed").OtherCPU = 0.43
	disturbed = labText(t, r)
	if strings.Contains(quiet, "caution") || !strings.Contains(quiet, Style{Colour: true}.Paint(Good, "Verdict: as expected")) {
		t.Errorf("caution on a quiet machine:\n%s", quiet)
	}
	if !strings.Contains(disturbed, "took 43 % of its CPUs") || !strings.Contains(disturbed, Style{Colour: true}.Paint(Warn, "Verdict: as expected, but "+withCaution)) {
		t.Errorf("no caution:\n%s", disturbed)
	}
	var page bytes.Buffer
	if err := LabHTML(&page, r); err != nil || !strings.Contains(page.String(), `class="verdict warn"`) {
		t.Errorf("no caution on the page, error %v", err)
	}
}

func labText(t *testing.T, r *lab.Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := Lab(&out, Style{Colour: true}, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLabExchanges has a row for each load that reports whom the far end saw.
func TestLabExchanges(t *testing.T) {
	seen := func(addrs ...string) (all []lab.SeenAddress) {
		for _, a := range addrs {
			all = append(all, lab.SeenAddress{Address: netip.MustParseAddr(a), Count: 1})
		}
		return all
	}
	load := func(answered, failed int64, x lab.ExchangeReport) lab.LoadReport {
		return lab.LoadReport{Kind: lab.LoadExchange, From: "inside", Answered: answered, Failed: failed, Exchange: &x}
	}
	r := &lab.Report{Stages: []lab.StageReport{
		{Name: "idle", Loads: []lab.LoadReport{{Kind: lab.LoadNone}}},
		{Name: "kinds", Loads: []lab.LoadReport{
			load(2, 0, lab.ExchangeReport{Name: "snat", Server: "web", Seen: seen("198.19.0.7"), FirstPort: 1, LastPort: 2, KeptPorts: 2, Entries: 2}),
			load(3, 0, lab.ExchangeReport{Name: "pool", Server: "web", Seen: seen("198.19.0.7", "198.19.0.8", "198.19.0.9"), FirstPort: 1000, LastPort: 2000, Entries: 3}),
			load(0, 5, lab.ExchangeReport{Name: "static", Server: "web", Faults: []string{"5 of 5 failed"}}),
		}},
	}}
	var b strings.Builder
	for _, table := range exchanges(r) {
		if err := table.Write(&b, Style{}); err != nil {
			t.Fatal(err)
		}
	}
	r.Stages[1].Carriers = []gateway.Carrier{{Rule: masqueradeRef, Engine: gateway.EngineNetfilter, Notes: []gateway.Note{{Engine: gateway.EngineEBPF, Because: "why"}}},
		{Rule: dnatRef, Engine: gateway.EngineEBPF}}
	for _, table := range stageCarriers(r) {
		if err := table.Write(&b, Style{}); err != nil {
			t.Fatal(err)
		}
	}
	const want = `Who saw whom in kinds
  traffic  from    to   answered  failed  seen as                             ports      tracked
  snat     inside  web         2       0  198.19.0.7                          kept             2  as it should be
  pool     inside  web         3       0  198.19.0.7 … 198.19.0.9, 3 of them  1000-2000        3  as it should be
  static   inside  web         0       5  –                                   –                0  5 of 5 failed
Engines in kinds
  nat[0] masquerade  netfilter  not ebpf: why
  nat[1] dnat        ebpf
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := LabHTML(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`<h2 id="exchanges">Who saw whom</h2>`, `<th scope="row">pool</th>`, `<td class="bad">5 of 5 failed</td>`} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("the page has no %s", part)
		}
	}
	b.Reset()
	if err := LabHTML(&b, &lab.Report{}); err != nil || strings.Contains(b.String(), "Who saw whom") {
		t.Errorf("a page without exchanges, error %v", err)
	}
}

// TestLabCaptures lists files, what is not in them and why, and how to go on.
func TestLabCaptures(t *testing.T) {
	one := func(stage, node, side string, c lab.Capture) lab.Capture {
		c.Stage, c.Round, c.Node, c.Side, c.Interfaces = stage, 1, node, side, []string{"eth0"}
		c.File = "caps/" + stage + "-" + node + side + ".pcapng"
		return c
	}
	r := &lab.Report{Captures: []lab.Capture{
		one("nat", "gw", lab.Inside, lab.Capture{Packets: 12000, Bytes: 3 << 20}),
		one("nat", "gw", lab.Outside, lab.Capture{Packets: 12000, Bytes: 3 << 20, Dropped: 7}),
		one("fault", "gw", lab.Inside, lab.Capture{Packets: 9, Bytes: 1000, Cut: 1}),
		one("fault", "gw", lab.Outside, lab.Capture{Error: "write capture: no space left on device"}),
		one("fault", "server", "", lab.Capture{}),
	}}
	var b strings.Builder
	p := &printer{w: &b}
	p.labCaptures(r)
	const want = `Captures in caps
  file                    packets     size  dropped  interfaces
  nat-gwinside.pcapng      12,000    3 MiB        0  eth0
  nat-gwoutside.pcapng     12,000    3 MiB        7  eth0
  fault-gwinside.pcapng         9  1,000 B        0  eth0
                                                     full: 1 later packet is not in it; --pcap-size
                                                     lets it grow
  fault-gwoutside.pcapng        0      0 B        0  eth0
                                                     write capture: no space left on device
  fault-server.pcapng           0      0 B        0  eth0

  Capturing took time of the CPUs: rates and times are not those without it.
  try: natkit pcap caps/fault-gwinside.pcapng caps/fault-gwoutside.pcapng
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	p.labCaptures(&lab.Report{})
	if b.Len() != 0 {
		t.Errorf("without captures: %q", b.String())
	}
}
