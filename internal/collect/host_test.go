package collect

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

const (
	softnet618 = `fffffffe 00000172 00000707 00000000 00000000 00000000 00000000 00000000 00000000 00015196 00000000 00000000 00000000 00000000 00000000
00000005 00000001 00000265 00000000 00000000 00000000 00000000 00000000 00000000 0003a3ff 00000000 00000000 00000001 00000000 00000000
`
	softnet26 = "0000000a 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n"
	// netlink618 has conntrack -E, conntrackd with two sockets, ulogd and a program of routes.
	netlink618 = `sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000081a9bd3a 0   812        00000001 0        0        0     2        7        4
00000000d164f9ef 12  812        00000007 0        0        0     2        0        1587
000000005f194c5c 12  977        00000004 0        0        0     2        41       1589
000000007d25bd0b 12  -4102      00000038 0        0        0     2        3        1590
000000007d25bd0c 12  990        00000000 0        0        0     2        9        1591
`
)

func TestSoftnet(t *testing.T) {
	for text, want := range map[string]snapshot.Softnet{softnet618: {Processed: 3, Dropped: 0x173}, softnet26: {Processed: 10, Dropped: 2}} {
		if got, err := parseSoftnet(strings.NewReader(text)); err != nil || *got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	for _, text := range []string{"", "1 2\n", "1 x 3\n"} {
		if got, err := parseSoftnet(strings.NewReader(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestEventListeners(t *testing.T) {
	want := []snapshot.EventListener{
		{PortID: 812, Inode: 1587}, {PortID: 977, Inode: 1589, Drops: 41}, {PortID: 1<<32 - 4102, Inode: 1590, Drops: 3},
	}
	got, err := parseEventListeners(strings.NewReader(netlink618))
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	for _, text := range []string{"", "sk Eth Pid\n", strings.Replace(netlink618, "00000007", "x", 1), "sk Eth Pid Groups Drops Inode\n1 12\n"} {
		if got, err := parseEventListeners(strings.NewReader(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestHostIsNotRecorded: an older bundle has none of it, and nothing failed.
func TestHostIsNotRecorded(t *testing.T) {
	o := newObservation(&fixture{})
	o.TCP = &snapshot.TCP{Counters: snapshot.Counters{"TcpExtIPReversePathFilter": 1, "IpFragFails": 1}}
	if o.collect(t.Context(), only("softnet", "event_listeners", "accept_queues", "reverse_paths", "icmp_errors")); len(o.Parts) != 0 {
		t.Errorf("%+v", o.Parts)
	}
}

// TestAcceptQueues: a listener that accepts nothing is there with its queue, one that has
// nothing to accept is not.
func TestAcceptQueues(t *testing.T) {
	ns := trackedNetns(t, 1000)
	err := ns.Do(func() error {
		idle, err := net.Listen("tcp", "127.0.0.1:81")
		if err != nil {
			return err
		}
		t.Cleanup(func() { idle.Close() })
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 3); err != nil {
			return err
		}
		for range 2 {
			c, err := net.Dial("tcp", "127.0.0.1:80")
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []snapshot.AcceptQueue{{Socket: netip.MustParseAddrPort("127.0.0.1:80"), Waiting: 2, Limit: 3}}
	testutil.Eventually(t, "both connections wait", func() bool {
		s, err := Read(t.Context(), Options{Netns: ns})
		return err == nil && cmp.Equal(s.AcceptQueues, want, cmpopts.EquateComparable(netip.AddrPort{}))
	})
}

// TestLostEvents: the kernel counts what a subscriber's buffer has no room for.
func TestLostEvents(t *testing.T) {
	ns := trackedNetns(t, 1000)
	send := func() error {
		for range 500 { // each a connection of its own
			c, err := net.Dial("udp", "127.0.0.1:9")
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte{0}); err == nil {
				c.Close()
			}
		}
		return nil
	}
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 7})
	})
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "events are lost", func() bool {
		err := ns.Do(send)
		s, readErr := Read(t.Context(), Options{Netns: ns})
		return err == nil && readErr == nil && len(s.EventListeners) == 1 && s.EventListeners[0].Drops > 0
	})
}

func FuzzEventListeners(f *testing.F) {
	f.Add(netlink618)
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		parseEventListeners(strings.NewReader(text))
		parseSoftnet(strings.NewReader(text))
	})
}
