package build

import (
	"context"
	"fmt"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/lab"
)

// SetGateway puts a gateway file in force in its node, and takes away what a call before
// has put in force in any. Nil is none.
func (l *Lab) SetGateway(ctx context.Context, g *lab.Gateway) error {
	if l.gateway != "" {
		if err := l.engines.Remove(l.Node(l.gateway).Netns); err != nil {
			return fmt.Errorf("remove the gateway of %s: %w", l.gateway, err)
		}
		l.gateway = ""
	}
	if g == nil {
		return nil
	}
	node := l.Node(g.Node)
	facts, err := host.Read(ctx, node.Netns, host.Options{})
	if err != nil {
		return fmt.Errorf("put a gateway file in force in %s: %w", g.Node, err)
	}
	plan, err := gateway.Compile(&g.Config, facts)
	if err == nil {
		l.gateway = g.Node
		err = l.engines.Apply(node.Netns, plan)
	}
	if err != nil {
		return fmt.Errorf("put a gateway file in force in %s: %w", g.Node, err)
	}
	return nil
}
