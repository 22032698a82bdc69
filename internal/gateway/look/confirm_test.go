package look

import (
	"math"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// TestConfirmationOfWhatIsInForce: a transaction that waits is reported until a later one has
// replaced its rules, which then stay at its deadline.
func TestConfirmationOfWhatIsInForce(t *testing.T) {
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	here := netns.ID{Inode: 4026531999}
	of := func(id string, ns uint64, confirm *journal.Confirm, kind tune.Kind) *journal.Transaction {
		c := journal.Change{Change: tune.Change{Kind: kind, Target: tune.GatewayTarget(ns, "netfilter")}, State: journal.Applied}
		return &journal.Transaction{ID: id, BootID: boot, Netns: ns, Complete: true, Confirm: confirm, Changes: []journal.Change{c}}
	}
	waits, overdue := &journal.Confirm{BoottimeNS: math.MaxInt64}, &journal.Confirm{}
	a := of("t0001", here.Inode, waits, tune.Gateway)
	for name, c := range map[string]struct {
		all  []*journal.Transaction
		want string
	}{
		"alone":                   {[]*journal.Transaction{a}, "t0001"},
		"replaced":                {[]*journal.Transaction{a, of("t0002", here.Inode, nil, tune.Gateway)}, ""},
		"replaced by one more":    {[]*journal.Transaction{a, of("t0002", here.Inode, waits, tune.Gateway)}, "t0002"},
		"elsewhere":               {[]*journal.Transaction{a, of("t0002", here.Inode+1, nil, tune.Gateway)}, "t0001"},
		"something else after it": {[]*journal.Transaction{a, of("t0002", here.Inode, nil, tune.Sysctl)}, "t0001"},
		"overdue":                 {[]*journal.Transaction{of("t0003", here.Inode, overdue, tune.Gateway)}, "t0003"},
	} {
		v := &view{o: &Options{}, Status: &observe.Status{}, state: &gateway.State{}}
		if err := v.pending(c.all, here); err != nil {
			t.Fatal(err)
		}
		got := ""
		if v.Confirm != nil {
			got = v.Confirm.ID
		}
		if got != c.want {
			t.Errorf("%s: waits %q, want %q", name, got, c.want)
		}
	}
}
