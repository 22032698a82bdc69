package doctor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/testutil"
)

// TestWatch: what comes with a fault goes with it, and an error of the one who is told ends the watch.
func TestWatch(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	ns := testutil.Namespace(t, "gateway")
	client := testutil.Namespace(t, "client")
	testutil.Veth(t, testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: ns, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	inside(t, ns, "nft add table ip nat", "nft add chain ip nat pre { type nat hook prerouting priority -100; }",
		"nft add rule ip nat pre tcp dport 80 dnat to 198.18.0.2")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var kinds []diagnose.EventKind
	end, err := Watch(ctx, WatchOptions{Netns: ns, Every: time.Second, Event: func(e diagnose.Event) error {
		if e.ID != "forwarding-off" {
			return nil
		}
		switch kinds = append(kinds, e.Kind); e.Kind {
		case diagnose.Came:
			testutil.Sysctl(t, ns, "net/ipv4/ip_forward", "1")
		case diagnose.Went:
			stop()
		}
		return nil
	}})
	if err != nil || len(kinds) != 2 || kinds[0] != diagnose.Came || kinds[1] != diagnose.Went {
		t.Fatalf("%v: %v", kinds, err)
	}
	if end.Reports < 4 || len(end.Findings) != 0 || end.CPUSeconds <= 0 || end.Kind != diagnose.Ended {
		t.Errorf("the end: %+v", end)
	}
	failed := errors.New("nobody reads")
	testutil.Sysctl(t, ns, "net/ipv4/ip_forward", "0")
	if _, err := Watch(t.Context(), WatchOptions{Netns: ns, Every: time.Second, Event: func(diagnose.Event) error { return failed }}); !errors.Is(err, failed) {
		t.Errorf("ended with %v", err)
	}
}
