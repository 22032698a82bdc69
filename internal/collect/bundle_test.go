package collect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// smallBundle needs no privilege: nothing can be read from its roots.
func smallBundle(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	var file bytes.Buffer
	if _, err := WriteBundle(t.Context(), &file, RecordOptions{Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"}}); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestTruncatedBundleIsAnError(t *testing.T) {
	whole := smallBundle(t)
	if _, err := ReadBundle(bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if rec, err := ReadBundle(bytes.NewReader(whole[:n])); err == nil || rec != nil {
			t.Fatalf("%d of %d bytes were accepted", n, len(whole))
		} else if !strings.Contains(err.Error(), "truncated") {
			t.Fatalf("%d of %d bytes: %v does not say truncated", n, len(whole), err)
		}
	}
}

func TestDamagedBundleIsAnError(t *testing.T) {
	whole := smallBundle(t)
	want, err := ReadBundle(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for at := 10; at < len(whole); at += 7 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x55
		got, err := ReadBundle(bytes.NewReader(damaged))
		if err != nil {
			refused++
		} else if d := cmp.Diff(want, got); d != "" {
			// Some bits of a deflate stream mean nothing; then nothing may change.
			t.Errorf("with byte %d changed it reads as another recording:\n%s", at, d)
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// archive makes a tar.gz of members.
func archive(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var file bytes.Buffer
	gz := gzip.NewWriter(&file)
	tw := tar.NewWriter(gz)
	for _, h := range members {
		// The text of a member travels in its Uname.
		text := h.Uname
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Size == 0 && h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, text); err != nil {
			t.Fatal(err)
		}
	}
	gz.Close()
	return file.Bytes()
}

func TestHostileBundles(t *testing.T) {
	first := tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`}
	head := tar.Header{Name: "0/head.json", Uname: "{}"}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "truncated"},
		{"no gzip", []byte("this is no bundle at all"), "not written by natkit"},
		{"gzip of something", archive(t, tar.Header{Name: "etc/passwd", Uname: "root"}), "not written by natkit"},
		{"another version", archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/9"}`}), "natkit.bundle/9"},
		{"a link", archive(t, first, tar.Header{Name: "0/files/proc/meminfo", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}), "not a plain file"},
		{"a huge member", archive(t, first, tar.Header{Name: "0/files/x", Size: 1 << 40}), "more than"},
		{"another folder", archive(t, first, tar.Header{Name: "../../etc/x", Uname: "x"}), "was due"},
		{"head that is no JSON", archive(t, first, tar.Header{Name: "0/head.json", Uname: "{"}), "head.json"},
		{"table without end", archive(t, first, head, tar.Header{Name: "0/table/000000", Uname: "\x00\x00\x00\x00"}), "truncated"},
		{"something in the table", archive(t, first, head, tar.Header{Name: "0/other", Uname: "x"}), "in a table"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			rec, err := ReadBundle(bytes.NewReader(c.file))
			if err == nil || rec != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ReadBundle = %v, %v; want an error that says %q", rec, err, c.want)
			}
		})
	}
}

func TestBundleOfManyFilesIsBounded(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		b, err := snapshot.NewBundleWriter(pw, time.Time{})
		data := make([]byte, snapshot.MemberMax)
		for err == nil {
			err = b.Add("0/files/x", data)
		}
		pw.CloseWithError(err)
	}()
	_, err := ReadBundle(pr)
	pr.Close()
	if err == nil || !strings.Contains(err.Error(), "before 0/head.json") {
		t.Errorf("ReadBundle = %v", err)
	}
}

func TestBundleKeepsWhyNothingCouldBeRead(t *testing.T) {
	rec, err := ReadBundle(bytes.NewReader(smallBundle(t)))
	if err != nil {
		t.Fatal(err)
	}
	if why := rec.Last().PartError("memory"); !strings.Contains(why, "/proc/meminfo: no such file or directory") {
		t.Errorf("memory: %q", why)
	}
}

// brokenWriter fails after some bytes, as a full disk does.
type brokenWriter struct{ left int }

var errDiskFull = errors.New("no space left on device")

func (b *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errDiskFull
	}
	b.left -= len(p)
	return len(p), nil
}

func TestWriteBundleToAFullDisk(t *testing.T) {
	// Bundles differ in their times, and by that a little in length.
	size := len(smallBundle(t))
	dir := t.TempDir()
	for left := 0; left < size*9/10; left += 100 {
		_, err := WriteBundle(t.Context(), &brokenWriter{left}, RecordOptions{Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"}})
		if !errors.Is(err, errDiskFull) {
			t.Fatalf("after %d bytes of %d: %v", left, size, err)
		}
	}
}

func FuzzReadBundle(f *testing.F) {
	f.Add(smallBundle(f))
	f.Add(archive(f, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`}, tar.Header{Name: "0/head.json", Uname: "{}"}))
	f.Add(archive(f, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`},
		tar.Header{Name: "0/head.json", Uname: "{}"}, tar.Header{Name: "0/tail.json", Uname: "{}"},
		tar.Header{Name: "1/trace.json", Uname: `{"drops":{"seconds":1,"sites":[{"function":"f","packets":1}]},"parts":[{"name":"drops"}]}`},
		tar.Header{Name: "1/head.json", Uname: "{}"}, tar.Header{Name: "1/tail.json", Uname: "{}"}))
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testutil.Bounded(t, len(file))()
		if rec, err := ReadBundle(bytes.NewReader(file)); err == nil && len(rec.Snapshots) != 2 {
			t.Errorf("a recording of %d snapshots", len(rec.Snapshots))
		}
	})
}
