package apply

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

// Connections keep their translation; those that no rule would translate so are found,
// and only these are flushed.
func TestOrphans(t *testing.T) {
	w := newWorld(t)
	w.ip("ip addr add 192.168.0.9/24 dev lan0")
	w.ip("ip addr add 10.3.0.9/24 dev lan0")
	w.ip("ip addr add 203.0.113.8/24 dev wan0")
	const old = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - snat: {from: 192.168.0.9, to: 203.0.113.8}
    - snat: {from: 10.3.0.0/16, to: 203.0.113.7}
`
	w.apply(old, 0)
	former, err := w.InForce()
	if err != nil || former == nil {
		t.Fatalf("%v, %v", former, err)
	}
	w.send("192.168.0.9:4000", "203.0.113.99:53")
	w.send("10.3.0.9:4000", "203.0.113.99:53")
	w.apply(strings.Replace(old, "203.0.113.8", "203.0.113.7", 1), 0)
	now, err := w.InForce()
	if err != nil {
		t.Fatal(err)
	}
	stale, err := w.Orphans(t.Context(), former, now)
	if err != nil || len(stale.Keys) != 1 || stale.Rules[gateway.Ref{List: "nat", Index: 0, Kind: "snat"}] != 1 {
		t.Fatalf("%+v, %v", stale, err)
	}
	if d, err := w.Flush(t.Context(), stale); err != nil || d.Deleted != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	// What snat gave is none of the addresses that masquerade gives.
	w.apply(old, 0)
	w.send("192.168.0.9:4001", "203.0.113.99:53")
	w.apply(strings.Replace(old, "snat: {from: 192.168.0.9, to: 203.0.113.8}", "masquerade: {from: 192.168.0.9}", 1), 0)
	if now, err = w.InForce(); err != nil {
		t.Fatal(err)
	}
	if stale, err = w.Orphans(t.Context(), former, now); err != nil || len(stale.Keys) != 1 {
		t.Fatalf("%+v, %v", stale, err)
	}
	if _, err := w.Flush(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	all, err := w.Orphans(t.Context(), former, nil)
	if err != nil || len(all.Keys) != 1 {
		t.Errorf("left are %+v, %v; want the one of 10.3.0.9", all, err)
	}
	// With the last rule of NAT the kernel stops translating.
	wantCut := func(want bool) {
		t.Helper()
		if s, err := w.Orphans(t.Context(), former, nil); err != nil || len(s.Keys) != 1 || s.Cut != want {
			t.Errorf("%+v, %v; want cut %v", s, err, want)
		}
	}
	wantCut(false)
	testutil.NeedProgram(t, "nft")
	w.ip("nft delete table inet natkit")
	wantCut(true)
	w.ip("nft add table ip6 other")
	w.ip("nft add chain ip6 other c { type nat hook postrouting priority 100 ; }")
	w.ip("nft add rule ip6 other c masquerade")
	wantCut(true)
	w.ip("nft add table ip other")
	w.ip("nft add chain ip other c { type nat hook postrouting priority 100 ; }")
	w.ip("nft add rule ip other c masquerade")
	wantCut(false)
}
