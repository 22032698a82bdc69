package apply

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Appliers are those of gateways, with the engines of this version.
func Appliers(opt apply.Options) map[tune.Kind]apply.Applier {
	h := Host{Apply: opt}
	return h.appliers(h.keeps())
}

// appliers are those of the host's engines, with its plans.
func (h Host) appliers(kept kept) map[tune.Kind]apply.Applier {
	root := cmp.Or(h.Apply.Root, "/")
	return map[tune.Kind]apply.Applier{
		tune.Gateway:     gateways{engines: h.Engines, kept: kept, moved: &moved{}},
		tune.Routing:     routing{h.wrote},
		tune.GatewayFile: gatewayFile{apply.FileOf(root, tune.GatewayFile), kept.Store},
	}
}

// options are those of changes to the host.
func (h Host) options(plans kept) apply.Options {
	opt := h.Apply
	opt.Appliers = h.appliers(plans)
	return opt
}

// kept is the store, with the plans at hand that were read or are in it, by their digests: one with large sets takes long
// to read.
type kept struct {
	*engine.Store
	plans map[string]*gateway.Plan
}

// keeps is the host's store, of which nothing was read.
func (h Host) keeps() kept { return kept{h.store(), map[string]*gateway.Plan{}} }

func (k kept) Get(digest string) (*gateway.Plan, error) {
	if p := k.plans[digest]; p != nil {
		return p, nil
	}
	p, err := k.Store.Get(digest)
	if err == nil {
		k.plans[digest] = p
	}
	return p, err
}

// Plan returns the plan of a digest; nil where it is not kept. Get says why.
func (k kept) Plan(digest string) *gateway.Plan {
	p, err := k.Get(digest)
	if err != nil {
		return nil
	}
	return p
}

// gateways puts gateway plans in force, each change by one engine in the network namespace
// that its target names. The rules go with a reboot.
type gateways struct {
	engines engine.Set
	kept    kept
	// moved is what became of connections of other zones.
	moved *moved
	// steer has new connections leave by uplinks that are up, once the plan of a digest is in force; nil: by all.
	steer func(digest string) error
}

// Read returns what the engine has in force: none, the plan it was made for, that plan and
// that it was changed since, or foreign.
func (g gateways) Read(target string) (value string, err error) {
	err = g.state(target, false, func(_ *netns.Handle, s *gateway.State) error {
		value = Value(s)
		return nil
	})
	return value, err
}

// Value is that of a change, for what is in force.
func Value(s *gateway.State) string {
	switch {
	case s == nil || !s.Present:
		return tune.GatewayNone
	case !tune.IsDigest(s.Digest):
		return tune.GatewayForeign
	case s.Integrity == gateway.RulesChanged:
		return tune.GatewayChanged(s.Digest)
	}
	return s.Digest
}

// Writable refuses what natkit did not make, or what is not its to change.
func (g gateways) Writable(target string) error {
	return g.state(target, false, func(ns *netns.Handle, s *gateway.State) error {
		switch {
		case Value(s) == tune.GatewayForeign:
			return foreign(ns, s)
		case s.Locked:
			return fmt.Errorf("gateway: %s has an owner that alone may change it; end that program", s.Name)
		}
		return nil
	})
}

// ErrForeign: what stands in natkit's place belongs to another program.
var ErrForeign = errors.New("is not one that natkit made, and is left alone")

// foreign is ErrForeign, and what to do about it.
func foreign(ns *netns.Handle, s *gateway.State) error {
	return fmt.Errorf("gateway: %s %w: if it is not needed, %s, then retry", s.Name, ErrForeign, netns.CommandIn(ns, s.Removal))
}

// ErrChanged: the rules in force are not as natkit wrote them.
var ErrChanged = errors.New("the rules were changed since natkit wrote them")

// Kept is ErrChanged, and what to do about it. Forwarding without the rules, or rules
// without forwarding, would be neither what was before nor what natkit made.
func (g gateways) Kept(target string) error {
	return g.state(target, true, func(ns *netns.Handle, s *gateway.State) error {
		if !s.Present {
			return fmt.Errorf("%w: they were removed just now; undo again", ErrChanged)
		}
		what := cmp.Or(strings.Join(s.Changes, "; "), s.Name+" is another one")
		return fmt.Errorf("%w: %s; take that back, or remove the rules (%s), and undo again", ErrChanged, what, netns.CommandIn(ns, s.Removal))
	})
}

// Restorable: the plan before is in the store.
func (g gateways) Restorable(_, before string) error {
	digest, _ := tune.GatewayDigest(before)
	if digest == "" {
		return nil
	}
	if _, err := g.kept.Get(digest); err != nil {
		// Not that error itself: it says that the rules are gone.
		return fmt.Errorf("the rules before it cannot be put back: %v; apply a file to have other rules in force", err)
	}
	return nil
}

func (g gateways) Write(target, value string) error {
	if err := permit.ChangeOf("write", target); err != nil {
		return err
	}
	return inNamespace(target, func(ns *netns.Handle, name gateway.Engine) error {
		former := g.inForce(ns, name)
		if value == tune.GatewayNone {
			err := g.engines.Put(ns, name, nil, "", g.kept)
			if err == nil {
				g.moved.rezone(ns, former, nil)
			}
			return err
		}
		digest, _ := tune.GatewayDigest(value)
		p, err := g.kept.Get(digest)
		if errors.Is(err, fs.ErrNotExist) {
			// Not that error itself: it says that the table is gone.
			return fmt.Errorf("gateway: the plan that is to be put in force again is missing: %v; apply a file to have another one in force", err)
		}
		if err != nil {
			return err
		}
		if err = g.engines.Put(ns, name, p, digest, g.kept); err != nil {
			return err
		}
		if g.steer != nil && name == p.Engine {
			_ = g.steer(digest) // who has it steer does so again, and says why it fails
		}
		g.moved.rezone(ns, former, p)
		return nil
	})
}

// inForce is the plan that an engine has in force; nil where there is none, or none that is known.
func (g gateways) inForce(ns *netns.Handle, name gateway.Engine) *gateway.Plan {
	s, err := g.engines.ReadOne(ns, name, g.kept, false)
	if err != nil || !s.Present {
		return nil
	}
	return g.kept.Plan(s.Digest)
}

// Honours: rules that were changed come back as natkit wrote them.
func (g gateways) Honours(_, asked, got string) bool {
	digest, _ := tune.GatewayDigest(asked)
	return asked == got || digest != "" && digest == got
}

func (g gateways) Durable() bool { return false }

// state runs fn with what is in force.
func (g gateways) state(target string, detail bool, fn func(*netns.Handle, *gateway.State) error) error {
	return inNamespace(target, func(ns *netns.Handle, name gateway.Engine) error {
		s, err := g.engines.ReadOne(ns, name, g.kept, detail)
		if err != nil {
			return err
		}
		return fn(ns, s)
	})
}

// inNamespace runs fn with the namespace and the engine of a target; nil is the thread's
// own namespace, which takes no right to enter.
func inNamespace(target string, fn func(*netns.Handle, gateway.Engine) error) error {
	inode, name, err := tune.ParseGatewayTarget(target)
	if err != nil {
		return err
	}
	if inode == journal.NamespaceInode("/proc", "net") {
		return fn(nil, gateway.Engine(name))
	}
	ns, err := netns.OfInode(inode)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	defer ns.Close()
	return fn(ns, gateway.Engine(name))
}

// gatewayFile applies the configuration that the gateway has after a boot. The store
// has the texts.
type gatewayFile struct {
	apply.File
	store *engine.Store
}

func (g gatewayFile) Read(string) (string, error) {
	text, err := g.Text()
	if err != nil || text == "" {
		return "", err
	}
	return engine.TextDigest([]byte(text)), nil
}

func (g gatewayFile) Writable(string) error { return g.File.Writable() }

func (g gatewayFile) Write(_, value string) error {
	if value == "" {
		return g.File.Write(nil)
	}
	text, err := g.store.Text(value)
	if err != nil {
		return err
	}
	return g.File.Write(text)
}

func (g gatewayFile) Honours(_, asked, got string) bool { return asked == got }

func (g gatewayFile) Durable() bool { return true }
