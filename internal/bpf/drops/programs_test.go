package drops

import (
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestProgramsOfGateways: what programs of a gateway drop is named by their reason, beside the kernel's.
func TestProgramsOfGateways(t *testing.T) {
	testutil.NeedRoot(t)
	n := newNetwork(t)
	run(t, n.gateway, "ip neigh replace "+serverIP+" lladdr 02:00:00:00:00:09 dev eth1 nud permanent") // nothing waits for it
	const mark = 3 << 8
	attachPrograms(t, n.gateway, plane.MarksOf(mark))
	send := func(count int) {
		t.Helper()
		testutil.Inside(t, n.gateway, func() error { return sendMarked(count, mark) })
	}
	send(3) // before
	tr, other := start(t, Options{Netns: n.gateway}), start(t, Options{Netns: n.server})
	before := read(t, tr)
	send(5)
	after := read(t, tr)
	id, err := netns.IDOf(n.gateway)
	if err != nil {
		t.Fatal(err)
	}
	want := []snapshot.ProgramDrop{{Reason: "half translated, and no mapping for its source any more", Netns: id.Inode, Packets: 5, Bytes: 5 * (20 + 8 + 1)}}
	if len(before.Programs) > 0 || !slices.Equal(after.Programs, want) || !slices.Equal(after.Since(before).Programs, want) {
		t.Errorf("%+v, then %+v, want %+v", before.Programs, after.Programs, want)
	}
	if all := read(t, other); len(all.Programs) > 0 {
		t.Errorf("of another namespace: %+v", all.Programs)
	}
	kernel := uint64(0)
	for _, s := range after.Sites {
		if s.Reason == "TC_EGRESS" || s.Reason == "" {
			kernel += s.Packets
		}
	}
	if kernel < 5 {
		t.Errorf("the kernel's own count: %+v", after.Sites)
	}
}

// attachPrograms has programs at all interfaces with a mapping that no packet is for.
func attachPrograms(t *testing.T, ns *netns.Handle, marks plane.Marks) {
	t.Helper()
	pins, err := plane.PinsIn(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Do(pins.Remove); err != nil {
			t.Error(err)
		}
	})
	testutil.Inside(t, ns, func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		public, inside := nat.Host(netip.MustParseAddr("203.0.113.1")), nat.Host(netip.MustParseAddr("198.19.0.9"))
		c := plane.Config{Marks: marks, Tables: plane.Tables{Rules: 1, Destinations: []plane.Mapping{{Match: public, To: inside, Roles: 1, Rule: 1}},
			Sources: []plane.Mapping{{Match: inside, To: public, Roles: 1, Rule: 1}}}}
		var ports []plane.Port
		for _, f := range found {
			f.Roles = 1
			c.Interfaces, ports = append(c.Interfaces, f.Interface), append(ports, plane.Port{Index: f.Index, Name: f.Name, Mode: plane.TC})
		}
		programs, err := plane.Load(c)
		if err != nil {
			return err
		}
		defer programs.Close()
		_, err = pins.Attach(programs, ports)
		return err
	})
}

// sendMarked sends datagrams of a byte with a mark: to the programs they are half translated, and their source has no mapping.
func sendMarked(count, mark int) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		ctl := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		if err == nil {
			err = ctl
		}
		return err
	}}
	c, err := d.Dial("udp", serverIP+":9")
	if err != nil {
		return err
	}
	defer c.Close()
	for range count {
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}
