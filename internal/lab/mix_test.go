package lab

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/rogpeppe/go-internal/txtar"
)

// TestParseMixErrors runs the cases of testdata/mix-errors.txtar, which says how
// they are written.
func TestParseMixErrors(t *testing.T) {
	const file = "testdata/mix-errors.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	base := string(archive.Files[0].Data)
	if _, err := ParseMix("mine.yaml", []byte(base)); err != nil || archive.Files[0].Name != "base" {
		t.Fatalf("the text that the cases change: %v", err)
	}
	for i, f := range archive.Files[1:] {
		t.Run(f.Name, func(t *testing.T) {
			source, edit, want := editedSource(t, base, string(f.Data))
			m, err := ParseMix("mine.yaml", []byte(source))
			if m != nil || err == nil {
				t.Fatalf("mix %+v, error %v", m, err)
			}
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %T %q, want one line of a *SyntaxError", err, err)
			}
			if *update {
				archive.Files[i+1].Data = []byte(edit + "= " + err.Error() + "\n")
			} else if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMixesAreWhole(t *testing.T) {
	if len(Mixes()) < 6 {
		t.Fatalf("%d mixes", len(Mixes()))
	}
	for _, m := range Mixes() {
		if m.About == "" || len(m.Foreign()) > 0 {
			t.Errorf("mix %s: about %q, addresses that may be in use: %v", m.Name, m.About, m.Foreign())
		}
		if found, err := FindMix(m.Name); err != nil || found != m {
			t.Errorf("FindMix(%s): %v, error %v", m.Name, found, err)
		}
		if again, err := ParseMix("again", m.Source()); err != nil || !cmp.Equal(again, m, byText) {
			t.Errorf("the text of mix %s is of another one: %v", m.Name, err)
		}
	}
	if _, err := FindMix("nothing"); err == nil || !strings.Contains(err.Error(), `unknown mix "nothing"; there are: dnat, established, gateway`) {
		t.Errorf("an unknown mix: %v", err)
	}
}

// TestDocumentedMixes: the page lists every mix, and its example is one.
func TestDocumentedMixes(t *testing.T) {
	page, err := os.ReadFile("../../docs/lab-fill.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range Mixes() {
		if !strings.Contains(string(page), "\n| "+m.Name+" | ") {
			t.Errorf("docs/lab-fill.md does not list mix %s", m.Name)
		}
	}
	_, example, _ := strings.Cut(string(page), "```yaml\nname: ")
	example, _, _ = strings.Cut(example, "```")
	if _, err := ParseMix("docs/lab-fill.md", []byte("name: "+example)); err != nil {
		t.Errorf("the example: %v\n%s", err, example)
	}
}

// byText compares what cmp must not look into.
var byText = cmp.Comparer(func(a, b Endpoint) bool { return a == b })

// TestMixFromItsJSON: what a fill reports is a mix that can be given again.
func TestMixFromItsJSON(t *testing.T) {
	for _, m := range Mixes() {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseMix("again.json", text)
		if err != nil {
			t.Errorf("mix %s: %v\n%s", m.Name, err, text)
		} else if diff := cmp.Diff(m, again, byText); diff != "" {
			t.Errorf("mix %s (-before +after):\n%s", m.Name, diff)
		}
	}
}

func TestForeignAddresses(t *testing.T) {
	for text, want := range map[string]string{
		`sources: {prefix: 10.0.0.0/24}, destinations: ["203.0.113.1:1"]`:                                                     "10.0.0.0/24",
		`sources: {prefix: 198.18.0.0/14}, destinations: ["203.0.113.1:1"]`:                                                   "198.16.0.0/14",
		`sources: {prefix: 198.18.0.0/24}, destinations: ["192.168.0.1:1"]`:                                                   "192.168.0.1:1",
		`sources: {prefix: 198.18.0.0/24}, destinations: ["203.0.113.1:1"], nat: {dnat: ["192.0.1.1:80"]}`:                    "192.0.1.1:80",
		`sources: {prefix: 198.18.0.0/24}, destinations: ["203.0.113.1:1"], nat: {snat: {to: [203.0.112.1]}}`:                 "203.0.112.1",
		`sources: {prefix: 198.18.0.0/24}, destinations: ["203.0.113.1:1"], nat: {snat: {to: [192.0.2.1], order: random}}`:    "",
		`sources: {prefix: "2001:db9::/64", hosts: 5}, destinations: ["[2001:db8::1]:1"]`:                                     "2001:db9::/64",
		`sources: {prefix: "2001:db8:1::/64", hosts: 5}, destinations: ["[3fff::1]:1"], nat: {snat: {to: ["2001:db8:2::1"]}}`: "",
	} {
		var got string
		if all := small(t, "- {name: a, share: 1, protocol: udp, "+text+"}").Foreign(); len(all) > 0 {
			got = all[0].String()
		}
		if got != want {
			t.Errorf("%s: foreign is %q, want %q", text, got, want)
		}
	}
}

func TestUsualStatusAndTimeout(t *testing.T) {
	for part, want := range map[string]struct {
		kind    string
		timeout uint32
	}{
		"protocol: tcp, state: SYN_SENT":                     {"tcp SYN_SENT [UNREPLIED]", 120},
		"protocol: tcp, state: SYN_RECV":                     {"tcp SYN_RECV", 60},
		"protocol: tcp, state: ESTABLISHED":                  {"tcp ESTABLISHED [ASSURED]", 432000},
		"protocol: tcp, state: ESTABLISHED, status: replied": {"tcp ESTABLISHED", 432000},
		"protocol: udp":                                      {"udp", 30},
		"protocol: udp, status: assured":                     {"udp [ASSURED]", 120},
		"protocol: gre, status: assured":                     {"gre [ASSURED]", 180},
		"protocol: sctp":                                     {"sctp", 210},
	} {
		p := small(t, "- {name: a, share: 1, "+part+`, sources: {prefix: 198.18.0.0/24}, destinations: ["203.0.113.1:1"]}`).Parts[0]
		if got := p.usualTimeout(); p.Kind() != want.kind || got != (Span{want.timeout, want.timeout}) {
			t.Errorf("%s: %s, %s", part, p.Kind(), got)
		}
	}
}

func TestAmount(t *testing.T) {
	for _, tc := range []struct {
		a     Amount
		limit int64
		want  int64
		err   string
	}{
		{Amount{Entries: 100}, 1000, 100, ""},
		{Amount{Entries: 100}, 0, 100, ""},
		{Amount{Entries: 1001}, 1000, 0, "1001 entries do not fit, nf_conntrack_max is 1000; fewer, or raise it: natkit tune apply net.netfilter.nf_conntrack_max=1001"},
		{Amount{Share: 0.95}, 262144, 249037, ""},
		{Amount{Share: 1}, 1000, 1000, ""},
		{Amount{Share: 0.0001}, 1000, 0, "of which so small a share is no entry"},
		{Amount{Share: 0.5}, 0, 0, "without a limit"},
		{Amount{Free: 1000}, 262144, 261144, ""},
		{Amount{Free: 1000}, 1000, 0, "leaves fewer than the 1000 free places"},
		{Amount{Free: 1}, 0, 0, "without a limit"},
	} {
		got, err := tc.a.Target(tc.limit)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%+v of %d: %d, error %v", tc.a, tc.limit, got, err)
		}
	}
}

func TestFillTarget(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		limit, free, available int64
		want                   int64
		err                    string
	}{
		{limit: 262144, free: 1000, available: 24 * gib, want: 261144},
		{limit: 65536, free: 1, available: gib, want: 65535},
		{limit: 1000, free: 1000, available: gib, err: "leaves fewer than the 1000 free places"},
		{limit: 5 << 20, free: 1000, available: 1000 * gib, err: "use --lower-max"},
		{limit: 1 << 20, free: 1000, available: gib, err: "more than a quarter of the 1024 MiB available; use --lower-max"},
	} {
		got, err := (&Fill{Amount: Amount{Free: tc.free}}).Target(tc.limit, tc.available)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%+v: %d, error %v", tc, got, err)
		}
	}
}

// FuzzParseMix looks for panics, and for mixes that pass and cannot be made.
func FuzzParseMix(f *testing.F) {
	for _, m := range Mixes() {
		f.Add(string(m.Source()))
	}
	f.Add("name: x\nparts: [*a]\n")
	f.Add(`{name: a, title: b, parts: [{name: a, share: 1, protocol: icmp, sources: {prefix: "::/0", hosts: 1048576}, destinations: ["::/108"]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		m, err := ParseMix("f.yaml", []byte(text))
		if (m == nil) == (err == nil) {
			t.Fatalf("mix %v, error %v", m, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Fatalf("error is not one line with its place: %q", err)
			}
			return
		}
		filler := m.Filler(1, 1)
		room := filler.Room()
		if room < 1 || room > MaxFill {
			t.Fatalf("room for %d entries", room)
		}
		mustBeDistinct(t, filler, min(room, 500))
		var e conntrack.Entry
		if filler.Entry(room-1, &e); e.Check() != nil {
			t.Fatalf("the last entry: %+v", e)
		}
	})
}
