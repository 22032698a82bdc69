package netfilter

import (
	"errors"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestCheck: what the kernel would say of a plan is known without carrying it out.
func TestCheck(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	plan := fastPlan()
	err := check(ns, plan)
	var missing *Missing
	if has := testutil.FlowTable.Probe() == nil; has != (err == nil) || !has && (!errors.As(err, &missing) || missing.About != FlowtableComment) {
		t.Errorf("with a flowtable: %v", err)
	}
	plan.Flowtable = nil
	if err := check(ns, plan); err != nil {
		t.Errorf("without: %v", err)
	}
	if s, err := Read(ns); err != nil || s.Present {
		t.Errorf("left behind: %+v, %v", s, err)
	}
}

// What is asked without making one is what happens to one that is made.
func TestCheckFlowtable(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("flowtable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	err = checkFlowtable(ns)
	var missing *Missing
	if has := testutil.FlowTable.Probe() == nil; has != (err == nil) || !has && !errors.As(err, &missing) {
		t.Errorf("the kernel has flowtables: %t; %v", has, err)
	}
	if s, err := Read(ns); err != nil || s.Present {
		t.Errorf("left behind: %+v, %v", s, err)
	}
}
