package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	check := func(want string, mode fs.FileMode) {
		t.Helper()
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != want || info.Mode() != mode {
			t.Errorf("%q, %v, %v, %v; want %q of mode %v", got, err, info, statErr, want, mode)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("left beside it: %v, %v", entries, err)
		}
	}
	if err := Replace(path, 0o600, Text("first")); err != nil {
		t.Fatal(err)
	}
	check("first", 0o600)
	if err := Replace(path, 0o644, Text([]byte("second"))); err != nil {
		t.Fatal(err)
	}
	check("second", 0o644)

	cause := errors.New("no space left")
	err := Replace(path, 0o600, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		return cause
	})
	if err != cause {
		t.Errorf("got error %v, want %v itself", err, cause)
	}
	check("second", 0o644)

	if err := Replace(filepath.Join(dir, "none", "b"), 0o600, Text("")); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), ".tmp") {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if err := Replace(dir, 0o600, Text("")); err == nil {
		t.Error("a folder was replaced")
	}
	check("second", 0o644)
}

func TestRemoveLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".natkit-123.tmp", "t0001.json", ".natkit-kept"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	RemoveLeftovers(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".natkit-kept", "t0001.json"}, names); diff != "" {
		t.Error(diff)
	}
	if err := SyncDir(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := Create(path, 0o600, Text("first")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "link"} {
		if err := Create(filepath.Join(dir, name), 0o600, Text("second")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want fs.ErrExist", name, err)
		}
	}
	// Something took the name while the file was written.
	late := filepath.Join(dir, "late")
	err := Create(late, 0o600, func(io.Writer) error { return os.WriteFile(late, []byte("theirs"), 0o600) })
	if got, _ := os.ReadFile(late); !errors.Is(err, fs.ErrExist) || string(got) != "theirs" {
		t.Errorf("%v, %q, want fs.ErrExist and what was there", err, got)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, temporary)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Open replaces a file, writes to a device in place, and refuses a directory.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "capture")
	if err := os.WriteFile(path, []byte("a former, longer one"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("packets")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "packets" {
		t.Errorf("%q, %v", got, err)
	}
	device := filepath.Join(dir, "device")
	if err := os.Symlink(os.DevNull, device); err != nil {
		t.Fatal(err)
	}
	if f, err := Open(device, 0o640); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	if info, err := os.Stat(device); err != nil || info.Mode().IsRegular() {
		t.Errorf("the device became %v, %v", info, err)
	}
	if _, err := Open(dir, 0o640); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
}

// A lock is what natkit made, not what stands in its place: its holder writes to it.
func TestOpenLockRefusesWhatIsPlanted(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "lock")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func() error{
		"link":      func() error { return os.Symlink(victim, path) },
		"hard link": func() error { return os.Link(victim, path) },
		"pipe":      func() error { return unix.Mkfifo(path, 0o600) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if f, err := OpenLock(path); err == nil {
			f.Close()
			t.Errorf("a %s was opened", name)
		}
		os.Remove(path)
	}
	for range 2 { // new, and there
		f, err := OpenLock(path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// Update keeps owner and mode, follows a link, and leaves a file that is not the one that was read.
func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "link.yaml")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.Chmod(path, 0o640), os.Symlink("a.yaml", link)); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 1234, 2345
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		var st unix.Stat_t
		got, err := os.ReadFile(path)
		if err := errors.Join(err, unix.Stat(path, &st)); err != nil || string(got) != want || st.Mode&0o7777 != 0o640 || int(st.Uid) != uid || int(st.Gid) != gid {
			t.Errorf("%q, %+v, %v", got, st, err)
		}
		if to, err := os.Readlink(link); err != nil || to != "a.yaml" {
			t.Errorf("the link: %q, %v", to, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("left beside it: %v, %v", entries, err)
		}
	}
	if err := Update(link, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	check("new")
	if err := Update(path, []byte("old"), []byte("newer")); !errors.Is(err, ErrChangedMeanwhile) {
		t.Error(err)
	}
	check("new")
	if err := Update(filepath.Join(dir, "none"), nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := Update("/dev/null", nil, nil); err == nil {
		t.Error("a device was replaced")
	}
	check("new")
}
