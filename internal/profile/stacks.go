// Package profile tells what the kernel spent its time on: it sorts stacks that
// were sampled from the CPUs into kinds of work, and writes them for tools.
package profile

import (
	"cmp"
	"slices"
	"strings"
)

// Frame is a function of a stack.
type Frame struct {
	Function string
	// Module is empty for the kernel proper, and "user" for user code, of which
	// Function is the command's name.
	Module string
}

// User is the Module of user code.
const User = "user"

// Unknown is the function of an address that lies in none that is known.
const Unknown = "[unknown]"

// Stack is what a CPU was found at, Count times.
type Stack struct {
	// Frames are the functions, outermost first.
	Frames []Frame
	Count  uint64
}

// Stacks are the samples of one recording.
type Stacks struct {
	// Kernel is the release of the running kernel, Event what samples were taken
	// by ("cpu-clock"): each of CPUs processors gave Hz of them a second.
	Kernel  string
	Event   string
	Seconds float64
	Hz      int
	CPUs    int
	// Stacks are all different; those of an idle CPU are in Idle alone.
	Stacks []Stack
	Idle   uint64
	// Lost were taken and are in no stack: the kernel gave none, or there was no
	// room for another.
	Lost uint64
}

// Samples is the number of all samples in stacks.
func (s *Stacks) Samples() uint64 {
	var n uint64
	for _, stack := range s.Stacks {
		n += stack.Count
	}
	return n
}

// Collector puts samples together to Stacks. Its zero value is empty.
type Collector struct {
	index  map[string]int // of stacks, by their functions
	stacks []Stack
	idle   uint64
}

// Add adds a stack, outermost frame first. idleTask says that it is one of the
// idle task: such a stack is idle unless it is that of an interrupt.
func (c *Collector) Add(frames []Frame, count uint64, idleTask bool) {
	if isIdle(frames, idleTask) {
		c.idle += count
		return
	}
	key := folded(frames)
	if i, ok := c.index[key]; ok {
		c.stacks[i].Count += count
		return
	}
	if c.index == nil {
		c.index = map[string]int{}
	}
	c.index[key] = len(c.stacks)
	c.stacks = append(c.stacks, Stack{Frames: slices.Clone(frames), Count: count})
}

// Into puts what was added until now into s, most samples first.
func (c *Collector) Into(s *Stacks) {
	s.Stacks, s.Idle = slices.Clone(c.stacks), c.idle
	slices.SortFunc(s.Stacks, func(a, b Stack) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(folded(a.Frames), folded(b.Frames)))
	})
}

// isIdle reports whether a CPU had nothing to do. Softirqs run on top of the idle
// task's stack, behind the interrupt that woke the CPU: they are work. Other tasks
// are idle within the idle loop too (idle injection, for cooling).
func isIdle(frames []Frame, idleTask bool) bool {
	for _, f := range slices.Backward(frames) {
		switch {
		case classes.interrupt.matches(f.Function):
			return false
		case classes.idle.matches(f.Function):
			return true
		}
	}
	return idleTask
}
