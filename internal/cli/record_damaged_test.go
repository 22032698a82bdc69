//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/testutil"
)

// TestDamagedRecording: who reads a recording of which a part is damaged is told so, and doctor does not call the host healthy.
func TestDamagedRecording(t *testing.T) {
	testutil.NeedRoot(t)
	dir, when := recordingOf(t)
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, notes bytes.Buffer
		code = Run(t.Context(), *testEnv(&out, &notes), append(args, "--from", dir))
		return code, out.String(), notes.String()
	}
	lost := func(stdout string) []string {
		t.Helper()
		var doc struct{ Lost []string }
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
			t.Fatalf("%v: %s", err, stdout)
		}
		return doc.Lost
	}
	if _, stdout, _ := run("doctor", "--json"); len(lost(stdout)) > 0 {
		t.Fatalf("of a whole recording is lost: %q", lost(stdout))
	}
	segment := filepath.Join(dir, "00000001.natring")
	data, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(data, '\n') + 1
	if err := os.WriteFile(segment, slices.Insert(data, first, []byte("something else")...), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "the recording is damaged: 00000001.natring: 14 bytes at byte "
	for _, args := range [][]string{{"doctor", "--json"}, {"doctor", "--json", "--at", when}} {
		code, stdout, stderr := run(args...)
		if all := lost(stdout); len(all) != 1 || !strings.HasPrefix(all[0], want) || code != exitIncomplete && code != exitFindings {
			t.Errorf("%q: exit code %d, lost %q: %s", args, code, all, stderr)
		}
	}
	if code, stdout, _ := run("doctor"); !strings.Contains(stdout, "INCOMPLETE: the report is about what could be read: the recording is damaged: 00000001.natring") ||
		code != exitIncomplete && code != exitFindings {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	code, stdout, stderr := run("top", "--once", "--json")
	if all := lost(stdout); code != exitOK || len(all) != 1 || !strings.HasPrefix(all[0], want) || !strings.Contains(stderr, "natkit: "+want) {
		t.Errorf("exit code %d, lost %q: %s", code, all, stderr)
	}
	var out, notes bytes.Buffer
	if code := Run(t.Context(), *testEnv(&out, &notes), []string{"record", "show", dir}); code != exitOK || !strings.Contains(out.String(), "00000001.natring: 14 bytes at byte ") {
		t.Errorf("record show: exit code %d: %s%s", code, &out, &notes)
	}
	file := filepath.Join(t.TempDir(), "at")
	for _, args := range [][]string{{"--at", when, "-o", file}, {"--at", when, "--packets", "-o", file}, {"-o", "parquet", "--to", file + ".tables"}} {
		notes.Reset()
		if code := Run(t.Context(), *testEnv(&out, &notes), append([]string{"record", "export", dir}, args...)); code != exitOK || !strings.Contains(notes.String(), "natkit: "+want) {
			t.Errorf("record export %q: exit code %d: %s", args, code, &notes)
		}
	}
}

// folder is a ring.Store.
type folder struct{ dir string }

func (f folder) Sizes() (map[string]int64, error)      { return nil, nil }
func (f folder) Create(name string) (ring.File, error) { return os.Create(filepath.Join(f.dir, name)) }
func (f folder) Remove(name string) error              { return os.Remove(filepath.Join(f.dir, name)) }

// TestMomentSetBack: a time of the day is the last one in a recording, also where its clock was set back at the end.
func TestMomentSetBack(t *testing.T) {
	dir, start := t.TempDir(), time.Date(2026, 3, 2, 12, 0, 0, 0, time.Local)
	w, err := ring.NewWriter(folder{dir}, ring.Options{Most: ring.LeastBytes, Header: ring.Header{Run: "one", EverySeconds: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		at := ring.Stamp{Wall: start.Add(time.Duration(i) * 5 * time.Second), Uptime: time.Duration(i) * 5 * time.Second}
		if i >= 7 {
			at.Wall = at.Wall.AddDate(-50, 0, 0)
		}
		if err := w.Snapshot(at, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := openRing(dir)
	if err != nil {
		t.Fatal(err)
	}
	at, err := parseMoment("12:00:20")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := momentIn(r, dir, at); err != nil || !got.Equal(start.Add(20*time.Second)) {
		t.Errorf("%s: %v", got, err)
	}
}
