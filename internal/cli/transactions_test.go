package cli

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Rules that were changed by hand are restored as natkit wrote them, and so is the plan named.
func TestResultOfRestoredRules(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	c := journal.Change{State: journal.Undone, Change: tune.Change{Kind: tune.Gateway, Target: tune.GatewayTarget(1, tune.EngineNetfilter), Before: tune.GatewayChanged(digest), After: tune.GatewayNone}}
	if got := changeResult(c); got != digest[:12] {
		t.Errorf("%q", got)
	}
}
