package netfilter

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// farm is a namespace with a plan in force whose hosts are checked.
type farm struct {
	*testing.T
	ns   *netns.Handle
	plan *gateway.Plan
	seal string
}

// rule is the first one of the file.
var firstRule = gateway.Ref{List: "nat", Index: 0, Kind: "dnat"}

func newFarm(t *testing.T, more string) *farm {
	testutil.NeedRoot(t)
	f := &farm{T: t, ns: testutil.Namespace(t)}
	f.plan = planOfText(t, "test", "gateway: {nat: [{dnat: {on: 203.0.113.7, port: tcp/80, to: [\"10.0.0.1:80\", \"10.0.0.2:80\", \"10.0.0.3:80\"], health: {tcp: on}"+more+"}}]}")
	f.apply()
	return f
}

func (f *farm) apply() {
	f.Helper()
	var err error
	if f.seal, err = (Engine{}).Apply(f.ns, f.plan, gateway.Digest(f.plan)); err != nil {
		f.Fatal(err)
	}
}

// changes are those that were made by hand.
func (f *farm) changes() string {
	f.Helper()
	s, err := Engine{}.Read(f.ns, f.seal, func(digest string) *gateway.Plan {
		if digest != gateway.Digest(f.plan) {
			f.Errorf("asked for plan %s", digest)
		}
		return f.plan
	})
	if err != nil || s.Integrity == gateway.RulesUnknown {
		f.Fatal(s, err)
	}
	return strings.Join(s.Changes, "; ")
}

func (f *farm) inUse() string {
	f.Helper()
	used, err := Engine{}.InUse(f.ns, f.plan)
	if err != nil {
		f.Fatal(err)
	}
	return fmt.Sprint(used[firstRule])
}

func (f *farm) use(out ...bool) error {
	return Engine{}.Use(f.ns, f.plan, map[gateway.Ref][]bool{firstRule: out})
}

func (f *farm) generation() uint32 {
	f.Helper()
	n, err := read.Generation(f.ns)
	if err != nil {
		f.Fatal(err)
	}
	return n
}

// TestUse: hosts come and go by one transaction each, which is no change by hand.
func TestUse(t *testing.T) {
	for name, more := range map[string]string{"in turns": "", "by hash": ", balance: hash"} {
		t.Run(name, func(t *testing.T) {
			f := newFarm(t, more)
			if got := f.inUse(); got != "[true true true]" {
				t.Error(got)
			}
			for _, c := range []struct {
				out  [3]bool
				used string
			}{{[3]bool{false, true, false}, "[true false true]"}, {[3]bool{true, true, false}, "[false false true]"}, {[3]bool{}, "[true true true]"}} {
				before := f.generation()
				if err := f.use(c.out[:]...); err != nil {
					t.Fatal(err)
				}
				if now := f.generation(); now != before+1 {
					t.Errorf("%d transactions", now-before)
				}
				// A seal is of the namespace's cookie.
				if digest := remembered(f.ns); testutil.NetnsCookie.Probe() == nil && digest != gateway.Digest(f.plan) {
					t.Errorf("the rules are not known as intact any more: %q", digest)
				}
				if got := f.inUse(); got != c.used || f.changes() != "" {
					t.Errorf("in use %s, want %s; changed: %s", got, c.used, f.changes())
				}
				if err := f.use(c.out[:]...); err != nil || f.generation() != before+1 {
					t.Errorf("the same again wrote something: %v", err)
				}
			}
		})
	}
}

// TestUseNone: without a host a rule that rejects has an empty map, another may not.
func TestUseNone(t *testing.T) {
	testutil.NeedFeature(t, testutil.EarlyReject)
	f := newFarm(t, ", all-down: reject")
	if err := f.use(true, true, true); err != nil || f.inUse() != "[false false false]" || f.changes() != "" {
		t.Errorf("%v, in use %s, changed: %s", err, f.inUse(), f.changes())
	}
	if err := f.use(true, false, true); err != nil || f.inUse() != "[false true false]" {
		t.Errorf("%v, in use %s", err, f.inUse())
	}
	testutil.NeedProgram(t, "nft")
	f = newFarm(t, "")
	run(t, f.ns, "nft", "flush", "map", "inet", "natkit", "checked-nat-0")
	if got := f.inUse(); got != "[]" || !strings.Contains(f.changes(), "checked-nat-0") {
		t.Errorf("in use %s, changed: %s", got, f.changes())
	}
}

// TestUseAfterChangesByHand: changes by hand are detected after natkit's own, and none is written over one of the same
// map.
func TestUseAfterChangesByHand(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	f := newFarm(t, "")
	if err := f.use(true, false, false); err != nil {
		t.Fatal(err)
	}
	run(t, f.ns, "nft", "add", "rule", "inet", "natkit", "prerouting", "ip", "saddr", "10.9.9.9", "accept")
	if got := f.changes(); !strings.Contains(got, "chain prerouting: 2 rules instead of 1") {
		t.Errorf("%q", got)
	}
	if err := f.use(false, false, false); err != nil {
		t.Error(err)
	}
	if got := f.changes(); !strings.Contains(got, "chain prerouting: 2 rules instead of 1") {
		t.Errorf("%q", got)
	}
	f.apply()
	run(t, f.ns, "nft", "delete element inet natkit checked-nat-0 { 5 }")
	run(t, f.ns, "nft", "add element inet natkit checked-nat-0 { 5 : 10.6.6.6 . 80 }")
	if got := f.changes(); !strings.Contains(got, "checked-nat-0") {
		t.Errorf("%q", got)
	}
	if err := f.use(true, false, false); !errors.Is(err, ErrOtherHosts) {
		t.Errorf("%v", err)
	}
	other := planOfText(t, "test", "gateway: {nat: [{dnat: {on: 203.0.113.7, port: tcp/80, to: [10.8.0.1, 10.8.0.2], health: {tcp: on}}}]}")
	if _, err := (Engine{}).Apply(f.ns, other, gateway.Digest(other)); err != nil {
		t.Fatal(err)
	}
	if err := f.use(true, false, false); !errors.Is(err, ErrOtherHosts) {
		t.Errorf("of another plan: %v", err)
	}
}

// TestApplyWithoutThoseThatAreOut: hosts that are out stay out when the rules are written anew.
func TestApplyWithoutThoseThatAreOut(t *testing.T) {
	f := newFarm(t, "")
	f.plan.Out = map[gateway.Ref][]bool{firstRule: {false, true, false}}
	f.apply()
	if got := f.inUse(); got != "[true false true]" || f.changes() != "" {
		t.Errorf("in use %s, changed: %s", got, f.changes())
	}
}
