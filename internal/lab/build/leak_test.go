package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
)

// leftovers lists what a lab could leave on the host: processes that name its
// directory or have it mounted (every process of a lab does), the mount itself,
// files, and links in this namespace with the MAC prefix of labs.
func leftovers(dir string) []string {
	var found []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, p := range processes {
		command, _ := os.ReadFile(p + "/cmdline")
		mounts, _ := os.ReadFile(p + "/mountinfo")
		if p != self && (strings.Contains(string(command), dir) || strings.Contains(string(mounts), dir)) {
			found = append(found, fmt.Sprintf("%s %q", p, command))
		}
	}
	if mounts, _ := os.ReadFile(self + "/mountinfo"); strings.Contains(string(mounts), dir) {
		found = append(found, "mount on the host")
	}
	links, _ := filepath.Glob("/sys/class/net/*/address")
	for _, path := range links {
		if text, _ := os.ReadFile(path); strings.HasPrefix(string(text), "02:4e:4b:00") {
			found = append(found, "link "+path)
		}
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lab.lock" {
			found = append(found, "file "+path)
		}
		return nil
	})
	return found
}

// namespaces counts the network namespaces that this process holds open.
func namespaces(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(target, "net:") {
			n++
		}
	}
	return n
}

func awaitNothingLeft(t *testing.T, dir string) {
	t.Helper()
	eventually(t, func() error {
		if left := leftovers(dir); len(left) > 0 {
			return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		return nil
	})
}

// eventually waits for a condition, but not for ever.
func eventually(t *testing.T, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(testutil.Patience(time.Minute))
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
