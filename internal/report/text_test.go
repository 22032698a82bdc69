package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

func TestWantsColour(t *testing.T) {
	for _, tc := range []struct {
		name     string
		terminal bool
		env      map[string]string
		want     bool
	}{
		{"terminal", true, nil, true},
		{"pipe", false, nil, false},
		{"terminal, NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, false},
		{"NO_COLOR of any value", true, map[string]string{"NO_COLOR": "0"}, false},
		{"empty NO_COLOR", true, map[string]string{"NO_COLOR": ""}, true},
		{"dumb terminal", true, map[string]string{"TERM": "dumb"}, false},
		{"pipe, forced", false, map[string]string{"CLICOLOR_FORCE": "1"}, true},
		{"pipe, forced off", false, map[string]string{"CLICOLOR_FORCE": "0"}, false},
		{"NO_COLOR beats force", true, map[string]string{"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := WantsColour(tc.terminal, func(k string) string { return tc.env[k] }); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestValue(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{Value(int64(262144), ""), "262,144"}, {Value(99.6, "% of entries"), "99.6 % of entries"}, {Value(13.1, "/s"), "13.1/s"},
		{Value(float64(117440512), "bytes"), "117,440,512 bytes (112 MiB)"}, {Value(448, "bytes"), "448 bytes"},
		{Value("ESTABLISHED", ""), "ESTABLISHED"}, {Value(0.5, ""), "0.5"}, {Value(math.NaN(), "ms"), "– ms"}, {Value(nil, ""), "<nil>"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestTable(t *testing.T) {
	table := &Table{Title: "Sources", Indent: 2, Columns: []Column{{Head: "who"}, {Head: "entries", Right: true}, {Head: "note", Wrap: true}}}
	table.Row("198.18.0.2", "14,116", "")
	table.Row("东京", "172", strings.Repeat("word ", 30))
	table.Row()
	table.Row("é combining", "9")
	var out bytes.Buffer
	if err := table.Write(&out, Style{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", out.Bytes())
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := JSON(&out, map[string]any{"schema": "natkit.x/1", "a": "<&>"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"a\": \"<&>\",\n  \"schema\": \"natkit.x/1\"\n}\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := JSON(&out, math.NaN()); err == nil || out.Len() > 0 {
		t.Errorf("NaN: got error %v and %q, want an error and nothing written", err, out.String())
	}
}

// What package json does not escape must not reach a terminal either, and comes back
// as it was.
func TestJSONForTerminals(t *testing.T) {
	const hostile = "ü\x1b[2J\x7f\u009b2J\u202e"
	for name, write := range map[string]func(io.Writer, ...any) error{"JSON": JSON, "JSONLine": JSONLine} {
		var out bytes.Buffer
		if err := write(&out, []string{hostile}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || r == 0x202e) }) {
			t.Errorf("%s: %q steers a terminal", name, out.String())
		}
		var back []string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back) != 1 || back[0] != hostile {
			t.Errorf("%s: %q, %v; want %q", name, back, err, hostile)
		}
	}
}

func TestProgress(t *testing.T) {
	now := time.Unix(0, 0)
	var out bytes.Buffer
	p := NewProgress(&out, true, func() time.Time { return now })
	for i := range 4 {
		p.Update("stage nat: %d\x1b[2J", i)
		now = now.Add(60 * time.Millisecond)
	}
	p.Show("")
	p.Clear()
	p.Show(strings.Repeat("long ", 40))
	p.Clear()
	want := "\rstage nat: 0␛[2J\x1b[K" + "\rstage nat: 2␛[2J\x1b[K" + "\r\x1b[K" +
		"\r" + strings.Repeat("long ", 15) + "lon…\x1b[K" + "\r\x1b[K"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}

	out.Reset()
	p = NewProgress(&out, false, func() time.Time { return now })
	p.Update("not shown")
	p.Clear()
	if out.Len() > 0 {
		t.Errorf("not a terminal: wrote %q", out.String())
	}
}

// madeUpDoctor is doctor's report with the made-up finding and another, in an
// order that has to be put right.
func madeUpDoctor(t testing.TB) *diagnose.Report {
	early := diagnose.Finding{ID: "ct-early-drop", Severity: diagnose.Warning, Confidence: "certain",
		Title: "the connection table is at its limit: unanswered connections are evicted to make room for new ones",
		Evidence: []diagnose.Evidence{
			{What: "counter early_drop", Value: int64(312), Unit: "in 5.0 s", Source: "ctnetlink GET_STATS_CPU"},
			{What: "from 2001:db8:1234:5678:9abc:def0:1234:5678", Value: 12.5, Unit: "% of entries", Source: "dump of 131,072 of 262,144 entries"},
			{What: "no source", Value: "text"}}}
	// What the finding above has is not said again.
	above := madeUpReport(t).Findings[0]
	early.Evidence = append(early.Evidence, above.Evidence[0])
	early.Remedies = above.Remedies
	third := diagnose.Finding{ID: "made-up", Severity: diagnose.Notice, Title: "a third one", Evidence: above.Evidence[:2]}
	return &diagnose.Report{
		Schema: diagnose.ReportSchema, Kernel: "6.18.0", Netns: "gateway", NetnsInode: 4026532250, Seconds: 5,
		Summary:  &diagnose.Summary{Finding: "ct-table-full", Text: "the connection table is full: new connections are dropped, in the network namespace gateway, for 40 s at least", First: "raise the limit of tracked connections (natkit doctor --netns gateway --fix)"},
		Findings: []diagnose.Finding{third, early, above},
		Checks: []diagnose.Check{
			{ID: "ct-table-full", Title: "connection table full", State: diagnose.Found, Why: "262,144 of 262,144 entries (100 %), 3,118 drops"},
			{ID: "ct-table-near-full", Title: "connection table nearly full", State: diagnose.OK, Why: "it is full already, and that is the finding above; nothing is left for this check to say"},
			{ID: "ct-early-drop", Title: "connections evicted to make room", State: diagnose.NotChecked, Why: "the conntrack counters of the two samples cannot be compared"},
		},
		Incomplete: []diagnose.Missing{
			{Why: "interrupted after 5.0 s of 10.0 s"},
			{Why: "the conntrack counters of the two samples cannot be compared", Checks: []string{"ct-early-drop"}},
		},
		Others: &diagnose.Others{Survey: snapshot.Survey{Found: 41, Examined: 39, Unreached: 2, Unlisted: 3}},
		Unread: []diagnose.Unread{{What: "kernel_log", Why: "open /dev/kmsg: operation not permitted (needs CAP_SYSLOG, or kernel.dmesg_restrict = 0)"}},
	}
}

func TestDoctor(t *testing.T) {
	healthy := &diagnose.Report{Kernel: "6.1.0-28-amd64", Seconds: 2, Checks: []diagnose.Check{
		{ID: "ct-table-full", Title: "connection table full", State: diagnose.OK, Why: "180 of 262,144 entries (0 %), 0 drops"}}}
	traced := *healthy
	traced.Followed = madeUpFlows()
	traced.Profile = madeUpReport(t).Stage("nat").Profile
	traced.Checks = append(slices.Clone(healthy.Checks),
		diagnose.Check{ID: "drops-unexplained", Title: "packets dropped on their way", State: diagnose.NotChecked, NotAsked: true, Why: "needs --trace"},
		diagnose.Check{ID: "tw-seq-reject", Title: "SYNs rejected in TIME_WAIT by their sequence number", State: diagnose.NotChecked, NotAsked: true, Why: "needs --trace (no counter shows it; 4 in TIME_WAIT)"})
	for _, tc := range []struct {
		golden  string
		report  *diagnose.Report
		verbose bool
	}{
		{"doctor.txt", madeUpDoctor(t), false},
		{"doctor-verbose.txt", madeUpDoctor(t), true},
		{"doctor-healthy.txt", healthy, false},
		{"doctor-traced.txt", &traced, false},
	} {
		var out bytes.Buffer
		if err := Doctor(&out, Style{}, tc.report, tc.verbose, ""); err != nil {
			t.Fatal(err)
		}
		golden(t, tc.golden, out.Bytes())
	}
}

// madeUpFlows is a service that works, one that does not, and one of each kind of gap.
func madeUpFlows() *snapshot.Followed {
	end := netip.MustParseAddrPort
	return &snapshot.Followed{Seconds: 5, Sample: 4, TCPOnly: true, Lost: 1, MoreServices: 12, Services: []snapshot.FollowedService{
		{Protocol: "tcp", Service: end("203.0.113.1:443"), In: "wan0", Steps: map[snapshot.Step]uint64{snapshot.StepLostHere: 1200, snapshot.StepAnswered: 3}, Repeated: 2400,
			Failed: &snapshot.FailedConnection{Step: snapshot.StepLostHere, Client: end("198.18.0.2:40000")}},
		{Protocol: "tcp", Service: end("203.0.113.1:80"), Target: end("192.168.1.10:8080"), Given: netip.MustParseAddr("192.168.1.1"), In: "wan0", Out: "lan0",
			Steps: map[snapshot.Step]uint64{snapshot.StepAnswered: 90, snapshot.StepWaiting: 1}, HereSeconds: 0.00004, BeyondSeconds: 0.0121, BackSeconds: 0.00002},
		{Protocol: "icmpv6", Service: end("[2001:db8::1]:0"), Out: "wan0", Steps: map[snapshot.Step]uint64{snapshot.StepNoAnswer: 2},
			Failed: &snapshot.FailedConnection{Step: snapshot.StepNoAnswer, Client: end("[2001:db8::2]:0")}},
	}}
}

func TestFlows(t *testing.T) {
	for name, f := range map[string]*snapshot.Followed{"flows.txt": madeUpFlows(), "flows-none.txt": {Seconds: 2}} {
		var out bytes.Buffer
		if err := (FlowsDocument{Followed: f}).Text(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.Bytes())
	}
}

func TestPlan(t *testing.T) {
	changes := append(madeUpReport(t).Fix.Changes,
		tune.Change{Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_buckets", After: "1048576",
			Risk: "all packets of the host wait for 120 ms (estimate) while 262,144 entries are rehashed: a long sentence"})
	files := tune.Persistent(changes)
	files[0].Before, files[1].Before = "524288", "1048576"
	for name, plan := range map[string]Planned{
		"plan.txt": {Changes: changes},
		"plan-files.txt": {Changes: changes, Files: files, FilesWait: true, Already: []string{"net.core.somaxconn is 4096 already"},
			Warnings: []string{"/etc/sysctl.d/99-mine.conf sets net.netfilter.nf_conntrack_max too and is read later at boot: it wins"}},
		"plan-empty.txt": {Already: []string{"net.core.somaxconn is 4096 already"}},
	} {
		var out bytes.Buffer
		if err := plan.Text(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.Bytes())
	}
}

// TestTerminalIsSafe: no control character from the data reaches the terminal.
func TestTerminalIsSafe(t *testing.T) {
	lab, doctor := madeUpReport(t), madeUpDoctor(t)
	doctor.Followed = madeUpFlows()
	plan := Planned{Changes: []tune.Change{{}}, Files: []tune.Change{{}}, Already: []string{""}, Warnings: []string{""}}
	for _, v := range []any{lab, doctor, &plan} {
		testutil.Fill(v, hostile)
	}
	var out bytes.Buffer
	for _, err := range []error{Lab(&out, Style{}, lab), Doctor(&out, Style{}, doctor, true, ""), plan.Text(&out, Style{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return unicode.IsControl(r) || r == '\u202e' }); i >= 0 {
			t.Fatalf("a control character at byte %d of %q", i, line)
		}
	}
}

// full refuses what is written after its first n bytes.
type full struct{ n int }

var errFull = errors.New("no space left on device")

func (f *full) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestWriteError: wherever the output ends, the caller hears of it.
func TestWriteError(t *testing.T) {
	lab, doctor := madeUpReport(t), madeUpDoctor(t)
	for name, write := range map[string]func(io.Writer) error{
		"Lab":     func(w io.Writer) error { return Lab(w, Style{}, lab) },
		"LabHTML": func(w io.Writer) error { return LabHTML(w, lab) },
		"JSON":    func(w io.Writer) error { return JSON(w, lab) },
		"Doctor":  func(w io.Writer) error { return Doctor(w, Style{}, doctor, true, "") },
	} {
		var whole bytes.Buffer
		if err := write(&whole); err != nil {
			t.Fatal(err)
		}
		for room := 0; room < whole.Len(); room += 1 + whole.Len()/50 {
			if err := write(&full{room}); !errors.Is(err, errFull) {
				t.Errorf("%s of %d bytes into %d: got %v, want %v", name, whole.Len(), room, err, errFull)
			}
		}
	}
}

// TestWrapLong: words, and what stays together, may be many.
func TestWrapLong(t *testing.T) {
	for _, each := range []string{"a ", "% ", "a", "\u0301", "\u4e1c"} {
		testutil.Linear(t, func(times int) { wrap(strings.Repeat(each, times*50_000), 80) })
	}
}

func FuzzWrap(f *testing.F) {
	f.Add("", 0)
	f.Add("nf_conntrack: table full, dropping packet", 20)
	f.Add("东京 é "+hostile, 3)
	f.Fuzz(func(t *testing.T, text string, width int) {
		defer testutil.Bounded(t, len(text)+8)()
		text = clean(text)
		if strings.IndexFunc(text, unicode.IsControl) >= 0 {
			t.Fatalf("clean left a control character in %q", text)
		}
		width = max(width%200, 3) // a wide character and an ellipsis
		lines := wrap(text, width)
		for _, line := range lines {
			if textWidth(line) > width {
				t.Errorf("%q is wider than %d", line, width)
			}
		}
		if want, got := strings.Join(strings.Fields(text), ""), strings.Join(strings.Fields(strings.Join(lines, "")), ""); want != got {
			t.Errorf("wrapping changed %q to %q", want, got)
		}
		if short := truncate(text, width); textWidth(short) > width {
			t.Errorf("%q is truncated to %q, wider than %d", text, short, width)
		}
	})
}
