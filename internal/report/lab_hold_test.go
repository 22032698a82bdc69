package report

import (
	"bytes"
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

// heldReport is of realistic size. Its figures are made up, not measured.
func heldReport() *lab.Report {
	r := &lab.Report{Scenario: "million", Title: "a million connections", Kernel: "6.12.0", CPUs: 2, Version: "v0", ExpectationMet: true,
		LeftOut: []string{"sized"}, Interrupted: true}
	add := func(name string, established, perSecond int64, counters map[string]uint64, found []string) {
		h := &load.HoldResult{Config: load.HoldConfig{Connections: 1_000_000, Verify: 1000}, Established: established, Unfinished: 1_000_000 - established,
			OpenSeconds: float64(established) / float64(perSecond), OpenPerSecond: float64(perSecond), CloseSeconds: 3, Verified: 1000, Alive: 1000}
		for open := int64(0); open < established; {
			n := min(perSecond, established-open)
			open += n
			h.Series = append(h.Series, load.HeldSecond{Second: load.Second{At: float64(len(h.Series) + 1), Completed: n}, Open: open})
		}
		held := &lab.HeldReport{HoldResult: h}
		held.Weigh(map[string]int64{"TCP": 0}, map[string]int64{"TCP": 5000 * established, "filp": 400 * established})
		r.Stages = append(r.Stages, lab.StageReport{Name: name, About: "what is special in " + name, Counters: counters, Found: found,
			Loads: []lab.LoadReport{{Kind: lab.LoadHold, From: "client", Asked: "1,000,000 connections", Sent: 1_000_000, Held: held}}})
	}
	add("bare", 1_000_000, 25_000, map[string]uint64{}, nil)
	add("default", 65_536, 5_000, map[string]uint64{"drop": 4202}, []string{"ct-table-full"})
	add("raised", 197_321, 9_855, map[string]uint64{"chaintoolong": 1, "insert_failed": 1}, []string{})
	r.Stages[2].Held().Failed = 2
	r.Stages[2].Failures = []load.Failure{{Phase: load.Connect, Reason: "timed out", Count: 2}}
	return r
}

func TestLabHeld(t *testing.T) {
	var out bytes.Buffer
	if err := Lab(&out, Style{}, heldReport()); err != nil {
		t.Fatal(err)
	}
	golden(t, "held.txt", out.Bytes())
	var page bytes.Buffer
	if err := LabHTML(&page, heldReport()); err != nil || !bytes.Contains(page.Bytes(), []byte("chaintoolong")) {
		t.Errorf("the page has no counters, error %v", err)
	}
}
