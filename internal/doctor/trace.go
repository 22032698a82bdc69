package doctor

import (
	"context"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/trace"
)

// Trace is for collect.RecordOptions.Trace: between the two samples of ns (nil: the
// namespace that natkit runs in) its drops are counted, the CPUs profiled and its SYNs examined.
func Trace(ns *netns.Handle) func(context.Context) (stop func() snapshot.Trace) {
	return func(ctx context.Context) func() snapshot.Trace {
		return trace.Start(ctx, trace.Options{Netns: ns, Drops: true, Profile: true, SYNs: true, FlowSample: trace.FlowSample}).Stop
	}
}
