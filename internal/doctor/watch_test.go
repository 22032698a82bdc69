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

// TestPayer: whatever reports cost, they take no more than their share, and those that cost less come when they are wanted.
func TestPayer(t *testing.T) {
	for _, cost := range []time.Duration{time.Millisecond, 90 * time.Millisecond, 300 * time.Millisecond, 5 * time.Second} {
		const every = 10 * time.Second
		now, cpu := time.Unix(0, 0), time.Duration(0)
		p := NewPayer(now, 0)
		reports := 0
		for ; now.Before(time.Unix(100_000, 0)); reports++ {
			const table = 40 * time.Millisecond
			cpu += cost + table
			now = now.Add(cost)
			now = now.Add(max(every, p.Due(now, cpu, table)))
		}
		share := float64(reports) * float64(cost) / float64(now.Sub(time.Unix(0, 0)))
		if share > 1.001*watchShare {
			t.Errorf("reports of %s take %.4f of a CPU", cost, share)
		}
		if cost < 100*time.Millisecond && reports < 9_900 {
			t.Errorf("reports of %s come %d times instead of 10,000", cost, reports)
		}
		if cost >= 100*time.Millisecond && share < 0.9*watchShare {
			t.Errorf("reports of %s take %.4f of a CPU only", cost, share)
		}
	}
}
