package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/capture"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// path is a client, a gateway and a server in a row, with a VLAN besides and a tunnel's device without Ethernet.
type path struct {
	client, gateway, server *netns.Handle
	tun                     *os.File
	vlan                    int
}

func newPath(t *testing.T) path {
	t.Helper()
	testutil.NeedRoot(t)
	p := path{client: testutil.Namespace(t, "client"), gateway: testutil.Namespace(t, "gateway"), server: testutil.Namespace(t, "server")}
	testutil.Veth(t, testutil.End{Netns: p.client, Name: "eth0", Addresses: []string{"198.18.0.2/24", "2001:db8::2/64"}},
		testutil.End{Netns: p.gateway, Name: "outside", Addresses: []string{"198.18.0.1/24", "2001:db8::1/64"}})
	testutil.Veth(t, testutil.End{Netns: p.gateway, Name: "inside", Addresses: []string{"198.19.0.1/24", "2001:db8:1::1/64"}},
		testutil.End{Netns: p.server, Name: "eth0", Addresses: []string{"198.19.0.2/24", "2001:db8:1::2/64"}})
	testutil.Routes(t, p.client, "198.18.0.1", "2001:db8::1")
	testutil.Routes(t, p.server, "198.19.0.1", "2001:db8:1::1")
	testutil.Sysctl(t, p.gateway, "net/ipv4/ip_forward", "1")
	testutil.Sysctl(t, p.gateway, "net/ipv6/conf/all/forwarding", "1")
	p.addVLAN(t)
	p.addTun(t)
	testutil.Addresses(t, testutil.Links(t, p.gateway), "lo")
	p.serve(t)
	return p
}

func (p *path) addVLAN(t *testing.T) {
	t.Helper()
	for _, e := range []struct {
		ns              *netns.Handle
		parent, address string
	}{{p.client, "eth0", "198.18.10.2/24"}, {p.gateway, "outside", "198.18.10.1/24"}} {
		links := testutil.Links(t, e.ns)
		parent, err := links.LinkByName(e.parent)
		if err != nil {
			t.Fatal(err)
		}
		err = links.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "vlan10", ParentIndex: parent.Attrs().Index}, VlanId: 10})
		if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without
			p.vlan = -1
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		testutil.Addresses(t, links, "vlan10", e.address)
		l, err := links.LinkByName("vlan10")
		if err != nil {
			t.Fatal(err)
		}
		p.vlan = l.Attrs().Index
	}
}

func (p *path) addTun(t *testing.T) {
	t.Helper()
	testutil.Inside(t, p.gateway, func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
		err := netlink.LinkAdd(tun)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) { // a kernel without
			return nil
		}
		if err != nil {
			return err
		}
		p.tun = tun.Fds[0]
		t.Cleanup(func() { p.tun.Close() })
		return nil
	})
	if p.tun != nil {
		testutil.Addresses(t, testutil.Links(t, p.gateway), "tun0", "198.18.20.1/24")
	}
}

// serve takes whatever is sent to port 80 of the server and of the gateway, and answers with as much.
func (p path) serve(t *testing.T) {
	t.Helper()
	for _, ns := range []*netns.Handle{p.server, p.gateway} {
		for _, network := range []string{"tcp4", "tcp6"} {
			testutil.Inside(t, ns, func() error {
				l, err := net.Listen(network, ":80")
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				go echoAll(l)
				return nil
			})
		}
	}
}

func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(c, c); c.Close() }()
	}
}

// send makes traffic of many kinds.
func (p path) send(t *testing.T) {
	t.Helper()
	echo := func(to string) error {
		c, err := net.DialTimeout("tcp", to, testutil.Patience(5*time.Second))
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, 100_000)); err != nil { // segments that offloading makes large
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 100_000))
		return err
	}
	datagram := func(to string, size int) error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, size))
		return err
	}
	testutil.Inside(t, p.client, func() error {
		ends := []string{"198.19.0.2:80", "[2001:db8:1::2]:80", "198.18.0.1:80"}
		if p.vlan > 0 {
			ends = append(ends, "198.18.10.1:80")
		}
		for _, to := range ends {
			if err := echo(to); err != nil {
				return err
			}
		}
		if c, err := net.Dial("tcp", "198.19.0.2:81"); err == nil { // refused
			c.Close()
		}
		for port, size := range map[int]int{9: 1, 10: 100, 11: 1400, 12: 9000, droppedIn: 50, droppedOut: 50, droppedByOther: 50} {
			if err := datagram(fmt.Sprintf("198.19.0.2:%d", port), size); err != nil {
				return err
			}
			if err := datagram(fmt.Sprintf("[2001:db8:1::2]:%d", port), size); err != nil {
				return err
			}
		}
		return nil
	})
	testutil.Inside(t, p.gateway, func() error { return echo("127.0.0.1:80") })
	if p.tun == nil {
		return
	}
	header := frame.IP{Source: netip.MustParseAddr("198.18.20.2"), Destination: netip.MustParseAddr("198.19.0.2"), Protocol: unix.IPPROTO_UDP, TTL: 64}
	if _, err := p.tun.Write(header.Append(nil, make([]byte, 40))); err != nil {
		t.Fatal(err)
	}
}

// Ports of datagrams that programs drop.
const (
	droppedIn      = 9001 + iota // by a classifier, as they come in
	droppedOut                   // by a classifier, as they leave
	droppedByOther               // by a tcx program, as they come in
)

// dropper drops UDP over IPv4 to a port.
func dropper(t *testing.T, port int32, otherwise int32) *ebpf.Program {
	t.Helper()
	const shot = 2 // TC_ACT_SHOT
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(14+20+2, asm.Half),
		asm.JEq.Imm(asm.R0, port, "drop"),
		asm.Mov.Imm(asm.R0, otherwise), asm.Return(),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("drop"), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

// drop adds the programs that drop, as others have them.
func (p path) drop(t *testing.T) {
	t.Helper()
	testutil.Inside(t, p.gateway, func() error {
		for name, parent := range map[string]uint32{"outside": netlink.HANDLE_MIN_INGRESS, "inside": netlink.HANDLE_MIN_EGRESS} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			index := l.Attrs().Index
			if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}); err != nil {
				return err
			}
			port := map[string]int32{"outside": droppedIn, "inside": droppedOut}[name]
			err = netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Protocol: unix.ETH_P_ALL, Priority: 1},
				Fd: dropper(t, port, 0).FD(), Name: "drop", DirectAction: true})
			if err != nil {
				return err
			}
		}
		if testutil.TCX.Probe() != nil {
			return nil
		}
		l, err := netlink.LinkByName("outside")
		if err != nil {
			return err
		}
		tcx, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: dropper(t, droppedByOther, -1), Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { tcx.Close() })
		}
		return err
	})
}

// everything keeps all of IP that is not for others; with at, only what has a byte there.
func everything(at uint32) Filter {
	return func(Samples) ([]bpf.RawInstruction, error) {
		return Assemble(Ends([]bpf.Instruction{
			bpf.LoadExtension{Num: bpf.ExtType},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: Drop},
			bpf.LoadExtension{Num: bpf.ExtProto},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: Drop},
			bpf.LoadAbsolute{Off: at, Size: 1},
		}))
	}
}

// collector keeps the packets of feeds, of which a source has two.
type collector struct {
	name  string
	feeds []*Feed
	seen  []string
}

func collect(t *testing.T, name string, s *Source) *collector {
	t.Helper()
	t.Cleanup(s.Close)
	c := &collector{name: name}
	offsets := []uint32{0, 100}
	if testutil.SkbParts.Probe() != nil {
		offsets = offsets[:1]
	}
	for _, at := range offsets {
		f, err := s.Open(false, all, everything(at))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(f.Close)
		c.feeds = append(c.feeds, f)
	}
	return c
}

// read adds what has come; of what came in by some interfaces nothing.
func (c *collector) read(t *testing.T, without int) []string {
	t.Helper()
	for i, f := range c.feeds {
		_, err := f.Receive(func(p *Packet) {
			// The kernel speaks of its own accord, also while the sources are opened one after the other.
			local := p.Version == 6 && (p.Data[8] == 0xfe || p.Data[24] >= 0xfe)
			if local || !p.Sent && p.Interface == without {
				return
			}
			data := p.Data
			if tcp := p.Version == 4 && data[9] == unix.IPPROTO_TCP || p.Version == 6 && data[6] == unix.IPPROTO_TCP; tcp && testutil.SkbParts.Probe() != nil {
				data = data[:40] // its data may lie in another part
			}
			c.seen = append(c.seen, fmt.Sprintf("%d: interface %d, sent %v: %x", i, p.Interface, p.Sent, data))
		})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n := f.Lost(); n > 0 {
			t.Fatalf("%s: lost %d", c.name, n)
		}
	}
	slices.Sort(c.seen)
	return c.seen
}

// TestSourcesAgree: programs on interfaces, programs at tracepoints and sockets see the same packets, as they come
// in before any program can drop them, and as they leave after all that can.
func TestSourcesAgree(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TypedTracepoints)
	p := newPath(t)
	p.drop(t)
	sockets, traced := collect(t, "sockets", SocketSource(p.gateway)), collect(t, "tracepoints", openSource(capture.Options{Netns: p.gateway, Traced: true}))
	others := []*collector{traced}
	if testutil.TCX.Probe() == nil {
		others = append(others, collect(t, "programs on interfaces", OpenSource(p.gateway)))
	}
	for _, c := range others {
		if !c.feeds[0].source.Programs() {
			t.Fatalf("%s: there are no programs", c.name)
		}
	}
	for range 3 {
		p.send(t)
	}
	for _, c := range others {
		// A tracepoint is before the kernel gives a packet to its VLAN.
		without := map[bool]int{true: p.vlan, false: -1}[c == traced]
		want := &collector{name: "sockets", feeds: sockets.feeds, seen: sockets.seen}
		testutil.Eventually(t, c.name, func() bool {
			return len(want.read(t, -1)) > 0 && (c.agrees(t, want, without) || t.Failed())
		})
		sockets.seen = want.seen
	}
	for port, want := range map[int][2]int{droppedIn: {3, 0}, droppedByOther: {3, 0}, droppedOut: {3, 0}, 10: {3, 3}} {
		if port == droppedByOther && len(others) == 1 {
			continue
		}
		if got := count(sockets.seen, port); got != want {
			t.Errorf("port %d: %d came and %d left, want %d", port, got[0], got[1], want)
		}
	}
}

// agrees reports whether both have seen the same by now.
func (c *collector) agrees(t *testing.T, want *collector, without int) bool {
	got := c.read(t, without)
	expected := slices.DeleteFunc(slices.Clone(want.seen), func(s string) bool { return strings.Contains(s, fmt.Sprintf("interface %d, sent false", without)) })
	return cmp.Equal(got, expected)
}

// count is how many datagrams to a port of the server came in and left, by the first feed.
func count(seen []string, port int) (n [2]int) {
	for _, s := range seen {
		if !strings.HasPrefix(s, "0:") || !strings.Contains(s, ": 45") {
			continue
		}
		data := s[strings.LastIndex(s, " ")+1:]
		if len(data) < 48 || data[18:20] != "11" || data[44:48] != fmt.Sprintf("%04x", port) {
			continue
		}
		if strings.Contains(s, "sent true") {
			n[1]++
		} else {
			n[0]++
		}
	}
	return n
}

// udp keeps datagrams of IPv4.
func udp(Samples) ([]bpf.RawInstruction, error) {
	return Assemble(Ends([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: Drop},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: Drop},
	}))
}

// say sends datagrams to an address until one of those of a feed is as it should be.
func say(t *testing.T, ns *netns.Handle, f *Feed, to string, size int, met func(*Packet) bool) {
	t.Helper()
	testutil.Eventually(t, "a datagram to "+to, func() (seen bool) {
		testutil.Inside(t, ns, func() error {
			c, err := net.Dial("udp4", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(make([]byte, size))
			return err
		})
		if _, err := f.Receive(func(p *Packet) { seen = seen || met(p) }); err != nil {
			t.Fatal(err)
		}
		return seen
	})
}

// TestInterfaces: packets of interfaces that come later are seen, with programs on each and, where there are too
// many for that, at tracepoints.
func TestInterfaces(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TCX)
	here, there := testutil.Namespace(t, "here"), testutil.Namespace(t, "there")
	s := OpenSource(here)
	defer s.Close()
	f, err := s.Open(true, all, udp)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		a, b := netip.AddrFrom4([4]byte{198, 18, byte(i), 1}), netip.AddrFrom4([4]byte{198, 18, byte(i), 2})
		name := fmt.Sprintf("v%d", i)
		testutil.Veth(t, testutil.End{Netns: here, Name: name, Addresses: []string{a.String() + "/24"}}, testutil.End{Netns: there, Name: name, Addresses: []string{b.String() + "/24"}})
		l, err := testutil.Links(t, here).LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		index := l.Attrs().Index
		say(t, there, f, a.String()+":9", 1, func(p *Packet) bool { return !p.Sent && p.Interface == index })
		testutil.Inside(t, here, func() error {
			q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
			if err == nil && len(q.Programs) > 0 != (i < 15) { // lo is one, too
				t.Errorf("interface %d has %d programs", i+1, len(q.Programs))
			}
			return err
		})
	}
	if n := f.Lost(); n > 0 {
		t.Errorf("lost %d", n)
	}
}

// TestReplaced: where programs cannot read packets whole, sockets take their place.
func TestReplaced(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TypedTracepoints)
	p := newPath(t)
	s := openSource(capture.Options{Netns: p.gateway, Old: true})
	defer s.Close()
	f, err := s.Open(false, all, everything(100))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	say(t, p.client, f, "198.19.0.2:9", 100, func(p *Packet) bool { return p.Sent })
	if !s.Programs() {
		t.Fatal("there are no programs at first")
	}
	p.send(t)
	testutil.Eventually(t, "sockets", func() bool {
		if _, err := f.Receive(func(*Packet) {}); err != nil {
			t.Fatal(err)
		}
		return !s.Programs()
	})
	say(t, p.client, f, "198.19.0.2:9", 100, func(p *Packet) bool { return p.Sent })
	if err := errors.Join(f.Attach(), s.rest(), s.resume()); err != nil {
		t.Error(err)
	}
}

// TestRefused: where programs cannot have the filter of another feed, sockets take their place for all.
func TestRefused(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TypedTracepoints)
	p := newPath(t)
	s := OpenSource(p.gateway)
	defer s.Close()
	first, err := s.Open(false, all, udp)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	say(t, p.client, first, "198.19.0.2:9", 1, func(p *Packet) bool { return p.Sent })
	if !s.Programs() {
		t.Fatal("there are no programs at first")
	}
	second, err := s.Open(false, all, func(Samples) ([]bpf.RawInstruction, error) {
		return bpf.Assemble([]bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtRand}, bpf.RetConstant{Val: KeepBytes}})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for _, f := range []*Feed{first, second} {
		say(t, p.client, f, "198.19.0.2:9", 1, func(p *Packet) bool { return p.Sent })
	}
	if s.Programs() {
		t.Error("there are still programs")
	}
}

// TestNoSocket: what cannot be opened is nil.
func TestNoSocket(t *testing.T) {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if f, err := SocketSource(ns).Open(true, all, udp); err == nil || f != nil {
		t.Errorf("a feed of a closed namespace: %v, %v", f, err)
	}
}

// TestNothingStays: a source leaves neither files nor programs; one that rests has no programs at work.
func TestNothingStays(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TCX)
	p := newPath(t)
	open := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	attached := func() (n int) {
		t.Helper()
		testutil.Inside(t, p.gateway, func() error {
			all, err := net.Interfaces()
			for _, i := range all {
				q, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: ebpf.AttachTCXIngress})
				if err != nil {
					return err
				}
				n += len(q.Programs)
			}
			return err
		})
		return n
	}
	before := open()
	s := OpenSource(p.gateway)
	f, err := s.Open(false, all, udp)
	if err != nil {
		t.Fatal(err)
	}
	say(t, p.client, f, "198.19.0.2:9", 1, func(p *Packet) bool { return p.Sent })
	working := attached()
	if err := errors.Join(f.Attach(), f.Attach(), s.rest()); err != nil {
		t.Fatal(err)
	}
	resting := attached()
	if err := s.resume(); err != nil {
		t.Fatal(err)
	}
	say(t, p.client, f, "198.19.0.2:9", 1, func(p *Packet) bool { return p.Sent })
	f.Close()
	s.Close()
	if working == 0 || resting != 0 || attached() != 0 {
		t.Errorf("programs on interfaces: %d at work, %d at rest, %d afterwards", working, resting, attached())
	}
	if now := open(); now > before { // the collector may have closed some of earlier tests
		t.Errorf("%d files are open, %d before", now, before)
	}
}

// all keeps all connections.
var all = Samples{1, 1}

// TestSample: all sources choose the same, also once there is another sample.
func TestSample(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TypedTracepoints)
	const datagrams, first = 256, 10000
	p := newPath(t)
	source := func(s *Source) *Feed {
		t.Cleanup(s.Close)
		f, err := s.Open(true, Samples{1, 4}, chosenDatagrams)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f
	}
	feeds := map[string]*Feed{"sockets": source(SocketSource(p.gateway)), "tracepoints": source(openSource(capture.Options{Netns: p.gateway, Traced: true}))}
	if testutil.TCX.Probe() == nil {
		feeds["programs on interfaces"] = source(OpenSource(p.gateway))
	}
	for _, sample := range []int{4, 32} {
		seen := map[string]map[uint16]bool{}
		for name, f := range feeds {
			seen[name] = map[uint16]bool{}
			if err := f.Sample(Samples{1, sample}); err != nil {
				t.Fatal(err)
			}
		}
		testutil.Inside(t, p.client, func() error {
			for port := first; port <= first+datagrams; port++ {
				to := port
				if port == first+datagrams {
					to = 0 // chosen by every sample: after it all have been seen
				}
				c, err := net.Dial("udp4", fmt.Sprintf("198.19.0.2:%d", max(to, 1)))
				if err != nil {
					return err
				}
				if _, err := c.Write([]byte{byte(to >> 8), byte(to), 1, 1}); err != nil {
					return err
				}
				c.Close()
			}
			return nil
		})
		for name, f := range feeds {
			testutil.Eventually(t, name, func() bool {
				if _, err := f.Receive(func(p *Packet) { seen[name][binary.BigEndian.Uint16(p.Data[28:])] = true }); err != nil {
					t.Fatal(err)
				}
				return seen[name][0]
			})
			if n := len(seen[name]); n < datagrams/sample/2 || n > datagrams/sample*2 || !cmp.Equal(seen[name], seen["sockets"]) && name != "sockets" && len(seen["sockets"]) > 0 {
				t.Errorf("%s, one in %d: %d of %d", name, sample, n, datagrams)
			}
		}
	}
}

// chosenDatagrams chooses by the first two bytes of a datagram's payload, and keeps what has two others.
func chosenDatagrams(s Samples) ([]bpf.RawInstruction, error) {
	return Assemble(Ends(slices.Concat([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: Drop},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: Drop},
		bpf.LoadAbsolute{Off: 30, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0101, SkipTrue: Drop},
		bpf.LoadAbsolute{Off: 28, Size: 2},
	}, Chosen(s[1]))))
}
