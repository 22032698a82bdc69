//go:build linux

package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
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

// acl gives a user other rights than owner, group and all others have (include/uapi/linux/posix_acl_xattr.h). The mask
// is what the mode shows as the group's rights.
func acl(uid uint32, user, group, mask uint16) []byte {
	text := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, rights uint16
		id          uint32
	}{{0x01, 6, math.MaxUint32}, {0x02, user, uid}, {0x04, group, math.MaxUint32}, {0x10, mask, math.MaxUint32}, {0x20, 0, math.MaxUint32}} {
		text = binary.LittleEndian.AppendUint16(text, e.tag)
		text = binary.LittleEndian.AppendUint16(text, e.rights)
		text = binary.LittleEndian.AppendUint32(text, e.id)
	}
	return text
}

// Update keeps ACL, extended attributes, and the bits of the mode that are no permissions; an ACL that the directory gives
// new files is not added.
func TestUpdateKeepsAttributes(t *testing.T) {
	dir := t.TempDir()
	const named, inherited = "system.posix_acl_access", "system.posix_acl_default"
	path, plain := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	own := acl(1234, 4, 0, 4)
	// setuid, setgid and sticky, and the mask for the group
	const bits, mode = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX, 0o7640
	err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.WriteFile(plain, []byte("old"), 0o640))
	if err == nil {
		err = errors.Join(unix.Setxattr(path, named, own, 0), unix.Setxattr(path, "user.note", []byte("ours"), 0), unix.Setxattr(dir, inherited, acl(4321, 6, 6, 6), 0))
	}
	if errors.Is(err, unix.ENOTSUP) {
		testutil.Impossible(t, fmt.Sprint("the filesystem has no ACLs or attributes: ", err))
	}
	if err = errors.Join(err, unix.Chmod(path, mode), unix.Chmod(plain, 0o640)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Update(path, []byte("old"), []byte("new")), Update(plain, []byte("old"), []byte("new"))); err != nil {
		t.Fatal(err)
	}
	a, errA := openForUpdate(path)
	b, errB := openForUpdate(plain)
	var st unix.Stat_t
	if err := errors.Join(errA, errB, unix.Stat(path, &st)); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if !bytes.Equal(a.extended[named], own) || string(a.extended["user.note"]) != "ours" || st.Mode&0o7777 != mode || mode&bits != bits {
		t.Errorf("%q, mode %o", a.extended, st.Mode)
	}
	if acl, is := b.extended[named]; is || b.mode != 0o640 {
		t.Errorf("an ACL that the file did not have: %x, mode %v", acl, b.mode)
	}
}

// A file that has other names is not separated from them.
func TestUpdateRefusesHardLinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.Link(path, filepath.Join(dir, "b.yaml"))); err != nil {
		t.Fatal(err)
	}
	err := Update(path, []byte("old"), []byte("new"))
	if may := MayUpdate(path); may == nil || err == nil || may.Error() != err.Error() {
		t.Errorf("%v beforehand, then %v", may, err)
	}
	if got, e := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), "2 names (hard links)") || e != nil || string(got) != "old" {
		t.Errorf("%v; %q, %v", err, got, e)
	}
}

// A file that is a mount of its own cannot be replaced, and stays as it is.
func TestUpdateOfMount(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	from, path := filepath.Join(dir, "from"), filepath.Join(dir, "a.yaml")
	if err := errors.Join(os.WriteFile(from, []byte("old"), 0o600), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	switch err := unix.Mount(from, path, "", unix.MS_BIND, ""); {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		testutil.Impossible(t, fmt.Sprint("mounts are refused here: ", err))
	case err != nil:
		t.Fatal(err)
	}
	defer unix.Unmount(path, 0)
	err := Update(path, []byte("old"), []byte("new"))
	if got, e := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), "it is a mount of its own") || e != nil || string(got) != "old" {
		t.Errorf("%v; %q, %v", err, got, e)
	}
}

// Who may not give a file to its owner leaves it as it is.
func TestUpdateAsAnother(t *testing.T) {
	testutil.NeedRoot(t)
	dir, err := os.MkdirTemp("", "natkit-test-") // which others may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "a.yaml")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), os.Chmod(path, 0o666), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its user
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1234, 1234, 1234); errno != 0 {
			done <- errno
			return
		}
		done <- Update(path, []byte("old"), []byte("new"))
	}()
	err = <-done
	if got, e := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), "its owner and group, 0:0, cannot be kept: operation not permitted") || e != nil || string(got) != "old" {
		t.Errorf("%v; %q, %v", err, got, e)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left beside it: %v, %v", entries, err)
	}
}

// ReadPlain opens nothing that may wait or act.
func TestReadPlain(t *testing.T) {
	dir := t.TempDir()
	path, pipe, socket := filepath.Join(dir, "a"), filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err = errors.Join(err, os.WriteFile(path, []byte("text"), 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, name := range []string{pipe, socket, dir, "/dev/zero", "/proc/self/status", filepath.Join(dir, "none")} {
		if text, err := ReadPlain(name, 10); err == nil || !strings.HasPrefix(err.Error(), "read "+name+": ") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if text, err := ReadPlain(path, 2); err != nil || string(text) != "tex" {
		t.Errorf("%q, %v", text, err)
	}
}

// Of several changes of one text at the same time one is made, and the others say that it was.
func TestUpdateAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	const changes = 20
	done := make(chan error, changes)
	for i := range changes {
		go func() { done <- Update(path, []byte("old"), fmt.Append(nil, i)) }()
	}
	made := 0
	for range changes {
		if err := <-done; err == nil {
			made++
		} else if !errors.Is(err, ErrChangedMeanwhile) {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d were made", made)
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

// TestPlain: a directory of regular files has links to such, refuses anything else without opening it, and does not wait for the
// writer of a pipe that took the place of a file after it was found to be one.
func TestPlain(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(in("file"), []byte("text"), 0o600), os.Symlink(in("file"), in("link")), os.Mkdir(in("dir"), 0o700),
		unix.Mkfifo(in("pipe"), 0o600), os.Symlink(in("pipe"), in("to-pipe"))); err != nil {
		t.Fatal(err)
	}
	fsys := Plain(dir)
	for _, name := range []string{"file", "link"} {
		if text, err := fs.ReadFile(fsys, name); err != nil || string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if all, err := fs.ReadDir(fsys, "."); err != nil || len(all) != 5 {
		t.Errorf("%v, %v", all, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"pipe", "to-pipe"} {
		_, err := fsys.Open(name)
		_, errLater := Plain(dir).(regularFiles).open(name)
		_, errIn := OpenIn(root, "pipe")
		for _, err := range []error{err, errLater, errIn} {
			if !errors.Is(err, errNotRegular) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, name := range []string{"../file", "/etc/passwd", "none"} {
		if _, err := fsys.Open(name); err == nil {
			t.Errorf("%s is opened", name)
		}
	}
}

// TestPlainSwapped: while a pipe and a file take each other's place no open waits, and one that is let through is of the file.
func TestPlainSwapped(t *testing.T) {
	dir := t.TempDir()
	file, pipe, name := filepath.Join(dir, "file"), filepath.Join(dir, "pipe"), filepath.Join(dir, "name")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), unix.Mkfifo(pipe, 0o600), os.Link(file, name)); err != nil {
		t.Fatal(err)
	}
	const rounds = 3000
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range rounds {
			from := []string{pipe, file}[i%2]
			err = errors.Join(err, os.Link(from, name+".new"), os.Rename(name+".new", name))
		}
		done <- err
	}()
	for range rounds {
		if f, err := Plain(dir).Open("name"); err == nil {
			if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%v, %v", info, err)
			}
			f.Close()
		} else if !errors.Is(err, errNotRegular) {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
