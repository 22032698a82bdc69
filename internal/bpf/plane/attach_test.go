package plane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// world is a gateway between a client and a server, as hosts joined by veths:
//
//	client 198.18.0.2 ── wan0 gateway lan0 ── 198.18.1.2, 198.18.1.3 server
//
// The client knows the server by 203.0.113.1, which the tables of a set lead to one of its addresses.
type world struct {
	*testing.T
	client, gateway, server *netns.Handle
	pins                    Pins
	keep                    time.Duration
}

var (
	publicAddress  = netip.MustParseAddr("203.0.113.1")
	otherPublic    = netip.MustParseAddr("203.0.113.2")
	clientAddress  = netip.MustParseAddr("198.18.0.2")
	insideAddress  = netip.MustParseAddr("198.18.1.2")
	insideAddress2 = netip.MustParseAddr("198.18.1.3")
)

func newWorld(t *testing.T) *world {
	w := &world{T: t, client: testutil.Namespace(t, "client"), gateway: testutil.Namespace(t, "gateway"), server: testutil.Namespace(t, "server")}
	testutil.Veth(t, testutil.End{Netns: w.client, Name: "c", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: w.gateway, Name: "wan0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Routes(t, w.client, "198.18.0.1")
	passFrames(t, w.client)
	w.joinServer()
	testutil.Sysctl(t, w.gateway, "net/ipv4/ip_forward", "1")
	w.pins = PinsOf(strings.ReplaceAll(t.Name(), "/", "-"))
	t.Cleanup(func() {
		if err := w.gateway.Do(w.pins.Remove); err != nil {
			t.Error(err)
		}
		w.wantNothing()
	})
	return w
}

func (w *world) joinServer() {
	w.Helper()
	testutil.Veth(w, testutil.End{Netns: w.server, Name: "s", Addresses: []string{"198.18.1.2/24", "198.18.1.3/24"}},
		testutil.End{Netns: w.gateway, Name: "lan0", Addresses: []string{"198.18.1.1/24"}})
	testutil.Routes(w, w.server, "198.18.1.1")
	passFrames(w.T, w.server)
}

// passFrames has the pair of veths take frames that are redirected to them: they need NAPI, which an XDP program brings.
func passFrames(t *testing.T, ns *netns.Handle) {
	program := newProgram(t, ebpf.XDP, 2) // XDP_PASS
	testutil.Inside(t, ns, func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if l.Type() == "veth" {
				err = errors.Join(err, netlink.LinkSetXdpFdWithFlags(l, program.FD(), nlDriver))
			}
		}
		return err
	})
}

const nlDriver = 1 << 2 // XDP_FLAGS_DRV_MODE

// newProgram is one of another, which returns a number.
func newProgram(t *testing.T, kind ebpf.ProgramType, verdict int32) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "of_another", Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// tables lead one public address to one inside.
func tables(public, inside netip.Addr) Tables {
	return Tables{Rules: 2,
		Destinations: []Mapping{{Match: nat.Host(public), To: nat.Host(inside), Roles: AnyRole, Rule: 1}},
		Sources:      []Mapping{{Match: nat.Host(inside), To: nat.Host(public), Roles: 1, Rule: 2}}}
}

// load loads programs and returns the interfaces for them.
func (w *world) load(t Tables, digest string, mode Mode) (programs *Programs, ports []Port) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() error {
		found, err := ReadInterfaces()
		if err != nil {
			return err
		}
		c := Config{Tables: t, Marks: MarksOf(3 << 8), Digest: digest, Keep: w.keep}
		for _, f := range found {
			f.Roles = 1
			if strings.HasPrefix(f.Name, "lan") {
				f.Roles = Inside
			}
			c.Interfaces = append(c.Interfaces, f.Interface)
			ports = append(ports, Port{Index: f.Index, Name: f.Name, Mode: mode})
		}
		programs, err = Load(c)
		return err
	})
	w.Cleanup(func() { programs.Close() })
	return programs, ports
}

// attach attaches a set of tables, all of whose interfaces take the mode.
func (w *world) attach(t Tables, digest string, mode Mode) {
	w.Helper()
	programs, ports := w.load(t, digest, mode)
	defer programs.Close()
	for _, r := range w.attachTo(programs, ports) {
		w.Error(r)
	}
}

func (w *world) attachTo(programs *Programs, ports []Port) (refused []*Refused) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() (err error) {
		refused, err = w.pins.Attach(programs, ports)
		return err
	})
	return refused
}

func (w *world) read() (s *State) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() (err error) {
		s, err = w.pins.Read()
		return err
	})
	return s
}

// want compares what is attached to all interfaces.
func (w *world) want(digest string, mode Mode) {
	w.Helper()
	s := w.read()
	if !slices.Equal(s.Digests, []string{digest}) || len(s.Missing) > 0 {
		w.Errorf("digests %q, missing %v, want %q", s.Digests, s.Missing, digest)
	}
	testutil.Inside(w, w.gateway, func() error {
		found, err := ReadInterfaces()
		for _, f := range found {
			if s.Modes[f.Index] != mode {
				w.Errorf("%s is attached by %q, want %q", f.Name, s.Modes[f.Index], mode)
			}
		}
		return err
	})
}

// index is that of an interface of the gateway.
func (w *world) index(name string) (index int) {
	testutil.Inside(w, w.gateway, func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			index = i.Index
		}
		return err
	})
	return index
}

// programsAt are the numbers of all programs at the hooks of an interface.
func (w *world) programsAt(name string) (ids []ebpf.ProgramID) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			ids = append(ids, ebpf.ProgramID(x.ProgId))
		}
		for _, at := range attachTypes {
			if all, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at}); err == nil {
				for _, p := range all.Programs {
					ids = append(ids, p.ID)
				}
			}
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			all, _ := netlink.FilterList(l, parent)
			for _, f := range all {
				ids = append(ids, ebpf.ProgramID(f.(*netlink.BpfFilter).Id))
			}
		}
		return nil
	})
	return ids
}

// wantNothing wants no pin, no program, no qdisc, no directory and no file system of its own left.
func (w *world) wantNothing() {
	w.Helper()
	if there, err := w.pins.Present(); there || err != nil {
		w.Errorf("pins are left: %v", err)
	}
	if _, err := os.Stat(w.pins.Dir()); !errors.Is(err, os.ErrNotExist) {
		w.Errorf("%s is left: %v", w.pins.Dir(), err)
	}
	if all, _ := os.ReadDir(ownRoot); isBPF(ownRoot) && !slices.ContainsFunc(all, fs.DirEntry.IsDir) {
		w.Errorf("%s is mounted", ownRoot)
	}
	testutil.Inside(w, w.gateway, func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if ids := w.programsAt(l.Attrs().Name); len(ids) > 0 {
				w.Errorf("programs %v are left at %s", ids, l.Attrs().Name)
			}
			qdiscs, err := netlink.QdiscList(l)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				if q.Type() == "clsact" {
					w.Errorf("a clsact qdisc is left at %s", l.Attrs().Name)
				}
			}
		}
		return err
	})
}

// modes are all that a veth has.
var modes = []Mode{TC, XDP, XDPGeneric}

func TestAttach(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			w.attach(tables(publicAddress, insideAddress), "one", mode)
			w.want("one", mode)
			f := w.flow(w.client, clientAddress, publicAddress, w.server)
			f.passes(100, pair{clientAddress, insideAddress})
			w.flow(w.server, insideAddress, clientAddress, w.client).passes(50, pair{publicAddress, clientAddress})
			s := w.read()
			if s.Rules[1].Packets != 100 || s.Rules[2].Packets != 50 {
				t.Errorf("counted %v", s.Rules)
			}
			w.attach(tables(publicAddress, insideAddress2), "two", mode)
			w.want("two", mode)
			if s := w.read(); s.Rules[1].Packets != 0 {
				t.Errorf("new programs have counted %v", s.Rules)
			}
			f.passes(1, pair{clientAddress, insideAddress2})
		})
	}
}

// TestExchange: while tables are exchanged under traffic in both directions, each packet arrives, as the old or the new
// ones translate it.
func TestExchange(t *testing.T) {
	const times = 100
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			sets := []Tables{tables(publicAddress, insideAddress), tables(publicAddress, insideAddress2)}
			sets[0].Destinations = append(sets[0].Destinations, Mapping{Match: nat.Host(otherPublic), To: nat.Host(insideAddress2), Roles: AnyRole, Rule: 1})
			sets[1].Destinations = append(sets[1].Destinations, Mapping{Match: nat.Host(otherPublic), To: nat.Host(insideAddress), Roles: AnyRole, Rule: 1})
			for i, source := range []netip.Addr{insideAddress2, insideAddress} {
				sets[i].Sources = append(sets[i].Sources, Mapping{Match: nat.Host(source), To: nat.Host(otherPublic), Roles: 1, Rule: 2})
			}
			w.attach(sets[0], "0", mode)
			in, out := w.flow(w.client, clientAddress, publicAddress, w.server), w.flow(w.server, insideAddress, clientAddress, w.client)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan int, 2)
			for _, f := range []*stream{in, out} {
				go func() { done <- f.flood(ctx) }()
			}
			programs, ports := [2]*Programs{}, []Port(nil)
			for i := range sets {
				programs[i], ports = w.load(sets[i], fmt.Sprint(i), mode)
			}
			for i := range times {
				if refused := w.attachTo(programs[(i+1)%2], ports); len(refused) > 0 {
					t.Fatal(refused)
				}
				since := [2]int64{in.count.Load(), out.count.Load()}
				testutil.Eventually(t, "packets", func() bool { return in.count.Load() > since[0] && out.count.Load() > since[1] })
			}
			cancel()
			sent := <-done + <-done
			testutil.Eventually(t, "the last packets", func() bool { return int(in.count.Load()+out.count.Load()) == sent })
			t.Logf("%d packets during %d exchanges", sent, times)
			for f, want := range map[*stream][]pair{
				in:  {{clientAddress, insideAddress}, {clientAddress, insideAddress2}},
				out: {{publicAddress, clientAddress}, {otherPublic, clientAddress}},
			} {
				if seen := f.take(); len(seen) != 2 || seen[want[0]] == 0 || seen[want[1]] == 0 {
					t.Errorf("packets came with %v, want %v", seen, want)
				}
			}
			w.want("0", mode)
			loads, err := filepath.Glob(filepath.Join(w.pins.Dir(), "[0-9]*"))
			if err != nil || len(loads) != 1 {
				t.Errorf("of what was loaded is pinned: %v, %v", loads, err)
			}
		})
	}
}

// pair are what a packet came with.
type pair struct{ source, destination netip.Addr }

// stream are UDP packets from one namespace to another.
type stream struct {
	*world
	from, to *net.UDPConn
	count    atomic.Int64
	// window has an entry for each packet that is on its way: no buffer may overflow, in which each may take 5 KB.
	window chan struct{}

	lock sync.Mutex
	seen map[pair]int
}

const testPort = 4000

func (w *world) flow(from *netns.Handle, source, destination netip.Addr, to *netns.Handle) *stream {
	w.Helper()
	f := &stream{world: w, window: make(chan struct{}, 16), seen: map[pair]int{}}
	testutil.Inside(w, to, func() (err error) {
		if f.to, err = net.ListenUDP("udp4", &net.UDPAddr{Port: testPort}); err != nil {
			return err
		}
		return setOption(f.to, unix.IPPROTO_IP, unix.IP_PKTINFO)
	})
	testutil.Inside(w, from, func() (err error) {
		f.from, err = net.DialUDP("udp4", &net.UDPAddr{IP: source.AsSlice()}, &net.UDPAddr{IP: destination.AsSlice(), Port: testPort})
		if err != nil {
			return err
		}
		// A frame that XDP redirects loses that its checksum is still to be completed.
		return setOption(f.from, unix.SOL_SOCKET, unix.SO_NO_CHECK)
	})
	ended := make(chan struct{})
	go func() { defer close(ended); f.receive() }()
	w.Cleanup(func() { f.to.Close(); f.from.Close(); <-ended })
	return f
}

func setOption(c *net.UDPConn, level, option int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, refused)
}

func (f *stream) receive() {
	data, control := make([]byte, 100), make([]byte, 100)
	for {
		_, n, _, from, err := f.to.ReadMsgUDPAddrPort(data, control)
		if err != nil {
			return
		}
		all, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(all) != 1 {
			continue
		}
		to := netip.AddrFrom4([4]byte(all[0].Data[8:12])) // struct in_pktinfo: ipi_addr
		f.lock.Lock()
		f.seen[pair{from.Addr().Unmap(), to}]++
		f.lock.Unlock()
		f.count.Add(1)
		<-f.window
	}
}

// flood sends until the context pair, and returns the number of packets.
func (f *stream) flood(ctx context.Context) (sent int) {
	for ; ; sent++ {
		select {
		case <-ctx.Done():
			return sent
		case f.window <- struct{}{}:
			if _, err := f.from.Write([]byte("natkit")); err != nil {
				f.Error(err)
				return sent
			}
		}
	}
}

// passes sends packets and wants all of them to arrive with these addresses.
func (f *stream) passes(packets int, want pair) {
	f.Helper()
	before := f.count.Load()
	for range packets {
		select {
		case f.window <- struct{}{}:
		case <-time.After(testutil.Patience(10 * time.Second)):
			f.Fatalf("of the packets %d came, and no more", f.count.Load()-before)
		}
		if _, err := f.from.Write([]byte("natkit")); err != nil {
			f.Fatal(err)
		}
	}
	f.arrive(before + int64(packets))
	if seen := f.take(); seen[want] != packets {
		f.Errorf("packets came with %v, want %v", seen, want)
	}
}

// arrive waits for packets.
func (f *stream) arrive(count int64) {
	f.Helper()
	for deadline := time.Now().Add(testutil.Patience(10 * time.Second)); f.count.Load() < count; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("%d packets came, of %d: %v; %+v", f.count.Load(), count, f.take(), f.read())
		}
	}
}

// take returns what has come since it was called before.
func (f *stream) take() map[pair]int {
	f.lock.Lock()
	defer f.lock.Unlock()
	seen := f.seen
	f.seen = map[pair]int{}
	return seen
}
