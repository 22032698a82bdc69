package cli

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
		"between packets": {captureBytes(t, sourceCase), exitFindings, "1 attempt to connect was rejected by TIME_WAIT"},
		"in a packet":     {captureBytes(t, sourceCase)[:900], exitFindings, "1 attempt to connect was rejected by TIME_WAIT"},
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
