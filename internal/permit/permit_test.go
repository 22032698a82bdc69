package permit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadOnly: before the switch everything is permitted, after it only files that the user named for output.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	planted := filepath.Join(dir, "planted")
	if err := os.Symlink("/etc", planted); err != nil {
		t.Fatal(err)
	}
	if !Built {
		if IsReadOnly() || Change("write") != nil || File("/etc/x") != nil || Output("/etc/x") != nil {
			t.Fatal("something is refused without --read-only")
		}
	}
	ReadOnly()
	if err := ChangeOf("write sysctl", "a.b"); !errors.Is(err, ErrReadOnly) || !strings.HasPrefix(err.Error(), "write sysctl a.b: ") {
		t.Errorf("a change: %v", err)
	}
	named := filepath.Join(dir, "out.tar.gz")
	if err := File(named); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a file that was not named: %v", err)
	}
	folder := filepath.Join(dir, "folder")
	for _, output := range []string{named, folder, "/dev/null", "/dev/stdout"} {
		if err := Output(output); err != nil {
			t.Errorf("output %s: %v", output, err)
		}
	}
	for file, permitted := range map[string]bool{
		named: true, filepath.Join(folder, "a", "b"): true, filepath.Join(dir, "other"): false, folder + "2": false, named + "~": false,
		filepath.Join(folder, "..", "other"): false,
	} {
		if err := File(file); (err == nil) != permitted {
			t.Errorf("%s: %v, permitted %v", file, err, permitted)
		}
	}
	for _, output := range []string{"/etc/x", "/etc", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/sys/x", "/dev/sda", "/dev/mem", "/usr/bin/natkit", "/boot/x",
		filepath.Join(planted, "x"), "/var/../etc/x"} {
		if err := Output(output); !errors.Is(err, ErrReadOnly) {
			t.Errorf("output %s: %v", output, err)
		}
		if File(output) == nil {
			t.Errorf("%s may be written", output)
		}
	}
}
