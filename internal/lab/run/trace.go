package run

import (
	"cmp"
	"context"
	"slices"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/trace"
)

// Bounds of what a stage's report keeps of a trace.
const (
	mostSites     = 20
	mostFlows     = 10
	mostFunctions = 20
)

// profileHz makes shares of some percent out of stages that take a second. A sample
// costs 7 µs: 0.3 % of a CPU.
const profileHz = 499

// startTrace records what the stage says, in the node that it is about. A stage has
// few enough drops to look at the flow of each.
func (c *conductor) startTrace(ctx context.Context, st *lab.Stage) *trace.Tracer {
	return trace.Start(ctx, trace.Options{
		Netns:      c.node(c.watched(st)),
		Drops:      slices.Contains(st.Trace, lab.TraceDrops),
		Profile:    slices.Contains(st.Trace, lab.TraceProfile),
		FlowSample: 1,
		Hz:         profileHz,
	})
}

// addTrace puts what was recorded, or why it was not, into the stage's report.
func addTrace(r *lab.StageReport, t snapshot.Trace) {
	r.Drops, r.Profile = t.Drops, t.Profile
	if d := r.Drops; d != nil {
		flows := joinPorts(d.Flows)
		d.Flows = flows[:min(len(flows), mostFlows)]
		d.Sites = d.Sites[:min(len(d.Sites), mostSites)]
	}
	if p := r.Profile; p != nil {
		p.Functions = p.Functions[:min(len(p.Functions), mostFunctions)]
	}
	for _, part := range t.Parts {
		if part.Error != "" {
			r.Untraced = append(r.Untraced, diagnose.Unread{What: part.Name, Why: part.Error})
		}
	}
}

// joinPorts sums flows up over the ports that they come from: each connection of a
// load has one of its own.
func joinPorts(flows []snapshot.DropFlow) []snapshot.DropFlow {
	sums := map[snapshot.DropFlow]uint64{}
	for _, f := range flows {
		n := f.Packets
		f.Source, f.Packets = f.SourceAddress(), 0
		sums[f] += n
	}
	joined := make([]snapshot.DropFlow, 0, len(sums))
	for f, n := range sums {
		f.Packets = n
		joined = append(joined, f)
	}
	slices.SortFunc(joined, func(a, b snapshot.DropFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Function, b.Function))
	})
	return joined
}
