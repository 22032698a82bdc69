//go:build !linux

// Package netns has no network namespaces here: only Linux has them.
package netns

// Handle is nil here: the one that natkit runs in.
type Handle struct{}

// Do runs fn.
func (*Handle) Do(fn func() error) error { return fn() }

// Close does nothing.
func (*Handle) Close() error { return nil }
