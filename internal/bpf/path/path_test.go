package path

import (
	"testing"

	"github.com/natkit/natkit/internal/filter"
	"github.com/natkit/natkit/internal/testutil"
)

// TestDNATedSYN follows a SYN through a router that rewrites its destination.
func TestDNATedSYN(t *testing.T) {
	n := newNodes(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	serve(t, n)
	expr, err := filter.Parse([]string{"tcp port 80"})
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Filter: expr, Netns: n.router, Interface: "near", Functions: "nat", Packets: 1}
	packets := follow(t, opt, func() {
		if err := connect(t, n, nearAddr, openPort); err != nil {
			t.Error(err)
		}
	})
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
}
