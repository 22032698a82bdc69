// Package engine has what carries out the plans of gateways behind one interface. Of a plan one engine has all, others
// may carry out some of its rules before; of what is in force each engine knows its own.
package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine/ebpf"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// Engine carries out plans, or parts of them, in network namespaces. A nil namespace is
// the one that the thread is in.
type Engine interface {
	// Name is its word in the file.
	Name() gateway.Engine
	// Facts adds what the engine can do there, as far as a file asks for it.
	Facts(ns *netns.Handle, c *gateway.Config, f *gateway.Facts)
	// Claim divides a plan into what the engine carries out and the rest, by whole rules; nil
	// where one of them is nothing. Notes give the reasons for the rest. Packets of a rule that it carries out beside the
	// plan's own engine may take either way: both have to make the same of them.
	Claim(p *gateway.Plan, facts gateway.Facts) (mine, rest *gateway.Plan, notes []gateway.Note)
	// Check returns why the kernel would refuse a plan, without carrying it out; nil also
	// where that cannot be found out.
	Check(p *gateway.Plan) error
	// Apply replaces what the engine has in force there, all at once or not at all, and
	// records the digest of the whole plan with it. Connections stay as they were
	// translated. The seal is how it is now; empty where others change it too fast.
	Apply(ns *netns.Handle, p *gateway.Plan, digest string) (seal string, err error)
	// Remove removes what Apply put there; nothing where there is nothing.
	Remove(ns *netns.Handle) error
	// Present reports whether something of the engine is in force there. It is called often.
	Present(ns *netns.Handle) (bool, error)
	// Read returns what is in force there. It is compared with the seal, if that is of it.
	// With plan, which returns the plan of a digest or nil, Changes name rules of the file,
	// and Counts are read; without, what has not changed since it was read or written may be
	// returned as it was.
	Read(ns *netns.Handle, seal string, plan func(digest string) *gateway.Plan) (*gateway.State, error)
	// Follow traces a packet through a host where the engine carries out the plan; nil where
	// the packet is none of its own. An error is of route.
	Follow(ns *netns.Handle, p *gateway.Plan, facts gateway.Facts, route observe.Router, packet nat.Packet) (*observe.Trace, error)
}

// Updater is an Engine that can replace a part of what it has in force.
type Updater interface {
	Engine
	// Update is Apply where the plan that is in force, which plan returns by its digest as far as it is known, differs in so
	// little that less than all can be replaced. Where it does not, nothing is done, and done is false.
	Update(ns *netns.Handle, p *gateway.Plan, digest string, plan func(digest string) *gateway.Plan) (seal string, done bool)
}

// Preparer is an Engine that can do the longest part of Apply ahead, while others are at work. Nothing is in force before apply
// is called; closes releases what was prepared, applied or not.
type Preparer interface {
	Engine
	Prepare(ns *netns.Handle, p *gateway.Plan, digest string) (apply func() (seal string, err error), closes func(), err error)
}

// Set are engines; nil stands for Standard. Each carries out what it can of a plan and
// those before it leave; the engine that the plan names comes last and has to take all of it.
type Set []Engine

// Standard are the engines of this version. A new one is a package and its line here.
var Standard = Set{ebpf.Engine{}, netfilter.Engine{}}

func (s Set) all() Set {
	if s == nil {
		return Standard
	}
	return s
}

// Of is the engine of a name.
func (s Set) Of(name gateway.Engine) (Engine, error) {
	for _, e := range s.all() {
		if e.Name() == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("this version of natkit has no engine %s", name)
}

// Facts adds what the engines can do in a namespace, as far as a file asks for it.
func (s Set) Facts(ns *netns.Handle, c *gateway.Config, f *gateway.Facts) {
	for _, e := range s.all() {
		e.Facts(ns, c, f)
	}
}

// Assign has engines carry out rules of a plan before its own does. Notes say why one of them leaves a rule.
func (s Set) Assign(p *gateway.Plan, facts gateway.Facts) (*gateway.Plan, []gateway.Note, error) {
	last, err := s.Of(p.Engine)
	if err == nil && p.Bypass != 0 {
		_, err = s.Of(gateway.EngineEBPF)
	}
	if err != nil {
		return nil, nil, err
	}
	out, rest, notes := *p, p, []gateway.Note(nil)
	for _, e := range s.all() {
		if e.Name() == p.Engine || rest == nil {
			continue
		}
		mine, left, why := e.Claim(rest, facts)
		notes = append(notes, why...)
		if rest = left; mine == nil {
			continue
		}
		if out.Assigned == nil {
			out.Assigned = map[gateway.Engine][]gateway.Ref{}
		}
		out.Assigned[e.Name()], out.Elsewhere = mine.Refs(), mine.Elsewhere
	}
	if out.Assigned[gateway.EngineEBPF] == nil {
		out.Bypass = 0
	}
	_, left, why := last.Claim(p, facts)
	if left == nil {
		return &out, notes, nil
	}
	if len(why) > 0 {
		return nil, notes, fmt.Errorf("%s: engine %s does not carry it out: %s", why[0].Rule, why[0].Engine, why[0].Because)
	}
	return nil, notes, fmt.Errorf("engine %s does not carry out all of the plan", p.Engine)
}

// Check is gateway.Check, and whether the kernel takes what that has nothing to refuse in.
func (s Set) Check(file *gateway.File, facts gateway.Facts) []gateway.Finding {
	return s.CheckPlan(file, facts, func(*gateway.Plan) {})
}

// CheckPlan is Check as gateway.CheckPlan is that of its package. The kernel is asked meanwhile.
func (s Set) CheckPlan(file *gateway.File, facts gateway.Facts, compiled func(*gateway.Plan)) []gateway.Finding {
	return s.checkPlan(file, facts, compiled, facts.Known)
}

// CheckUntried is CheckPlan that does not ask the kernel.
func (s Set) CheckUntried(file *gateway.File, facts gateway.Facts, compiled func(*gateway.Plan)) []gateway.Finding {
	return s.checkPlan(file, facts, compiled, false)
}

func (s Set) checkPlan(file *gateway.File, facts gateway.Facts, compiled func(*gateway.Plan), try bool) []gateway.Finding {
	type verdict struct {
		found *gateway.Finding
		err   error
	}
	var engines chan verdict
	all := gateway.CheckPlan(file, facts, func(p *gateway.Plan) {
		compiled(p)
		if try || p.Bypass != 0 && !bool(file.Config.AcknowledgeBypass) {
			engines = make(chan verdict, 1)
			go func() {
				p, _, err := s.Assign(p, facts)
				if err != nil {
					engines <- verdict{err: err}
					return
				}
				if try {
					err = s.check(p)
				}
				engines <- verdict{gateway.Unacknowledged(file, p, &facts), err}
			}()
		}
	})
	if engines == nil {
		return all
	}
	v := <-engines
	refused := slices.ContainsFunc(all, func(f gateway.Finding) bool { return f.Severity == gateway.Refuse })
	if v.err != nil && !refused && try {
		all = append(all, gateway.KernelRefuses(file, v.err))
	}
	if v.found != nil {
		all = append(all, *v.found)
	}
	return all
}

func (s Set) check(p *gateway.Plan) error {
	for _, e := range s.all() {
		if part := p.Part(e.Name()); part != nil {
			if err := e.Check(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// Apply puts a plan in force, each part by its engine, and removes what the other engines
// have in force there. Where one of them fails, those before it get back what they had.
// Kept may be nil: then there is no seal, and nothing to get back.
func (s Set) Apply(ns *netns.Handle, p *gateway.Plan, kept gateway.Kept) error {
	for _, name := range p.Engines() {
		if _, err := s.Of(name); err != nil {
			return err
		}
	}
	former, was, digest := (*gateway.Plan)(nil), "", gateway.Digest(p)
	if kept != nil && len(s.all()) > 1 {
		if state, err := s.Read(ns, kept, false); err == nil && state.Present {
			former, was = kept.Plan(state.Digest), state.Digest
		}
	}
	var done []Engine
	for _, e := range s.inOrder(p) {
		if err := s.Put(ns, e.Name(), p, digest, kept); err != nil {
			return errors.Join(err, s.back(ns, done, former, was, kept))
		}
		done = append(done, e)
	}
	return nil
}

// Ahead returns the engines; each Preparer among them has begun to prepare its part of the plan with this digest. done waits for
// them and releases what they prepared.
func (s Set) Ahead(ns *netns.Handle, p *gateway.Plan, digest string) (ahead Set, done func()) {
	ahead = slices.Clone(s.all())
	var prepared []*prepared
	for i, e := range ahead {
		if can, is := e.(Preparer); is && p.Part(e.Name()) != nil {
			one := prepare(can, ns, p.Part(e.Name()), digest)
			prepared, ahead[i] = append(prepared, one), one
		}
	}
	return ahead, func() {
		for _, one := range prepared {
			if <-one.ready; one.err == nil {
				one.closes()
			}
		}
	}
}

// prepared is an engine that prepares one plan.
type prepared struct {
	Engine
	digest string
	ready  chan struct{}
	apply  func() (string, error)
	closes func()
	err    error
}

func prepare(e Preparer, ns *netns.Handle, p *gateway.Plan, digest string) *prepared {
	one := &prepared{Engine: e, digest: digest, ready: make(chan struct{})}
	go func() {
		defer close(one.ready)
		one.apply, one.closes, one.err = e.Prepare(ns, p, digest)
	}()
	return one
}

// Apply is the engine's.
func (e *prepared) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (string, error) {
	if digest != e.digest {
		return e.Engine.Apply(ns, p, digest)
	}
	if <-e.ready; e.err != nil {
		return "", e.err
	}
	return e.apply()
}

// inOrder are the engines, those that carry out something of a plan first, as p.Engines has them: nothing is
// removed before the new rules are there.
func (s Set) inOrder(p *gateway.Plan) Set {
	names, all := p.Engines(), slices.Clone(s.all())
	slices.SortStableFunc(all, func(a, b Engine) int {
		place := func(e Engine) uint { return uint(slices.Index(names, e.Name())) } // of one without a part the largest
		return cmp.Compare(place(a), place(b))
	})
	return all
}

func (s Set) back(ns *netns.Handle, done []Engine, former *gateway.Plan, digest string, kept gateway.Kept) error {
	var errs []error
	for _, e := range slices.Backward(done) {
		errs = append(errs, s.Put(ns, e.Name(), former, digest, kept))
	}
	return errors.Join(errs...)
}

// Put has one engine carry out its part of a plan, whose digest is at hand, and keeps the seal; without a part, or
// with no plan, what the engine has in force is removed. The former seal stays until then: it
// is of what is in force where nothing comes of it, and of no other plan.
func (s Set) Put(ns *netns.Handle, name gateway.Engine, p *gateway.Plan, digest string, kept gateway.Kept) error {
	e, err := s.Of(name)
	if err != nil {
		return err
	}
	var id netns.ID
	if kept != nil {
		if id, err = netns.IDOf(ns); err != nil {
			return err
		}
	}
	seal := ""
	if p == nil || p.Part(name) == nil {
		err = e.Remove(ns)
	} else {
		done := false
		if kept != nil && p.PCP != nil {
			with := *p
			with.Leases = p.Lends(kept.Leases(id.Inode, id.Cookie), time.Now())
			p = &with
		}
		if u, can := e.(Updater); can && kept != nil {
			seal, done = u.Update(ns, p.Part(name), digest, kept.Plan)
		}
		if !done {
			seal, err = e.Apply(ns, p.Part(name), digest)
		}
	}
	if err == nil && kept != nil {
		_ = kept.PutSeal(id.Inode, name, seal) // without a seal the rules work as well
	}
	return err
}

// chooser is an engine that checked hosts can be taken out of the choice of. InUse returns which hosts of a plan's rules
// new connections go to, Use leaves some out; see netfilter.Engine.
type chooser interface {
	InUse(ns *netns.Handle, p *gateway.Plan) (map[gateway.Ref][]bool, error)
	Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error
}

// InUse returns, for each rule of a plan in force whose hosts are checked, which of them new connections go to; a rule
// of which that is not known is missing.
func (s Set) InUse(ns *netns.Handle, p *gateway.Plan) (map[gateway.Ref][]bool, error) {
	all := map[gateway.Ref][]bool{}
	err := s.choosers(p, func(c chooser, part *gateway.Plan) error {
		some, err := c.InUse(ns, part)
		maps.Copy(all, some)
		return err
	})
	return all, err
}

// Use leaves some hosts of a plan in force out of the choice of new connections, by rule.
func (s Set) Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error {
	return s.choosers(p, func(c chooser, part *gateway.Plan) error {
		mine, checked := maps.Clone(out), part.Checked()
		maps.DeleteFunc(mine, func(r gateway.Ref, _ []bool) bool { return checked[r] == nil })
		return c.Use(ns, part, mine)
	})
}

func (s Set) choosers(p *gateway.Plan, do func(chooser, *gateway.Plan) error) error {
	for _, name := range p.Engines() {
		e, err := s.Of(name)
		if err != nil {
			return err
		}
		if c, can := e.(chooser); can && p.Part(name) != nil {
			if err := do(c, p.Part(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// steerer is an engine that can keep new connections from uplinks; see netfilter.Engine.
type steerer interface {
	Steered(ns *netns.Handle, p *gateway.Plan) (used [2][]bool, err error)
	Steer(ns *netns.Handle, p *gateway.Plan, out [2][]bool) error
}

// steerer is the one that divides connections among the uplinks of a plan; nil where none does.
func (s Set) steerer(p *gateway.Plan) (steerer, error) {
	if len(p.Uplinks) == 0 {
		return nil, nil
	}
	e, err := s.Of(p.Engine)
	steers, _ := e.(steerer)
	return steers, err
}

// Steer divides new connections among the uplinks of a plan that is in force anew, if that is not so already: up reports
// which can carry those of a family. Connections that there are stay on theirs.
func (s Set) Steer(ns *netns.Handle, p *gateway.Plan, up func(u *gateway.Uplink, v6 bool) bool) error {
	e, err := s.steerer(p)
	if err != nil || e == nil {
		return err
	}
	var out [2][]bool
	for i, served := range []bool{p.IPv4, p.IPv6} {
		for n := range p.Uplinks {
			if served {
				out[i] = append(out[i], !up(&p.Uplinks[n], i == 1))
			}
		}
	}
	return e.Steer(ns, p, out)
}

// Steering is how new connections are divided among the uplinks of a plan in force, and what a `gateway run` had found
// of these; nil where there are none.
func (s Set) Steering(ns *netns.Handle, store *Store, p *gateway.Plan) (*gateway.Steering, error) {
	e, err := s.steerer(p)
	if err != nil || e == nil {
		return nil, err
	}
	used, err := e.Steered(ns, p)
	if err != nil {
		return nil, err
	}
	id, err := netns.IDOf(ns)
	if err != nil || store == nil {
		return &gateway.Steering{Used: used}, err
	}
	found := health.ParseReport(store.Health(id))
	return &gateway.Steering{Used: used, Service: store.Claimant(id.Inode), Found: found.Down(), Since: found.DownSince()}, nil
}

// lender is an engine that has leases in force.
type lender interface {
	Leases(ns *netns.Handle) ([]gateway.Lease, error)
	Lend(ns *netns.Handle, leases []gateway.Lease) error
}

// Lend replaces the leases of a plan that is in force.
func (s Set) Lend(ns *netns.Handle, p *gateway.Plan, leases []gateway.Lease) error {
	e, err := s.Of(p.Engine)
	if l, can := e.(lender); can && p.PCP != nil {
		return l.Lend(ns, leases)
	}
	return err
}

// Leases are those in force of a plan that is in force; none where it has no PCP.
func (s Set) Leases(ns *netns.Handle, p *gateway.Plan) ([]gateway.Lease, error) {
	e, err := s.Of(p.Engine)
	if l, can := e.(lender); can && p.PCP != nil {
		return l.Leases(ns)
	}
	return nil, err
}

// forgetter is an engine that remembers what routes and neighbours there are; see ebpf.Engine.
type forgetter interface {
	Forget(ns *netns.Handle) error
}

// Forget has engines ask for routes and neighbours again, of which some have changed.
func (s Set) Forget(ns *netns.Handle) error {
	var errs []error
	for _, e := range s.all() {
		if f, can := e.(forgetter); can {
			errs = append(errs, f.Forget(ns))
		}
	}
	return errors.Join(errs...)
}

// Remove removes what the engines have in force in a namespace.
func (s Set) Remove(ns *netns.Handle) error {
	var errs []error
	for _, e := range s.all() {
		errs = append(errs, e.Remove(ns))
	}
	return errors.Join(errs...)
}

// sweeper is an engine of which something can be left where a network namespace is gone.
type sweeper interface {
	Sweep() (removed []string, err error)
}

// Sweep removes what is left of network namespaces that are gone, and returns where it was.
func (s Set) Sweep() (removed []string, err error) {
	for _, e := range s.all() {
		if e, can := e.(sweeper); can {
			some, swept := e.Sweep()
			removed, err = append(removed, some...), errors.Join(err, swept)
		}
	}
	return removed, err
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

// Read returns what is in force in a namespace, of all engines together. With detail,
// Changes name rules of the file and Counts are read. Kept may be nil.
func (s Set) Read(ns *netns.Handle, kept gateway.Kept, detail bool) (*gateway.State, error) {
	whole := &gateway.State{}
	for _, e := range s.all() {
		one, err := s.ReadOne(ns, e.Name(), kept, detail)
		if err != nil {
			return nil, err
		}
		whole.Join(e.Name(), one)
	}
	if detail && kept != nil && len(whole.Engines) > 1 && whole.Present {
		whole.Miss(kept.Plan(whole.Digest))
	}
	return whole, nil
}

// ReadOne is Read of one engine.
func (s Set) ReadOne(ns *netns.Handle, name gateway.Engine, kept gateway.Kept, detail bool) (*gateway.State, error) {
	e, err := s.Of(name)
	if err != nil || kept == nil {
		if err == nil {
			return e.Read(ns, "", nil)
		}
		return nil, err
	}
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return nil, err
	}
	if !detail {
		return e.Read(ns, kept.Seal(inode, name), nil)
	}
	return e.Read(ns, kept.Seal(inode, name), kept.Plan)
}

// Follow traces a packet: by the first engine whose packet it is, the plan's own being asked last.
func (s Set) Follow(ns *netns.Handle, p *gateway.Plan, facts gateway.Facts, route observe.Router, packet nat.Packet) (*observe.Trace, error) {
	for _, name := range slices.Backward(p.Engines()) {
		e, err := s.Of(name)
		if err != nil {
			return nil, err
		}
		way, err := e.Follow(ns, p.Part(name), facts, route, packet)
		if way != nil {
			way.Plan = gateway.Digest(p)
		}
		if way != nil || err != nil {
			return way, err
		}
	}
	return nil, fmt.Errorf("no engine of the plan traces packets")
}
