//go:build linux

package report

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/fleet"
	"github.com/natkit/natkit/internal/testutil"
)

// manyNodes compares nodes of which a tenth is sick, with all that a page can have. Names are as long as they may be where they
// are hostile.
func manyNodes(hostile bool) *fleet.Report {
	name := func(i int) string { return fmt.Sprintf("node-%04d", i) }
	rule := "nft ip nat/postrouting: ip saddr 10.0.0.0/8 oifname \"wan0\" masquerade"
	if hostile {
		name = func(i int) string { return fmt.Sprintf("%04d<b>%s", i, strings.Repeat("x", 245)) }
		rule += strings.Repeat("-and-a-word-without-end", 20)
	}
	r := &fleet.Report{
		Schema: fleet.Schema, From: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Until: time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC),
		Nodes: 1000, Critical: 60, Warnings: 40, Healthy: 900,
		Summary:    &fleet.Summary{Text: "60 of 1,000 nodes lose connections", First: "raise the limit of tracked connections, on 60 nodes"},
		Unread:     []fleet.Failure{{Source: name(1) + ".tar.gz", Why: "the file is truncated before its first member"}},
		Missing:    []fleet.Failure{{Node: name(2), Why: "cannot be reached: ssh: connect to host " + name(2) + " port 22: No route to host"}},
		Damaged:    []fleet.Failure{{Node: name(3), Source: name(3) + ".tar.gz", Why: "the file is truncated behind 0/1/files/proc/net/snmp: what followed is lost"}},
		Duplicates: []fleet.Duplicate{{Node: name(4), Counted: "b/" + name(4) + ".tar.gz", Others: []string{"a/" + name(4) + ".tar.gz"}, Why: "the same boot of one machine: the newest counts"}},
		Clocks:     []fleet.Clock{{Node: name(5), AheadLeast: 3600, Of: "the collector"}},
		Incomplete: []fleet.Incomplete{{Why: "drops were not traced", Nodes: 12, Example: name(6)}},
		Versions:   []fleet.Version{{Natkit: "v1.2.0", Nodes: 900}, {Nodes: 100}}, OtherFiles: 3,
		Outliers: []fleet.Outlier{{Measure: "entries_share", Title: "share of the connection table in use", Unit: "share", Node: name(100), Value: 1, Median: 0.0048}},
	}
	critical, warning := diagnose.Critical, diagnose.Warning
	group := fleet.Group{
		ID: "ct-table-full", Title: "connection table full", Severity: critical, Checked: 1000, Certain: 60,
		Example:  fleet.Example{Node: name(100), Source: name(100) + ".tar.gz", Title: "the connection table is full: new connections are dropped"},
		Subjects: []fleet.Subject{{About: netip.MustParseAddrPort("[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"), Nodes: 17}},
		Shared: []fleet.Separation{{Attribute: fleet.Attribute{Kind: fleet.KindRule, Name: rule}, Compared: "has", Sick: 60, SickKnown: 60, Healthy: 1, HealthyKnown: 940,
			Same: []fleet.SameNodes{{Attribute: fleet.Attribute{Kind: fleet.KindSysctl, Name: "net.netfilter.nf_conntrack_max", Value: "65536"}, Compared: "="}}, MoreSame: 2}},
		First: []fleet.Advice{{Title: "raise the limit of tracked connections", Command: "sysctl -w net.netfilter.nf_conntrack_max=1048576", Nodes: 60}},
	}
	for i := 100; i < 160; i++ {
		group.Sick = append(group.Sick, name(i))
		r.Ranking = append(r.Ranking, fleet.Ranked{Node: name(i), Source: name(i) + ".tar.gz", Severity: &critical, Findings: []string{"ct-table-full"}, Outliers: []string{"entries_share"}})
	}
	near := fleet.Group{ID: "ct-table-near-full", Title: "connection table nearly full", Severity: warning, Checked: 1000, Example: fleet.Example{Node: name(200), Title: "the connection table is nearly full"}, Unsure: 7}
	for i := 200; i < 240; i++ {
		near.Sick = append(near.Sick, name(i))
		r.Ranking = append(r.Ranking, fleet.Ranked{Node: name(i), Source: name(i) + ".tar.gz", Severity: &warning, Findings: []string{"ct-table-near-full"}})
	}
	r.Groups = []fleet.Group{group, near}
	return r
}

// TestFleetPageInBrowser: the page about many nodes is whole in every width and theme, asks nobody for anything, and has every node.
// -artifacts keeps the pictures.
func TestFleetPageInBrowser(t *testing.T) {
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	b := testutil.OpenBrowser(t, chromium, testutil.Namespace(t))
	pictures, dir := t.ArtifactDir(), t.TempDir()
	healthy := &fleet.Report{Schema: fleet.Schema, Nodes: 1, Healthy: 1}
	for name, tc := range map[string]struct {
		report       *fleet.Report
		kicker, tone string
		rows         int
	}{
		"healthy": {healthy, "natkit doctor, 1 node", "good", 0},
		"faults":  {manyNodes(false), "natkit doctor, 1,000 nodes", "bad strong", 100},
		"hostile": {manyNodes(true), "natkit doctor, 1,000 nodes", "bad strong", 100},
	} {
		file := filepath.Join(dir, name+".html")
		out, err := os.Create(file)
		if err == nil {
			err = FleetHTML(out, tc.report)
			_ = out.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{360, 1280} {
			for _, dark := range []bool{false, true} {
				b.Resize(width, 900, dark)
				b.Open("file://" + file)
				b.Eval("document.querySelectorAll('details').forEach((d) => d.open = true)", nil)
				var got struct {
					Kicker, Tone string
					Rows, Bold   int
					Download     bool
				}
				b.Eval(`({kicker: document.querySelector(".kicker").textContent, tone: document.querySelector("h1").className,
				  rows: [...document.querySelectorAll("table")].filter((t) => t.caption.textContent === "Nodes, the worst first").map((t) => t.tBodies[0].rows.length)[0] || 0,
				  bold: document.querySelectorAll("b").length, download: !document.getElementById("download").hidden})`, &got)
				if got.Kicker != tc.kicker || got.Tone != tc.tone || got.Rows != tc.rows || got.Bold != 0 || !got.Download {
					t.Errorf("%s: %+v", name, got)
				}
				var faults []string
				b.Eval(testutil.PageFaults, &faults)
				if len(faults) > 0 {
					t.Errorf("%s, %d px, dark %v: %d faults: %.600s", name, width, dark, len(faults), strings.Join(faults, "\n"))
				}
				picture := fmt.Sprintf("fleet-%s-%d-%s.png", name, width, map[bool]string{false: "light", true: "dark"}[dark])
				if err := os.WriteFile(filepath.Join(pictures, picture), b.Screenshot(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	seen := b.Seen()
	for _, url := range seen.Requests {
		if !strings.HasPrefix(url, "file://"+dir+"/") {
			t.Errorf("the page asked for %s", url)
		}
	}
	if len(seen.Requests) == 0 || len(seen.Errors) > 0 {
		t.Errorf("%d requests; the browser complains: %q", len(seen.Requests), seen.Errors)
	}
}
