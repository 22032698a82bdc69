package netfilter

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
)

// Engine is this package behind the interface of package engine.
type Engine struct{}

// Name is the engine's word in the file.
func (Engine) Name() gateway.Engine { return gateway.EngineNetfilter }

// Flowtable asks the kernel, in a namespace that ends with it, or in the one that is
// looked at, where natkit may not make one.
func (Engine) Flowtable(here *netns.Handle) gateway.Support {
	ns, err := netns.New("flowtable-probe")
	if err != nil {
		return support(checkFlowtable(here))
	}
	defer ns.Close()
	return support(checkFlowtable(ns))
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

// Apply is the function of that name. A table without its seal is in force as well.
func (Engine) Apply(ns *netns.Handle, p *gateway.Plan) error {
	if err := Apply(ns, p); !errors.Is(err, ErrUnsealed) {
		return err
	}
	return nil
}

// Remove is the function of that name.
func (Engine) Remove(ns *netns.Handle) error { return Remove(ns) }

// Present looks for natkit's table.
func (Engine) Present(ns *netns.Handle) (bool, error) { return read.HasTable(ns, Family, Table) }

// Read tells the state of natkit's table in every engine's words.
func (Engine) Read(ns *netns.Handle, plans func(digest string) *gateway.Plan) (*gateway.State, error) {
	if plans == nil {
		if s := remembered(ns); s != nil {
			return s.neutral(), nil
		}
	}
	s, err := Read(ns)
	if err != nil || !s.Present {
		return &gateway.State{}, err
	}
	if len(s.Changes) > 0 && plans != nil {
		if p := plans(s.Digest); p != nil {
			s.Compare(p)
		}
	}
	out := s.neutral()
	for _, c := range s.Counts {
		if counted, known := c.counted(); known {
			out.Counts = append(out.Counts, counted)
		}
	}
	return out, nil
}

// neutral is the state without its Counts.
func (s *State) neutral() *gateway.State {
	return &gateway.State{
		Present: true, Name: "table " + Family + " " + Table, ByHand: "nft delete table " + Family + " " + Table,
		Digest: s.Digest, Sealed: s.Sealed, Intact: s.Intact, Changes: s.Changes, Owned: s.Owned,
	}
}

// counted tells what the comment says that is counted; false for somebody else's rules.
func (c Counted) counted() (out gateway.Counted, known bool) {
	out = gateway.Counted{What: c.Comment, Packets: c.Packets, Bytes: c.Bytes}
	ref, isRule := gateway.ParseRef(c.Comment)
	switch {
	case isRule:
		out.Rule, out.What = &ref, ""
	case c.Comment == LimitComment || c.Comment == UntranslatableComment:
		out.Dropped = true
	case c.Comment != MSSComment && c.Comment != FlowtableComment:
		return out, false
	}
	return out, true
}

// Follow goes through netfilter's hooks and chains.
func (Engine) Follow(p *gateway.Plan, facts gateway.Facts, route observe.Router, packet observe.Packet) (*observe.Trace, error) {
	return observe.Follow(p, facts, route, packet)
}
