package netns

import (
	"fmt"
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

// TestFirstProcessRefused: in the initial namespace it hides nothing that the first process may not be looked at.
func TestFirstProcessRefused(t *testing.T) {
	refused := func(path string) error {
		return fmt.Errorf("search: %w", &fs.PathError{Op: "readlink", Path: path, Err: fs.ErrPermission})
	}
	for _, c := range []struct {
		err  error
		sign string
		want bool
	}{
		{refused("/proc/1/ns/net"), "/proc", true},
		{refused("/proc/1/ns/net"), "/proc/no-such-file", false},
		{refused("/proc/17/ns/net"), "/proc", false},
		{&fs.PathError{Op: "readlink", Path: "/proc/1/ns/net", Err: fs.ErrInvalid}, "/proc", false},
	} {
		if got := ofFirst(c.err, c.sign); got != c.want {
			t.Errorf("%v, %s: %v", c.err, c.sign, got)
		}
	}
}
