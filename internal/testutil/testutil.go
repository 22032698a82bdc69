// Package testutil checks what a test needs from the machine, and skips or fails
// by one rule where it is missing.
package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// noSkip is set by `make test` as root and by CI: there a skip would hide that
// something was not tested.
const noSkip = "NATKIT_NO_SKIP"

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(noSkip) != "" {
		t.Fatalf("%s, and %s is set", what, noSkip)
	}
	t.Skip(what)
}

// Missing skips a test where the machine's setup lacks what it needs; where no
// skip is allowed the test fails.
func Missing(t testing.TB, what string) {
	t.Helper()
	missing(t, what)
}

// Impossible skips a test on a machine that cannot be set up for it, such as one
// with another processor. It does so where other skips fail, as well. What a kernel
// may lack is a Feature.
func Impossible(t testing.TB, why string) {
	t.Helper()
	t.Skip(why)
}

// NeedRoot skips a test that makes namespaces where it may not.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "needs root (network namespaces, netfilter)")
	}
}

// NeedProgram skips a test without a program that it uses as an oracle or peer.
func NeedProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "needs the program "+name)
	}
	return path
}
