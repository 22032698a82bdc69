// Package fake has an engine for the tests of what calls engines: it remembers the plan
// of each namespace, and changes nothing.
package fake

import (
	"sync"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
)

// Engine is one that does nothing to packets. The zero value is ready, under the name of
// netfilter, whose place it takes.
type Engine struct {
	// Word is its name; netfilter where empty.
	Word gateway.Engine
	// Fails is what Apply returns, having done nothing.
	Fails error
	// Lacks is what Check returns.
	Lacks error
	// Counts are what Read tells of a plan that is in force.
	Counts []gateway.Counted

	mu    sync.Mutex
	plans map[uint64]*gateway.Plan
}

// Name is the engine's.
func (e *Engine) Name() gateway.Engine {
	if e.Word == "" {
		return gateway.EngineNetfilter
	}
	return e.Word
}

// Flowtable is had by no namespace.
func (e *Engine) Flowtable(*netns.Handle) gateway.Support {
	return gateway.Support{Reason: "the fake engine has no flowtables"}
}

// Check tells what it was told to.
func (e *Engine) Check(*gateway.Plan) error { return e.Lacks }

// Apply remembers a plan.
func (e *Engine) Apply(ns *netns.Handle, p *gateway.Plan) error {
	if e.Fails != nil {
		return e.Fails
	}
	e.at(ns, func(inode uint64) {
		if e.plans == nil {
			e.plans = map[uint64]*gateway.Plan{}
		}
		e.plans[inode] = p
	})
	return nil
}

// Remove forgets it.
func (e *Engine) Remove(ns *netns.Handle) error {
	e.at(ns, func(inode uint64) { delete(e.plans, inode) })
	return nil
}

// Present reports whether a plan is remembered.
func (e *Engine) Present(ns *netns.Handle) (there bool, err error) {
	e.at(ns, func(inode uint64) { there = e.plans[inode] != nil })
	return there, nil
}

// Read tells the plan that is remembered, as one that nobody has changed.
func (e *Engine) Read(ns *netns.Handle, _ func(string) *gateway.Plan) (*gateway.State, error) {
	s := &gateway.State{}
	e.at(ns, func(inode uint64) {
		if p := e.plans[inode]; p != nil {
			s = &gateway.State{Present: true, Name: "the fake", ByHand: "forget it", Digest: gateway.Digest(p), Sealed: true, Intact: true, Counts: e.Counts}
		}
	})
	return s, nil
}

// Follow says whose way it is.
func (e *Engine) Follow(p *gateway.Plan, _ gateway.Facts, _ observe.Router, packet observe.Packet) (*observe.Trace, error) {
	return &observe.Trace{Schema: observe.Schema, Plan: gateway.Digest(p), Packet: packet, Steps: []observe.Step{{Hook: "fake"}}}, nil
}

func (e *Engine) at(ns *netns.Handle, do func(inode uint64)) {
	inode, _ := netns.InodeOf(ns) // where /proc does not tell, all are one
	e.mu.Lock()
	defer e.mu.Unlock()
	do(inode)
}
