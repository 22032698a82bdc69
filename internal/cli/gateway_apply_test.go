package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Where another network namespace has a gateway, the command that undoes it is named: also
// of one that only a descriptor holds, which no flag can choose.
func TestGatewayUndoNamesOtherNamespaces(t *testing.T) {
	testutil.NeedRoot(t)
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte("gateway:\n  interfaces: {wan: lo}\n  nat:\n    - masquerade: {from: 10.0.0.0/24}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	natkit := func(args ...string) (int, string) {
		var stdout, stderr bytes.Buffer
		env := testEnv(&stdout, &stderr)
		env.Getenv = func(name string) string {
			if name == journal.StateDirEnv {
				return state
			}
			return ""
		}
		return Run(t.Context(), *env, args), stderr.String()
	}
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	process := exec.Command("sleep", "infinity")
	if err := other.Do(process.Start); err != nil {
		t.Fatal(err)
	}
	end := func() {
		process.Process.Kill()
		process.Wait()
	}
	defer end()
	here, err := netns.New("here")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	inside := exec.Command("sleep", "infinity")
	if err := here.Do(inside.Start); err != nil {
		t.Fatal(err)
	}
	defer inside.Wait()
	defer inside.Process.Kill()

	if code, errs := natkit("gateway", "apply", file, "--yes", "--pid", fmt.Sprint(process.Process.Pid)); code != exitOK {
		t.Fatalf("apply: %d, %s", code, errs)
	}
	const want = "'natkit tune undo t0001'"
	for range 2 {
		if code, errs := natkit("gateway", "undo", "--pid", fmt.Sprint(inside.Process.Pid)); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%d, %s; want %s", code, errs, want)
		}
		end()
	}
	if code, errs := natkit("tune", "undo", "t0001"); code != exitOK {
		t.Errorf("%d, %s", code, errs)
	}

	// What removes rules that the journal does not know is said for where they are.
	pid := fmt.Sprint(inside.Process.Pid)
	if code, errs := natkit("gateway", "apply", file, "--yes", "--pid", pid); code != exitOK {
		t.Fatalf("apply: %d, %s", code, errs)
	}
	if err := os.RemoveAll(filepath.Join(state, "journal")); err != nil {
		t.Fatal(err)
	}
	removal := "'nsenter -t " + pid + " -n nft delete table inet natkit'"
	if code, errs := natkit("gateway", "undo", "--pid", pid); code != exitFailed || !strings.Contains(errs, removal) {
		t.Errorf("%d, %s; want %s", code, errs, removal)
	}
}
