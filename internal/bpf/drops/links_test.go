package drops

import (
	"net"
	"sync"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestLinks: names are asked for by the reader of events and by Read at the same time, and are
// those of interfaces that came since the last listing.
func TestLinks(t *testing.T) {
	testutil.NeedRoot(t)
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	var l links
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			l.expire()
			if got := l.name(uint32(own.Inode()), uint32(lo.Index)); got != "lo" {
				t.Errorf("name %q, want lo", got)
			}
		})
	}
	all.Wait()
}
