package netfilter

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
)

// Engine is this package behind the interface of package engine.
type Engine struct{}

// Name is the engine's word in the file.
func (Engine) Name() gateway.Engine { return gateway.EngineNetfilter }

// Facts finds out whether the kernel has flowtables, where the file asks for one: in a
// namespace that ends with it, or in the given one, where natkit may not make one. A
// module that it needs is loaded.
func (Engine) Facts(here *netns.Handle, c *gateway.Config, f *gateway.Facts) {
	if !c.Flowtable {
		return
	}
	ns, err := netns.New("flowtable-probe")
	if err != nil {
		ns = here
	} else {
		defer ns.Close()
	}
	if f.Flowtable = support(checkFlowtable(ns)); f.Flowtable.Unknown {
		f.Unknown = append(f.Unknown, "flowtables: "+f.Flowtable.Reason)
	}
}

// Claim takes all of a plan.
func (Engine) Claim(p *gateway.Plan, _ gateway.Facts) (mine, rest *gateway.Plan, notes []gateway.Note) {
	return p, nil, nil
}

func support(err error) gateway.Support {
	var missing *Missing
	switch {
	case err == nil:
		return gateway.Support{OK: true}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.As(err, &missing):
		return gateway.Support{Reason: "this kernel has no flowtables, or their module is not installed (CONFIG_NF_FLOW_TABLE, CONFIG_NF_FLOW_TABLE_INET; Linux 4.16)"}
	default:
		return gateway.Support{Unknown: true, Reason: fmt.Sprintf("it could not be tried whether this kernel has flowtables: %v", err)}
	}
}

// Check asks the kernel, in a namespace that ends with it; it finds nothing where natkit
// may not make one.
func (Engine) Check(p *gateway.Plan) error {
	ns, err := netns.New("plan-probe")
	if err != nil {
		return nil
	}
	defer ns.Close()
	return check(ns, p)
}

// Apply replaces natkit's table in a namespace (nil: this one) by one transaction, so that
// packets meet the old rules or the new ones. Connections stay as they were translated.
// Needs CAP_NET_ADMIN in that namespace.
func (Engine) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (seal string, err error) {
	return sealed(ns, digest, func() error { return apply(ns, p, digest) })
}

// Update is Apply where the plan in force, as plan knows it, differs in elements of sets alone: these are replaced, by one
// transaction, and rules and counters stay. Nothing is done, false, where it differs in more, or rules changed meanwhile.
func (e Engine) Update(ns *netns.Handle, p *gateway.Plan, digest string, plan func(digest string) *gateway.Plan) (seal string, done bool) {
	former, generation := rememberedAt(ns)
	if former == "" || generation == 0 || len(p.Sets) == 0 {
		return "", false
	}
	was := plan(former)
	if was == nil {
		return "", false
	}
	messages, only := elementChanges(was.Part(e.Name()), p, digest)
	if !only {
		return "", false
	}
	seal, err := sealed(ns, digest, func() error { return transaction(ns, messages, generation) })
	return seal, err == nil
}

// Present reports whether natkit's table is there.
func (Engine) Present(ns *netns.Handle) (bool, error) { return read.HasTable(ns, Family, Table) }

// Read returns the state of natkit's table in a namespace (nil: this one). Needs
// CAP_NET_ADMIN in that namespace.
func (Engine) Read(ns *netns.Handle, seal string, plan func(digest string) *gateway.Plan) (*gateway.State, error) {
	if plan == nil {
		if digest := remembered(ns); digest != "" {
			return state(digest, gateway.RulesIntact), nil
		}
	}
	t, err := read.TableNamed(ns, Family, Table)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's state: %w", err)
	}
	if t == nil {
		return &gateway.State{}, nil
	}
	s := state(digestOf(t), gateway.RulesUnknown)
	s.Locked = t.Owned
	if plan != nil {
		s.Counts = counts(t)
	}
	judge(s, t, seal, plan)
	if plan != nil && s.Integrity == gateway.RulesIntact {
		if p := plan(s.Digest); p != nil {
			if err := judgeChoices(s, ns, p); err != nil {
				return nil, err
			}
		}
	}
	if s.Integrity == gateway.RulesIntact {
		remember(ns, t.Generation, s.Digest)
	}
	return s, nil
}

func state(digest string, integrity gateway.Integrity) *gateway.State {
	return &gateway.State{Present: true, Name: "table " + Family + " " + Table, Removal: "nft delete table " + Family + " " + Table,
		Digest: digest, Integrity: integrity}
}

// counts are the counters of rules and elements, in the table's order.
func counts(t *read.Table) (all []gateway.Counted) {
	add := func(comment string, packets, bytes uint64) {
		c := gateway.Counted{What: comment, Packets: packets, Bytes: bytes}
		ref, isRule := gateway.ParseRef(comment)
		switch {
		case isRule:
			c.Rule, c.What = &ref, ""
		case comment == LimitComment || comment == UntranslatableComment || comment == AllDownComment:
			c.Dropped = true
		case comment != MSSComment && comment != FlowtableComment:
			return // another program's
		}
		all = append(all, c)
	}
	for _, r := range t.Rules {
		if r.Counted {
			add(r.Comment, r.Packets, r.Bytes)
		}
	}
	for _, s := range t.Sets {
		for _, e := range s.Elements {
			if e.Counted && !s.Dynamic {
				add(e.Comment, e.Packets, e.Bytes)
			}
		}
	}
	return all
}

// Follow goes through netfilter's hooks and chains.
func (Engine) Follow(_ *netns.Handle, p *gateway.Plan, facts gateway.Facts, route observe.Router, packet nat.Packet) (*observe.Trace, error) {
	return observe.Follow(p, facts, route, packet)
}
