//go:build !linux

package dump

import (
	"context"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
)

// Each returns an error: there is no table here.
func Each(context.Context, *netns.Handle, *conntrack.Filter, func(*conntrack.Entry) error) (Result, error) {
	return Result{}, netns.ErrNotLinux
}

// EachSure returns an error.
func EachSure(context.Context, *netns.Handle, *conntrack.Filter, func(), func(*conntrack.Entry) error) (Result, error) {
	return Result{}, netns.ErrNotLinux
}

// EachWhole returns an error.
func EachWhole(context.Context, *netns.Handle, *conntrack.Filter, func(), func(*conntrack.Entry) error) (Result, error) {
	return Result{}, netns.ErrNotLinux
}

// Count returns an error.
func Count(*netns.Handle) (Usage, error) { return Usage{}, netns.ErrNotLinux }
