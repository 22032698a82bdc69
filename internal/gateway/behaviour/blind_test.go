package behaviour

import (
	"testing"

	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/testutil"
)

// withoutNAT are the cases that a router without NAT meets too: they are about what the
// gateway says as a router, or about what it must not do.
var withoutNAT = map[string]bool{
	"remove":                       true,
	"rfc4787-req-13":               true,
	"ip-source-route":              true,
	"rfc5508-req-4-unmatched":      true,
	"rfc5508-req-4-unmatched-ipv6": true,
	"rfc5508-req-10-a1":            true,
	"rfc5508-req-10-a2":            true,
	"rfc5508-req-10-a2-ipv6":       true,
	"rfc5508-req-10-a3":            true,
	"rfc5508-req-10-a3-ipv6":       true,
	"rfc5508-req-10-c":             true,
}

// TestCasesSeeThatNothingTranslates plays all cases through a router without NAT. One
// that it meets would not see an engine that does nothing either.
func TestCasesSeeThatNothingTranslates(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	cases := All()
	for i, r := range Run("router", cases, worlds(carried{engine.Set{&fake.Engine{}}}), slow(), atATime) {
		if meets := r.Status == Meets; meets != withoutNAT[cases[i].ID] {
			t.Errorf("%s through a router without NAT: %s, %q; declared: %v; %v", cases[i].ID, r.Status, r.Outcome, withoutNAT[cases[i].ID], r.Err)
		}
	}
}
