package tui

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestList(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	for port := range uint16(7) {
		e := conntrack.Entry{Family: unix.AF_INET, Status: conntrack.SeenReply, Timeout: 600,
			Orig: conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Proto: unix.IPPROTO_UDP, SrcPort: 1000 + port, DstPort: 53}}
		e.Reply = e.Orig.Mirror()
		more := true
		if _, err := dump.Insert(t.Context(), ns, func(to *conntrack.Entry) bool { *to, more = e, !more; return !more }); err != nil {
			t.Fatal(err)
		}
	}
	l, err := list()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	own := ownInode()
	for _, space := range l.spaces {
		if space.Inode == own && !named(space) {
			t.Errorf("%+v is not marked as natkit's own", space)
		}
	}
	for _, space := range l.spaces {
		if space.Inode == ns.Inode() {
			if space.Entries != 7 {
				t.Errorf("%+v, want 7 entries", space)
			}
			h := l.take(space.Inode)
			if h == nil || h.Inode() != ns.Inode() || l.take(space.Inode) != nil {
				t.Error("its handle is not to be had once")
			}
			h.Close()
			return
		}
	}
	t.Errorf("namespace %d is not among %+v", ns.Inode(), l.spaces)
}
