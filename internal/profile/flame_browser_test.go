//go:build linux

package profile

import (
	"bytes"
	"testing"

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
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	var page bytes.Buffer
	if err := sampleStacks().WriteFlame(&page); err != nil {
		t.Fatal(err)
	}
	page.WriteString(probeScript)
	var got probed
	testutil.Browse(t, chromium, page.Bytes(), "1400,1000", &got)
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
