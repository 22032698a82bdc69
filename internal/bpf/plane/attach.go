package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Mode is how the programs are attached to an interface.
type Mode string

const (
	// XDP is before the stack, in the driver, and at tc what that program leaves.
	XDP Mode = "xdp"
	// XDPGeneric is the same where the driver runs no programs: in the stack, with a socket buffer for each packet.
	XDPGeneric Mode = "xdp-generic"
	// TC is at tc alone.
	TC Mode = "tc"
)

// Port is an interface that the programs are attached to.
type Port struct {
	Index int
	Name  string
	Mode  Mode
	// NoEthernet is that of Interface.
	NoEthernet bool
}

// Pins are the links of one network namespace: files of a bpf file system, which keep the programs attached when natkit
// has ended.
type Pins struct{ dir string }

// PinsAt are those in a directory of a bpf file system, which need not be there.
func PinsAt(dir string) Pins { return Pins{dir} }

// hook is one place of an interface that a program is attached to.
type hook struct {
	port    Port
	name    string
	program *ebpf.Program
	attach  func(*ebpf.Program) (link.Link, error)
}

func (h *hook) pin() string { return fmt.Sprintf("%s-%d", h.name, h.port.Index) }

// The names of hooks.
const (
	hookXDP = "xdp"
	hookIn  = "in"
	hookOut = "out"
)

func (p *Programs) hooks(port Port) (all []hook) {
	in, out := p.Ingress, p.Egress
	if port.NoEthernet {
		in, out = p.IngressWithoutEthernet, p.EgressWithoutEthernet
	}
	tcx := func(at ebpf.AttachType) func(*ebpf.Program) (link.Link, error) {
		return func(program *ebpf.Program) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: port.Index, Program: program, Attach: at, Anchor: link.Head()})
		}
	}
	// The way out first: what a program at the way in leaves half done has to be completed.
	all = append(all, hook{port, hookOut, out, tcx(ebpf.AttachTCXEgress)}, hook{port, hookIn, in, tcx(ebpf.AttachTCXIngress)})
	if port.Mode != TC {
		flags := link.XDPDriverMode
		if port.Mode == XDPGeneric {
			flags = link.XDPGenericMode
		}
		all = append(all, hook{port, hookXDP, p.Forward, func(program *ebpf.Program) (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Interface: port.Index, Program: program, Flags: flags})
		}})
	}
	return all
}

// Refused is why a program could not be attached to an interface.
type Refused struct {
	Port Port
	Hook string
	Err  error
}

func (r *Refused) Error() string {
	return fmt.Sprintf("attach the %s program to %s: %v", r.Hook, r.Port.Name, r.Err)
}

// Unwrap returns the kernel's reason.
func (r *Refused) Unwrap() error { return r.Err }

// Dir is where they lie.
func (p Pins) Dir() string { return p.dir }

// Attach attaches programs to interfaces of the network namespace that the thread is in. Where others of the pins are
// attached they are replaced, without a moment between; what belongs to other interfaces is detached. Where it fails,
// what was attached before is attached again. An interface that takes no XDP program has those at tc alone; refused says
// why.
func (p Pins) Attach(programs *Programs, ports []Port) (refused []*Refused, err error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for pinned programs: %w", err)
	}
	var back []func() error
	defer func() {
		if err != nil {
			for _, undo := range slices.Backward(back) {
				err = errors.Join(err, undo())
			}
			_ = os.Remove(p.dir) // where it is empty
		}
	}()
	wanted := map[string]bool{}
	for _, port := range ports {
		for _, h := range programs.hooks(port) {
			undo, err := p.put(&h)
			if err != nil && h.name == hookXDP {
				refused = append(refused, &Refused{port, h.name, err})
				continue
			}
			if err != nil {
				return nil, &Refused{port, h.name, err}
			}
			wanted[h.pin()] = true
			back = append(back, undo)
		}
	}
	return refused, p.removeBut(wanted)
}

// put attaches the program of a hook, or has it take the place of the one that is pinned; undo takes it back.
func (p Pins) put(h *hook) (undo func() error, err error) {
	path := filepath.Join(p.dir, h.pin())
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		defer l.Close()
		former, err := programOf(l)
		if err == nil {
			if err := l.Update(h.program); err != nil {
				return nil, err
			}
			return func() error {
				defer former.Close()
				l, err := link.LoadPinnedLink(path, nil)
				if err != nil {
					return err
				}
				defer l.Close()
				return l.Update(former)
			}, nil
		}
		if err := l.Unpin(); err != nil { // of an interface that is gone
			return nil, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := h.attach(h.program)
	if errors.Is(err, ebpf.ErrNotSupported) && h.name != hookXDP {
		return putFilter(h)
	}
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := l.Pin(path); err != nil {
		return nil, fmt.Errorf("pin it: %w", err)
	}
	return func() error { return unpin(path) }, nil
}

// programOf is the program of a link that is attached.
func programOf(l link.Link) (*ebpf.Program, error) {
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	if index, ok := interfaceOf(info); ok && index == 0 {
		return nil, fmt.Errorf("its interface is gone: %w", fs.ErrNotExist)
	}
	return ebpf.NewProgramFromID(info.Program)
}

// interfaceOf is that of a link; 0 where it is gone.
func interfaceOf(info *link.Info) (index uint32, ok bool) {
	if x := info.XDP(); x != nil {
		return x.Ifindex, true
	}
	if x := info.TCX(); x != nil {
		return x.Ifindex, true
	}
	return 0, false
}

func unpin(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	return errors.Join(l.Unpin(), l.Close())
}

// removeBut detaches all but some hooks.
func (p Pins) removeBut(wanted map[string]bool) error {
	names, err := p.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if !wanted[name] {
			errs = append(errs, unpin(filepath.Join(p.dir, name)))
		}
	}
	return errors.Join(append(errs, removeFilters(wanted))...)
}

// names are the pins that there are.
func (p Pins) names() (names []string, err error) {
	all, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, err
}

// Remove detaches all. The way in goes first.
func (p Pins) Remove() error {
	if err := p.removeBut(nil); err != nil {
		return fmt.Errorf("detach the programs: %w", err)
	}
	if err := os.Remove(p.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the directory of pinned programs: %w", err)
	}
	if os.Remove(filepath.Dir(p.dir)) == nil && strings.HasPrefix(p.dir, ownRoot+"/") { // the last one
		_ = unix.Unmount(ownRoot, 0) // busy where another natkit has begun
	}
	return nil
}

// Before Linux 6.6 programs at tc are filters of a clsact qdisc.
const (
	filterName     = "natkit"
	filterPriority = 0x4e41 // "NA"
	// The handle of a filter: whether its qdisc was there before.
	filterBeside, filterOwn = 1, 2
)

func filterParent(name string) uint32 {
	if name == hookOut {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// putFilter attaches the program of a hook as a filter.
func putFilter(h *hook) (undo func() error, err error) {
	l, err := netlink.LinkByIndex(h.port.Index)
	if err != nil {
		return nil, err
	}
	former, err := filterOf(l, h.name)
	if err != nil {
		return nil, err
	}
	handle := uint32(filterBeside)
	qdisc := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: h.port.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
	switch err := netlink.QdiscAdd(qdisc); {
	case err == nil:
		handle = filterOwn
	case !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("add a clsact qdisc: %w", err)
	}
	if former != nil {
		handle = former.Handle
	} else if other, _ := filterOf(l, map[string]string{hookIn: hookOut, hookOut: hookIn}[h.name]); other != nil {
		handle = other.Handle
	}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: h.port.Index, Parent: filterParent(h.name), Handle: handle,
		Priority: filterPriority, Protocol: unix.ETH_P_ALL}, Fd: h.program.FD(), Name: filterName, DirectAction: true}
	if err := netlink.FilterReplace(filter); err != nil {
		return nil, fmt.Errorf("add a filter at tc: %w", err)
	}
	if former == nil {
		return func() error { return removeFilter(l, h.name) }, nil
	}
	was, err := ebpf.NewProgramFromID(ebpf.ProgramID(former.Id))
	if err != nil {
		return nil, err
	}
	return func() error {
		defer was.Close()
		filter.Fd = was.FD()
		return netlink.FilterReplace(filter)
	}, nil
}

// filterOf is natkit's filter at a hook of an interface; nil where there is none.
func filterOf(l netlink.Link, name string) (*netlink.BpfFilter, error) {
	all, err := netlink.FilterList(l, filterParent(name))
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil, nil // no such qdisc
		}
		return nil, err
	}
	for _, f := range all {
		if b, is := f.(*netlink.BpfFilter); is && b.Priority == filterPriority && strings.HasPrefix(b.Name, filterName) {
			return b, nil
		}
	}
	return nil, nil
}

func removeFilter(l netlink.Link, name string) error {
	f, err := filterOf(l, name)
	if err != nil || f == nil {
		return err
	}
	if err := netlink.FilterDel(f); err != nil {
		return fmt.Errorf("remove the filter at tc of %s: %w", l.Attrs().Name, err)
	}
	if f.Handle != filterOwn {
		return nil
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if left, err := netlink.FilterList(l, parent); err != nil || len(left) > 0 {
			return err // others have come since
		}
	}
	return netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"})
}

// removeFilters removes natkit's filters of all interfaces but some.
func removeFilters(wanted map[string]bool) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		for _, name := range []string{hookIn, hookOut} {
			if !wanted[name+"-"+strconv.Itoa(l.Attrs().Index)] {
				errs = append(errs, removeFilter(l, name))
			}
		}
	}
	return errors.Join(errs...)
}
