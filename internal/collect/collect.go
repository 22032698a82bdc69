// Package collect reads the kernel into snapshots. Each collector reads through
// a source that is either the running kernel or a bundle written on another
// machine, so that both give the same snapshot.
package collect

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// DefaultMaxEntries is how many entries of the table are read where Options does
// not say: enough to know a rate to a few percent, a quarter of a second to read.
const DefaultMaxEntries = 131072

// Options say what to look at.
type Options struct {
	// Netns is the namespace to look at; nil is the one natkit runs in.
	Netns *netns.Handle
	// Proc and Sys are the roots of procfs and sysfs; empty means /proc and /sys.
	Proc, Sys string
	// Kmsg is the kernel log device; empty means /dev/kmsg.
	Kmsg string
	// MaxEntries bounds how much of the table is read; 0 means DefaultMaxEntries.
	MaxEntries int
}

// RecordOptions say what to look at, and for how long.
type RecordOptions struct {
	Options
	// For is the time between the two snapshots.
	For time.Duration
	// Progress, where set, is told in a few words what is being done.
	Progress func(string)
}

// Read takes one snapshot. What cannot be read is missing in it, and its Parts
// say why; an error means that there is no snapshot at all.
func Read(ctx context.Context, o Options) (*snapshot.Snapshot, error) {
	return nil, errors.New("read: not built yet")
}

// Record takes two snapshots o.For apart and compares their tables. When ctx
// ends during the wait the second one is taken at once.
func Record(ctx context.Context, o RecordOptions) (*snapshot.Recording, error) {
	return nil, errors.New("record: not built yet")
}

// WriteBundle does what Record does and writes all that was read to w, a tar.gz.
func WriteBundle(ctx context.Context, w io.Writer, o RecordOptions) (*snapshot.Recording, error) {
	return nil, errors.New("write bundle: not built yet")
}

// ReadBundle reads what WriteBundle wrote with the collectors that read the
// running kernel.
func ReadBundle(r io.Reader) (*snapshot.Recording, error) {
	return nil, errors.New("read bundle: not built yet")
}
