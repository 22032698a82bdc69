package netns

import (
	"io/fs"
	"strings"
	"testing"
)

// TestOfHostRefused: where the first process may not be looked at, the initial namespace is known by another
// sign, and of others it is not known.
func TestOfHostRefused(t *testing.T) {
	if is, err := ofHost(fs.ErrPermission, "/proc"); !is || err != nil {
		t.Errorf("the initial one: %v, %v", is, err)
	}
	if is, err := ofHost(fs.ErrPermission, "/proc/no-such-file"); is || err == nil || !strings.Contains(err.Error(), "CAP_SYS_PTRACE") {
		t.Errorf("another one: %v, %v", is, err)
	}
}
