package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

var update = flag.Bool("update", false, "as root: run the scenarios (ONLY=name,…: these) and write testdata/recordings")

const (
	recordings = "testdata/recordings"
	// recordingMax bounds one of them, in bytes.
	recordingMax = 60_000
	// madeName is the member with what was made of the table.
	madeName = "0/made.json"
)

// made is what doctor made of the entries of the tables, which would be megabytes and have one
// form on all kernels, and what it found.
type made struct {
	Findings  []string        `json:"findings"`
	Snapshots []madeOfTable   `json:"snapshots"`
	Flows     *snapshot.Flows `json:"flows,omitempty"`
}

type madeOfTable struct {
	Table *snapshot.ConntrackTable `json:"conntrack_table,omitempty"`
	Ports *snapshot.Ports          `json:"ports,omitempty"`
}

// asked is a member of a bundle.
type asked struct {
	name string
	data []byte
}

// TestRecordings: the recording of each scenario gives what doctor found when it was taken, in
// the form in which older kernels would have answered as well.
func TestRecordings(t *testing.T) {
	for _, sc := range lab.Scenarios() {
		if unrecorded(sc) {
			continue
		}
		t.Run(sc.Name, func(t *testing.T) {
			members, was := readKept(t, sc.Name)
			if diff := cmp.Diff(was.Findings, findingsOf(t, members, was)); diff != "" {
				t.Errorf("as it was taken (-then +now):\n%s", diff)
			}
			for _, k := range formats {
				if diff := cmp.Diff(was.Findings, findingsOf(t, k.rewrite(t, members), k.made(was))); diff != "" {
					t.Errorf("in the form of Linux %s (-want +got):\n%s", k.release, diff)
				}
			}
		})
	}
}

// unrecorded reports whether doctor reads other nodes, which no bundle has, or the scenario runs on request only.
func unrecorded(sc *lab.Scenario) bool {
	return sc.OnRequest || slices.ContainsFunc(sc.Stages, func(st lab.Stage) bool { return st.Doctor != nil && st.Doctor.Others })
}

// TestNoStrayRecordings: each belongs to a scenario.
func TestNoStrayRecordings(t *testing.T) {
	files, err := filepath.Glob(recordings + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, err := lab.Find(strings.TrimSuffix(filepath.Base(file), ".tar.gz")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// findingsOf are those that doctor has of a bundle, with what was made of its tables.
func findingsOf(t *testing.T, members []asked, was made) []string {
	t.Helper()
	rec, err := collect.ReadBundle(bytes.NewReader(bundle(t, members)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range was.Snapshots {
		rec.Snapshots[i].Table, rec.Snapshots[i].Ports = s.Table, s.Ports
	}
	rec.Flows = was.Flows
	report := diagnose.Run(rec, diagnose.Rules())
	return report.IDs()
}

func bundle(t *testing.T, members []asked) []byte {
	t.Helper()
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{TakenAt: time.Time{}})
	for _, m := range members {
		err = errors.Join(err, b.Add(m.name, m.data))
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func membersOf(t *testing.T, r io.Reader) (all []asked) {
	t.Helper()
	b, err := snapshot.NewBundleReader(r, snapshot.NewBudget(snapshot.DefaultBudget))
	if err != nil {
		t.Fatal(err)
	}
	for {
		name, data, err := b.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, asked{name, data})
	}
}

func readKept(t *testing.T, scenario string) (members []asked, was made) {
	t.Helper()
	f, err := os.Open(filepath.Join(recordings, scenario+".tar.gz"))
	if err != nil {
		t.Fatalf("%v: record it, as root: ONLY=%s go test ./internal/lab/run -run TestUpdateRecordings -update", err, scenario)
	}
	defer f.Close()
	members = membersOf(t, f)
	last := len(members) - 1
	if err := json.Unmarshal(members[last].data, &was); err != nil || members[last].name != madeName {
		t.Fatalf("%s: %v", members[last].name, err)
	}
	return members[:last], was
}

// TestUpdateRecordings runs scenarios and keeps what doctor read in the stage with the fault.
func TestUpdateRecordings(t *testing.T) { updating(t, updateRecording) }

// updating records with -update, each scenario or those of ONLY.
func updating(t *testing.T, record func(*testing.T, *lab.Scenario)) {
	if !*update {
		return
	}
	testutil.NeedRoot(t)
	testutil.LockHost(t)
	only := os.Getenv("ONLY")
	for _, sc := range lab.Scenarios() {
		if !unrecorded(sc) && (only == "" || slices.Contains(strings.Split(only, ","), sc.Name)) {
			t.Run(sc.Name, func(t *testing.T) { record(t, sc) })
		}
	}
}

func updateRecording(t *testing.T, sc *lab.Scenario) {
	var mutex sync.Mutex
	bundles := map[string]*bytes.Buffer{}
	o := options(t)
	o.Server, o.AllowHost = build.Auto, true
	o.Bundle = func(stage string) io.Writer {
		mutex.Lock()
		defer mutex.Unlock()
		bundles[stage] = &bytes.Buffer{}
		return bundles[stage]
	}
	r, err := Run(t.Context(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range r.Stages {
		if b := bundles[st.Name]; b != nil && (sc.Healthy() || slices.Contains(st.Found, sc.Expect.Finding)) {
			keep(t, sc.Name, b.Bytes())
			return
		}
	}
	t.Errorf("doctor found %s in no stage: %+v", sc.Expect.Finding, r.Findings)
}

// keep writes a bundle without its tables.
func keep(t *testing.T, name string, file []byte) {
	t.Helper()
	rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	report := diagnose.Run(rec, diagnose.Rules())
	is := made{Findings: report.IDs(), Flows: rec.Flows}
	for _, s := range rec.Snapshots {
		is.Snapshots = append(is.Snapshots, madeOfTable{s.Table, s.Ports})
	}
	var members []asked
	for _, m := range membersOf(t, bytes.NewReader(file)) {
		if !strings.Contains(m.name, "/table/") && !strings.HasSuffix(m.name, "/recording.json") {
			members = append(members, asked{m.name, compact(m.name, m.data)})
		}
	}
	text, err := json.Marshal(is)
	if err != nil {
		t.Fatal(err)
	}
	out := bundle(t, append(members, asked{madeName, text}))
	if len(out) > recordingMax {
		t.Fatalf("%s: %d bytes", name, len(out))
	}
	if err := os.WriteFile(filepath.Join(recordings, name+".tar.gz"), out, 0o644); err != nil {
		t.Fatal(err)
	}
}

// needless are the lines of files that natkit reads and that no rule needs.
var needless = map[string]*regexp.Regexp{
	"/proc/slabinfo": regexp.MustCompile(`(?m)^(?:[^nk#s\n]|n[^f]|k[^m]|s[^l])[^\n]*\n`),
}

// compact leaves out of a member what is the machine's own.
func compact(name string, data []byte) []byte {
	switch _, path, _ := strings.Cut(name, "files"); {
	case needless[path] != nil:
		return needless[path].ReplaceAll(data, nil)
	case strings.HasSuffix(path, "/osrelease"):
		return []byte("6.18.0\n")
	case strings.HasSuffix(path, "/boot_id"):
		return []byte("00000000-0000-0000-0000-000000000000\n")
	case strings.HasSuffix(name, "/kmsg.txt"):
		lines := bytes.SplitAfter(data, []byte("\n"))
		return bytes.Join(lines[max(0, len(lines)-20):], nil)
	}
	return data
}
