package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/lab"
)

// mixed hands out entries of a mix that natkit brings along.
func mixed(t *testing.T, name string, n int64, fn func(*conntrack.Entry)) {
	t.Helper()
	mix, err := lab.FindMix(name)
	if err != nil {
		t.Fatal(err)
	}
	f := mix.Filler(1, 0)
	for i := range n {
		var e conntrack.Entry
		f.Entry(i, &e)
		fn(&e)
	}
}

func roomy() aggregate.Memory {
	return aggregate.Memory{Budget: aggregate.NewBudget(64 << 20), Seed: 1}
}

func overview(t *testing.T, mix string, change func(*conntrack.Entry)) *aggregate.Overview {
	s := aggregate.NewSummary(roomy())
	mixed(t, mix, 20_000, func(e *conntrack.Entry) {
		change(e)
		s.Add(e)
	})
	return s.Overview(5, aggregate.Timeouts{})
}

// TestOverviewFitsOnAScreen: 80 columns and 40 lines, whatever is in the table.
func TestOverviewFitsOnAScreen(t *testing.T) {
	i := 0
	for name, o := range map[string]Overview{
		"conntrack-gateway.txt": {Overview: overview(t, "gateway", func(*conntrack.Entry) {}), Source: "network namespace gateway", Count: 20_100, Max: 20_480},
		"conntrack-ipv6.txt":    {Overview: overview(t, "ipv6", func(*conntrack.Entry) {}), Source: "table.txt.gz", Filter: "--family ipv6"},
		"conntrack-many.txt": {Source: "table.txt", Overview: overview(t, "dnat", func(e *conntrack.Entry) {
			i++
			e.Zone, e.ReplyZone, e.TCPState, e.Orig.Proto = uint16(i%9), uint16(i%9), conntrack.TCPState(i%10), [...]uint8{6, 6, 6, 17, 1, 47, 50, 51, 132}[i%9]
			if i%5 == 0 {
				e.Status |= conntrack.Offload
			}
		})},
	} {
		var out bytes.Buffer
		if err := o.Text(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		if len(lines) > 40 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		for _, line := range lines {
			if textWidth(line) > screen {
				t.Errorf("%s: %d columns: %s", name, textWidth(line), line)
			}
		}
		golden(t, name, out.Bytes())
	}
}

func TestOverviewOfNothing(t *testing.T) {
	var out bytes.Buffer
	o := Overview{Overview: aggregate.NewSummary(roomy()).Overview(5, aggregate.Timeouts{}), Source: "evil\x1b[2J"}
	if err := o.Text(&out, Style{}); err != nil || out.String() != "evil␛[2J: 0 entries\n" {
		t.Errorf("%v, %q", err, &out)
	}
}

// grouped counts n sources with one entry each, and the first with some more.
func grouped(keys string, n int, budget int64) Groups {
	parsed, err := aggregate.ParseKeys(keys)
	if err != nil {
		panic(err)
	}
	a := aggregate.New(parsed, aggregate.Memory{Budget: aggregate.NewBudget(budget), Seed: 1})
	e := conntrack.Entry{Orig: conntrack.Tuple{Proto: 17, Dst: netip.MustParseAddr("203.0.113.1"), DstPort: 53, SrcPort: 4000}}
	for i := range n + n/2 {
		e.Orig.Src = netip.AddrFrom4([4]byte{198, 18, byte(i % n >> 8), byte(i % n)})
		e.Reply = e.Orig.Mirror()
		if i%3 == 1 {
			e.Reply.Dst = netip.MustParseAddr("203.0.113.200")
		}
		a.Add(&e)
	}
	return Groups{Aggregator: a, Source: "table.txt", Memory: 64 << 20}
}

func TestGroupsText(t *testing.T) {
	g := grouped("proto,src/24,dport", 600, 1<<20)
	g.Top, g.Filter = 2, "--proto udp"
	for _, tt := range []struct {
		least int64
		want  string
	}{
		{0, `900 entries of table.txt (--proto udp), 3 groups by proto, src/24, dport

proto  src/24         dport  entries   share
udp    198.18.0.0/24  53         512  56.9 %
udp    198.18.1.0/24  53         300  33.3 %
… and 1 more group with 88 entries (--top 0 shows all)
`},
		{400, `900 entries of table.txt (--proto udp), 3 groups by proto, src/24, dport

proto  src/24         dport  entries   share
udp    198.18.0.0/24  53         512  56.9 %
… and 2 more groups with 388 entries (--top 0 --min 0 shows all)
`},
	} {
		g.Min = tt.least
		var out bytes.Buffer
		if err := g.Text(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.want, out.String()); d != "" {
			t.Errorf("at least %d (-want +got):\n%s", tt.least, d)
		}
	}
}

// TestGroupsTextInBlocks: many groups are one table, with one head.
func TestGroupsTextInBlocks(t *testing.T) {
	g := grouped("src", 3*blockRows+7, 1<<20)
	var out bytes.Buffer
	if err := g.Text(&out, Style{}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if n := strings.Count(text, "198.18."); n != 3*blockRows+7 {
		t.Errorf("%d rows", n)
	}
	if strings.Count(text, "share") != 1 || strings.Contains(text, "more group") {
		t.Errorf("more than one head, or a rest:\n%s", text[:200])
	}
}

func TestGroupsSketched(t *testing.T) {
	g := grouped("src", 20_000, 0)
	g.Top = 1
	var out bytes.Buffer
	if err := g.Text(&out, Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"There are more groups than find room in 64 MiB (--memory): counts are at most " + fmt.Sprint(g.Bound()) + " too high",
		"too high by at most", "at least 896 groups by src", "… and at least 895 more groups (--top 0 shows all)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

func TestGroupsOfNothing(t *testing.T) {
	keys, _ := aggregate.ParseKeys("src")
	g := Groups{Aggregator: aggregate.New(keys, roomy()), Source: "table.txt"}
	for name, tt := range map[string]struct {
		write func(*bytes.Buffer) error
		want  string
	}{
		"text": {func(b *bytes.Buffer) error { return g.Text(b, Style{}) }, "0 entries of table.txt, 0 groups by src\n"},
		"csv":  {func(b *bytes.Buffer) error { return g.CSV(b) }, "src,entries,too_high_at_most\n"},
		"json": {func(b *bytes.Buffer) error { return g.JSON(b, map[string]int{"a": 1}) }, "{\n  \"a\": 1,\n  \"keys\": [\n    \"src\"\n  ],\n  \"different\": 0,\n  \"exact\": true,\n  \"too_high_at_most\": 0,\n  \"groups\": []\n}\n"},
	} {
		var out bytes.Buffer
		if err := tt.write(&out); err != nil || out.String() != tt.want {
			t.Errorf("%s: %v, %q", name, err, &out)
		}
	}
}

func TestGroupsForPrograms(t *testing.T) {
	g := grouped("src,dport,snat-address,mark", 3, 1<<20)
	var out bytes.Buffer
	if err := g.JSON(&out, map[string]string{"schema": "test/1"}); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Schema string
		Groups []struct {
			Key     map[string]any
			Entries int64
			Share   float64
		}
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatalf("%v in:\n%s", err, &out)
	}
	want := map[string]any{"src": "198.18.0.0", "dport": 53.0, "snat-address": nil, "mark": 0.0}
	if d := cmp.Diff(want, doc.Groups[0].Key); d != "" || doc.Groups[0].Entries != 2 || doc.Groups[0].Share != 0.5 || doc.Schema != "test/1" {
		t.Errorf("got %+v\n%s", doc, d)
	}
	out.Reset()
	if err := g.CSV(&out); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	wantRows := [][]string{{"src", "dport", "snat-address", "mark", "entries", "too_high_at_most"},
		{"198.18.0.0", "53", "", "0", "2", "0"}, {"198.18.0.1", "53", "203.0.113.200", "0", "1", "0"}, {"198.18.0.2", "53", "", "0", "1", "0"}}
	if d := cmp.Diff(wantRows, rows); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}
