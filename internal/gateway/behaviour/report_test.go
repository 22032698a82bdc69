package behaviour

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write testdata/*.json and docs/rfc.md")

const page = "../../../docs/rfc.md"

func recordFile(engine string) string { return filepath.Join("testdata", engine+".json") }

func readRecord(t *testing.T, engine string) Record {
	t.Helper()
	text, err := os.ReadFile(recordFile(engine))
	if err != nil {
		t.Fatalf("%v; write it by -update, as root", err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%s: %v", recordFile(engine), err)
	}
	return r
}

func writeRecord(t *testing.T, r Record) {
	t.Helper()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordFile(r.Engine), append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// series is the running kernel's, "6.18".
func series(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// TestPage compares docs/rfc.md with the cases and what the runs found.
func TestPage(t *testing.T) {
	want := Page(All(), []Record{readRecord(t, Netfilter), readRecord(t, EBPF)})
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/rfc.md is not what the suite says; sudo scripts/go test ./internal/gateway/behaviour -run 'TestNetfilter|TestEBPF|TestPage' -update writes it (-want +got):\n%s", diff)
	}
}

// TestCases finds mistakes in the data.
func TestCases(t *testing.T) {
	ids, known := map[string]bool{}, map[int]bool{}
	for _, r := range titles {
		known[r.rfc] = true
	}
	cases := All()
	for i := range cases {
		c := &cases[i]
		if err := c.Check(); err != nil {
			t.Error(err)
		}
		if ids[c.ID] {
			t.Errorf("case %s is there twice", c.ID)
		}
		if ids[c.ID] = true; !known[c.RFC] {
			t.Errorf("case %s: RFC %d has no place on the page", c.ID, c.RFC)
		}
		if _, err := c.Plan(); err != nil {
			t.Errorf("case %s: %v", c.ID, err)
		}
	}
}

// TestRecorded sees to it that the records are of these cases, all of them.
func TestRecorded(t *testing.T) {
	for _, engine := range []string{Netfilter, EBPF} {
		record := readRecord(t, engine)
		var cases, recorded []string
		for _, c := range All() {
			cases = append(cases, c.ID)
		}
		for _, r := range record.Results {
			recorded = append(recorded, r.ID)
			if r.Status == Unexpected {
				t.Errorf("%s: %s is recorded as a failure", engine, r.ID)
			}
		}
		if diff := cmp.Diff(cases, recorded); diff != "" {
			t.Errorf("%s: the record is of other cases (-cases +recorded):\n%s", engine, diff)
		}
	}
}

// TestLeft compares the results of cases that the programs leave with those of netfilter.
func TestLeft(t *testing.T) {
	ours, theirs := readRecord(t, EBPF), readRecord(t, Netfilter)
	for _, c := range All() {
		got, want := ours.of(c.ID), theirs.of(c.ID)
		if want.Left = got.Left; got.Left && got != want {
			t.Errorf("%s: %s, %q; by netfilter %s, %q", c.ID, got.Status, got.Outcome, want.Status, want.Outcome)
		}
		if left := c.Run != nil && !(programs{}).claims(c); left != got.Left {
			t.Errorf("%s: left to netfilter: %v, recorded %v", c.ID, left, got.Left)
		}
	}
}

func TestRequirementsInOrder(t *testing.T) {
	order := []string{"REQ-1", "REQ-2", "REQ-3 a", "REQ-10", "REQ-10 b", "2.1", "2.2", "4.2.1", "10"}
	for i := 1; i < len(order); i++ {
		if compareRequirements(order[i-1], order[i]) >= 0 {
			t.Errorf("%s is not before %s", order[i-1], order[i])
		}
	}
}

// TestJudge has a case of each status, and both ways to fail one.
func TestJudge(t *testing.T) {
	plain := Case{ID: "plain", Want: []Outcome{"good", "fine"}}
	declared := Case{ID: "declared", Want: []Outcome{"good"}, Expect: map[string]Expectation{"e": {Outcome: "odd", Reason: "why"}}}
	for _, c := range []struct {
		of   Case
		got  Outcome
		want Status
	}{
		{plain, "good", Meets}, {plain, "fine", Meets}, {plain, "odd", Unexpected},
		{declared, "odd", Deviates}, {declared, "good", Unexpected}, {declared, "worse", Unexpected},
	} {
		r := c.of.judge("e", c.got)
		if r.Status != c.want || (r.Err != nil) != (c.want == Unexpected) {
			t.Errorf("%s, got %q: %s, %v; want %s", c.of.ID, c.got, r.Status, r.Err, c.want)
		}
	}
	other := declared.judge("f", "good")
	if other.Status != Meets {
		t.Errorf("the declaration is for another engine: %s, %v", other.Status, other.Err)
	}
	both := Case{ID: "both", Want: []Outcome{"good"}, Expect: onNetfilter("odd", "why")}
	if r := both.judge(EBPF, "odd"); r.Status != Deviates {
		t.Errorf("what is declared of netfilter, behind the programs: %s, %v", r.Status, r.Err)
	}
	both.Expect = metByEBPF(both.Expect, "why")
	if r := both.judge(EBPF, "good"); r.Status != Meets {
		t.Errorf("a deviation that the programs do not have: %s, %v", r.Status, r.Err)
	}
}

func TestCheckFindsMistakes(t *testing.T) {
	run := func(*Play) (Outcome, error) { return "", nil }
	good := Case{ID: "a", Level: Must, Asks: "b", Run: run, Want: []Outcome{"c"}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Case){
		"no id":                  func(c *Case) { c.ID = "" },
		"no demand":              func(c *Case) { c.Want = nil },
		"nothing to run":         func(c *Case) { c.Run = nil },
		"run and no test":        func(c *Case) { c.Untestable = "x" },
		"no reason":              func(c *Case) { c.Expect = onNetfilter("d", "") },
		"deviates by doing":      func(c *Case) { c.Expect = onNetfilter("c", "why") },
		"meets with none behind": func(c *Case) { c.Expect = map[string]Expectation{Netfilter: {Meets: true, Reason: "why"}} },
	} {
		c := good
		if spoil(&c); c.Check() == nil {
			t.Errorf("%s: no mistake is found", name)
		}
	}
}
