package build

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// Whoever calls natkit by the names of a lab's processes gets natkit: without the
// pipes of a lab, and as init without a PID namespace too, nothing is mounted or built.
func TestNameAloneMakesNoInit(t *testing.T) {
	testutil.NeedRoot(t)
	for _, c := range []struct {
		name  string
		flags uintptr
		pipes int
	}{
		{name: initName},
		{name: initName, pipes: 2},
		{name: initName, flags: unix.CLONE_NEWPID},
		{name: holderName},
	} {
		// Its mounts are its own in any case: a failing test must not mount on the host.
		cmd := &exec.Cmd{Path: self, Args: []string{c.name, "-test.run=^$"}, SysProcAttr: &unix.SysProcAttr{Cloneflags: c.flags | unix.CLONE_NEWNS}}
		for range c.pipes {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, r)
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "no tests to run") {
			t.Errorf("%s, clone flags %#x, %d pipes: %v, %q; want what the program does by any name", c.name, c.flags, c.pipes, err, out)
		}
	}
}
