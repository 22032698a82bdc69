// Package profile shows what the kernel spent its time on: it sorts stacks that
// were sampled from the CPUs into kinds of work, and writes them for tools.
package profile

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
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

// Add adds a stack, outermost frame first. idleTask marks it as one of the
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

// work is what a stack did.
type work struct {
	class   string
	receive bool
}

// classifier caches its results by function: there are far fewer than frames.
type classifier struct {
	table *classTable
	known map[Frame]functionWork
}

type functionWork struct {
	class     string // empty for none
	receive   bool
	interrupt bool
}

func newClassifier(t *classTable) *classifier {
	return &classifier{table: t, known: map[Frame]functionWork{}}
}

func (c *classifier) function(f Frame) functionWork {
	if w, ok := c.known[f]; ok {
		return w
	}
	if f.Module == User {
		return functionWork{class: ClassUser}
	}
	name := f.Function
	w := functionWork{receive: c.table.receive.matches(name), interrupt: c.table.interrupt.matches(name)}
	if i, ok := c.table.class(f); ok {
		w.class = c.table.names[i]
	}
	c.known[f] = w
	return w
}

// stack returns the work of the innermost of frames, which are outermost first.
func (c *classifier) stack(frames []Frame) work {
	w := work{class: ClassKernelRest}
	for _, w = range c.works(frames) {
	}
	return w
}

// works returns for each of frames the work that its own time is, as its index and
// that. An interrupt, or a softirq that a sender runs, is work of its own; so is a
// packet that a bridge or a tunnel gives back to be received once more.
func (c *classifier) works(frames []Frame) iter.Seq2[int, work] {
	return func(yield func(int, work) bool) {
		var w work // without the names of the rest
		for i, f := range frames {
			w = c.next(w, f)
			of := w
			if of.class == "" {
				of.class = rest(w.receive)
			}
			if !yield(i, of) {
				return
			}
		}
	}
}

// next is the work of a function that is called in w.
func (c *classifier) next(w work, f Frame) work {
	of := c.function(f)
	switch {
	case of.interrupt:
		w = work{}
	case of.receive:
		w = work{receive: true}
	}
	if of.class != "" {
		w.class = of.class
	}
	return w
}

// rest is the class of what has none.
func rest(receive bool) string {
	if receive {
		return ClassReceiveRest
	}
	return ClassKernelRest
}

// Summarize counts the samples by class and by function. The classes sum up to
// Samples, those in packet receive to Receive; all classes of the table are there,
// in its order, those of packet receive first.
func (s *Stacks) Summarize() *snapshot.Profile {
	p := &snapshot.Profile{
		Seconds: s.Seconds, Hz: s.Hz, CPUs: s.CPUs, Event: s.Event,
		Idle: s.Idle, Lost: s.Lost,
	}
	c := newClassifier(classes)
	byWork := map[work]uint64{}
	for _, stack := range s.Stacks {
		w := c.stack(stack.Frames)
		byWork[w] += stack.Count
		p.Samples += stack.Count
		if w.receive {
			p.Receive += stack.Count
		}
	}
	for _, receive := range []bool{true, false} {
		for _, class := range c.table.all(receive) {
			p.Classes = append(p.Classes, snapshot.ProfileClass{
				Name: class, Receive: receive, Samples: byWork[work{class, receive}],
			})
		}
	}
	p.Functions = c.functions(s.Stacks)
	return p
}

// all are the classes in packet receive, or elsewhere.
func (t *classTable) all(receive bool) []string {
	if receive {
		return append(slices.Clone(t.names), ClassReceiveRest)
	}
	return append(slices.Clone(t.names), ClassKernelRest, ClassUser)
}

// functions counts a function once in a stack, though it may call itself. The
// class of a function is that of the stack that leads to it; functions are often
// reached in several ways, and then it is the one with most samples.
func (c *classifier) functions(stacks []Stack) []snapshot.ProfileSymbol {
	type counts struct {
		self, total uint64
		classes     map[string]uint64
	}
	byFrame := map[Frame]*counts{}
	for _, stack := range stacks {
		seen := map[Frame]bool{}
		for i, w := range c.works(stack.Frames) {
			f := stack.Frames[i]
			n := byFrame[f]
			if n == nil {
				n = &counts{classes: map[string]uint64{}}
				byFrame[f] = n
			}
			if i == len(stack.Frames)-1 {
				n.self += stack.Count
			}
			if !seen[f] {
				seen[f] = true
				n.total += stack.Count
				n.classes[w.class] += stack.Count
			}
		}
	}
	symbols := make([]snapshot.ProfileSymbol, 0, len(byFrame))
	for f, n := range byFrame {
		symbols = append(symbols, snapshot.ProfileSymbol{
			Function: f.Function, Module: f.Module, Class: most(n.classes), Self: n.self, Total: n.total,
		})
	}
	slices.SortFunc(symbols, compareSymbols)
	return symbols
}

func compareSymbols(a, b snapshot.ProfileSymbol) int {
	return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total),
		strings.Compare(a.Function, b.Function), strings.Compare(a.Module, b.Module))
}

func most(counts map[string]uint64) string {
	best := ""
	for class, n := range counts {
		if best == "" || n > counts[best] || n == counts[best] && class < best {
			best = class
		}
	}
	return best
}
