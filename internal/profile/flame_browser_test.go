package profile

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

// probeScript does what a user would, and leaves in the page what came of it.
const probeScript = `<script>
(() => {
  const result = {}, frames = () => [...document.querySelectorAll("#graph .f")];
  const find = (name) => frames().find((e) => e.getAttribute("aria-label").startsWith(name + ","));
  const search = document.getElementById("search"), found = document.getElementById("found");
  const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
  const key = (k) => document.dispatchEvent(new KeyboardEvent("keydown", { key: k }));
  result.drawn = frames().length;
  result.width = find("nf_conntrack_in").style.width;
  result.visible = frames().every((e) => e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().height > 0);
  result.legend = [...document.querySelectorAll("#legend button")].map((e) => e.textContent);
  find("nf_conntrack_in").dispatchEvent(new MouseEvent("mouseenter"));
  result.details = document.getElementById("details").textContent;
  find("nf_conntrack_in").click();
  result.zoomed = find("nf_conntrack_in").style.width;
  result.above = document.querySelectorAll("#graph .above").length;
  result.gone = !find("curl<\/script><b>[user]");
  key("Escape");
  result.oneUp = find("ip_rcv").style.width;
  document.getElementById("reset").click();
  result.reset = [frames().length, find("nf_conntrack_in").style.width, document.getElementById("reset").disabled];
  type("CONNTRACK");
  result.hits = document.querySelectorAll("#graph .hit").length;
  result.found = found.textContent;
  type("no such function");
  result.none = [document.querySelectorAll("#graph .hit").length, found.textContent];
  key("Escape");
  document.querySelector("#legend button").click();
  result.classFound = found.textContent;
  document.getElementById("reset").click();
  find("net_rx_action").focus();
  key("ArrowDown");
  result.moved = document.activeElement.getAttribute("aria-label");
  result.markup = document.querySelectorAll("#graph b").length;
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
})();
</script>`

type probed struct {
	Drawn, Above, Hits, Markup                              int
	Visible, Gone                                           bool
	Width, Details, Zoomed, OneUp, Found, ClassFound, Moved string
	Legend                                                  []string
	Reset, None                                             []any
}

// TestFlameInBrowser opens the page in a browser without any network, clicks and
// searches.
func TestFlameInBrowser(t *testing.T) {
	testutil.NeedRoot(t) // the browser gets an empty network namespace
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	var page bytes.Buffer
	if err := sampleStacks().WriteFlame(&page); err != nil {
		t.Fatal(err)
	}
	page.WriteString(probeScript)
	got := dumpResult(t, chromium, page.Bytes())
	want := probed{
		Drawn: 9, Width: "40%", Visible: true,
		Legend:  []string{"conntrack lookup 40.0%", "routing 10.0%", "driver and rest 10.0%", "other kernel work 20.0%", "user programs 20.0%"},
		Details: "nf_conntrack_in40.0% of busy time2.0% of all CPU time40 samples, 0.40 s, 30.0% in itselfconntrack lookup",
		Zoomed:  "100%", Above: 4, Gone: true, OneUp: "100%",
		Reset: []any{9.0, "40%", true},
		Hits:  3, Found: "40.0% of busy time", None: []any{0.0, "0.00% of busy time"},
		ClassFound: "40.0% of busy time", Moved: "ip_rcv, 50.0%",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// dumpResult opens a page and reads what the probe left.
func dumpResult(t *testing.T, chromium string, page []byte) (got probed) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "flame.html")
	if err := os.WriteFile(name, page, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
		"--user-data-dir="+filepath.Join(dir, "data"), "--window-size=1400,1000", "--dump-dom", "file://"+name)
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
