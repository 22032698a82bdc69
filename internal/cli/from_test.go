package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/testutil"
)

// cutBefore is a bundle of the lab that ends with the last byte before a member whose name ends so.
func cutBefore(t *testing.T, member string) []byte {
	t.Helper()
	file, err := os.Open("../lab/run/testdata/recordings/dnat-filtered.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	from, to := tar.NewReader(unpacked), tar.NewWriter(gz)
	for {
		h, err := from.Next()
		if err != nil {
			t.Fatalf("no %s: %v", member, err)
		}
		if strings.HasSuffix(h.Name, member) {
			break
		}
		if err := to.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(to, from); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(to.Flush(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestDoctorFromCutBundle: of a bundle that ends within its first snapshot what is there is judged, and the report says at
// its top what is lost; where nothing is left that is an error.
func TestDoctorFromCutBundle(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cut.tar.gz")
	for member, want := range map[string]int{"/counters.bin": 4, "/head.json": 4, "/files/proc/meminfo": 4, "natkit-bundle.json": 2} {
		if err := os.WriteFile(name, cutBefore(t, member), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		code := runNatkit(t.Context(), &out, &errs, "doctor", "--json", "--from", name)
		if code != want && code != 3 || code == 3 && want != 4 {
			t.Errorf("before %s: exit code %d, want %d: %s", member, code, want, errs.String())
		}
		if want != 4 {
			continue
		}
		var r diagnose.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Lost) != 1 || !strings.Contains(r.Lost[0], "truncated behind 0/") || r.Kernel == "" || len(r.Defects) > 0 {
			t.Errorf("before %s: lost %q, kernel %q, defects %q", member, r.Lost, r.Kernel, r.Defects)
		}
	}
}

// TestDirectoryPassesKernelOver: a file system that the kernel makes, below a directory, is not read, and is named.
func TestDirectoryPassesKernelOver(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	for _, sub := range []string{"a", "z"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "z", "limits"), []byte("net.netfilter.nf_conntrack_max = 65536\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", filepath.Join(dir, "a"), "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(dir, "a"), unix.MNT_DETACH)
	var names, notes []string
	err := directory(t.Context(), dir)(func(f *loose.File) error {
		names = append(names, f.Name)
		if _, err := io.Copy(io.Discard, f.Reader); err != nil {
			notes = append(notes, err.Error())
		}
		return nil
	})
	if err != nil || strings.Join(names, " ") != "a z/limits" || len(notes) != 1 || !strings.Contains(notes[0], "procfs") {
		t.Errorf("files %.200q, notes %q, error %v", names, notes, err)
	}
}
