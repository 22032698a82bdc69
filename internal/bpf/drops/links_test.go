package drops

import (
	"net"
	"sync"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestLinks: the reader of events and Read look up names at the same time; interfaces that came
// since the last listing are found.
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
