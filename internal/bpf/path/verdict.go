package path

import (
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

var (
	delivered = newMatcher(known.lists["delivered"])
	sent      = newMatcher(known.lists["sent"])
)

// verdict tells what became of a packet. Its copies count little: one for a packet
// socket is consumed while the packet goes on.
func verdict(steps []snapshot.PathStep, alive bool) snapshot.PathVerdict {
	if d := decisive(steps, isDrop); d >= 0 {
		return snapshot.PathVerdict{Result: snapshot.PathDropped, Function: steps[d].Function, Reason: steps[d].Reason, Netns: steps[d].Netns}
	}
	to, away := decisive(steps, isCallOf(delivered)), decisive(steps, isCallOf(sent))
	switch {
	case to > away:
		v := snapshot.PathVerdict{Result: snapshot.PathDelivered, Function: steps[to].Function}
		// Once a socket has it, it has no device any more, and so no namespace.
		if at := decisive(steps[:to+1], func(s snapshot.PathStep) bool { return s.Netns != 0 }); at >= 0 {
			v.Netns = steps[at].Netns
		}
		return v
	// A device that hands it on to this machine is not its end.
	case away >= 0 && !slices.ContainsFunc(steps[away+1:], isOtherNetns(steps[away].Netns)):
		return snapshot.PathVerdict{Result: snapshot.PathSent, Function: steps[away].Function, Interface: steps[away].Interface, Netns: steps[away].Netns}
	case alive:
		return snapshot.PathVerdict{Result: snapshot.PathOpen, Function: lastFunction(steps)}
	}
	return snapshot.PathVerdict{Result: snapshot.PathConsumed, Function: lastFunction(steps)}
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
