package path

import (
	"maps"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

var (
	delivered = newMatcher(known.lists["delivered"])
	sent      = newMatcher(known.lists["sent"])
)

// verdict tells what became of a packet: the best that became of one of its buffers.
// A copy for a packet socket is consumed while the packet goes on, and what a socket
// got as a copy may be dropped itself, since no other socket wants it.
func verdict(steps []snapshot.PathStep, alive bool) snapshot.PathVerdict {
	buffers := map[int][]snapshot.PathStep{}
	for _, s := range steps {
		buffers[s.Buffer] = append(buffers[s.Buffer], s)
	}
	best := snapshot.PathVerdict{Result: snapshot.PathConsumed, Function: lastFunction(steps)}
	if alive {
		best.Result = snapshot.PathOpen
	}
	for _, n := range slices.Sorted(maps.Keys(buffers)) {
		if v := fate(buffers[n]); rank[v.Result] > rank[best.Result] {
			best = v
		}
	}
	return best
}

// rank orders results; an unknown one is lowest.
var rank = map[string]int{snapshot.PathConsumed: 1, snapshot.PathOpen: 2, snapshot.PathDropped: 3, snapshot.PathSent: 4, snapshot.PathDelivered: 5}

// fate is what became of one buffer; its Result is empty where that is not known.
func fate(steps []snapshot.PathStep) snapshot.PathVerdict {
	if d := decisive(steps, isDrop); d >= 0 {
		return snapshot.PathVerdict{Result: snapshot.PathDropped, Function: steps[d].Function, Reason: steps[d].Reason, Netns: steps[d].Netns}
	}
	to, away := decisive(steps, isCallOf(delivered)), decisive(steps, isCallOf(sent))
	switch {
	case to > away:
		return snapshot.PathVerdict{Result: snapshot.PathDelivered, Function: steps[to].Function, Netns: lastNetns(steps[:to+1])}
	// A device that hands it on to another namespace is not its end.
	case away >= 0 && !slices.ContainsFunc(steps[away+1:], isOtherNetns(steps[away].Netns)):
		return snapshot.PathVerdict{Result: snapshot.PathSent, Function: steps[away].Function, Interface: steps[away].Interface, Netns: steps[away].Netns}
	}
	return snapshot.PathVerdict{}
}

// lastNetns: once a socket has a packet, it has no device any more, and so no
// namespace.
func lastNetns(steps []snapshot.PathStep) uint64 {
	if i := decisive(steps, func(s snapshot.PathStep) bool { return s.Netns != 0 }); i >= 0 {
		return steps[i].Netns
	}
	return 0
}

// decisive is the last step that is one; -1 for none.
func decisive(steps []snapshot.PathStep, is func(snapshot.PathStep) bool) int {
	for i, s := range slices.Backward(steps) {
		if is(s) {
			return i
		}
	}
	return -1
}

func isDrop(s snapshot.PathStep) bool { return s.Event == snapshot.StepDropped }

func isCallOf(m matcher) func(snapshot.PathStep) bool {
	return func(s snapshot.PathStep) bool { return s.Event == snapshot.StepCall && m.match(s.Function) }
}

func isOtherNetns(netns uint64) func(snapshot.PathStep) bool {
	return func(s snapshot.PathStep) bool {
		return s.Event == snapshot.StepCall && s.Netns != 0 && s.Netns != netns
	}
}

func lastFunction(steps []snapshot.PathStep) string {
	if i := decisive(steps, func(s snapshot.PathStep) bool { return s.Event == snapshot.StepCall }); i >= 0 {
		return steps[i].Function
	}
	return ""
}
