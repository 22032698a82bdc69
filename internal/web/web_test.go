package web

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/units"
)

// handlerOf is the page of a state, at noon.
func handlerOf(s *state.State) http.Handler {
	return Handler(Options{Host: "gw-7", State: func() state.State { return *s }, Now: func() time.Time { return noon }})
}

func ask(h http.Handler, method, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMethods(t *testing.T) {
	h := handlerOf(healthy())
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200}, {"HEAD", "/", 200}, {"GET", "/?netns=nonsense", 200}, {"GET", "/?netns=18446744073709551616", 200},
		{"GET", "/assets/live.js", 200}, {"HEAD", "/assets/icon.svg", 200},
		{"POST", "/", 405}, {"PUT", "/", 405}, {"DELETE", "/assets/live.js", 405}, {"OPTIONS", "/", 405},
		{"GET", "/index.html", 404}, {"GET", "/assets/", 404}, {"GET", "/assets/page.html.tmpl", 404}, {"GET", "/assets/lab.html.tmpl", 404},
	} {
		r := ask(h, tc.method, tc.path)
		if r.StatusCode != tc.want {
			t.Errorf("%s %s: %d, want %d", tc.method, tc.path, r.StatusCode, tc.want)
		}
		if text := body(t, r); tc.method == "HEAD" && text != "" || tc.want == 200 && tc.method == "GET" && text == "" {
			t.Errorf("%s %s has %d bytes", tc.method, tc.path, len(text))
		}
	}
}

func TestHeaders(t *testing.T) {
	h := handlerOf(healthy())
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/assets/live.js": "text/javascript; charset=utf-8", "/assets/page.css": "text/css; charset=utf-8",
		"/assets/icon.svg": "image/svg+xml; charset=utf-8", "/assets/uPlot.LICENSE": "text/plain; charset=utf-8", "/none": "text/plain; charset=utf-8"} {
		got := ask(h, "GET", path).Header
		for name, want := range map[string]string{"Content-Type": kind, "Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"} {
			if got.Get(name) != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got.Get(name), want)
			}
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") || !strings.HasPrefix(policy, "default-src 'none'; ") {
		t.Errorf("the policy is lax: %s", policy)
	}
	if got := ask(h, "GET", "/").Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("a browser may keep the page: %q", got)
	}
}

// TestUnchanged: a page that is the same is not sent again, and any reading makes it another one.
func TestUnchanged(t *testing.T) {
	s := several()
	tag := ask(handlerOf(s), "GET", "/").Header.Get("ETag")
	again := ask(handlerOf(s), "GET", "/", "If-None-Match", tag)
	if again.StatusCode != http.StatusNotModified || body(t, again) != "" || again.Header.Get(nowHeader) != fmt.Sprintf("%d.000", noon.Unix()) {
		t.Errorf("the same page: %d, now %q", again.StatusCode, again.Header.Get(nowHeader))
	}
	seen := map[string]string{tag: "nothing"}
	for name, change := range map[string]func(n *state.Namespace){
		"counters":  func(n *state.Namespace) { n.Counters.At = n.Counters.At.Add(time.Nanosecond) },
		"table":     func(n *state.Namespace) { n.Table.At = n.Table.At.Add(time.Second) },
		"services":  func(n *state.Namespace) { n.Services.At = n.Services.At.Add(time.Second) },
		"ports":     func(n *state.Namespace) { n.Ports = nil },
		"drops":     func(n *state.Namespace) { n.Drops = nil },
		"stack":     func(n *state.Namespace) { n.Stack.At = n.Stack.At.Add(time.Second) },
		"findings":  func(n *state.Namespace) { n.Findings.At = n.Findings.At.Add(time.Second) },
		"unread":    func(n *state.Namespace) { n.Unread = append(n.Unread, state.Unread{Part: "x"}) },
		"namespace": func(n *state.Namespace) { n.Inode++ },
	} {
		s := several()
		change(&s.Namespaces[1])
		got := ask(handlerOf(s), "GET", "/").Header.Get("ETag")
		if other, ok := seen[got]; ok {
			t.Errorf("a change of %s and of %s give the same tag", name, other)
		}
		seen[got] = name
	}
}

// TestCost: however many ask, the page is made once a second, and is small.
func TestCost(t *testing.T) {
	made, now := 0, noon
	s := several()
	h := &server{Options: Options{State: func() state.State { made++; return *s }, Now: func() time.Time { return now }}}
	for i := range 100 {
		ask(h, "GET", "/", "If-None-Match", fmt.Sprint(i))
	}
	if made != 1 {
		t.Errorf("100 requests in a second made %d pages", made)
	}
	now = now.Add(time.Second)
	ask(h, "GET", "/")
	if made != 2 {
		t.Errorf("a second later there are %d pages", made)
	}
	for i := range 100 {
		ask(h, "GET", fmt.Sprintf("/?netns=%d", i))
	}
	if made != 2 || len(h.pages) != 2 { // that of another one, with and without the line that it is
		t.Errorf("namespaces that are not there made %d pages", len(h.pages))
	}
	text := body(t, ask(h, "GET", "/"))
	zipped := ask(h, "GET", "/", "Accept-Encoding", "br, gzip")
	z, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	same, err := io.ReadAll(z)
	if err != nil || string(same) != text {
		t.Errorf("the compressed page is another one: %v", err)
	}
	if len(text) > 200<<10 || zipped.ContentLength > 60<<10 {
		t.Errorf("the page has %d bytes, compressed %d", len(text), zipped.ContentLength)
	}
}

func pageText(t *testing.T, s *state.State, query string) (string, *html.Node) {
	t.Helper()
	text := body(t, ask(handlerOf(s), "GET", "/"+query))
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return text, root
}

// TestLoadsItsOwn: all that the page loads is served beside it, and there is no script or style in it that the policy forbids.
func TestLoadsItsOwn(t *testing.T) {
	h := handlerOf(faulty())
	_, root := pageText(t, faulty(), "")
	loaded := 0
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			switch {
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				t.Errorf("<%s %s=%q>: the policy forbids it", n.Data, a.Key, a.Val)
			case a.Key == "src" || a.Key == "href" && n.Data == "link":
				loaded++
				if r := ask(h, "GET", "/"+a.Val); r.StatusCode != 200 {
					t.Errorf("%s: %d", a.Val, r.StatusCode)
				}
			}
		}
		if n.Type == html.ElementNode && (n.Data == "style" || n.Data == "script" && n.FirstChild != nil && attribute(n, "type") != "application/json") {
			t.Errorf("<%s> with text: the policy forbids it", n.Data)
		}
	}
	if loaded != 8 {
		t.Errorf("the page loads %d files", loaded)
	}
}

// TestAccessible: headings go down a level at a time, tables have captions and heads, charts have words.
func TestAccessible(t *testing.T) {
	for _, s := range []*state.State{healthy(), faulty(), several(), empty(), unprivileged()} {
		_, root := pageText(t, s, "")
		level, ids := 0, map[string]bool{}
		for n := range root.Descendants() {
			if id := attribute(n, "id"); id != "" && ids[id] {
				t.Errorf("two elements have the id %s", id)
			} else {
				ids[id] = true
			}
			switch {
			case n.Type == html.ElementNode && n.Data == "table" && (find(n, "caption") == nil || find(n, "th") == nil):
				t.Errorf("a table has no caption or head: %s", words(n))
			case attribute(n, "class") == "chart" && len(attribute(n, "aria-label")) < 20:
				t.Errorf("chart %s has no words", attribute(n, "id"))
			case n.Type == html.ElementNode && len(n.Data) == 2 && n.Data[0] == 'h' && n.Data[1] >= '1' && n.Data[1] <= '6':
				if got := int(n.Data[1] - '0'); got > level+2 { // a namespace's own heading is there where there are several
					t.Errorf("heading %q of level %d follows level %d", words(n), got, level)
				} else {
					level = got
				}
			}
		}
	}
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func find(n *html.Node, tag string) *html.Node {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == tag {
			return d
		}
	}
	return nil
}

// words is the text of an element, with single blanks.
func words(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// keyed is the element with a data-key.
func keyed(t *testing.T, root *html.Node, key string) *html.Node {
	t.Helper()
	for n := range root.Descendants() {
		if attribute(n, "data-key") == key {
			return n
		}
	}
	t.Fatalf("there is no %s", key)
	return nil
}

// evil tries to leave every context that the page puts texts into.
const evil = `</script></style></title></main>--><script>hacked=1</script>"'` + "`" + `<img src=x onerror=hacked=2>{{.}}` + "\x1b[2J\u202e\u2028\u009b\xff"

// hostile is a host whose every text is hostile.
func hostile() *state.State {
	s := faulty()
	testutil.Fill(s, evil, reflect.TypeFor[state.History]())
	s.Version = "0.9.0-test" // natkit's own
	return s
}

// TestHostile: hostile texts leave the page the elements that it has with harmless ones.
func TestHostile(t *testing.T) {
	harmless := faulty()
	testutil.Fill(harmless, "x", reflect.TypeFor[state.History]())
	harmless.Version, harmless.Namespaces[0].Name = "0.9.0-test", "inode 7" // no flag leads there either
	_, want := pageText(t, harmless, "")
	text, got := pageText(t, hostile(), "")
	if diff := cmp.Diff(testutil.Elements(want), testutil.Elements(got)); diff != "" {
		t.Errorf("hostile texts change the page (-harmless +hostile):\n%s", diff)
	}
	if i := strings.IndexAny(text, "\x1b\u202e\u009b"); i >= 0 {
		t.Errorf("a control character is in the page: %q", text[max(0, i-200):i+10])
	}
	if !strings.Contains(text, "&lt;img src=x onerror=hacked=2&gt;") {
		t.Error("the hostile text is not in the page: the test shows nothing")
	}
}

// TestVerdict: what is not known is never good, and services without answers never are either.
func TestVerdict(t *testing.T) {
	unanswered := healthy()
	unanswered.Namespaces[0].Services.All[0].AnsweredShare = 0
	unexamined := healthy()
	unexamined.Namespaces[0].Findings = nil
	both := healthy()
	both.Namespaces[0].Findings, both.Namespaces[0].Services.All[0].AnsweredShare = nil, 0
	notice := faulty()
	notice.Namespaces[0].Findings.All = notice.Namespaces[0].Findings.All[1:]
	notice.Namespaces[0].Findings.All[0].Severity = 1
	notice.Namespaces[0].Findings.Incomplete = nil
	notice.Namespaces[0].Services = nil
	for _, tc := range []struct {
		name             string
		state            *state.State
		tone, about, has string
	}{
		{"healthy", healthy(), good, "ok", "nothing found by 61 checks"},
		{"fault", faulty(), bad, "critical ct-table-full snat-ports-near-exhausted", "for 24 min at least"},
		{"stale", stale(), dim, "old", "not known: the last report is of 2026-03-01 11:49:54 NPT"},
		{"empty", empty(), dim, "unknown", "not examined yet"},
		{"unprivileged", unprivileged(), warn, "incomplete", "53 checks have no result"},
		{"unanswered", unanswered, warn, "unanswered", "1 service gets no answers, and no finding says why"},
		{"unexamined", unexamined, dim, "unknown", "not examined yet"},
		{"unanswered and unexamined", both, warn, "unanswered", "1 service gets no answers; the causes are not examined yet"},
		{"a notice", notice, good, "notice snat-ports-near-exhausted", "1 notice"},
	} {
		m := &maker{&tc.state.Namespaces[0], tc.state, noon}
		if got := m.verdict(); got.Tone != tc.tone || got.About != tc.about || !strings.Contains(got.Text, tc.has) {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

// TestNumbers: numbers are written as package units does.
func TestNumbers(t *testing.T) {
	_, root := pageText(t, faulty(), "")
	for key, want := range map[string][]string{
		"outcome":  {"27.2 % of the translated connections of the last 60 s were answered: 9,001 of 33,103 that were read. Not among them are connections without an entry: 402.0 packets/s of new connections are dropped.", "First: raise the limit of tracked connections (natkit doctor --fix)"},
		"services": {"tcp 198.19.0.1:443 -> 10.0.0.5:8443 0 % 22,022 310 5,101 201.5", "tcp from 198.19.0.1 81.2 % 2,080 0 31,100 –", "udp 198.19.0.1:53 -> 10.0.0.9:53 – 0 0 0 –"},
		"counters": {"262,144 of 262,144 entries, 100 %", "drop 402.4 812,004", "insert_failed 40.2 80,120"},
		"entries":  {"scaled from 16,384 of 262,144 entries", "ESTABLISHED 40,100 15.3 %", "source translated 60,000 22.9 %"},
		"ports":    {"198.19.0.1 tcp 1024-65535 towards 203.0.113.80:443 97.5 % 95 s 2.1 % 310.2 31,000 62,900/64,512", "83.7 % 52 min 0 % 2.50 0 54,000/64,512"},
		"drops":    {"431.1/s now; 990,112 packets since 2026-02-28 10:00:00 NPT", "no reason given 430.9 980,000", "nft_do_chain tcp NETFILTER_DROP 900"},
		"stack":    {"in_use 41", "time_wait 7", "IpForwDatagrams 1,204,119,004", "TcpRetransSegs 812"},
		"findings": {"critical the connection table is full: new connections are dropped since 2026-03-01 11:36:00 NPT", "net.netfilter.nf_conntrack_max 262144 → 524288", "limit 262,144 net.netfilter.nf_conntrack_max", "natkit doctor --fix", "came 3 times"},
		"parts":    {"counters 11:59:57 NPT old: 3 s", "findings 11:59:54 NPT old: 6 s"},
	} {
		got := words(keyed(t, root, key))
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s lacks %q:\n%s", key, text, got)
			}
		}
	}
}

// TestParts: no part of a state is forgotten.
func TestParts(t *testing.T) {
	s := healthy()
	all := s.Namespaces[0].Readings()
	for _, part := range state.Parts {
		if all[part] == nil || all[part].At.IsZero() {
			t.Errorf("the page does not know of the part %s", part)
		}
	}
}

// TestOverview: the worst of several namespaces is in the title of the window, whichever is shown.
func TestOverview(t *testing.T) {
	for query, shown := range map[string]string{"": "this host", "?netns=4026532001": "blue", "?netns=4026532002": "container edge-gateway (docker 0123456789ab)", "?netns=1": "this host"} {
		_, root := pageText(t, several(), query)
		if got := words(find(root, "title")); got != "✗ gw-7: the connection table is full: new connections are dropped, for 24 min at least" {
			t.Errorf("%s: title %q", query, got)
		}
		if got := words(find(root, "h2")); got != shown {
			t.Errorf("%s shows %q, want %q", query, got, shown)
		}
		if got := words(keyed(t, root, "overview")); !strings.Contains(got, "2 other network namespaces are not watched") || strings.Count(got, "nothing found by 61 checks") != 2 {
			t.Errorf("%s: %s", query, got)
		}
	}
}

// TestGone: a page that was asked for of a namespace that has ended says so, and not the one of another as if it were its own.
func TestGone(t *testing.T) {
	for query, want := range map[string]bool{"": false, "?netns=4026532001": false, "?netns=1": true, "?netns=gw": true} {
		text, _ := pageText(t, several(), query)
		if got := strings.Contains(text, "has ended, or is not watched"); got != want {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
	h := handlerOf(several())
	if ask(h, "GET", "/").Header.Get("ETag") == ask(h, "GET", "/?netns=1").Header.Get("ETag") {
		t.Error("both pages have one tag")
	}
}

// TestFixCommand: a command is printed where it leads to the namespace, and only there.
func TestFixCommand(t *testing.T) {
	for name, want := range map[string]string{"": "natkit doctor --fix", "gw": "natkit doctor --netns gw --fix", "pid 77": "natkit doctor --pid 77 --fix", "inode 4026532002": "", "gw; reboot": ""} {
		s := faulty()
		s.Namespaces[0].Name = name
		m := &maker{&s.Namespaces[0], s, noon}
		if got := m.findings().All[0].Fix; got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestHistory: curves of nothing are no charts, a limit that is far away does not flatten the curve below it, and the
// table of a chart ends with its last point.
func TestHistory(t *testing.T) {
	nan := state.Value(math.NaN())
	h := historyOf(&state.History{Times: []float64{100, 105, 110}, Series: map[string][]state.Value{
		state.SeriesEntries: {10, nan, 30}, state.SeriesLimit: {1000, 1000, 1000}, state.SeriesNew: {nan, nan, nan}, state.SeriesDrop: {0, 1}}})
	if len(h.Charts) != 1 || len(h.Charts["entries"].Curves) != 1 {
		t.Fatalf("%+v", h)
	}
	places := h.places(time.UTC)
	if got := places[0].Words; got != "Entries of the connection table in 10 s. entries: from 10 to 30." {
		t.Error(got)
	}
	want := []row{{Name: "00:01:50 UTC", Values: []string{"30"}}, {Name: "00:01:45 UTC", Values: []string{"–"}}, {Name: "00:01:40 UTC", Values: []string{"10"}}}
	if diff := cmp.Diff(want, places[0].Table.Rows); diff != "" {
		t.Error(diff)
	}
	if got := spread(720, 12); len(got) != 12 || got[11] != 719 {
		t.Errorf("%v", got)
	}
	near := historyOf(&state.History{Times: []float64{1, 2}, Series: map[string][]state.Value{state.SeriesEntries: {300, 300}, state.SeriesLimit: {1000, 1000}}})
	if len(near.Charts["entries"].Curves) != 2 {
		t.Errorf("a limit that is near is not shown: %+v", near)
	}
	for _, none := range []state.History{{}, {Times: []float64{1}, Series: map[string][]state.Value{state.SeriesEntries: {1}}}} {
		if got := historyOf(&none); len(got.Charts) != 0 {
			t.Errorf("%+v", got)
		}
	}
}

// TestMemory: what the table takes now and when it is full.
func TestMemory(t *testing.T) {
	m := healthyNamespace().Table.Memory
	g, slab := memoryGrid(m)
	var got [][]string
	for _, r := range g.Rows {
		got = append(got, append([]string{r.Name}, r.Values...))
	}
	want := [][]string{{"entries", "20 MiB", "64 MiB"}, {"extensions", "9.9 MiB", "32 MiB"}, {"buckets", "512 KiB", "512 KiB"}, {"all", "30 MiB", "96 MiB"}}
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(slab, "25 MiB") {
		t.Errorf("%s (%s)", diff, slab)
	}
	m.LimitEntriesBytes, m.LimitExtensionsBytes, m.SlabBytes = 0, 0, 0
	if g, slab := memoryGrid(m); g.Rows[3].Values[1] != units.None || strings.Contains(slab, "holds") {
		t.Errorf("without a limit: %+v (%s)", g.Rows, slab)
	}
}

// TestEmptyHistory is valid JSON for the script.
func TestEmptyHistory(t *testing.T) {
	text, _ := pageText(t, empty(), "")
	if !bytes.Contains([]byte(text), []byte(`<script type="application/json" id="history">{"charts":{}}</script>`)) {
		t.Error("the page of an exporter that has just started has no history for its script")
	}
}

// TestRecorded: where something records, a longer history is offered, is joined to that in memory, and keeps what is extreme.
func TestRecorded(t *testing.T) {
	s := healthy()
	first := s.Namespaces[0].History.Times[0]
	var asked []any
	past := func(n *state.Namespace, from, to time.Time) (state.History, error) {
		asked = []any{n.Inode, from, to}
		h := state.History{Series: map[string][]state.Value{}}
		for i := range 9_000 {
			h.Times = append(h.Times, first-float64(9_000-i))
			h.Series[state.SeriesEntries] = append(h.Series[state.SeriesEntries], 5)
			h.Series[state.SeriesAnswered] = append(h.Series[state.SeriesAnswered], 1)
		}
		h.Series[state.SeriesEntries][4_000], h.Series[state.SeriesAnswered][4_000] = 200_000, 0.25
		return h, nil
	}
	m := &maker{&s.Namespaces[0], s, noon}
	h, why := m.recorded(Options{Past: past}, 6*time.Hour)
	if diff := cmp.Diff([]any{uint64(4026531840), noon.Add(-6 * time.Hour), time.UnixMilli(int64(first * 1000))}, asked); diff != "" || why != "" {
		t.Errorf("asked for another time (%q):\n%s", why, diff)
	}
	if n := len(h.Times); n > state.HistoryPoints || n < state.HistoryPoints/2 || h.Times[n-1] != s.Namespaces[0].History.Times[state.HistoryPoints-1] {
		t.Errorf("%d points up to %v", n, h.Times[n-1])
	}
	before, _ := slices.BinarySearch(h.Times, first)
	recorded := func(name string) []state.Value { return h.Series[name][:before] }
	if _, most, _ := rangeOf(recorded(state.SeriesEntries)); most != 200_000 {
		t.Errorf("the greatest number of entries was lost: %v", most)
	}
	if least, _, _ := rangeOf(recorded(state.SeriesAnswered)); least != 0.25 {
		t.Errorf("the least answered share was lost: %v", least)
	}
	if _, _, known := rangeOf(recorded(state.SeriesNew)); known {
		t.Error("what was not recorded is known")
	}

	// An hour later, of an exporter that was started anew then, there is nothing known in between.
	m = &maker{&s.Namespaces[0], s, noon}
	h, why = m.recorded(Options{Past: func(n *state.Namespace, from, to time.Time) (state.History, error) {
		h, err := past(n, from, to)
		for i := range h.Times {
			h.Times[i] -= 3_600
		}
		return h, err
	}}, 6*time.Hour)
	gaps := 0
	for i := range h.Times {
		if isGap(h, i) && (i == 0 || !isGap(h, i-1)) {
			gaps++
		}
	}
	if gaps != 2 || why != "" || len(h.Times) > state.HistoryPoints { // and that of the history in memory
		t.Errorf("%d gaps in %d points (%q)", gaps, len(h.Times), why)
	}

	with := Handler(Options{State: func() state.State { return *s }, Now: func() time.Time { return noon }, Past: past})
	if text := body(t, ask(with, "GET", "/?span=24h")); !strings.Contains(text, `href="?netns=4026531840&amp;span=24h0m0s" aria-current="true"`) {
		t.Error("the recording is not offered")
	}
	broken := Handler(Options{State: func() state.State { return *s }, Now: func() time.Time { return noon },
		Past: func(*state.Namespace, time.Time, time.Time) (state.History, error) {
			return state.History{}, errors.New("open <ring>: torn")
		}})
	if text := body(t, ask(broken, "GET", "/?span=6h")); !strings.Contains(text, "No recorded history: open &lt;ring&gt;: torn") || !strings.Contains(text, "chart-entries") {
		t.Error("a recording that cannot be read is not reported, or took the history in memory with it")
	}
	partly := Handler(Options{State: func() state.State { return *s }, Now: func() time.Time { return noon },
		Past: func(n *state.Namespace, from, to time.Time) (state.History, error) {
			h, _ := past(n, from, to)
			return h, errors.New("1 byte of <ring> is damaged")
		}})
	if h, why := m.recorded(Options{Past: func(n *state.Namespace, from, to time.Time) (state.History, error) {
		h, _ := past(n, from, to)
		return h, errors.New("torn")
	}}, 6*time.Hour); why != "Not all of the recorded history: torn" || len(h.Times) <= len(s.Namespaces[0].History.Times)/2 || h.Times[0] >= first {
		t.Errorf("of a part: %d points (%q)", len(h.Times), why)
	}
	if text := body(t, ask(partly, "GET", "/?span=6h")); !strings.Contains(text, "Not all of the recorded history: 1 byte of &lt;ring&gt; is damaged") {
		t.Error("the page does not say that a part is lost")
	}
	if text := body(t, ask(handlerOf(s), "GET", "/?span=24h")); strings.Contains(text, "span=") {
		t.Error("a recording is offered that there is not")
	}
}
