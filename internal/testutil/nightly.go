package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// nightly is set by `make nightly`, whose setup installs more.
const nightly = "NATKIT_NIGHTLY"

// NeedNightlyProgram skips a test without a program that is too large to be
// installed for `make test`; `make nightly` has it.
func NeedNightlyProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv(nightly) != "":
		t.Fatalf("needs the program %s, and %s is set", name, nightly)
	default:
		t.Skip("needs the program " + name + ", which 'make nightly' installs")
	}
	return path
}
