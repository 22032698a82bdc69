package behaviour

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// route makes the rules and routes of policy routing of a plan's zones and uplinks, which natkit makes beside its engines.
func (w *netnsWorld) route(p *gateway.Plan) error {
	if p == nil || len(p.Zones)+len(p.Uplinks) == 0 { // an engine of tests may have rules of its own
		return nil
	}
	facts, err := host.Read(context.Background(), w.gateway, host.Options{Routing: true, Inside: p.Zoned()})
	if err != nil {
		return fmt.Errorf("read the gateway's routes: %w", err)
	}
	routing := gwapply.Appliers(apply.Options{Journal: &journal.Journal{}})[tune.Routing] // what is new in a namespace needs none
	return w.gateway.Do(func() error {
		for _, step := range p.Routing(&facts) {
			if err := routing.Write(step.Target, step.Value); err != nil {
				return fmt.Errorf("make %s: %w", step.Target, err)
			}
		}
		return nil
	})
}

// aheadOfAll is a priority of prerouting before that of every chain of the engines.
const aheadOfAll = -310

// Mark adds a rule to a table of its own, for the link-layer address of the host.
func (w *netnsWorld) Mark(from Host, mark uint32) error {
	at, known := deviceOf(from)
	if !known {
		return fmt.Errorf("mark what %s sends: no such host", from)
	}
	c, err := nftables.New(nftables.WithNetNSFd(w.gateway.Fd()))
	if err != nil {
		return fmt.Errorf("open netlink in namespace %s: %w", w.gateway.Name(), err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "marks"})
	chain := c.AddChain(&nftables.Chain{Table: table, Name: "marks", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(aheadOfAll)})
	const source = 6 // in the Ethernet header
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: source, Len: uint32(len(at.mac))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: at.mac[:]},
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("mark what %s sends: %w", from, err)
	}
	return nil
}

func (w *netnsWorld) Group(dev string, group uint32) error {
	link, err := w.links.LinkByName(dev)
	if err == nil {
		err = w.links.LinkSetGroup(link, int(group))
	}
	if err != nil {
		return fmt.Errorf("put %s into link group %d: %w", dev, group, err)
	}
	return nil
}

func (w *netnsWorld) Use(p *gateway.Plan, out map[gateway.Ref][]bool) error {
	c, err := w.chooser()
	if err != nil {
		return err
	}
	return c.Use(w.gateway, p, out)
}

func (w *netnsWorld) Steer(p *gateway.Plan, up func(u *gateway.Uplink, v6 bool) bool) error {
	c, err := w.chooser()
	if err != nil {
		return err
	}
	return c.Steer(w.gateway, p, up)
}

func (w *netnsWorld) chooser() (chooser, error) {
	if c, is := w.engine.(chooser); is {
		return c, nil
	}
	return nil, fmt.Errorf("the engine leaves nothing out of a choice: %w", errors.ErrUnsupported)
}
