//go:build linux

package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/units"
)

// site serves the page of a state, alone with a browser in a network namespace.
type site struct {
	*testutil.Browser
	t      *testing.T
	listen func() net.Listener
	addr   string
	server *http.Server

	mu    sync.Mutex
	state *state.State
	past  func(*state.Namespace, time.Time, time.Time) (state.History, error)
	// clock is the host's time, which stands still: a slow machine has no old data.
	clock time.Time
}

func newSite(t *testing.T, s *state.State) *site {
	t.Helper()
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	ns := testutil.Namespace(t)
	testutil.Run(t, ns, "", "ip", "link", "set", "lo", "up")
	w := &site{t: t, addr: "127.0.0.1:9752", state: s, past: unrecorded, clock: noon}
	w.listen = func() (l net.Listener) {
		testutil.Inside(t, ns, func() (err error) { l, err = net.Listen("tcp", w.addr); return err })
		return l
	}
	w.start()
	t.Cleanup(w.stop)
	w.Browser = testutil.OpenBrowser(t, chromium, ns)
	return w
}

// unrecorded is the history where nothing records.
func unrecorded(*state.Namespace, time.Time, time.Time) (state.History, error) {
	return state.History{}, errors.New("no recording in /var/lib/natkit/record: 'natkit record' makes one")
}

func (w *site) start() {
	past := func(n *state.Namespace, from, to time.Time) (state.History, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.past(n, from, to)
	}
	w.server = &http.Server{Handler: Handler(Options{Host: "gw-7", Now: w.now, Past: past, State: func() state.State {
		w.mu.Lock()
		defer w.mu.Unlock()
		return *w.state
	}})}
	go func(l net.Listener) { _ = w.server.Serve(l) }(w.listen())
}

// stop ends the exporter, as far as the browser sees.
func (w *site) stop() { _ = w.server.Close() }

func (w *site) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

// show changes what is known, at a time after noon that is another one than before.
func (w *site) show(s *state.State, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state, w.clock = s, noon.Add(after)
}

// quick is a state that is read every second, so that the page asks as often.
func quick(s *state.State) *state.State {
	s.EverySeconds = 1
	return s
}

// check fails a test whose page asked another host, or whose browser complains.
func (w *site) check() {
	w.t.Helper()
	seen := w.Seen()
	if len(seen.Requests) == 0 {
		w.t.Error("the browser asked for nothing")
	}
	for _, url := range seen.Requests {
		if !strings.HasPrefix(url, "http://"+w.addr+"/") {
			w.t.Errorf("the page asked for %s", url)
		}
	}
	if len(seen.Errors) > 0 {
		w.t.Errorf("the browser complains: %q", seen.Errors)
	}
}

// faultsOfPage lists what a person would stumble over.
const faultsOfPage = testutil.PageFaults

// TestPageInBrowser: every state of the page is whole in every width and theme; but for the long tests, in one of each.
// -artifacts keeps the pictures.
func TestPageInBrowser(t *testing.T) {
	w := newSite(t, healthy())
	pictures := t.ArtifactDir()
	for i, tc := range []struct {
		name, netns string
		state       *state.State
		want        string
		charts      int
	}{
		{"healthy", "", healthy(), "live", 6},
		{"fault", "", faulty(), "live", 6},
		{"stale", "", stale(), "stale", 6},
		{"empty", "", empty(), "waiting", 0},
		{"unprivileged", "", unprivileged(), "live", 0},
		{"several", "?netns=4026532002", several(), "live", 6},
		{"hostile", "", hostile(), "live", 6},
		{"recorded", "?netns=4026531840&span=24h", restarted(), "live", 6},
		{"unrecorded", "?netns=4026531840&span=24h", restarted(), "live", 6},
	} {
		w.mu.Lock()
		w.past = map[bool]func(*state.Namespace, time.Time, time.Time) (state.History, error){true: night, false: unrecorded}[tc.name == "recorded"]
		w.mu.Unlock()
		w.show(tc.state, time.Duration(i+1)*time.Second)
		for _, width := range []int{360, 768, 1440} {
			for _, dark := range []bool{false, true} {
				if os.Getenv("NATKIT_NIGHTLY") == "" && (width != []int{360, 768, 1440}[i%3] || dark != (i%2 == 1)) {
					continue
				}
				w.Resize(width, 900, dark)
				w.Open("http://" + w.addr + "/" + tc.netns)
				w.Until(fmt.Sprintf("document.body.dataset.state === %q && document.querySelectorAll('.chart canvas').length === %d", tc.want, tc.charts))
				var faults []string
				w.Eval(faultsOfPage, &faults)
				if len(faults) > 0 {
					t.Errorf("%s, %d px, dark %v: %s", tc.name, width, dark, strings.Join(faults, "\n"))
				}
				picture := fmt.Sprintf("%s-%d-%s.png", tc.name, width, map[bool]string{false: "light", true: "dark"}[dark])
				if err := os.WriteFile(filepath.Join(pictures, picture), w.Screenshot(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	w.check()
}

// TestPageKeepsCurrent: what changes is put into the page, and what the reader does there stays.
func TestPageKeepsCurrent(t *testing.T) {
	w := newSite(t, quick(faulty()))
	w.Resize(1440, 900, false)
	w.Open("http://" + w.addr + "/")
	w.Until("document.body.dataset.state === 'live'")
	w.Eval(`(() => {
	  document.querySelector("[data-key='finding-ct-table-full'] summary").focus();
	  document.activeElement.parentElement.open = true;
	  window.mark = document.activeElement;
	})()`, nil)

	next := quick(faulty())
	n := &next.Namespaces[0]
	n.Counters.At, n.Counters.Entries = n.Counters.At.Add(time.Second), 262_143
	n.Findings.All = n.Findings.All[:1]
	n.Findings.At = n.Findings.At.Add(time.Second)
	n.History.Series[state.SeriesEntries][state.HistoryPoints-1] = 262_143
	w.show(next, time.Second)
	w.Until("document.querySelector('.big strong').textContent === '262,143'")
	var got struct {
		Same, Focused, Open bool
		Findings            int
		Legend, Spoken      string
	}
	w.Eval(`({
	  same: window.mark === document.querySelector("[data-key='finding-ct-table-full'] summary"),
	  focused: document.activeElement === window.mark, open: window.mark.parentElement.open,
	  findings: document.querySelectorAll(".finding").length,
	  legend: document.querySelector("#chart-entries .u-series:nth-child(2) .u-value").textContent,
	  spoken: document.getElementById("spoken").textContent,
	})`, &got)
	if !got.Same || !got.Focused || !got.Open || got.Findings != 1 || got.Legend != "262,143" || !strings.Contains(got.Spoken, "the connection table is full") {
		t.Errorf("after a change: %+v", got)
	}

	w.show(quick(healthy()), 2*time.Second)
	w.Until("document.title === '✓ gw-7: nothing found by 61 checks'")
	w.Until("document.getElementById('spoken').textContent.includes('nothing found by 61 checks')")
	w.check()
}

// TestPageChartsOfOldValues: a legend has the time of what it shows, and nothing where nothing was known then; times of the scale are whole.
func TestPageChartsOfOldValues(t *testing.T) {
	s := healthy()
	h := &s.Namespaces[0].History
	const shown, old = 50, 10 // of some minutes, so that the scale has seconds
	h.Times = h.Times[state.HistoryPoints-shown:]
	for name, values := range h.Series {
		h.Series[name] = values[state.HistoryPoints-shown:]
	}
	unknown := func(name string) {
		for i := range old {
			h.Series[name][shown-1-i] = state.Value(math.NaN())
		}
	}
	unknown(state.SeriesPorts)
	unknown(state.SeriesDrop)
	w := newSite(t, s)
	w.Resize(1440, 900, false)
	w.Open("http://" + w.addr + "/")
	w.Until("document.querySelectorAll('.chart canvas').length === 6")
	var got struct{ Ports, Lost []string }
	w.Eval(`(() => {
	  const legend = (chart) => [...document.querySelectorAll("#chart-" + chart + " .u-value")].map((v) => v.textContent);
	  return { ports: legend("ports"), lost: legend("lost") };
	})()`, &got)
	if len(got.Ports) != 2 || got.Ports[0] != "11:59:10 NPT" || !strings.HasSuffix(got.Ports[1], " %") {
		t.Errorf("ports: %q", got.Ports)
	}
	if diff := cmp.Diff([]string{"12:00:00 NPT", units.None, "0/s", "0/s"}, got.Lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	w.Eval(`(() => {
	  window.painted = []; window.cut = [];
	  const paint = CanvasRenderingContext2D.prototype.fillText;
	  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
	    const end = this.getTransform().e + x + (this.textAlign === "center" ? this.measureText(text).width / 2 : 0);
	    if (/^\d+:\d+:\d+$/.test(text)) window.painted.push(text);
	    if (end > this.canvas.width) window.cut.push(text);
	    return paint.apply(this, arguments);
	  };
	})()`, nil)
	w.Resize(1280, 900, false)
	w.Until("window.painted.filter((text) => text === '12:00:00').length >= 6")
	var cut []string
	if w.Eval("window.cut", &cut); len(cut) > 0 {
		t.Errorf("cut: %q", cut)
	}
	w.check()
}

// TestPageIsNotFrozen: data that no longer changes, an exporter that no longer answers, and one that does not let in are
// shown, each as what it is.
func TestPageIsNotFrozen(t *testing.T) {
	w := newSite(t, quick(healthy()))
	w.Open("http://" + w.addr + "/")
	state := func(want, text string) {
		t.Helper()
		w.Until(fmt.Sprintf("document.body.dataset.state === %q", want))
		w.Until(fmt.Sprintf("document.getElementById('status').textContent.includes(%q)", text))
	}
	state("live", "live: data from 11:59:57 NPT, ")
	w.show(quick(healthy()), 10*time.Minute)
	state("stale", "stale: the exporter answers, but its data does not change: data from 11:59:57 NPT, 10 min old")
	w.Until(`document.querySelector("[data-key='services'] .read").matches(".old")`)
	w.check()

	w.stop()
	state("lost", "no connection to the exporter since 12:10:")
	var opacity string
	w.Eval("(async () => { await Promise.all(document.querySelector('main').getAnimations().map((a) => a.finished)); return getComputedStyle(document.querySelector('main')).opacity })()", &opacity)
	if opacity != "0.6" {
		t.Errorf("numbers of a lost connection have the opacity %s: they seem to be current", opacity)
	}
	w.show(quick(healthy()), time.Second)
	w.start()
	state("live", "live: data from 11:59:57 NPT, ")

	w.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) })
	state("lost", "the exporter answers 401 Unauthorized since 12:00:")
}

// TestPageByKeyboard: what can be opened is reached and opened by keys alone.
func TestPageByKeyboard(t *testing.T) {
	w := newSite(t, several())
	w.Open("http://" + w.addr + "/?netns=4026532002")
	w.Until("document.body.dataset.state === 'live'")
	var reached []string
	for range 40 {
		w.Press("Tab", 9)
		var at string
		w.Eval("document.activeElement.localName + ' ' + (document.activeElement.getAttribute('href') || document.activeElement.textContent)", &at)
		reached = append(reached, at)
		if at == "summary Another way out" {
			w.Press(" ", 32)
			w.Until("document.activeElement.parentElement.open")
			break
		}
	}
	want := []string{"a ?netns=4026531840", "a ?netns=4026532001", "a ?netns=4026532002", "summary Another way out"}
	if diff := cmp.Diff(want, reached); diff != "" {
		t.Errorf("by the Tab key (-want +got):\n%s", diff)
	}
	w.check()
}

// TestPageWithoutScript: the page has everything but its charts, asks to be loaded again, and does not say that it is live.
func TestPageWithoutScript(t *testing.T) {
	w := newSite(t, faulty())
	w.Script(false)
	w.Open("http://" + w.addr + "/")
	w.Script(true) // for the questions of the test
	var got struct {
		State, Status, Refresh string
		Rows                   int
	}
	w.Eval(`({state: document.body.dataset.state, status: document.getElementById("status").textContent,
	  refresh: document.querySelector("meta[http-equiv=refresh]").content, rows: document.querySelectorAll("[data-key='services'] tbody tr").length})`, &got)
	if got.State != "served" || !strings.HasPrefix(got.Status, "data from 11:59:57 NPT, ") || got.Refresh != "10" || got.Rows != 3 {
		t.Errorf("%+v", got)
	}
}

// TestUnitsInBrowser: the script writes numbers as package units does.
func TestUnitsInBrowser(t *testing.T) {
	w := newSite(t, healthy())
	w.Open("http://" + w.addr + "/")
	values := []float64{0, 0.00004, 0.00005, 0.0001, 0.0009, 0.001, 0.01, 0.0625, 0.125, 0.2189, 0.25, 0.45, 0.5, 0.975, 0.9985, 0.9994, 0.99949, 0.9995, 0.9996, 0.9999,
		1, 1.005, 1.1031, 1.24, 1.5, 2.5, 2.675, 9.9, 9.949, 9.95, 9.96, 9.999, 10, 45, 76.47, 99.95, 119, 119.4, 120, 149.9, 150, 210, 301, 999.5, 1000, 1023, 1024, 1536,
		6576.21, 7199, 7200, 9000, 12600, 25200, 65535, 65536, 1048576, 262143, 1e7, 10484.4 * 1024, 1234567.5, 1e9, 3 << 40, 5 << 50}
	var got [][]string
	list, _ := json.Marshal(values)
	w.Eval(fmt.Sprintf("%s.map((v) => [units.count(v), units.rate(v), units.roughly(v), units.percent(v), units.bytes(v)])", list), &got)
	for i, v := range values {
		want := []string{units.Fixed(v, 0), units.Rate(v), units.Roughly(v), units.Percent(v), units.Bytes(v)}
		if len(got) != len(values) || !cmp.Equal(want, got[i]) {
			t.Errorf("%v: the script writes %q, units %q", v, got[i], want)
		}
	}
	var none string
	if w.Eval("units.fixed(NaN, 1)", &none); none != units.None {
		t.Errorf("no number is %q", none)
	}
}
