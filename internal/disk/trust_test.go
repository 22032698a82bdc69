//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// What another user put into a sticky directory for all is replaced, whatever it leads
// to; one's own links, and those in other directories, are followed.
func TestDestination(t *testing.T) {
	testutil.NeedRoot(t) // things of another user
	const other = 12345
	sticky, plain := t.TempDir(), t.TempDir()
	if err := os.Chmod(sticky, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(plain, "victim")
	link := func(to string) func(string) error {
		return func(name string) error { return os.Symlink(to, name) }
	}
	pipe := func(name string) error { return syscall.Mkfifo(name, 0o666) }
	for _, c := range []struct {
		name    string
		dir     string
		make    func(name string) error
		owner   int
		want    string // the name itself where empty
		special bool
	}{
		{name: "a link of ours", dir: sticky, make: link(victim), want: victim},
		{name: "a link of another", dir: sticky, make: link(victim), owner: other},
		{name: "a link of another to a device", dir: sticky, make: link(os.DevNull), owner: other},
		{name: "a link of another elsewhere", dir: plain, make: link(victim), owner: other, want: victim},
		{name: "a link to what is not there", dir: plain, make: link("none"), want: filepath.Join(plain, "none")},
		{name: "a pipe of ours", dir: sticky, make: pipe, special: true},
		{name: "a pipe of another", dir: sticky, make: pipe, owner: other},
		{name: "a file", dir: sticky, make: func(name string) error { return os.WriteFile(name, nil, 0o600) }, owner: other},
		{name: "nothing", dir: sticky, make: func(string) error { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(c.dir, "x")
			if err := c.make(name); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(name)
			if c.owner != 0 {
				if err := os.Lchown(name, c.owner, c.owner); err != nil {
					t.Fatal(err)
				}
			}
			if c.want == "" {
				c.want = name
			}
			got, special, err := Destination(name)
			if got != c.want || special != c.special || err != nil {
				t.Errorf("%q, %v, %v; want %q, %v", got, special, err, c.want, c.special)
			}
		})
	}
}

func TestDestinationFollowsChains(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Symlink("b", path("a")), os.Symlink(path("c"), path("b")), os.Symlink("loop", path("loop"))); err != nil {
		t.Fatal(err)
	}
	if got, special, err := Destination(path("a")); got != path("c") || special || err != nil {
		t.Errorf("%q, %v, %v", got, special, err)
	}
	if _, _, err := Destination(path("loop")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	if _, _, err := Destination(dir); err == nil {
		t.Error("a directory is a destination")
	}
	if got, special, err := Destination("/dev/stdout"); !special || err != nil {
		t.Errorf("/dev/stdout: %q, %v, %v", got, special, err)
	}
}

// Of a link's path it counts what the directories on the way really are.
func TestDestinationBehindLinkedDirectories(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.MkdirAll(path("real/sub"), 0o755), os.Symlink("real/sub", path("link")), os.Symlink("../file", path("real/sub/out")))
	if err != nil {
		t.Fatal(err)
	}
	if got, special, err := Destination(path("link/out")); got != path("real/file") || special || err != nil {
		t.Errorf("%q, %v, %v", got, special, err)
	}
	if got, special, err := Destination(path("none/out")); got != path("none/out") || special || err != nil {
		t.Errorf("in no directory: %q, %v, %v", got, special, err)
	}
}

// A shell calls a pipe to a process so: '--csv >(gzip >file)'.
func TestDestinationOfShellPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if got, special, err := Destination(fmt.Sprintf("/dev/fd/%d", w.Fd())); !special || err != nil {
		t.Errorf("%q, %v, %v", got, special, err)
	}
}

// A group's directory is trusted if only root can remove what root put there.
func TestTrustOfAGroupsFolder(t *testing.T) {
	for mode, trusted := range map[os.FileMode]bool{
		0o700:                                 true,
		0o770 | os.ModeSticky:                 true,
		0o770 | os.ModeSticky | os.ModeSetgid: true,
		0o770:                                 false,
		0o777 | os.ModeSticky:                 false,
		0o702 | os.ModeSticky:                 false,
	} {
		dir := filepath.Join(t.TempDir(), "x")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		if err := Trust(dir); (err == nil) != trusted {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

// The lock that another user made in a sticky folder can be locked where the kernel
// refuses to open it with O_CREAT (fs.protected_regular=2).
func TestLockOfAnother(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chown(dir, 0, 12345), os.Chmod(dir, 0o770|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "lock")
	for i := range 2 {
		f, err := OpenLock(path)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil || st.Mode().Perm() != 0o660 {
			t.Errorf("mode %v, %v", st.Mode(), err)
		}
		if _, err := f.WriteString("x"); err != nil {
			t.Errorf("look %d: %v", i, err)
		}
		f.Close()
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(path)
	if err := os.Symlink("none", path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLock(path); err == nil {
		t.Error("a link was followed")
	}
}
