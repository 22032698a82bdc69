package plane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// A host between two interfaces without Ethernet, whose other ends the test has, and a host inside, whose packets have
// checksums that are not complete (CHECKSUM_PARTIAL).
//
//	tun0, tun1 ── host, lan 10.0.0.1 ── 10.0.0.2 eth0, inside
type devices struct {
	*testing.T
	host, inside *netns.Handle
	tun          [2]int
	programs     *Programs
}

func newDevices(t *testing.T) *devices {
	testutil.NeedFeature(t, testutil.Tun)
	testutil.NeedFeature(t, testutil.TCX)
	d := &devices{T: t, host: testutil.Namespace(t, "host"), inside: testutil.Namespace(t, "inside")}
	for _, ns := range []*netns.Handle{d.host, d.inside} {
		testutil.Sysctl(t, ns, "net/ipv6/conf/default/accept_dad", "0")
	}
	testutil.Sysctl(t, d.host, "net/ipv4/ip_forward", "1")
	testutil.Sysctl(t, d.host, "net/ipv6/conf/all/forwarding", "1")
	testutil.Veth(t, testutil.End{Netns: d.host, Name: "lan", Addresses: []string{"10.0.0.1/24", "fd00::1/64"}},
		testutil.End{Netns: d.inside, Name: "eth0", Addresses: []string{"10.0.0.2/24", "fd00::2/64"}})
	testutil.Routes(t, d.inside, "10.0.0.1", "fd00::1")
	d.addTun(0, "192.0.2.1/24", "2001:db8:99::1/64")
	d.addTun(1, "198.51.100.1/24")
	d.attach()
	return d
}

func (d *devices) addTun(i int, addresses ...string) {
	name := []string{"tun0", "tun1"}[i]
	testutil.Inside(d, d.host, func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
		if err := netlink.LinkAdd(tun); err != nil {
			return err
		}
		d.Cleanup(func() { tun.Fds[0].Close() })
		d.tun[i] = int(tun.Fds[0].Fd())
		return unix.SetNonblock(d.tun[i], true)
	})
	testutil.Addresses(d, testutil.Links(d, d.host), name, addresses...)
}

func (d *devices) attach() {
	both := func(outside, inside string) (to, from Mapping) {
		a, b := netip.MustParseAddr(outside), netip.MustParseAddr(inside)
		e, i := netip.PrefixFrom(a, a.BitLen()), netip.PrefixFrom(b, b.BitLen())
		return Mapping{Match: e, To: i, Roles: AnyRole, Rule: 1}, Mapping{Match: i, To: e, Roles: AnyRole, Rule: 2}
	}
	c := Config{Marks: MarksOf(3)}
	c.Rules = 3
	for outside, inside := range map[string]string{"203.0.113.1": "10.0.0.2", "2001:db8:50::1": "fd00::2", "203.0.113.2": "198.51.100.7"} {
		to, from := both(outside, inside)
		c.Destinations, c.Sources = append(c.Destinations, to), append(c.Sources, from)
	}
	testutil.Inside(d, d.host, func() (err error) {
		found, err := ReadInterfaces()
		if err != nil {
			return err
		}
		for i := range found {
			found[i].Roles = 1
			c.Interfaces = append(c.Interfaces, found[i].Interface)
		}
		if d.programs, err = Load(c); err != nil {
			return err
		}
		d.Cleanup(func() { d.programs.Close() })
		for i := range found {
			for _, h := range d.programs.hooks([]Port{{Index: found[i].Index, Name: found[i].Name, Mode: TC, NoEthernet: found[i].NoEthernet}}) {
				l, err := h.attach()
				if err != nil {
					return err
				}
				d.Cleanup(func() { l.Close() })
			}
		}
		return nil
	})
}

// comesOut is the next packet of a flow to an address that leaves by an interface without Ethernet.
func (d *devices) comesOut(tun int, to string) (f frame.Frame) {
	d.Helper()
	b := make([]byte, 2048)
	testutil.Eventually(d, "a packet to "+to, func() bool {
		n, err := unix.Read(d.tun[tun], b)
		if err != nil {
			return false
		}
		etherType := uint16(frame.EtherTypeIPv4)
		if b[0]>>4 == 6 {
			etherType = frame.EtherTypeIPv6
		}
		return f.DecodeNetwork(etherType, b[:n]) == nil && f.Destination == netip.MustParseAddr(to)
	})
	if !f.IPChecksumOK() || f.TransportChecksum() != frame.ChecksumOK {
		d.Errorf("to %s: the checksum of IP is right: %t, that behind it is %s", to, f.IPChecksumOK(), f.TransportChecksum())
	}
	return f
}

// stacked is how many packets the stack had to forward.
func (d *devices) stacked() uint64 {
	c, err := counted(d.programs.Reasons, uint32(planeReasonTO_STACK_NEIGHBOUR))
	if err != nil {
		d.Fatal(err)
	}
	return c.Packets
}

// times is how often packets of a kind are sent. For the first one the stack has to find the neighbour.
const times = 3

// TestOutWithoutEthernet has sockets send packets that leave by an interface without Ethernet.
func TestOutWithoutEthernet(t *testing.T) {
	d := newDevices(t)
	for _, c := range []struct {
		to, from string
		kind     int
	}{
		{"192.0.2.5", "203.0.113.1", unix.SOCK_DGRAM}, {"2001:db8:99::5", "2001:db8:50::1", unix.SOCK_DGRAM},
		{"192.0.2.6", "203.0.113.1", unix.SOCK_STREAM}, {"2001:db8:99::6", "2001:db8:50::1", unix.SOCK_STREAM},
	} {
		before := d.stacked()
		for range times {
			testutil.Inside(t, d.inside, func() error { return sendTo(netip.MustParseAddr(c.to), c.kind) })
			if f := d.comesOut(0, c.to); f.Source != netip.MustParseAddr(c.from) {
				t.Errorf("to %s from %s, want %s", c.to, f.Source, c.from)
			}
		}
		if n := d.stacked() - before; n >= times {
			t.Errorf("to %s: the stack forwarded all %d", c.to, n)
		}
	}
}

// sendTo sends a packet of some bytes, or the first one of a connection.
func sendTo(a netip.Addr, kind int) error {
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: 53}
	family := unix.AF_INET
	if a.Is4() {
		to.(*unix.SockaddrInet4).Addr = a.As4()
	} else {
		to, family = &unix.SockaddrInet6{Port: 53, Addr: a.As16()}, unix.AF_INET6
	}
	s, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if kind == unix.SOCK_DGRAM {
		return unix.Sendto(s, []byte("some bytes"), 0, to)
	}
	if err := unix.Connect(s, to); err != unix.EINPROGRESS {
		return err
	}
	return nil
}

// TestInWithoutEthernet sends packets that come in by an interface without Ethernet, to a host behind one that has it and
// one that has not.
func TestInWithoutEthernet(t *testing.T) {
	d := newDevices(t)
	for _, c := range []struct{ network, from, to string }{{"udp4", "192.0.2.5", "203.0.113.1"}, {"udp6", "2001:db8:99::5", "2001:db8:50::1"}} {
		var socket *net.UDPConn
		testutil.Inside(t, d.inside, func() (err error) {
			socket, err = net.ListenUDP(c.network, &net.UDPAddr{Port: 4000})
			return err
		})
		for range times {
			d.comeIn(c.from, c.to)
			b := make([]byte, 100)
			if err := socket.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute))); err != nil {
				t.Fatal(err)
			}
			n, from, err := socket.ReadFromUDPAddrPort(b)
			if err != nil || string(b[:n]) != "some bytes" || from.Addr().Unmap() != netip.MustParseAddr(c.from) {
				t.Errorf("%q from %s (%v), want that from %s", b[:n], from, err, c.from)
			}
		}
		socket.Close()
	}
	before := d.stacked()
	for range times {
		d.comeIn("192.0.2.5", "203.0.113.2")
		if f := d.comesOut(1, "198.51.100.7"); f.Source != netip.MustParseAddr("192.0.2.5") {
			t.Errorf("from %s", f.Source)
		}
	}
	if n := d.stacked() - before; n >= times {
		t.Errorf("the stack forwarded all %d", n)
	}
	if c, err := counted(d.programs.Rules, 1); err != nil || c.Packets != 3*times {
		t.Errorf("%d packets translated, want %d (%v)", c.Packets, 3*times, err)
	}
}

func (d *devices) comeIn(from, to string) {
	d.Helper()
	t := frame.Tuple{Src: netip.AddrPortFrom(netip.MustParseAddr(from), 53), Dst: netip.AddrPortFrom(netip.MustParseAddr(to), 4000)}
	p := frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: unix.IPPROTO_UDP}
	if _, err := unix.Write(d.tun[0], p.Append(nil, frame.AppendUDP(nil, t, []byte("some bytes"), false))); err != nil {
		d.Fatal(err)
	}
}
