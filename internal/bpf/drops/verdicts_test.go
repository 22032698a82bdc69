package drops

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestHarmlessRanges: each caller's code is found in the running kernel from its first
// to its last byte, and nothing beside it.
func TestHarmlessRanges(t *testing.T) {
	testutil.NeedRoot(t)
	n, err := readNames(Options{Types: btf.NewCache()})
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
	var unread net.PacketConn
	testutil.Inside(t, n.server, func() (err error) {
		unread, err = net.ListenPacket("udp4", serverIP+":0")
		return err
	})
	// Not by its namespace, which a datagram in a queue no longer has: by a port that no other run of this test has.
	to := unread.LocalAddr().String()
	words, err := frame.ParseFilter([]string{"src host 198.18.0.2 and udp dst port " + to[len(serverIP)+1:]})
	if err != nil {
		t.Fatal(err)
	}
	hidden := start(t, Options{Filter: words, FlowSample: 1})
	all := start(t, Options{Filter: words, FlowSample: 1, Harmless: true})
	behind := start(t, Options{Netns: n.server}) // sees what was sent after them
	const count = 20
	testutil.Inside(t, n.server, func() error {
		datagrams(t, n.client, to, count)
		toServer(t, n, 1)
		until(t, behind, 1)
		return unread.Close()
	})
	testutil.Eventually(t, "frees", func() bool { return read(t, all).Harmless >= count })
	if d := read(t, hidden); d.Packets != 0 || len(d.Flows) != 0 || d.Harmless != count {
		t.Errorf("%d drops, flows %+v, %d harmless: %+v", d.Packets, d.Flows, d.Harmless, d.Sites)
	}
	if d := read(t, all); d.Packets != count || len(d.Flows) == 0 {
		t.Errorf("with the harmless ones: %d drops, flows %+v", d.Packets, d.Flows)
	}
}

// TestIsHarmless: Linux 5.17 numbers its reasons from NOT_SPECIFIED on, and later ones
// from what is no drop.
func TestIsHarmless(t *testing.T) {
	first := names{reasons: bpf.MakeReasons(map[uint32]string{0: "NOT_SPECIFIED", 1: "NO_SOCKET"})}
	later := names{reasons: bpf.MakeReasons(map[uint32]string{1: "SKB_CONSUMED", 2: "NOT_SPECIFIED", 3: "NO_SOCKET", 9: "SOCKET_CLOSE"}),
		consumed: 1, unspecified: 2, closed: [len(closedReasons)]uint32{1: 9}}
	none := names{reasons: &bpf.Reasons{}}
	for _, n := range []*names{&first, &later, &none} {
		n.harmless[0] = dropsRange{From: 100, To: 200}
	}
	for _, tt := range []struct {
		names    *names
		location uint64
		reason   uint32
		want     bool
	}{
		{&first, 50, 0, false}, {&first, 150, 0, true}, {&first, 150, 1, false},
		{&later, 50, 1, true}, {&later, 50, 2, false}, {&later, 150, 2, true}, {&later, 150, 3, false}, {&later, 50, 9, true},
		{&none, 50, 0, false}, {&none, 150, 0, true},
	} {
		if got := tt.names.isHarmless(dropsSite{Location: tt.location, Reason: tt.reason}); got != tt.want {
			t.Errorf("%+v at %d for %d: %v", tt.names.reasons, tt.location, tt.reason, got)
		}
	}
}

// TestUnixSocketIsNoDrop: what a Unix socket had not read is no packet of a network.
func TestUnixSocketIsNoDrop(t *testing.T) {
	n := newNetwork(t)
	hidden := start(t, Options{Netns: n.server, FlowSample: 1})
	testutil.Inside(t, n.server, func() error {
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			if err := leaveUnread(kind); err != nil {
				return err
			}
		}
		return nil
	})
	toServer(t, n, 1) // a drop that comes after them
	until(t, hidden, 1)
	for _, s := range read(t, hidden).Sites {
		if s.Protocol == "-" {
			t.Errorf("%+v", s)
		}
	}
}

func leaveUnread(kind int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fds[0], []byte("unread"))
	return errors.Join(err, unix.Close(fds[1]), unix.Close(fds[0]))
}

// TestUnfinishedDumpIsNoDrop: a program that ends in the midst of a netlink dump, such
// as a list of connections into head, has its question freed by kfree_skb.
func TestUnfinishedDumpIsNoDrop(t *testing.T) {
	n := newNetwork(t)
	testutil.Inside(t, n.server, func() error { return addAddresses(400) }) // more than one message holds
	hidden := start(t, Options{Netns: n.server, FlowSample: 1})
	const count = 5
	testutil.Inside(t, n.server, func() error {
		for range count {
			if err := leaveDump(); err != nil {
				return err
			}
		}
		return nil
	})
	testutil.Eventually(t, "frees", func() bool { return read(t, hidden).Harmless >= count })
	if d := read(t, hidden); d.Packets != 0 {
		t.Errorf("%d drops: %+v", d.Packets, d.Sites)
	}
}

func addAddresses(count int) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	address := netip.MustParseAddr("203.0.113.0").As4()
	for i := range count {
		address[2], address[3] = byte(113+i>>8), byte(i)
		one := &netlink.Addr{IPNet: &net.IPNet{IP: address[:], Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(lo, one); err != nil {
			return err
		}
	}
	return nil
}

// leaveDump asks for all addresses, and does not wait for the answer.
func leaveDump() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ask := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	ask = binary.NativeEndian.AppendUint16(ask, unix.RTM_GETADDR)
	ask = binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	ask = append(ask, make([]byte, 8+unix.SizeofIfAddrmsg)...)
	return unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}
