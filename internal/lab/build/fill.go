package build

import (
	"context"
	"fmt"
	"reflect"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
)

// byFill chooses the entries of a fill, byLoad those that the load left.
var (
	byFill = match.Filter{Mark: lab.FillMark, MarkMask: ^uint32(0)}
	byLoad = match.Filter{Mark: 0, MarkMask: ^uint32(0)}
)

// ClearLoad removes the entries that the load left in the nodes' connection
// tables, and leaves those of a fill.
func (l *Lab) ClearLoad(ctx context.Context) error {
	for _, n := range l.nodes {
		if err := dump.Delete(ctx, n.Netns, byLoad); err != nil {
			return fmt.Errorf("clear the connection table of %s: %w", n.Name, err)
		}
	}
	return nil
}

// filled is the fill that a lab has.
type filled struct {
	node   string
	filler *lab.Filler
	// made is how many of its entries were made.
	made int64
}

// SetFill brings the connection table of f.Node to so many entries in all (see
// lab.Fill.Target), by entries of f's mix. It keeps those that are there already.
// A nil f removes all that were made.
func (l *Lab) SetFill(ctx context.Context, f *lab.Fill, entries int64) error {
	var next filled
	if f != nil {
		filler, err := f.Filler()
		if err != nil {
			return err
		}
		next = filled{node: f.Node, filler: filler}
	}
	if now := l.filled; now.node != "" && !now.same(next) {
		if err := dump.Delete(ctx, l.Node(now.node).Netns, byFill); err != nil {
			return fmt.Errorf("empty the connection table of %s: %w", now.node, err)
		}
		l.filled = filled{}
	}
	if f == nil {
		return nil
	}
	if l.filled.node == "" {
		l.filled = next
	}
	made, err := fill.Insert(ctx, l.Node(f.Node).Netns, l.filled.filler, l.filled.made, entries, nil)
	l.filled.made += made
	if err != nil {
		return fmt.Errorf("fill the connection table of %s: %w", f.Node, err)
	}
	return nil
}

func (f filled) same(o filled) bool {
	return f.node == o.node && o.filler != nil && f.filler.Seed() == o.filler.Seed() && reflect.DeepEqual(f.filler.Mix(), o.filler.Mix())
}

// FillTarget is how many entries a table must hold for a fill, with the maximum that
// the host has now.
func FillTarget(f *lab.Fill) (int64, error) {
	limit, err := fill.Max()
	if err != nil {
		return 0, err
	}
	available, err := collect.AvailableMemory()
	if err != nil {
		return 0, err
	}
	return f.Target(limit, available)
}
