package report

import (
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
