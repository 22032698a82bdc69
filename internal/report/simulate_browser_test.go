//go:build linux

package report

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/testutil"
)

// chartProbe leaves in the page what the script drew.
const chartProbe = `<script>
(() => {
  const drawn = (canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v !== 0);
  const result = {
    charts: [...document.querySelectorAll(".chart canvas")].map(drawn),
    series: [...document.querySelectorAll(".chart .u-legend .u-label")].map((e) => e.textContent),
    download: [document.getElementById("download").download, document.getElementById("download").hidden],
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  };
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
})();
</script>`

type chartsSeen struct {
	Charts   []bool
	Series   []string
	Download []any
	Wide     bool
}

// TestSimulateInBrowser opens the page in a browser without any network.
func TestSimulateInBrowser(t *testing.T) {
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	page, _ := simulatePageOf(t, simulated(t, "mixed", 10, 560, 620))
	var got chartsSeen
	testutil.Browse(t, chromium, []byte(page+chartProbe), "1000,900", &got)
	want := chartsSeen{
		Charts: []bool{true, true, true, true},
		Series: []string{"at", "new connections/s", "new sessions/s", "at", "TIME_WAIT", "at", "SYNs refused/s", "failed/s",
			"at", "share of old", "share of new"},
		Download: []any{"natkit-simulate-mixed.json", false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLabInBrowser: the page of a lab has its charts, too.
func TestLabInBrowser(t *testing.T) {
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	page, _ := labPageOf(t, madeUpReport(t))
	var got chartsSeen
	testutil.Browse(t, chromium, []byte(page+chartProbe), "1000,900", &got)
	if diff := cmp.Diff([]bool{true, true, true}, got.Charts); diff != "" || len(got.Series) < 6 || got.Download[1] != false {
		t.Errorf("%+v", got)
	}
}

// narrowProbe opens a page in a frame as narrow as a telephone, which no window of the browser
// is, and leaves which of its captions and heads stand higher than three lines, as they do where
// each letter has its own.
const narrowProbe = `<!DOCTYPE html><iframe id="page" style="width: 360px; height: 2000px"></iframe><script>
const frame = document.getElementById("page");
frame.onload = () => {
  const page = frame.contentDocument;
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth > page.documentElement.clientWidth,
    tall: [...page.querySelectorAll("caption, th, h2, h3")].filter((e) => e.getBoundingClientRect().height > 80).map((e) => e.textContent),
  });
  document.body.append(out);
};
frame.srcdoc = %s;
</script>`

// TestLabOnTelephone: what is wider than a narrow screen is laid out anew or scrolls alone.
func TestLabOnTelephone(t *testing.T) {
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	page, _ := labPageOf(t, madeUpReport(t))
	source, err := json.Marshal(page) // which escapes <, so that no tag in it ends the script
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Wide bool
		Tall []string
	}
	testutil.Browse(t, chromium, fmt.Appendf(nil, narrowProbe, source), "1000,900", &got)
	if got.Wide || len(got.Tall) > 0 {
		t.Errorf("at 360 px: %+v", got)
	}
}
