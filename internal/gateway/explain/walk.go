package explain

import (
	"cmp"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

// walk takes a packet through the hooks.
type walk struct {
	plan   *gateway.Plan
	facts  *gateway.Facts
	route  Router
	packet Packet
	e      *Way
	// src and dst are what they are by now; dstDone and srcDone: a chain, ours or another,
	// has decided, and no later one is asked (nf_nat_initialized).
	src, dst endpoint
	// asked is the destination when our nat chain was asked for it.
	asked         endpoint
	dstDone       bool
	srcDone       bool
	dstTranslated bool // IPS_DST_NAT
	hop           Hop
	err           error // of route, where it was asked on the way
}

// The names of natkit's chains, with their hooks and priorities.
const (
	hookPrerouting  = "prerouting"
	hookInput       = "input"
	hookForward     = "forward"
	hookOutput      = "output"
	hookPostrouting = "postrouting"
	hookRouting     = "routing"
)

// stop is a place at a hook: a chain, or the kernel's own work.
type stop struct {
	priority int32
	chain    string
	foreign  *gateway.Foreign
	do       func(*Step)
}

func newWalk(p *gateway.Plan, facts *gateway.Facts, route Router, packet Packet) *walk {
	w := &walk{plan: p, facts: facts, route: route, packet: packet,
		src: endpoint{packet.Src, packet.SrcPort}, dst: endpoint{packet.Dst, packet.DstPort}}
	w.asked = w.dst
	w.e = &Way{Schema: Schema, Packet: packet, Source: as(w.src), Destination: as(w.dst)}
	return w
}

// walk tells all.
func (w *walk) walk() error {
	if err := w.hooks(); err != nil {
		return err
	}
	w.nearMisses()
	if err := w.reply(); err != nil {
		return err
	}
	w.notes()
	return nil
}

// hooks takes the packet from its first hook to its last.
func (w *walk) hooks() error {
	first := hookPrerouting
	if w.packet.In == "" {
		first = hookOutput
	}
	w.hook(first, w.firstStops(first))
	if w.e.Fate == Dropped {
		return w.err
	}
	if err := cmp.Or(w.err, w.routing()); err != nil {
		return err
	}
	switch w.e.Fate {
	case Forwarded:
		if w.packet.In != "" {
			w.hook(hookForward, w.forwardStops())
		}
		w.hook(hookPostrouting, w.postroutingStops())
	case Local:
		w.hook(hookInput, nil)
	}
	return w.err
}

// The priorities of the kernel's own work (enum nf_ip_hook_priorities).
const (
	priorityRaw       = -300
	priorityConntrack = -200
	priorityConfirm   = 1<<31 - 1
)

// firstStops are natkit's and the tracker's, where packets come in or are sent.
func (w *walk) firstStops(hook string) []stop {
	stops := []stop{{priority: priorityConntrack, do: w.track}}
	if len(w.plan.Untracked)+len(w.plan.Stateless) > 0 {
		stops = append(stops, stop{priority: priorityRaw, chain: "raw-" + hook, do: w.raw})
	}
	if w.hasDestinations(hook) {
		stops = append(stops, stop{priority: -80, chain: hook, do: w.destination})
	}
	return stops
}

func (w *walk) hasDestinations(hook string) bool {
	return slices.ContainsFunc(w.plan.Destinations, func(d gateway.Destination) bool { return hook == hookPrerouting || d.Local })
}

func (w *walk) forwardStops() (stops []stop) {
	if w.plan.MSS != (gateway.MSS{}) && w.packet.name() == "tcp" {
		stops = append(stops, stop{priority: -150, chain: "mss", do: w.mss})
	}
	if w.plan.ConnectionsPerSource > 0 || len(w.plan.Flowtable) > 0 {
		stops = append(stops, stop{priority: 0, chain: "forward", do: w.forward})
	}
	return append(stops, stop{priority: 120, chain: "untranslatable", do: w.untranslatable})
}

func (w *walk) postroutingStops() (stops []stop) {
	if len(w.plan.Stateless) > 0 {
		stops = append(stops, stop{priority: 110, chain: "stateless", do: w.statelessSource})
	}
	if len(w.plan.Sources) > 0 {
		stops = append(stops, stop{priority: 120, chain: "postrouting", do: w.source})
	}
	if !w.e.Untracked {
		stops = append(stops, stop{priority: priorityConfirm, do: func(s *Step) {
			s.Does = "the connection is entered into the table (nf_conntrack_confirm)"
		}})
	}
	return stops
}

// hook takes the packet through the chains at a hook, natkit's and others', in the order
// of their priorities.
func (w *walk) hook(hook string, stops []stop) {
	for i := range w.facts.Foreign {
		if f := &w.facts.Foreign[i]; f.Hook == hook && sees(f, w.packet) {
			stops = append(stops, stop{priority: f.Priority, foreign: f})
		}
	}
	slices.SortStableFunc(stops, func(a, b stop) int { return cmp.Compare(a.priority, b.priority) })
	for _, s := range stops {
		step := Step{Hook: hook, Priority: s.priority}
		if s.foreign != nil {
			w.foreign(s.foreign, &step)
		} else {
			if s.chain != "" {
				step.Chain = "inet natkit " + s.chain
			}
			s.do(&step)
		}
		if step.Does != "" {
			w.e.Steps = append(w.e.Steps, step)
		}
		if w.e.Fate == Dropped {
			return
		}
	}
}
