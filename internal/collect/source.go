package collect

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/snapshot"
)

// source is all that collectors know of the world. The kernel answers it (live),
// or a bundle (tape); a recorder stands in front of the kernel and writes down
// what it answered.
type source interface {
	// inside runs fn where the files are those of the namespace looked at.
	inside(fn func() error) error
	// readFile reads a file below /proc or /sys; call it inside.
	readFile(path string) ([]byte, error)
	// readStart reads at most max bytes of such a file, for at most that long; whole is
	// whether that was all.
	readStart(path string, max int, patience time.Duration) (data []byte, whole bool, err error)
	// list names the entries of a directory that begin with prefix; call it inside.
	list(dir, prefix string) ([]string, error)
	// counters and table pass on the kernel's netlink messages, a datagram at a
	// time. When fn returns dump.ErrStop they end without an error. No other question
	// may be asked after table, except clock.
	counters(ctx context.Context, fn func(msgs []byte) error) error
	table(ctx context.Context, fn func(msgs []byte) error) (dump.Result, error)
	// kernelLog passes on the records of the kernel's log, oldest first, and
	// returns the number that the next record will have. fn reports whether the
	// record is of interest; others are not written into bundles.
	kernelLog(fn func(record []byte) bool) (next uint64, err error)
	// natRules are the rules that translate addresses.
	natRules() (*snapshot.NATRules, error)
	// ipvsTimeouts are those of the kernel's load balancer; call it inside.
	ipvsTimeouts() (*snapshot.IPVSTimeouts, error)
	// structSize is the size of a kernel structure by BTF.
	structSize(name string) (int, error)
	machine() (machine, error)
	// traced passes on what was recorded before this snapshot, nil where nothing
	// was; a bundle knows it by itself. It comes before all other questions.
	traced(now *snapshot.Trace) (*snapshot.Trace, error)
	// clock tells the time; label names the reading within a snapshot.
	clock(label string) instant
}

// machine is what is not in a file.
type machine struct {
	// Arch is uname -m.
	Arch      string         `json:"arch"`
	PageBytes int            `json:"page_bytes"`
	Netns     snapshot.Netns `json:"netns"`
}

// pointerBytes is the size of a kernel pointer.
func (m machine) pointerBytes() uint64 {
	switch m.Arch {
	case "i386", "i486", "i586", "i686", "armv5tel", "armv6l", "armv7l", "armv8l", "mips", "ppc", "riscv32", "s390":
		return 4
	default:
		return 8
	}
}

// instant is one moment on two clocks.
type instant struct {
	Wall time.Time `json:"wall"`
	// Uptime is CLOCK_MONOTONIC in seconds.
	Uptime float64 `json:"uptime_seconds"`
}

// failure is an error in a form that a bundle keeps: the text, and the errno
// that decides what a collector tries next.
type failure struct {
	Text  string        `json:"error"`
	Errno syscall.Errno `json:"errno,omitempty"`
}

func (f *failure) Error() string { return f.Text }

// Unwrap makes errors.Is(f, fs.ErrNotExist) and the like hold as for the original.
func (f *failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error()}
	errors.As(err, &f.Errno)
	return f
}

// errNotRecorded is why a newer natkit misses something in an older bundle.
type errNotRecorded struct{ what string }

func (e errNotRecorded) Error() string {
	return fmt.Sprintf("read %s: not in the bundle: the natkit that wrote it did not read it", e.what)
}
