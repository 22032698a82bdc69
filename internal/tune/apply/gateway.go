package apply

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/store"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// gateways puts gateway plans in force, each in the network namespace that its Target
// names. The rules go with a reboot.
type gateways struct {
	store   *store.Store
	engines engine.Set
	atHand  map[string]*gateway.Plan
}

func (g gateways) plan(digest string) (*gateway.Plan, error) {
	if p := g.atHand[digest]; p != nil {
		return p, nil
	}
	return g.store.Get(digest)
}

// Read tells what is in force: none, the plan it was made for, that plan and
// that it was changed since, or foreign.
func (g gateways) Read(target string) (value string, err error) {
	err = inNamespace(target, func(ns *netns.Handle) error {
		state, err := g.engines.Read(ns, nil)
		if err == nil {
			value = GatewayValue(state)
		}
		return err
	})
	return value, err
}

// GatewayValue is the value of what is in force.
func GatewayValue(s *gateway.State) string {
	switch {
	case !s.Present:
		return tune.GatewayNone
	case !tune.IsDigest(s.Digest):
		return tune.GatewayForeign
	case s.Sealed && !s.Intact:
		return tune.GatewayChanged(s.Digest)
	}
	return s.Digest
}

// Writable refuses what natkit did not make, or what is not its to change.
func (g gateways) Writable(target string) error {
	return inNamespace(target, func(ns *netns.Handle) error {
		state, err := g.engines.Read(ns, nil)
		switch {
		case err != nil:
			return err
		case GatewayValue(state) == tune.GatewayForeign:
			return Foreign(ns, state)
		case state.Owned:
			return fmt.Errorf("gateway: %s has an owner that alone may change it; end that program", state.Name)
		}
		return nil
	})
}

// ErrForeign: what stands in natkit's place is somebody else's.
var ErrForeign = errors.New("is not one that natkit made, and is left alone")

// Foreign is ErrForeign, and what to do about it.
func Foreign(ns *netns.Handle, s *gateway.State) error {
	return fmt.Errorf("gateway: %s %w: if nobody needs it, %s, then again", s.Name, ErrForeign, netns.CommandIn(ns, s.ByHand))
}

// ErrChanged: the rules in force are not as natkit wrote them.
var ErrChanged = errors.New("somebody changed the rules since natkit wrote them")

// Kept is ErrChanged, and what to do about it. Forwarding without the rules, or rules
// without forwarding, would be neither what was before nor what natkit made.
func (g gateways) Kept(target string) error {
	return inNamespace(target, func(ns *netns.Handle) error {
		state, err := g.engines.Read(ns, func(digest string) *gateway.Plan {
			p, _ := g.plan(digest)
			return p
		})
		switch {
		case err != nil:
			return err
		case !state.Present:
			return fmt.Errorf("%w: they are gone; 'natkit gateway apply FILE' puts rules in force", ErrChanged)
		}
		what := cmp.Or(strings.Join(state.Changes, "; "), state.Name+" is another one")
		return fmt.Errorf("%w: %s; take that back, or remove the rules (%s), and undo again", ErrChanged, what, netns.CommandIn(ns, state.ByHand))
	})
}

// Restorable: the plan before is in the store.
func (g gateways) Restorable(_, before string) error {
	digest, _ := tune.GatewayDigest(before)
	if digest == "" {
		return nil
	}
	if _, err := g.plan(digest); err != nil {
		// Not that error itself: it says that the rules are gone.
		return fmt.Errorf("the rules before it cannot be put back: %v; 'natkit gateway apply FILE' puts others in force", err)
	}
	return nil
}

func (g gateways) Write(target, value string) error {
	return inNamespace(target, func(ns *netns.Handle) error {
		if value == tune.GatewayNone {
			return g.engines.Remove(ns)
		}
		digest, _ := tune.GatewayDigest(value)
		plan, err := g.plan(digest)
		if errors.Is(err, fs.ErrNotExist) {
			// Not that error itself: it says that the table is gone.
			return fmt.Errorf("gateway: the plan that is to be put in force again is missing: %v; 'natkit gateway apply FILE' puts another one in force", err)
		}
		if err != nil {
			return err
		}
		return g.engines.Apply(ns, plan)
	})
}

// Honours: a table that somebody had changed comes back as natkit wrote it.
func (g gateways) Honours(_, asked, got string) bool {
	digest, _ := tune.GatewayDigest(asked)
	return asked == got || digest != "" && digest == got
}

func (g gateways) Durable() bool { return false }

// inNamespace runs fn with the namespace of a target; nil is the thread's own, which
// takes no right to enter.
func inNamespace(target string, fn func(*netns.Handle) error) error {
	inode, err := tune.ParseGatewayTarget(target)
	if err != nil {
		return err
	}
	if inode == journal.NamespaceInode("/proc", "net") {
		return fn(nil)
	}
	ns, err := netns.OfInode(inode)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	defer ns.Close()
	return fn(ns)
}

// gatewayFile applies the configuration that the gateway has after a boot. The store
// has the texts.
type gatewayFile struct {
	root  string
	store *store.Store
}

func (g gatewayFile) path() string { return filepath.Join(g.root, tune.ConfPath(tune.GatewayFile)) }

// GatewayFileText is the configuration that the gateway has after a boot.
func GatewayFileText(opt Options) ([]byte, error) {
	opt = opt.withDefaults()
	text, err := os.ReadFile(gatewayFile{root: opt.Root}.path())
	if err != nil {
		return nil, fmt.Errorf("read gateway configuration: %w", err)
	}
	return text, nil
}

func (g gatewayFile) Read(string) (string, error) {
	text, err := os.ReadFile(g.path())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read gateway configuration: %w", err)
	}
	return store.TextDigest(text), nil
}

func (g gatewayFile) Writable(string) error { return mayReplace(g.path()) }

func (g gatewayFile) Write(_, value string) error {
	if err := regular(g.path()); err != nil {
		return err
	}
	if value == "" {
		if err := os.Remove(g.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove gateway configuration: %w", err)
		}
		return disk.SyncDir(filepath.Dir(g.path()))
	}
	text, err := g.store.Text(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(g.path()), 0o755); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	if err := disk.Replace(g.path(), 0o644, disk.Text(text)); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	return nil
}

func (g gatewayFile) Honours(_, asked, got string) bool { return asked == got }

func (g gatewayFile) Durable() bool { return true }
