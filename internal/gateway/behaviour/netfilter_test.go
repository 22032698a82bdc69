package behaviour

import (
	"slices"
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

// atATime is how many cases are played at one time. Most of a case's time is waiting:
// for namespaces to be made and for timers.
const atATime = 8

// worlds are of this machine: the timers of cases take three times as long where it is
// known to be slow.
func worlds(e Engine) Maker {
	slow := min(3, int(testutil.Patience(1)))
	return Stretched(Namespaces(e, testutil.Patience(5*time.Second)), slow)
}

// TestNetfilter plays the suite on this kernel. On the one of the record it must find
// the same.
func TestNetfilter(t *testing.T) {
	testutil.NeedRoot(t)
	cases, start := All(), time.Now()
	results := Run(Netfilter, cases, worlds(netfilter{}), atATime)
	took := time.Since(start)
	if *update {
		writeRecord(t, Record{Netfilter, series(t), results})
	}
	recorded := readRecord(t, Netfilter)
	for i, r := range results {
		t.Run(cases[i].ID, func(t *testing.T) {
			t.Logf("%s: %s", r.Status, r.Outcome)
			if r.Err != nil {
				t.Error(r.Err)
			}
			if old := recorded.of(r.ID); recorded.Kernel == series(t) && r.Err == nil && (old.Status != r.Status || old.Outcome != r.Outcome) {
				t.Errorf("recorded as %s, %q: -update records what is now", old.Status, old.Outcome)
			}
		})
	}
	failed := slices.IndexFunc(results, func(r Result) bool { return r.Err != nil }) >= 0
	t.Logf("%d cases in %v; failures: %v", len(cases), took.Round(10*time.Millisecond), failed)
}
