package behaviour

import (
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// netfilter is the kernel's own NAT.
type netfilter struct{}

func (netfilter) Name() string                                  { return Netfilter }
func (netfilter) Apply(ns *netns.Handle, p *gateway.Plan) error { return nft.Apply(ns, p) }
func (netfilter) Remove(ns *netns.Handle) error                 { return nft.Remove(ns) }

// TestNetfilter runs the suite on this kernel.
func TestNetfilter(t *testing.T) {
	testutil.NeedRoot(t)
	world := Namespaces(netfilter{}, testutil.Patience(5*time.Second))
	cases := All()
	start := time.Now()
	for i, r := range Run(Netfilter, cases, world, 8) {
		t.Run(cases[i].ID, func(t *testing.T) {
			t.Logf("%s: %s", r.Status, r.Outcome)
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	t.Logf("%d cases in %v", len(cases), time.Since(start))
}
