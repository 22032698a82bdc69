// Package engine has what carries out the plans of gateways behind one interface: the
// file names its engine, and of what is in force each engine knows its own.
package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
)

// Engine carries out plans in network namespaces. A nil namespace is the one that the
// thread is in.
type Engine interface {
	// Name is its word in the file.
	Name() gateway.Engine
	// Flowtable reports whether it has the kernel's fast path there.
	Flowtable(ns *netns.Handle) gateway.Support
	// Check tells, without carrying it out, why the kernel would not take a plan; nil also
	// where that cannot be found out.
	Check(p *gateway.Plan) error
	// Apply puts a plan in the place of what it has in force there, all at once or not
	// at all. Connections stay as they were translated. Nil means that it is in force;
	// whether it is sealed, Read tells.
	Apply(ns *netns.Handle, p *gateway.Plan) error
	// Remove takes away what Apply put there; nothing where there is nothing.
	Remove(ns *netns.Handle) error
	// Present reports whether it has something in force there, and is asked often.
	Present(ns *netns.Handle) (bool, error)
	// Read tells what it has in force there. plans, where not nil, gives the plan of a
	// digest, or nil: with it Changes name the rules of the file. Without it Counts may be
	// missing, and what nobody has changed since it was read or written is not read again.
	Read(ns *netns.Handle, plans func(digest string) *gateway.Plan) (*gateway.State, error)
	// Follow tells the way of a packet through a host where it carries out the plan. An
	// error is of route.
	Follow(p *gateway.Plan, facts gateway.Facts, route observe.Router, packet observe.Packet) (*observe.Trace, error)
}

// Set are engines; nil stands for Standard.
type Set []Engine

// Standard are the engines of this version. A new one is a package, its line here, and
// its word in gateway.Engines.
var Standard = Set{netfilter.Engine{}}

func (s Set) all() Set {
	if s == nil {
		return Standard
	}
	return s
}

// Of is the engine that a file or a plan names.
func (s Set) Of(name gateway.Engine) (Engine, error) {
	for _, e := range s.all() {
		if e.Name() == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("this version of natkit has no engine %s", name)
}

// Flowtable is how it is found out whether a file can have the flowtable that it asks
// for; nil where it asks for none.
func (s Set) Flowtable(c *gateway.Config) func(*netns.Handle) gateway.Support {
	e, err := s.Of(cmp.Or(c.Engine, gateway.EngineNetfilter))
	if err != nil || !c.Flowtable {
		return nil
	}
	return e.Flowtable
}

// Check is gateway.Check, and whether the kernel takes what that has nothing to refuse in.
func (s Set) Check(file *gateway.File, facts gateway.Facts) []gateway.Finding {
	all := gateway.Check(file, facts)
	refused := slices.ContainsFunc(all, func(f gateway.Finding) bool { return f.Severity == gateway.Refuse })
	if refused || !facts.Known {
		return all
	}
	plan, err := gateway.Compile(&file.Config, facts)
	if err != nil {
		return all
	}
	e, err := s.Of(plan.Engine)
	if err == nil {
		err = e.Check(plan)
	}
	if err != nil {
		all = append(all, gateway.KernelRefuses(file, err))
	}
	return all
}

// Apply puts a plan in force by the engine that it names, and then takes away what
// others have in force there.
func (s Set) Apply(ns *netns.Handle, p *gateway.Plan) error {
	e, err := s.Of(p.Engine)
	if err != nil {
		return err
	}
	if err := e.Apply(ns, p); err != nil {
		return err
	}
	return s.remove(ns, e.Name())
}

// Remove takes away what engines have in force in a namespace.
func (s Set) Remove(ns *netns.Handle) error { return s.remove(ns, "") }

func (s Set) remove(ns *netns.Handle, but gateway.Engine) error {
	var errs []error
	for _, e := range s.all() {
		if e.Name() != but {
			errs = append(errs, e.Remove(ns))
		}
	}
	return errors.Join(errs...)
}

// Present reports whether something is in force in a namespace.
func (s Set) Present(ns *netns.Handle) (bool, error) {
	for _, e := range s.all() {
		if there, err := e.Present(ns); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

// Read tells what is in force in a namespace, of the first engine that has something.
func (s Set) Read(ns *netns.Handle, plans func(digest string) *gateway.Plan) (*gateway.State, error) {
	for _, e := range s.all() {
		state, err := e.Read(ns, plans)
		if err != nil || state.Present {
			return state, err
		}
	}
	return &gateway.State{}, nil
}

// Follow tells the way of a packet, by the engine that the plan names.
func (s Set) Follow(p *gateway.Plan, facts gateway.Facts, route observe.Router, packet observe.Packet) (*observe.Trace, error) {
	e, err := s.Of(p.Engine)
	if err != nil {
		return nil, err
	}
	return e.Follow(p, facts, route, packet)
}
