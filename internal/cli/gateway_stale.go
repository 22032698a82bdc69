package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/run"
	"github.com/natkit/natkit/internal/units"
)

// staleAfter looks for connections whose rule went away, and deletes them where told
// to. Without a former plan of natkit's there are none.
func staleAfter(ctx context.Context, h run.Host, former, now *gateway.Plan, flush bool) (*gatewayStale, error) {
	if former == nil {
		return nil, nil
	}
	found, err := h.Orphans(ctx, former, now)
	if err != nil {
		return nil, err
	}
	s := &gatewayStale{Connections: int64(len(found.Keys)), Cut: found.Cut, ByRule: map[string]int64{}}
	for ref, n := range found.Rules {
		s.ByRule[ref.String()] = n
	}
	if flush {
		deleted, err := h.Flush(ctx, found)
		s.Deleted, s.Offloaded = deleted.Deleted, deleted.Busy
		return s, err
	}
	return s, nil
}

// text says how many there are, and what came of them or, advice, what deletes them now.
func (s *gatewayStale) text(advice string) string {
	if s == nil || s.Connections == 0 {
		return ""
	}
	var rules []string
	for rule, n := range s.ByRule {
		rules = append(rules, fmt.Sprintf("%s (%s)", rule, units.Count(n)))
	}
	slices.Sort(rules)
	text := fmt.Sprintf("%s of rules that went: %s; ", units.Plural(s.Connections, "connection", "connections"), strings.Join(rules, ", "))
	switch {
	case s.Deleted == 0 && s.Offloaded == 0 && s.Cut:
		return text + "they are cut: without any rule of NAT the kernel translates no packet\n"
	case s.Deleted == 0 && s.Offloaded == 0:
		return text + "they keep their translation until they end; " + advice + "\n"
	case s.Offloaded > 0:
		return text + fmt.Sprintf("%s deleted, %s are in the kernel's fast path and end by themselves\n", units.Count(s.Deleted), units.Count(s.Offloaded))
	}
	return text + "deleted\n"
}
