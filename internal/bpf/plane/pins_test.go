package plane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// fails wants Attach to fail.
func (w *world) fails(programs *Programs, ports []Port) (err error) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() error {
		_, err = w.pins.Attach(programs, ports)
		return nil
	})
	if err == nil {
		w.Fatal("attached")
	}
	wantLine(w.T, err)
	return err
}

// wantLine wants an error of one line.
func wantLine(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); strings.Contains(text, "\n") || len(text) > 400 {
		t.Errorf("not one line: %s", text)
	}
}

func TestFailedAttachRestores(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			missing := Port{Index: 12345, Name: "gone0", Mode: mode}
			programs, ports := w.load(tables(publicAddress, insideAddress), "one", mode)
			w.fails(programs, append(ports, missing))
			w.wantNothing()
			w.attachTo(programs, ports)
			f := w.flow(w.client, clientAddress, publicAddress, w.server)
			second, _ := w.load(tables(publicAddress, insideAddress2), "two", mode)
			var refused *Refused
			if err := w.fails(second, append(slices.Clone(ports), missing)); !errors.As(err, &refused) || refused.Port.Name != "gone0" {
				t.Errorf("%v", err)
			}
			w.want("one", mode)
			f.passes(10, pair{clientAddress, insideAddress})
		})
	}
}

func TestInterfaceGoesAndComes(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			w.attach(tables(publicAddress, insideAddress), "one", mode)
			former, wan := w.index("lan0"), w.index("wan0")
			w.deletes("lan0")
			s := w.read()
			if len(s.Modes) != 1 || s.Modes[wan] != mode || len(s.Missing) > 0 || !slices.Equal(s.Digests, []string{"one"}) {
				t.Errorf("without lan0: %+v", s)
			}
			w.joinServer()
			if s := w.read(); len(s.Modes) != 1 {
				t.Errorf("with a new lan0: %+v", s)
			}
			w.attach(tables(publicAddress, insideAddress), "two", mode)
			w.want("two", mode)
			if _, err := os.Stat(filepath.Join(w.pins.Dir(), fmt.Sprintf("in-%d", former))); former != w.index("lan0") && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the pin of an interface that is gone is left: %v", err)
			}
			w.flow(w.client, clientAddress, publicAddress, w.server).passes(10, pair{clientAddress, insideAddress})
			w.deletes("lan0")
			w.deletes("wan0")
			if s := w.read(); len(s.Modes) > 0 || !slices.Equal(s.Digests, []string{"two"}) {
				t.Errorf("without interfaces: %+v", s)
			}
		})
	}
}

func (w *world) deletes(name string) {
	w.Helper()
	testutil.Inside(w, w.gateway, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

// TestProgramsOfOthers: where another has an XDP program natkit's are at tc alone; what others have at tc stays.
func TestProgramsOfOthers(t *testing.T) {
	w := newWorld(t)
	wan := w.index("wan0")
	xdp, tc := newProgram(t, ebpf.XDP, 2), newProgram(t, ebpf.SchedCLS, -1)
	var others link.Link
	testutil.Inside(t, w.gateway, func() error {
		l, err := netlink.LinkByName("wan0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetXdpFdWithFlags(l, xdp.FD(), nlDriver); err != nil {
			return err
		}
		if err := netlink.QdiscAdd(clsact(wan)); err != nil {
			return err
		}
		if others, err = link.AttachTCX(link.TCXOptions{Interface: wan, Program: tc, Attach: ebpf.AttachTCXIngress}); err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: wan, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 7, Protocol: unix.ETH_P_ALL},
			Fd: tc.FD(), Name: "of_a_third", DirectAction: true})
	})
	before := w.programsAt("wan0")
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", XDP)
	refused := w.attachTo(programs, ports)
	if len(refused) != 1 || refused[0].Port.Name != "wan0" || refused[0].Hook != hookXDP || !errors.Is(refused[0], unix.EBUSY) {
		t.Errorf("refused: %v", refused)
	}
	s := w.read()
	if s.Modes[wan] != TC || s.Modes[w.index("lan0")] != XDP || len(s.Missing) > 0 {
		t.Errorf("modes %v, missing %v", s.Modes, s.Missing)
	}
	if id, err := idOf(xdp); err != nil || len(s.Others) != 1 || s.Others[wan] != id {
		t.Errorf("others %v, want %d: %v", s.Others, id, err)
	}
	want := []Filter{{"wan0", "ingress", "bpf of_a_third"}}
	if others != nil {
		want = append(want, Filter{"wan0", "ingress", "bpf of_another"})
	}
	testutil.Inside(t, w.gateway, func() error {
		filters, err := ReadFilters()
		if !slices.Equal(filters, want) {
			t.Errorf("filters %v, want %v", filters, want)
		}
		return err
	})
	w.flow(w.client, clientAddress, publicAddress, w.server).passes(10, pair{clientAddress, insideAddress})
	testutil.Inside(t, w.gateway, w.pins.Remove)
	if after := w.programsAt("wan0"); !slices.Equal(before, after) {
		t.Errorf("others' programs were %v and are %v", before, after)
	}
	if others != nil {
		others.Close()
	}
	testutil.Inside(t, w.gateway, func() error {
		l, err := netlink.LinkByName("wan0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetXdpFd(l, -1), netlink.QdiscDel(clsact(wan)))
	})
}

// TestDispatcherOfLibxdp: where libxdp's dispatcher is attached natkit's programs are at tc alone; it stays, also what it runs.
func TestDispatcherOfLibxdp(t *testing.T) {
	testutil.NeedNightlyProgram(t, "xdp-filter")
	testutil.NeedFeature(t, testutil.OwnMounts)
	if !isBPF(systemRoot) { // xdp-filter keeps its maps there
		if err := unix.Mount("bpf", systemRoot, "bpf", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(systemRoot, unix.MNT_DETACH) })
	}
	w := newWorld(t)
	filter := func(args ...string) string { return testutil.Run(t, w.gateway, "", "xdp-filter", args...) }
	filter("load", "--mode", "native", "wan0")
	t.Cleanup(func() { filter("unload", "wan0") })
	before := w.programsAt("wan0")
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", XDP)
	refused := w.attachTo(programs, ports)
	if len(refused) != 1 || refused[0].Port.Name != "wan0" || !errors.Is(refused[0], unix.EBUSY) {
		t.Errorf("refused: %v", refused)
	}
	s, wan := w.read(), w.index("wan0")
	if s.Modes[wan] != TC || s.Others[wan] != before[0] || s.Modes[w.index("lan0")] != XDP {
		t.Errorf("modes %v, others %v, want the dispatcher %v at %d", s.Modes, s.Others, before, wan)
	}
	w.flow(w.client, clientAddress, publicAddress, w.server).passes(10, pair{clientAddress, insideAddress})
	testutil.Inside(t, w.gateway, w.pins.Remove)
	if after := w.programsAt("wan0"); !slices.Equal(before, after) {
		t.Errorf("programs at wan0 were %v and are %v", before, after)
	}
	if now := filter("status"); !strings.Contains(now, "wan0 (native mode)") {
		t.Errorf("xdp-filter says\n%s", now)
	}
}

func TestTwoNamespaces(t *testing.T) {
	a := newWorld(t)
	b := newWorld(t)
	b.pins = PinsOf("other")
	a.attach(tables(publicAddress, insideAddress), "a", XDP)
	b.attach(tables(publicAddress, insideAddress2), "b", TC)
	a.want("a", XDP)
	b.want("b", TC)
	testutil.Inside(t, a.gateway, a.pins.Remove)
	a.wantNothing()
	b.want("b", TC)
	b.flow(b.client, clientAddress, publicAddress, b.server).passes(10, pair{clientAddress, insideAddress2})
}

// TestManyAtOnce: gateways share a file system, which the last one unmounts while another one pins.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	programs, _ := w.load(tables(publicAddress, insideAddress), "one", TC)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			pins := PinsOf(fmt.Sprint("at-once-", i))
			for range 100 {
				err := w.gateway.Do(func() error { _, err := pins.Attach(programs, nil); return err })
				if err := errors.Join(err, w.gateway.Do(pins.Remove)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	w.wantNothing()
}

// TestNoPlaceForALock: where /run takes no files, and nothing is pinned, there is nothing to wait for.
func TestNoPlaceForALock(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.OwnMounts)
	ns := testutil.Namespace(t, "gateway")
	err := netns.OnThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_RDONLY, "")); err != nil {
			return err
		}
		return alone(func() error { return nil })
	})
	if err != nil {
		t.Error(err)
	}
	testutil.Inside(t, ns, PinsOf("none").Remove)
}

// TestVisible: who may not see whether something is pinned is not told that nothing is.
func TestVisible(t *testing.T) {
	w := newWorld(t)
	w.attach(tables(publicAddress, insideAddress), "one", TC)
	above := filepath.Dir(w.pins.Dir())
	is, err := os.Stat(filepath.Dir(above))
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o755, 0o700} {
		if filepath.Dir(above) == filepath.Dir(ownRoot) {
			if err := os.Chmod(filepath.Dir(ownRoot), mode); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(filepath.Dir(ownRoot), is.Mode())
		}
		_ = netns.OnThread(func() error {
			const nobody = 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				t.Error(errno)
			} else if there, err := w.pins.Visible(); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s of mode %o: %v, %v", above, mode, there, err)
			}
			return nil
		})
	}
	if there, err := w.pins.Visible(); !there || err != nil {
		t.Errorf("to root: %v, %v", there, err)
	}
}

func TestModeChanges(t *testing.T) {
	w := newWorld(t)
	f := w.flow(w.client, clientAddress, publicAddress, w.server)
	for i, mode := range []Mode{TC, XDP, XDPGeneric, TC, XDPGeneric, XDP} {
		w.attach(tables(publicAddress, insideAddress), fmt.Sprint(i), mode)
		w.want(fmt.Sprint(i), mode)
		f.passes(10, pair{clientAddress, insideAddress})
	}
	// An attach that fails puts the former mode back.
	programs, ports := w.load(tables(publicAddress, insideAddress), "x", XDPGeneric)
	for i := range ports {
		ports[i].Name = "any"
	}
	s, err := w.pins.open(true)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Inside(t, w.gateway, func() error {
		for _, h := range programs.hooks(ports) {
			undo, err := s.put(&h)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, undo()) }()
		}
		return err
	})
	w.want("5", XDP)
	f.passes(10, pair{clientAddress, insideAddress})
}

// TestByHand: what somebody has done to the programs is seen, and the next Attach makes it good.
func TestByHand(t *testing.T) {
	missing := func(hook string) func(*testing.T, *world, *State) {
		return func(t *testing.T, w *world, s *State) {
			if got := s.Missing[w.index("wan0")]; !slices.Equal(got, []string{hook}) || len(s.Missing) != 1 || !slices.Equal(s.Digests, []string{"one"}) {
				t.Errorf("missing %v, digests %q", s.Missing, s.Digests)
			}
		}
	}
	unknown := func(t *testing.T, w *world, s *State) {
		if !slices.Equal(s.Digests, []string{""}) || len(s.Modes) != 2 || len(s.Missing) > 0 {
			t.Errorf("%+v", s)
		}
	}
	for name, test := range map[string]struct {
		hand func(t *testing.T, w *world) error
		seen func(t *testing.T, w *world, s *State)
	}{
		"a pin is removed": {func(t *testing.T, w *world) error { return os.Remove(w.pinAt(hookOut, "wan0")) }, missing(hookOut)},
		"the XDP pin is removed": {func(t *testing.T, w *world) error { return os.Remove(w.pinAt(hookXDP, "wan0")) },
			func(t *testing.T, w *world, s *State) {
				if s.Modes[w.index("wan0")] != TC || len(s.Missing) > 0 {
					t.Errorf("%+v", s)
				}
			}},
		"a link at tc is detached":   {func(t *testing.T, w *world) error { return w.pins.Detach("wan0") }, missing(hookIn)},
		"a link at XDP is detached":  {func(t *testing.T, w *world) error { return w.detach(hookXDP, "wan0") }, missing(hookXDP)},
		"what was loaded is removed": {func(t *testing.T, w *world) error { return os.RemoveAll(filepath.Join(w.pins.Dir(), "1")) }, unknown},
		"maps of another version":    {func(t *testing.T, w *world) error { return w.otherVersion() }, unknown},
		"ip link set xdp off": {func(t *testing.T, w *world) error {
			return w.gateway.Do(func() error {
				if out, err := exec.Command(testutil.NeedProgram(t, "ip"), "link", "set", "wan0", "xdp", "off").CombinedOutput(); err == nil {
					return fmt.Errorf("a program of a link was taken off: %s", out)
				}
				return nil
			})
		}, func(t *testing.T, w *world, s *State) { w.want("one", XDP) }},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.NeedFeature(t, testutil.TCX)
			w := newWorld(t)
			w.attach(tables(publicAddress, insideAddress), "one", XDP)
			testutil.Inside(t, w.gateway, func() error { return test.hand(t, w) })
			// The kernel detaches what is not pinned any more when it gets to it.
			if programs := w.programsAt("wan0"); strings.Contains(name, "pin is removed") {
				testutil.Eventually(t, "the program is detached", func() bool { return len(w.programsAt("wan0")) < 3 || len(programs) < 3 })
			}
			test.seen(t, w, w.read())
			w.attach(tables(publicAddress, insideAddress2), "two", XDP)
			w.want("two", XDP)
			w.flow(w.client, clientAddress, publicAddress, w.server).passes(10, pair{clientAddress, insideAddress2})
		})
	}
}

func (w *world) pinAt(hook, name string) string {
	return filepath.Join(w.pins.Dir(), fmt.Sprintf("%s-%d", hook, w.index(name)))
}

func (w *world) detach(hook, name string) error {
	l, err := link.LoadPinnedLink(w.pinAt(hook, name), nil)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// otherVersion has the maps be of a version that this one does not know.
func (w *world) otherVersion() error {
	path := filepath.Join(w.pins.Dir(), "1", pinAbout)
	var about planeAbout
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(about)), MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	about.Version = 99
	return errors.Join(m.Put(uint32(0), about), os.Remove(path), m.Pin(path))
}

// TestFilters: what kernels without tcx have (before Linux 6.6).
func TestFilters(t *testing.T) {
	w := newWorld(t)
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", TC)
	second, _ := w.load(tables(publicAddress, insideAddress2), "two", TC)
	s, err := w.pins.open(true)
	if err != nil {
		t.Fatal(err)
	}
	put := func(programs *Programs, load string) (back []func() error) {
		testutil.Inside(t, w.gateway, func() error {
			if err := s.keep(programs, load); err != nil {
				return err
			}
			for _, h := range programs.hooks(ports) {
				undo, err := s.putFilter(&h)
				if err != nil {
					return err
				}
				back = append(back, undo)
			}
			return nil
		})
		return back
	}
	testutil.Inside(t, w.gateway, func() error { return netlink.QdiscAdd(clsact(w.index("wan0"))) })
	f := w.flow(w.client, clientAddress, publicAddress, w.server)
	put(programs, "1")
	w.want("one", TC)
	f.passes(10, pair{clientAddress, insideAddress})
	back := put(second, "2")
	w.want("two", TC)
	f.passes(10, pair{clientAddress, insideAddress2})
	testutil.Inside(t, w.gateway, func() error {
		for _, undo := range slices.Backward(back) {
			if err := undo(); err != nil {
				return err
			}
		}
		return nil
	})
	w.want("one", TC)
	f.passes(10, pair{clientAddress, insideAddress})
	testutil.Inside(t, w.gateway, func() error { // as 'tc filter del' does
		l, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		own, err := filterOf(l, hookIn)
		if err != nil {
			return err
		}
		return netlink.FilterDel(own)
	})
	if is := w.read(); !slices.Equal(is.Missing[w.index("lan0")], []string{hookIn}) || len(is.Missing) != 1 {
		t.Errorf("missing %v", is.Missing)
	}
	put(second, "3")
	w.want("two", TC)
	testutil.Inside(t, w.gateway, w.pins.Remove)
	testutil.Inside(t, w.gateway, func() error { return netlink.QdiscDel(clsact(w.index("wan0"))) }) // another's stays
	w.wantNothing()
	// Of a qdisc that has no way out a line says so, and nothing is left.
	testutil.Inside(t, w.gateway, func() error {
		return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: w.index("wan0"), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}})
	})
	testutil.Inside(t, w.gateway, func() error {
		_, err := s.putFilter(&hook{Port{Index: w.index("wan0")}, hookOut, programs.Egress})
		if err == nil || !strings.Contains(err.Error(), "clsact") {
			t.Errorf("%v", err)
		}
		return nil
	})
}

func TestInterruptedExchange(t *testing.T) {
	w := newWorld(t)
	w.attach(tables(publicAddress, insideAddress), "one", XDP)
	f := w.flow(w.client, clientAddress, publicAddress, w.server)
	f.passes(10, pair{clientAddress, insideAddress})
	programs, ports := w.load(tables(publicAddress, insideAddress), "two", XDP)
	s, err := w.pins.open(true)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Inside(t, w.gateway, func() error {
		_, err := s.put(&programs.hooks(ports)[len(ports)*2]) // XDP of the first interface
		return errors.Join(s.keep(programs, "2"), err)
	})
	if is := w.read(); !slices.Equal(is.Digests, []string{"one", "two"}) || is.Rules[1].Packets != 10 || len(is.Missing) > 0 {
		t.Errorf("%+v", is)
	}
	w.attach(tables(publicAddress, insideAddress), "three", XDP)
	w.want("three", XDP)
}

// TestSomethingElseIsPinned: a file that is no link is named.
func TestSomethingElseIsPinned(t *testing.T) {
	testutil.NeedFeature(t, testutil.TCX)
	w := newWorld(t)
	w.attach(tables(publicAddress, insideAddress), "one", TC)
	path := w.pinAt(hookIn, "wan0")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(os.Remove(path), m.Pin(path)); err != nil {
		t.Fatal(err)
	}
	programs, ports := w.load(tables(publicAddress, insideAddress), "two", TC)
	if err := w.fails(programs, ports); !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

func TestInterfacesWithoutNativeXDP(t *testing.T) {
	w := newWorld(t)
	w.onServer(func(s netlink.Link) error {
		return errors.Join(netlink.LinkSetXdpFd(s, -1), netlink.LinkSetMTU(s, 9000))
	})
	testutil.Inside(t, w.gateway, func() error {
		lan, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMTU(lan, 9000), netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	})
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", XDP)
	refused := w.attachTo(programs, ports)
	got := map[string]unix.Errno{}
	for _, r := range refused {
		wantLine(t, r)
		t.Log(r)
		for _, errno := range []unix.Errno{unix.ERANGE, unix.EOPNOTSUPP} {
			if errors.Is(r, errno) {
				got[r.Port.Name] = errno
			}
		}
	}
	if len(refused) != 2 || got["lan0"] != unix.ERANGE || got["br0"] != unix.EOPNOTSUPP {
		t.Errorf("refused %v", refused)
	}
	if s := w.read(); s.Modes[w.index("lan0")] != TC || s.Modes[w.index("br0")] != TC || s.Modes[w.index("wan0")] != XDP {
		t.Errorf("%v", s.Modes)
	}
}

// TestRedirect: frames are redirected into a veth whose other end takes them, by a program or GRO, and to no other.
func TestRedirect(t *testing.T) {
	if readFeatures() == nil {
		t.Skip("before Linux 6.3 drivers do not say what they take")
	}
	for name, test := range map[string]struct {
		prepare func(s netlink.Link) error
		want    bool
	}{
		"bare":    {func(s netlink.Link) error { return netlink.LinkSetXdpFd(s, -1) }, false},
		"program": {func(netlink.Link) error { return nil }, true},
		"GRO":     {func(s netlink.Link) error { return errors.Join(netlink.LinkSetXdpFd(s, -1), setGRO("s")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.flow(w.client, clientAddress, publicAddress, w.server)
			toServer := func(programs *Programs) bool {
				return programs.interfaces[slices.IndexFunc(programs.interfaces, func(i Interface) bool { return i.Index == w.index("lan0") })].Redirect
			}
			early, ports := w.load(tables(publicAddress, insideAddress), "early", XDP)
			w.onServer(test.prepare)
			late, _ := w.load(tables(publicAddress, insideAddress), "late", XDP)
			if toServer(late) != test.want {
				t.Errorf("lan0 takes frames: %t", !test.want)
			}
			w.attachTo(late, ports)
			f.passes(10, pair{clientAddress, insideAddress})
			// What was so before an interface lost its program is asked again.
			for i := range ports {
				if ports[i].Name == "lan0" {
					ports[i].Mode = TC
				}
			}
			w.attachTo(early, ports)
			if toServer(early) != test.want {
				t.Errorf("without a program of its own lan0 takes frames: %t", !test.want)
			}
			f.passes(10, pair{clientAddress, insideAddress})
		})
	}
	t.Run("later", func(t *testing.T) {
		w := newWorld(t)
		w.onServer(func(s netlink.Link) error { return netlink.LinkSetXdpFd(s, -1) })
		programs, ports := w.load(tables(publicAddress, insideAddress), "", XDP)
		passFrames(t, w.server)
		w.attachTo(programs, ports)
		for _, i := range programs.interfaces {
			if !i.Redirect {
				t.Errorf("interface %d does not take frames", i.Index)
			}
		}
		w.flow(w.client, clientAddress, publicAddress, w.server).passes(10, pair{clientAddress, insideAddress})
	})
}

func (w *world) onServer(fn func(s netlink.Link) error) {
	w.Helper()
	testutil.Inside(w, w.server, func() error {
		s, err := netlink.LinkByName("s")
		if err != nil {
			return err
		}
		return fn(s)
	})
}

// setGRO turns GRO on (ETHTOOL_SGRO of linux/ethtool.h).
func setGRO(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{0x2c, 1}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

// withCapabilities runs fn on a thread that has these capabilities alone, in the gateway.
func (w *world) withCapabilities(fn func() error, capabilities ...int) error {
	return netns.OnThread(func() error {
		if err := w.gateway.Enter(); err != nil {
			return err
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		for _, c := range capabilities {
			data[c/32].Effective |= 1 << (c % 32)
			data[c/32].Permitted |= 1 << (c % 32)
		}
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		return fn()
	})
}

// TestLeastCapabilities: where a bpf file system is mounted nothing more than CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON is needed.
func TestLeastCapabilities(t *testing.T) {
	w := newWorld(t)
	w.attach(tables(publicAddress, insideAddress), "one", XDP)
	_, ports := w.load(tables(publicAddress, insideAddress), "", XDP)
	var s *State
	err := w.withCapabilities(func() error {
		found, err := ReadInterfaces()
		if err != nil {
			return err
		}
		c := Config{Tables: tables(publicAddress, insideAddress2), Digest: "two", Marks: MarksOf(3)}
		for _, f := range found {
			c.Interfaces = append(c.Interfaces, f.Interface)
		}
		programs, err := Load(c)
		if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
			return fmt.Errorf("%+v", v)
		}
		if err != nil {
			return err
		}
		defer programs.Close()
		refused, err := w.pins.Attach(programs, ports)
		if err != nil || len(refused) > 0 {
			return fmt.Errorf("%v, %w", refused, err)
		}
		if _, err := ReadFilters(); err != nil {
			return err
		}
		s, err = w.pins.Read()
		return err
	}, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Digests, []string{"two"}) || len(s.Missing) > 0 {
		t.Errorf("%+v", s)
	}
	if err := w.withCapabilities(w.pins.Remove, unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
		t.Error(err)
	}
	if there, err := w.pins.Present(); there || err != nil {
		t.Errorf("left: %v", err)
	}
	// What it may not unmount stays.
	testutil.Inside(t, w.gateway, w.pins.Remove)
}

func TestWithoutPrivilege(t *testing.T) {
	w := newWorld(t)
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", TC)
	load := func() error { _, err := Load(Config{}); return err }
	for _, test := range []struct {
		fn   func() error
		have []int
		want []string
	}{
		{load, nil, []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}},
		{load, []int{unix.CAP_NET_ADMIN}, []string{"CAP_BPF"}},
		{load, []int{unix.CAP_BPF}, []string{"CAP_NET_ADMIN"}},
		{load, []int{unix.CAP_BPF, unix.CAP_NET_ADMIN}, []string{"CAP_PERFMON"}},
		{func() error {
			if isBPF(systemRoot) {
				return netns.Advise(errors.New(ownRoot), netns.SysAdmin) // nothing has to be mounted
			}
			_, err := w.pins.Attach(programs, ports)
			return err
		}, []int{unix.CAP_BPF, unix.CAP_NET_ADMIN}, []string{ownRoot, "CAP_SYS_ADMIN"}},
	} {
		err := w.withCapabilities(test.fn, test.have...)
		if err == nil {
			t.Errorf("with %v: no error", test.have)
			continue
		}
		wantLine(t, err)
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("with %v: %v, want %s", test.have, err, want)
			}
		}
	}
	w.wantNothing()
}

// TestOtherMounts: from among mounts that end with a process, as those of 'ip netns exec', programs are pinned where they
// last, and found there.
func TestOtherMounts(t *testing.T) {
	testutil.NeedFeature(t, testutil.OwnMounts)
	w := newWorld(t)
	programs, ports := w.load(tables(publicAddress, insideAddress), "one", TC)
	apart := func(fn func() error) error {
		return netns.OnThread(func() error {
			if err := w.gateway.Enter(); err != nil {
				return err
			}
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
				return err
			}
			_ = unix.Unmount(ownRoot, unix.MNT_DETACH)
			return fn()
		})
	}
	if err := apart(func() error { _, err := w.pins.Attach(programs, ports); return err }); err != nil {
		t.Fatal(err)
	}
	w.want("one", TC)
	if err := apart(func() error {
		s, err := w.pins.Read()
		if err == nil && (!slices.Equal(s.Digests, []string{"one"}) || len(s.Missing) > 0 || len(s.Modes) != 2) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := apart(w.pins.Remove); err != nil {
		t.Error(err)
	}
	w.wantNothing()
}

func TestRefused(t *testing.T) {
	c := Config{Tables: tables(publicAddress, insideAddress)}
	for _, cause := range []error{unix.ENOMEM, unix.E2BIG, unix.EPERM, ebpf.ErrNotSupported, unix.EINVAL,
		&ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"a line", "and another one"}}} {
		err := c.refused(fmt.Errorf("field X: %w", cause))
		wantLine(t, err)
		if !errors.Is(err, cause) || strings.Contains(err.Error(), "another one") {
			t.Errorf("%v", err)
		}
		t.Log(err)
	}
}

// TestDropIn: the service finds its part of the system's file system where natkit asks first, and has what Load asks for.
func TestDropIn(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/natkit-gateway-ebpf.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"BindPaths=-" + filepath.Join(systemRoot, systemPart) + ":" + ownRoot, "CapabilityBoundingSet=CAP_BPF CAP_PERFMON",
		"AmbientCapabilities=CAP_BPF CAP_PERFMON", "SystemCallFilter=bpf"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
