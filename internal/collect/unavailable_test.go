//go:build linux

package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestUnavailable: what cannot be read here at all is told from what failed this time, live and as a bundle has it.
func TestUnavailable(t *testing.T) {
	for _, tt := range []struct {
		part string
		err  error
		want bool
	}{
		{snapshot.PartKernelLog, explainKmsg("/dev/kmsg", syscall.ENOENT), true},
		{snapshot.PartKernelLog, explainKmsg("/dev/kmsg", syscall.EPERM), true},
		{snapshot.PartKernelLog, explainKmsg("/dev/kmsg", syscall.EIO), false},
		{snapshot.PartTable, fmt.Errorf("conntrack table: %w", syscall.EPERM), true},
		{snapshot.PartTable, fmt.Errorf("conntrack table: %w", syscall.ENOBUFS), false},
		{"ipvs", fs.ErrNotExist, false},
		{"ipvs", context.DeadlineExceeded, false},
	} {
		if got := unavailable(tt.part, tt.err); got != tt.want {
			t.Errorf("%s: %v: %v", tt.part, tt.err, got)
		}
		if got := unavailable(tt.part, newFailure(tt.err)); errors.As(tt.err, new(syscall.Errno)) && got != tt.want {
			t.Errorf("%s: %v in a bundle: %v", tt.part, tt.err, got)
		}
	}
}
