package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/net/html"
)

func labPageOf(t *testing.T, r *lab.Report) (string, *html.Node) {
	t.Helper()
	var page bytes.Buffer
	if err := LabHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(page.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return page.String(), root
}

// embeddedReport is the JSON of the report in the page.
var embeddedReport = regexp.MustCompile(`(?s)(<script type="application/json" id="report">).*?(</script>)`)

// layout leaves out of the golden files what has tests of its own: the assets,
// and the report's JSON, which changes with every field that the data gains.
func layout(page string) string {
	for _, name := range []string{"uPlot.min.css", "page.css", "uPlot.iife.min.js", "page.js", "charts.js"} {
		page = strings.Replace(page, asset(name), "/* "+name+" */", 1)
	}
	return embeddedReport.ReplaceAllString(page, "$1…$2")
}

func TestLabHTML(t *testing.T) {
	for _, tc := range []struct {
		golden string
		report *lab.Report
	}{
		{"table-full.html", madeUpReport(t)},
		{"unmet.html", unmetReport(t)},
		{"empty.html", &lab.Report{Scenario: "none"}},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			page, _ := labPageOf(t, tc.report)
			golden(t, tc.golden, []byte(layout(page)))
		})
	}
}

// TestPageNeedsNoNetwork: nothing in the page names a place to load from.
func TestPageNeedsNoNetwork(t *testing.T) {
	_, root := labPageOf(t, madeUpReport(t))
	policy := ""
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			switch a.Key {
			case "src", "srcset", "href", "action", "data", "poster", "background", "ping":
				t.Errorf("<%s %s=%q> loads something", n.Data, a.Key, a.Val)
			case "content":
				if strings.Contains(a.Val, "default-src") {
					policy = a.Val
				}
			}
		}
		if n.Type == html.ElementNode && n.Data == "style" {
			if css := n.FirstChild.Data; strings.Contains(css, "url(") || strings.Contains(css, "@import") {
				t.Error("a style sheet loads something")
			}
		}
	}
	if want := "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"; policy != want {
		t.Errorf("content security policy %q, want %q", policy, want)
	}
}

// TestPageIsAccessible: tables have captions and header cells, charts have words,
// headings go down one level at a time.
func TestPageIsAccessible(t *testing.T) {
	_, root := labPageOf(t, madeUpReport(t))
	level := 0
	for n := range root.Descendants() {
		switch {
		case n.Data == "table" && (!contains(n, "caption") || !contains(n, "th")):
			t.Errorf("a table has no caption or no header cell: %s", text(n))
		case attribute(n, "class") == "chart" && len(attribute(n, "aria-label")) < 20:
			t.Errorf("chart %s has no alternative text", attribute(n, "id"))
		case n.Type == html.ElementNode && len(n.Data) == 2 && n.Data[0] == 'h' && n.Data[1] >= '1' && n.Data[1] <= '6':
			if got := int(n.Data[1] - '0'); got > level+1 {
				t.Errorf("heading %q of level %d follows level %d", text(n), got, level)
			} else {
				level = got
			}
		}
	}
}

func contains(n *html.Node, tag string) bool {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == tag {
			return true
		}
	}
	return false
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

// hostile tries to leave every context that the page puts strings into, and
// the text that a terminal shows.
const hostile = `</script></style></title></pre>--><script>alert(1)</script>"'` + "`" +
	`<img src=x onerror=alert(2)>{{.}}` + "\x1b]0;owned\x07\x1b[2J\u202e\u2028\u009b\xff"

// TestHostileStrings fills every string of a report with hostile text: the page
// must keep the structure that it has with harmless text.
func TestHostileStrings(t *testing.T) {
	harmless, evil := madeUpReport(t), madeUpReport(t)
	testutil.Fill(harmless, "x")
	testutil.Fill(evil, hostile)
	_, want := labPageOf(t, harmless)
	_, got := labPageOf(t, evil)
	if diff := cmp.Diff(testutil.Elements(want), testutil.Elements(got)); diff != "" {
		t.Errorf("the page's structure changed (-harmless +hostile):\n%s", diff)
	}
}

// TestEmbeddedReport: what the page offers for download is the whole report.
func TestEmbeddedReport(t *testing.T) {
	want := madeUpReport(t)
	want.Title = strings.ToValidUTF8(hostile, "\ufffd")
	_, root := labPageOf(t, want)
	for n := range root.Descendants() {
		if n.Data != "script" || attribute(n, "id") != "report" {
			continue
		}
		got := new(lab.Report)
		if err := json.Unmarshal([]byte(n.FirstChild.Data), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(), cmpopts.IgnoreUnexported(diagnose.Finding{})); diff != "" {
			t.Error(diff)
		}
		return
	}
	t.Error("there is no report in the page")
}

func TestLabHTMLWithoutJSONForm(t *testing.T) {
	r := madeUpReport(t)
	r.Stages[0].RequestsPerSecond = math.NaN()
	var page bytes.Buffer
	if err := LabHTML(&page, r); err == nil || page.Len() > 0 {
		t.Errorf("got error %v and %d bytes, want an error and nothing written", err, page.Len())
	}
}

func TestCourse(t *testing.T) {
	for _, tc := range []struct {
		name   string
		series []load.Second
		want   []coursePart
	}{
		{"none", nil, []coursePart{}},
		{"one, shorter than a second", []load.Second{{At: 0.5, Completed: 100, Failed: 1}}, []coursePart{{0, 0.5, 200, 2}}},
		{"a rest is joined", []load.Second{{At: 1, Completed: 100}, {At: 2, Completed: 200}, {At: 2.5 - 0.25, Completed: 50, Failed: 5}},
			[]coursePart{{0, 1, 100, 0}, {1, 2.25, 200, 4}}},
		{"a long rest stands alone", []load.Second{{At: 1, Completed: 100}, {At: 1.5, Completed: 30}}, []coursePart{{0, 1, 100, 0}, {1, 1.5, 60, 0}}},
		{"intervals without length are left out", []load.Second{{At: 0, Completed: 9}, {At: 1, Completed: 7}, {At: 1, Completed: 9}},
			[]coursePart{{0, 1, 7, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, course(tc.series)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAssets holds the vendored files to the checksums in VERSIONS.
func TestAssets(t *testing.T) {
	listed := map[string]string{}
	for line := range strings.Lines(asset("VERSIONS")) {
		if fields := strings.Fields(line); len(fields) == 2 && len(fields[0]) == 64 {
			listed[fields[1]] = fields[0]
		}
	}
	for _, name := range []string{"uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"} {
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(asset(name)))); got != listed[name] {
			t.Errorf("%s has the checksum %s, VERSIONS says %q", name, got, listed[name])
		}
	}
}
