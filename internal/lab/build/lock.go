package build

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/disk"
)

// Lock makes sure that only one lab at a time runs a scenario, since they share
// the host's nf_conntrack_max. dir is Options.Dir ("" for DefaultDir). The lock
// ends with Close or with the process.
func Lock(dir string) (io.Closer, error) {
	dir = dirOr(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lab.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	err = disk.Lock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		holder := make([]byte, 20)
		n, _ := f.ReadAt(holder, 0)
		return nil, fmt.Errorf("another lab is running (pid %s); wait for its end", strings.TrimSpace(string(holder[:n])))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
