//go:build !linux

// Package netns has no network namespaces here: only Linux has them.
package netns

import "errors"

// ErrNotLinux is the error of what only Linux can do.
var ErrNotLinux = errors.New("requires Linux")

// Handle is nil here: there are no others than the one that natkit runs in.
type Handle struct{}

// Named returns an error.
func Named(string) (*Handle, error) { return nil, ErrNotLinux }

// OfPID returns an error.
func OfPID(int) (*Handle, error) { return nil, ErrNotLinux }

// Names is empty.
func Names() []string { return nil }

// Do runs fn.
func (*Handle) Do(fn func() error) error { return fn() }

// Close does nothing.
func (*Handle) Close() error { return nil }
