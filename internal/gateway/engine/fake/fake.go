// Package fake has an engine for the tests of what calls engines: it remembers the plan
// of each namespace, and changes nothing.
package fake

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// Engine is one that does nothing to packets. The zero value is ready, under the name of
// netfilter, whose place it takes.
type Engine struct {
	// Word is its name; netfilter where empty.
	Word gateway.Engine
	// Only are the kinds of rules that it claims; nil for all.
	Only []string
	// Fails is what Apply returns, having done nothing.
	Fails error
	// Lacks is what Check returns.
	Lacks error
	// Counts are what Read returns of a plan that is in force.
	Counts []gateway.Counted

	mu sync.Mutex
	// digests are those of the plans in force.
	digests map[uint64]string
}

// Name is the engine's.
func (e *Engine) Name() gateway.Engine {
	if e.Word == "" {
		return gateway.EngineNetfilter
	}
	return e.Word
}

// Facts adds nothing.
func (e *Engine) Facts(*netns.Handle, *gateway.Config, *gateway.Facts) {}

// Claim takes all of a plan, or, with Only, the rules of these kinds.
func (e *Engine) Claim(p *gateway.Plan, _ gateway.Facts) (mine, rest *gateway.Plan, notes []gateway.Note) {
	if e.Only == nil {
		return p, nil, nil
	}
	return divide(e.Name(), p, func(r gateway.Ref) string {
		if slices.Contains(e.Only, r.Kind) {
			return ""
		}
		return "it is for " + strings.Join(e.Only, ", ") + " alone"
	})
}

// divide takes the rules of a plan that nothing is against.
func divide(name gateway.Engine, p *gateway.Plan, against func(gateway.Ref) string) (mine, rest *gateway.Plan, notes []gateway.Note) {
	mine = p.Only(func(r gateway.Ref) bool { return against(r) == "" })
	rest = p.Only(func(r gateway.Ref) bool { return against(r) != "" })
	for _, r := range rest.Refs() {
		notes = append(notes, gateway.Note{Rule: r, Engine: name, Because: against(r)})
	}
	if len(mine.Refs()) == 0 {
		mine = nil
	}
	return mine, rest, notes
}

// Check returns Lacks.
func (e *Engine) Check(*gateway.Plan) error { return e.Lacks }

// Apply remembers a plan.
func (e *Engine) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (seal string, err error) {
	if e.Fails != nil {
		return "", e.Fails
	}
	e.at(ns, func(inode uint64) {
		if e.digests == nil {
			e.digests = map[uint64]string{}
		}
		e.digests[inode] = digest
	})
	return digest, nil
}

// Remove forgets it.
func (e *Engine) Remove(ns *netns.Handle) error {
	e.at(ns, func(inode uint64) { delete(e.digests, inode) })
	return nil
}

// Present reports whether a plan is remembered.
func (e *Engine) Present(ns *netns.Handle) (there bool, err error) {
	e.at(ns, func(inode uint64) { there = e.digests[inode] != "" })
	return there, nil
}

// Read returns the plan that is remembered, as an unchanged one.
func (e *Engine) Read(ns *netns.Handle, _ string, _ func(string) *gateway.Plan) (*gateway.State, error) {
	s := &gateway.State{}
	e.at(ns, func(inode uint64) {
		if digest := e.digests[inode]; digest != "" {
			s = &gateway.State{Present: true, Name: "the fake", Removal: "forget it", Digest: digest, Integrity: gateway.RulesIntact, Counts: e.Counts}
		}
	})
	return s, nil
}

// Follow says whose way it is.
func (e *Engine) Follow(_ *netns.Handle, p *gateway.Plan, _ gateway.Facts, _ observe.Router, packet nat.Packet) (*observe.Trace, error) {
	return &observe.Trace{Schema: observe.Schema, Plan: gateway.Digest(p), Packet: packet, Steps: []observe.Step{{Hook: "fake"}}}, nil
}

func (e *Engine) at(ns *netns.Handle, do func(inode uint64)) {
	inode, _ := netns.InodeOf(ns) // if /proc has none, all are one
	e.mu.Lock()
	defer e.mu.Unlock()
	do(inode)
}

// Kept remembers seals and plans in memory. The zero value is ready.
type Kept struct {
	mu    sync.Mutex
	seals map[string]string
	Plans map[string]*gateway.Plan
}

// Plan is that of a digest in Plans.
func (k *Kept) Plan(digest string) *gateway.Plan { return k.Plans[digest] }

// Seal is what PutSeal was given.
func (k *Kept) Seal(inode uint64, e gateway.Engine) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seals[fmt.Sprint(inode, e)]
}

// Leases are none.
func (k *Kept) Leases(_, _ uint64) []gateway.Lease { return nil }

// PutSeal remembers a seal.
func (k *Kept) PutSeal(inode uint64, e gateway.Engine, seal string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seals == nil {
		k.seals = map[string]string{}
	}
	k.seals[fmt.Sprint(inode, e)] = seal
	return nil
}
