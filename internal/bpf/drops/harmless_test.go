package drops

import (
	"net"
	"testing"

	"github.com/natkit/natkit/internal/filter"
	"github.com/natkit/natkit/internal/testutil"
)

// TestHarmlessRanges: each caller's code is found in the running kernel from its first
// to its last byte, and nothing beside it.
func TestHarmlessRanges(t *testing.T) {
	testutil.NeedRoot(t)
	n, err := readNames()
	if err != nil || n.symbols == nil {
		t.Fatalf("%v %s", err, n.note)
	}
	ranges := 0
	for _, r := range n.harmless {
		if r.From == 0 {
			continue
		}
		ranges++
		first, last, after := n.place(r.From), n.place(r.To-1), n.place(r.To)
		if first.Offset != 0 || last.Name != first.Name || after.Name == first.Name {
			t.Errorf("%#x to %#x is from %+v to %+v, and then comes %+v", r.From, r.To, first, last, after)
		}
	}
	if ranges < 8 || ranges == maxHarmless {
		t.Errorf("%d ranges of %d: some functions were not found, or found no place", ranges, maxHarmless)
	}
}

// TestClosedSocketIsNoDrop: what a closed socket had not read is freed by kfree_skb.
func TestClosedSocketIsNoDrop(t *testing.T) {
	n := newNetwork(t)
	// Not by its namespace: the kernel no longer tells it of a datagram in a queue.
	words, err := filter.Parse([]string{"src host 198.18.0.2 and udp dst port 4793"})
	if err != nil {
		t.Fatal(err)
	}
	hidden := start(t, Options{Filter: words, FlowSample: 1})
	all := start(t, Options{Filter: words, FlowSample: 1, Harmless: true})
	behind := start(t, Options{Netns: n.server}) // sees what was sent after them
	const count = 20
	do(t, n.server, func() error {
		unread, err := net.ListenPacket("udp4", serverIP+":4793")
		if err != nil {
			return err
		}
		datagrams(t, n.client, serverIP+":4793", count)
		toServer(t, n, 1)
		until(t, behind, 1)
		return unread.Close()
	})
	waitFor(t, "frees", func() bool { return read(t, all).Harmless >= count })
	if d := read(t, hidden); d.Packets != 0 || len(d.Flows) != 0 || d.Harmless != count {
		t.Errorf("%d drops, flows %+v, %d harmless: %+v", d.Packets, d.Flows, d.Harmless, d.Sites)
	}
	if d := read(t, all); d.Packets != count || len(d.Flows) == 0 {
		t.Errorf("with the harmless ones: %d drops, flows %+v", d.Packets, d.Flows)
	}
}
