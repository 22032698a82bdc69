package netfilter

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// foreign is the comment of a rule that another program adds to natkit's table.
const foreign = "another program's"

// intrude adds a rule to a chain of natkit's table, where there is one.
func intrude(ns *netns.Handle, chain string) error {
	m, err := rule{chain: chain, exprs: []expression{&expr.Counter{}}, comment: foreign}.message()
	if err != nil {
		return err
	}
	return transaction(ns, []message{m}, 0)
}

func readBack(t *testing.T, ns *netns.Handle, seal string) *gateway.State {
	t.Helper()
	s, err := Engine{}.Read(ns, seal, kept.Plan)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSealOfWhatWasWritten: a rule that another program adds between the transaction and
// its seal is not sealed as natkit's.
func TestSealOfWhatWasWritten(t *testing.T) {
	testutil.NeedRoot(t)
	for name, test := range map[string]struct {
		often     int // how often another program comes between
		writes    int
		integrity gateway.Integrity
	}{
		"never":    {0, 1, gateway.RulesIntact},
		"once":     {1, 2, gateway.RulesIntact},
		"each one": {attempts, attempts, gateway.RulesUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			ns, writes := testutil.Namespace(t), 0
			seal, err := sealed(ns, "d1", func() error {
				writes++
				if err := apply(ns, killedPlan(0), "d1"); err != nil || writes > test.often {
					return err
				}
				return intrude(ns, "prerouting")
			})
			if err != nil || (seal != "") != (test.integrity == gateway.RulesIntact) {
				t.Errorf("seal %q, %v", seal, err)
			}
			if s := readBack(t, ns, seal); writes != test.writes || s.Integrity != test.integrity {
				t.Errorf("written %d times; %s, changed: %q", writes, s.Integrity, s.Changes)
			}
		})
	}
}

// TestChangesOfASealedTable: each way to change it, with the rules of the file where the
// plan is known. A seal of another plan says nothing.
func TestChangesOfASealedTable(t *testing.T) {
	testutil.NeedRoot(t)
	ns, p := testutil.Namespace(t), killedPlan(0)
	p.Engine = gateway.EngineNetfilter
	digest := gateway.Digest(p)
	seal, err := Engine{}.Apply(ns, p, digest)
	if err != nil {
		t.Fatal(err)
	}
	if s := readBack(t, ns, seal); s.Integrity != gateway.RulesIntact {
		t.Errorf("%+v", s)
	}
	if err := intrude(ns, "prerouting"); err != nil {
		t.Fatal(err)
	}
	want := []string{"chain prerouting: 2 rules instead of 1"}
	if s := readBack(t, ns, seal); s.Integrity != gateway.RulesChanged || !slices.Equal(s.Changes, want) {
		t.Errorf("%s: %q, want %q", s.Integrity, s.Changes, want)
	}
	named, err := Engine{}.Read(ns, seal, func(d string) *gateway.Plan {
		if d != digest {
			t.Errorf("asked for %s", d)
		}
		return p
	})
	if want = []string{want[0] + " (1 of them not natkit's)"}; err != nil || !slices.Equal(named.Changes, want) {
		t.Errorf("%q, want %q; %v", named.Changes, want, err)
	}
	if _, err := (Engine{}).Apply(ns, killedPlan(1), "d2"); err != nil {
		t.Fatal(err)
	}
	if s := readBack(t, ns, seal); s.Integrity != gateway.RulesUnknown || s.Digest != "d2" {
		t.Errorf("the seal of another plan: %+v", s)
	}
}

// TestTableOfAnEarlierVersion: its chain of marks has a seal of each object. It is
// recognised by its digest, and replaced.
func TestTableOfAnEarlierVersion(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	if _, err := (Engine{}).Apply(ns, killedPlan(0), "d1"); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"seal chain postrouting 1 0011223344556677", "seal sets of-rules 3 8899aabbccddeeff"} {
		m, err := rule{chain: MarkChain, exprs: []expression{&expr.Verdict{Kind: expr.VerdictReturn}}, comment: mark}.message()
		if err == nil {
			err = transaction(ns, []message{m}, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if s := readBack(t, ns, ""); !s.Present || s.Digest != "d1" || s.Integrity != gateway.RulesUnknown {
		t.Errorf("%+v", s)
	}
	seal, err := Engine{}.Apply(ns, killedPlan(1), "d2")
	if s := readBack(t, ns, seal); err != nil || s.Digest != "d2" || s.Integrity != gateway.RulesIntact {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestSealWhileOthersWrite: whoever writes at the same time, a table with a foreign rule is
// never taken for intact.
func TestSealWhileOthersWrite(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	done := make(chan struct{})
	var others sync.WaitGroup
	var reading sync.Mutex
	step := testutil.Patience(1300 * time.Microsecond)
	others.Go(func() {
		for pause := time.Duration(0); ; pause = (pause + step) % (23 * step) {
			select {
			case <-done:
				return
			case <-time.After(pause):
				reading.Lock()
				_ = intrude(ns, "prerouting") // where the table is not there yet it fails
				reading.Unlock()
			}
		}
	})
	defer others.Wait()
	defer close(done)
	// One rule is natkit's; the seal of a table that was left alone.
	clean, whole := testutil.Namespace(t), map[string]string{}
	for i, digest := range []string{"d0", "d1"} {
		seal, err := Engine{}.Apply(clean, killedPlan(i), digest)
		if err != nil || seal == "" {
			t.Fatal(seal, err)
		}
		whole[digest] = seal
	}
	found := map[gateway.Integrity]int{}
	for i := range 30 {
		digest := []string{"d0", "d1"}[i%2]
		seal, err := Engine{}.Apply(ns, killedPlan(i%2), digest)
		if err != nil {
			t.Fatal(err)
		}
		if seal != "" && seal != whole[digest] {
			t.Fatalf("round %d: a foreign rule was sealed", i)
		}
		reading.Lock()
		found[readBack(t, ns, seal).Integrity]++
		reading.Unlock()
	}
	t.Logf("found: %v", found)
}

// TestReadAgainWhereRulesChanged: what was just written is not read again, as 10,000 rules
// take their time, unless the rules have changed since, in that namespace.
func TestReadAgainWhereRulesChanged(t *testing.T) {
	testutil.NeedRoot(t)
	ns, other := testutil.Namespace(t), testutil.Namespace(t)
	testutil.NeedFeature(t, testutil.NetnsCookie)
	seal, err := Engine{}.Apply(ns, killedPlan(0), "d1")
	if err != nil {
		t.Fatal(err)
	}
	quick := func(ns *netns.Handle) *gateway.State {
		t.Helper()
		s, err := Engine{}.Read(ns, seal, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if digest := remembered(ns); digest != "d1" || remembered(other) != "" {
		t.Errorf("remembered: %q, of another namespace %q", digest, remembered(other))
	}
	if s := quick(ns); s.Integrity != gateway.RulesIntact || s.Digest != "d1" {
		t.Errorf("after an apply: %+v", s)
	}
	if err := intrude(ns, "prerouting"); err != nil {
		t.Fatal(err)
	}
	if s := quick(ns); s.Integrity != gateway.RulesChanged || len(s.Changes) != 1 || s.Digest != "d1" {
		t.Errorf("after a change by hand: %+v", s)
	}
	if err := Remove(ns); err != nil {
		t.Fatal(err)
	}
	if s := quick(ns); s.Present {
		t.Errorf("removed: %+v", s)
	}
}
