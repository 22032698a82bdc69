package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
)

// What could not be checked must not look healthy, nor what was cut short.
func TestVerdict(t *testing.T) {
	whole := &diagnose.Report{}
	part := &diagnose.Report{Incomplete: []diagnose.Missing{{Why: "no permission", Checks: []string{"x"}}}}
	found := &diagnose.Report{Incomplete: part.Incomplete, Findings: []diagnose.Finding{{ID: "y", Severity: diagnose.Warning}}}
	noted := &diagnose.Report{Findings: []diagnose.Finding{{ID: "y", Severity: diagnose.Notice}}}
	notedPart := &diagnose.Report{Incomplete: part.Incomplete, Findings: noted.Findings}
	broken := diagnose.Run(&snapshot.Recording{Snapshots: []*snapshot.Snapshot{{}, {}}}, []diagnose.Rule{{ID: "z",
		Check: func(*snapshot.Recording) (*diagnose.Finding, diagnose.Check) { panic("a defect") }}})
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx    context.Context
		report *diagnose.Report
		want   error
		code   int
	}{
		{t.Context(), whole, nil, 0},
		{t.Context(), part, errIncomplete, 4},
		{t.Context(), &broken, errIncomplete, 4},
		{t.Context(), found, errFindings, 3},
		{t.Context(), noted, nil, 0},
		{t.Context(), notedPart, errIncomplete, 4},
		{cut, whole, errCutShort, 130},
		{cut, found, errCutShort, 130},
	} {
		err := verdict(tc.ctx, tc.report)
		if !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v, want %v", tc.report, err, tc.want)
		}
		var said bytes.Buffer
		if code := exitCode(&said, nil, err); code != tc.code || said.Len() > 0 {
			t.Errorf("%v: exit code %d, said %q, want %d and nothing", err, code, said.String(), tc.code)
		}
	}
}

// An interrupted look is reported as far as it came, and says so first.
func TestDoctorInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, asJSON := range []bool{false, true} {
		args := []string{"doctor", "--for", "1h"}
		if asJSON {
			args = append(args, "--json")
		}
		var out, said bytes.Buffer
		code := Run(ctx, Env{Stdout: &out, Stderr: &said, Getenv: func(string) string { return "" }}, args)
		if code != exitInterrupted {
			t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, said.String())
		}
		if !asJSON {
			first, _, _ := strings.Cut(out.String(), "\n\n")
			if !strings.HasPrefix(first, "INCOMPLETE: ") || !strings.Contains(first, "interrupted after ") {
				t.Errorf("it begins with %q", first)
			}
			continue
		}
		var r diagnose.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Incomplete) == 0 || len(r.Incomplete[0].Checks) > 0 {
			t.Errorf("%v: incomplete %+v", err, r.Incomplete)
		}
	}
}
