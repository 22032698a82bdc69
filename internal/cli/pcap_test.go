package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/pcap"
)

//go:generate go test -count=1 -run ^TestPcapDocIsCurrent$ . -args -update-docs

// TestPcapDocIsCurrent compares the table of kinds in docs/pcap.md with the program's;
// `make generate` rewrites it.
func TestPcapDocIsCurrent(t *testing.T) {
	const doc, head = "../../docs/pcap.md", "| kind | meaning | evidence | exit 3 |\n|---|---|---|---|\n"
	have, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(have), head)
	_, after, found := strings.Cut(rest, "\n\n")
	if !found {
		t.Fatalf("%s has no table of kinds", doc)
	}
	table := head
	for _, kind := range pcap.Kinds {
		about, exit := kind.About(), "no"
		if about.What == "" || about.Happened == "" || about.Fault && len(about.Advice) == 0 {
			t.Errorf("%s: what there is to say is incomplete: %+v", kind, about)
		}
		if about.Fault {
			exit = "yes"
		}
		table += "| `" + string(kind) + "` | " + about.What + " | " + about.Evidence + " | " + exit + " |\n"
	}
	want := before + table + "\n" + after
	if *updateDocs {
		if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("docs/pcap.md; `make generate` rewrites it (-file +program):\n%s", diff)
	}
}

// TestPcapJSONHasAdvice: causes and advice of the kinds that were found are in the document.
func TestPcapJSONHasAdvice(t *testing.T) {
	_, stdout, stderr := runPcap(t.Context(), bytes.NewReader(captureBytes(t, sourceCase)), false, "--json", "-")
	var doc struct {
		Kinds []struct {
			pcap.KindCount
			pcap.About
		} `json:"incident_kinds"`
	}
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if len(doc.Kinds) != 1 || doc.Kinds[0].Kind != pcap.SYNRejectedPAWS || doc.Kinds[0].Count != 1 || doc.Kinds[0].Cause == "" || len(doc.Kinds[0].Advice) == 0 {
		t.Errorf("%+v", doc.Kinds)
	}
}

// captureBytes is what write makes.
func captureBytes(t testing.TB, write func(*captureWriter)) []byte {
	t.Helper()
	var file bytes.Buffer
	c := newCaptureWriter(&file)
	write(c)
	if c.err != nil {
		t.Fatal(c.err)
	}
	return file.Bytes()
}

// runPcap runs the verb.
func runPcap(ctx context.Context, stdin io.Reader, terminal bool, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	env := Env{Stdin: stdin, Stdout: &out, Stderr: &errs, StderrTerminal: terminal, Version: "test",
		Getenv: func(name string) string { return map[string]string{"LANG": "C.UTF-8"}[name] }}
	code = Run(ctx, env, append([]string{"pcap"}, args...))
	return code, out.String(), errs.String()
}

// thenInterrupted gives what it has and interrupts once that was taken, as it then
// waits for more.
type thenInterrupted struct {
	give      [][]byte
	interrupt context.CancelFunc
	end       chan struct{}
}

func (r *thenInterrupted) Read(p []byte) (int, error) {
	if len(r.give) > 0 {
		n := copy(p, r.give[0])
		r.give = r.give[1:]
		return n, nil
	}
	r.interrupt()
	<-r.end
	return 0, io.EOF
}

// TestPcapInterrupted: Ctrl-C ends it with what was read.
func TestPcapInterrupted(t *testing.T) {
	for name, tt := range map[string]struct {
		file []byte
		code int
		want string
	}{
		"between packets": {captureBytes(t, sourceCase), exitFindings, "syn-rejected-paws (1): "},
		"in a packet":     {captureBytes(t, sourceCase)[:900], exitFindings, "syn-rejected-paws (1): "},
		"at once":         {nil, exitFailed, "interrupted before the capture had begun"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			// A buffer is filled again when it was read: so the file was, when the third one is.
			stdin := &thenInterrupted{[][]byte{tt.file, nil}, cancel, make(chan struct{})}
			defer close(stdin.end)
			code, stdout, stderr := runPcap(ctx, stdin, false, "-")
			if code != tt.code || !strings.Contains(stdout+stderr, tt.want) {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", code, tt.code, tt.want, stdout, stderr)
			}
			if tt.file == nil {
				return
			}
			if !strings.Contains(stdout, "Interrupted: this is what was read until then.") || strings.Contains(stdout, "Damage") {
				t.Errorf("it does not say that it was interrupted, or calls that damage:\n%s", stdout)
			}
		})
	}
}

// TestPcapProgress: a line on terminals only, which is gone at the end.
func TestPcapProgress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.pcap")
	if err := os.WriteFile(file, captureBytes(t, sourceCase), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, stderr := runPcap(t.Context(), strings.NewReader(""), true, file)
	if !strings.Contains(stderr, "a.pcap: ") || !strings.Contains(stderr, " read (100 %)") || !strings.HasSuffix(stderr, "\r\x1b[K") {
		t.Errorf("stderr of a terminal: %q", stderr)
	}
	if _, _, stderr := runPcap(t.Context(), strings.NewReader(""), false, file); stderr != "" {
		t.Errorf("stderr of a pipe: %q", stderr)
	}
}

// TestPcapOfBrokenFiles: whatever is in a file, the verb ends with one of its exit codes and
// writes nothing that acts on a terminal.
func TestPcapOfBrokenFiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, write := range []func(*captureWriter){sourceCase, sequenceCase, insideCase} {
		whole := captureBytes(t, write)
		for range 50 {
			file := slices.Clone(whole)
			for range 1 + random.IntN(8) {
				file[random.IntN(len(file))] = byte(random.Uint32())
			}
			file = file[:random.IntN(len(file)+1)]
			for _, args := range [][]string{{"--max", "0", "--all", "-"}, {"--list", "-"}} {
				code, stdout, stderr := runPcap(t.Context(), bytes.NewReader(file), false, args...)
				if code != exitOK && code != exitFailed && code != exitUsage && code != exitFindings {
					t.Errorf("%q: exit code %d: %s", file, code, stderr)
				}
				if strings.ContainsAny(stdout+stderr, "\x1b\x07\r\x00\u009b") {
					t.Errorf("%q: control characters in %q", file, stdout+stderr)
				}
			}
		}
	}
}
