package report

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/lab"
)

// TestLabExchanges has a row for each load that tells whom the far end saw.
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
	p := &printer{w: &b}
	p.labExchanges(r)
	const want = `
Who saw whom in kinds
  traffic  from    to   answered  failed  seen as                             ports      tracked
  snat     inside  web         2       0  198.19.0.7                          kept             2  as it should be
  pool     inside  web         3       0  198.19.0.7 … 198.19.0.9, 3 of them  1000-2000        3  as it should be
  static   inside  web         0       5  –                                   –                0  5 of 5 failed
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
