// Package permit decides whether this natkit may change the host. Whatever writes to the kernel or the disk asks it
// first, so that a verb that was forgotten changes nothing either.
//
// Reading the kernel, eBPF programs that only observe, and files that the user names for output are not changes.
package permit

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Built is true in a natkit of the build tag readonly, which has no way to change anything. It is a constant, so
// that the compiler leaves out what follows a refusal.
const Built = built

var (
	switched atomic.Bool
	mutex    sync.Mutex
	outputs  []string
)

// ReadOnly refuses every change from now on, until the process ends.
func ReadOnly() { switched.Store(true) }

// IsReadOnly reports whether changes are refused.
func IsReadOnly() bool { return Built || switched.Load() }

// ErrReadOnly is the cause of every refusal.
var ErrReadOnly error = cause{}

type cause struct{}

func (cause) Error() string {
	if Built {
		return "this natkit is built read-only and cannot change the host; use one that was built without the tag readonly"
	}
	return "natkit is read-only; to allow changes, run it without --read-only and NATKIT_READ_ONLY"
}

// refusal is ErrReadOnly with the operation.
type refusal struct{ operation string }

func (r *refusal) Error() string { return r.operation + ": " + ErrReadOnly.Error() }
func (r *refusal) Unwrap() error { return ErrReadOnly }

// Change returns an error where natkit is read-only. operation is what would be done, and to what.
func Change(operation string) error {
	if !IsReadOnly() {
		return nil
	}
	return &refusal{operation}
}

// ChangeOf is Change with the name of what would be changed.
func ChangeOf(operation, object string) error {
	if !IsReadOnly() {
		return nil
	}
	return &refusal{operation + " " + object}
}

// Output allows a file that the user named for output, and what is below it where it is a folder. Files of the system
// are refused: an output in /proc/sys or /etc is a change of the host.
func Output(path string) error {
	if !IsReadOnly() {
		return nil
	}
	place, err := placeOf(path)
	if err != nil {
		return err
	}
	if isSystem(place) {
		return fmt.Errorf("it is a file of the system: %w", ErrReadOnly)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if !slices.Contains(outputs, place) {
		outputs = append(outputs, place)
	}
	return nil
}

// File is Change for a file: one that Output allowed may be written.
func File(path string) error {
	if !IsReadOnly() {
		return nil
	}
	place, err := placeOf(path)
	if err != nil {
		return err
	}
	mutex.Lock()
	defer mutex.Unlock()
	if slices.ContainsFunc(outputs, func(output string) bool { return within(place, output) }) && !isSystem(place) {
		return nil
	}
	return &refusal{"write " + path}
}

// placeOf returns where a file is or would be, without links: of what is not there the nearest folder that is counts.
func placeOf(path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for dir := absolute; ; dir = filepath.Dir(dir) {
		if found, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(found, rest), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no folder above it can be read")
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// system are folders that belong to the host, not to whom natkit writes a report for.
var system = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"}

// streams are those below /dev and /proc that lead to a terminal, to a pipe or nowhere.
var streams = []string{"/dev/fd", "/dev/full", "/dev/null", "/dev/pts", "/dev/stderr", "/dev/stdout", "/dev/tty"}

func isSystem(place string) bool {
	in := func(dir string) bool { return within(place, dir) }
	return slices.ContainsFunc(system, in) && !slices.ContainsFunc(streams, in) && !isDescriptor(place)
}

// isDescriptor reports whether a place is an open file of a process, as /dev/stdout is where it is a pipe.
func isDescriptor(place string) bool {
	m, _ := filepath.Match("/proc/*/fd/*", place)
	return m
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}
