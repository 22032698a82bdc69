package testutil

import (
	"testing"

	"github.com/natkit/natkit/internal/netns"
)

// Namespace is a network namespace of the test's own, which ends with it. Needs root.
func Namespace(t testing.TB) *netns.Handle {
	t.Helper()
	NeedRoot(t)
	ns, err := netns.New(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}
