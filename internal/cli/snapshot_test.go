package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that another verb reads is not a damaged bundle: the verb is named.
func TestOtherInputs(t *testing.T) {
	file := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	compressed := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write([]byte(text))
		z.Close()
		return b.String()
	}
	const pcapHeader = "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x01\x00\x00\x00"
	for name, tc := range map[string]struct{ text, verb string }{
		"capture":             {pcapHeader, "pcap"},
		"compressed capture":  {compressed(pcapHeader), "pcap"},
		"pcapng":              {"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a", "pcap"},
		"conntrack -L -o xml": {"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<conntrack>\n<flow>", ""}, // which no verb reads,
		"gateway":             {file("../../examples/office.yaml"), "gateway check"},
		"scenario":            {file("../lab/scenarios/ct-flood.yaml"), "lab run"},
		"simulation":          {file("../simulate/presets/mixed.yaml"), "simulate"},
		"something else":      {"hello\n", ""},
		"nothing":             {"", ""},
		"a damaged bundle":    {compressed("0/head.json"), ""},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, said bytes.Buffer
		code := Run(t.Context(), Env{Stdout: &out, Stderr: &said, Getenv: func(string) string { return "" }}, []string{"doctor", "--from", path})
		want := "natkit " + tc.verb + " " + path
		if named := strings.Contains(said.String(), want); code == exitOK || out.Len() > 0 || tc.verb != "" && !named || tc.verb == "" && strings.Contains(said.String(), "reads it") {
			t.Errorf("%s: exit code %d, %s", name, code, said.String())
		}
	}
}

// An interrupted snapshot says so, and so does doctor of its file.
func TestSnapshotInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "cut.tar.gz")
	run := func(ctx context.Context, want int, args ...string) (string, string) {
		var out, said bytes.Buffer
		if code := Run(ctx, *testEnv(&out, &said), args); code != want {
			t.Errorf("natkit %s: exit code %d, want %d: %s", args, code, want, said.String())
		}
		return out.String(), said.String()
	}
	if _, said := run(ctx, exitInterrupted, "snapshot", "--for", "1h", "--output", file); !strings.Contains(said, "INCOMPLETE: interrupted after ") {
		t.Error(said)
	}
	out, _ := run(t.Context(), exitIncomplete, "doctor", "--from", file)
	if !strings.HasPrefix(out, "INCOMPLETE: interrupted after ") || !strings.Contains(out, " s only") {
		t.Error(out)
	}
	document, _ := run(ctx, exitInterrupted, "snapshot", "--for", "1h", "--json")
	if !strings.Contains(document, `"cut_short_of_seconds": 3600`) {
		t.Error("the document does not say that it is cut short")
	}
}
