package internal_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// TestVersionOfAnArchive: what git makes an archive of knows its commit, without git.
func TestVersionOfAnArchive(t *testing.T) {
	archived, err := os.ReadFile("../cmd/natkit/VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(archived), "$Format:") { // these sources are such an archive
		if got := runVersion(t, ".."); got != string(archived) {
			t.Errorf("%q, want %q", got, archived)
		}
		return
	}
	testutil.NeedProgram(t, "git")
	git := func(args ...string) []byte {
		out, err := exec.Command("git", append([]string{"-C", "..", "-c", "safe.directory=*"}, args...)...).Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return out
	}
	dir := t.TempDir()
	unpack(t, dir, git("archive", "HEAD", "cmd/natkit/VERSION", "scripts/version"))
	commit := strings.TrimSpace(string(git("rev-parse", "HEAD")))
	for _, at := range []string{dir, ".."} {
		if got := strings.Fields(runVersion(t, at)); len(got) < 2 || got[len(got)-2] != commit {
			t.Errorf("%s: %q, want commit %s", at, got, commit)
		}
	}
}

func runVersion(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(dir, "scripts/version")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func unpack(t *testing.T, dir string, archive []byte) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		path := filepath.Join(dir, h.Name)
		text, err := io.ReadAll(r)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, h.FileInfo().Mode())); err != nil {
			t.Fatal(err)
		}
	}
}
