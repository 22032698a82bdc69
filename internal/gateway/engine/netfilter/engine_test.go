package netfilter

import (
	"errors"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

func TestFlowtableIsToldAsItIs(t *testing.T) {
	testutil.NeedRoot(t)
	f := gateway.Facts{}
	Engine{}.Facts(nil, &gateway.Config{}, &f)
	if f.Flowtable != (gateway.Support{}) {
		t.Errorf("the kernel was asked though the file wants none: %+v", f.Flowtable)
	}
	Engine{}.Facts(nil, &gateway.Config{Flowtable: true}, &f)
	s := f.Flowtable
	if s.OK == (s.Reason != "") {
		t.Errorf("%+v", s)
	}
	t.Logf("%+v", s)
	if !s.OK {
		testutil.NeedFeature(t, testutil.FlowTable)
		t.Errorf("this kernel has flowtables, and natkit says: %s", s.Reason)
	}
}

// TestCheckThatMayNotAsk: the kernel refuses nothing of a plan where it refuses natkit.
func TestCheckThatMayNotAsk(t *testing.T) {
	testutil.NeedRoot(t)
	err := netns.OnThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNET), unix.Capget(&header, &data[0])); err != nil {
			return err
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		return check(nil, killedPlan(0))
	})
	if err != nil {
		t.Error(err)
	}
}
