package report

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

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
	testutil.NeedRoot(t) // the browser gets an empty network namespace
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	page, _ := simulatePageOf(t, simulated(t, "mixed", 10, 560, 620))
	got := seenBy(t, chromium, []byte(page+chartProbe))
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
	testutil.NeedRoot(t) // the browser gets an empty network namespace
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	page, _ := labPageOf(t, madeUpReport(t))
	got := seenBy(t, chromium, []byte(page+chartProbe))
	if diff := cmp.Diff([]bool{true, true, true}, got.Charts); diff != "" || len(got.Series) < 6 || got.Download[1] != false {
		t.Errorf("%+v", got)
	}
}

// seenBy opens a page and reads what the probe left.
func seenBy(t *testing.T, chromium string, page []byte) (got chartsSeen) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "page.html")
	if err := os.WriteFile(name, page, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
		"--user-data-dir="+filepath.Join(dir, "data"), "--window-size=1000,900", "--dump-dom", "file://"+name)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, &stderr)
	}
	found := regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`).FindSubmatch(dom)
	if found == nil {
		t.Fatalf("the page's script left no result:\n%s", bytes.Join(regexp.MustCompile(".*CONSOLE.*").FindAll(stderr.Bytes(), -1), []byte("\n")))
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &got); err != nil {
		t.Fatalf("%v in %s", err, found[1])
	}
	return got
}
