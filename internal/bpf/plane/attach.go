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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
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

// hook is one place of an interface that a program is attached to.
type hook struct {
	port    Port
	name    string
	program *ebpf.Program
}

func (h *hook) pin() string { return fmt.Sprintf("%s-%d", h.name, h.port.Index) }

// The names of hooks.
const (
	hookXDP = "xdp"
	hookIn  = "in"
	hookOut = "out"
)

// The names of what is pinned of a Load besides its maps, and of the map that says whose it is.
var programNames = []string{planeProgForward, planeProgIngress, planeProgIngressWithoutEthernet, planeProgEgress, planeProgEgressWithoutEthernet}

const pinAbout, pinChanging = "about", "changing"

var attachTypes = map[string]ebpf.AttachType{hookIn: ebpf.AttachTCXIngress, hookOut: ebpf.AttachTCXEgress}

// hooks are those of all interfaces. All ways out come first: what a program at a way in leaves half done has to be
// completed wherever it leaves.
func (p *Programs) hooks(ports []Port) (all []hook) {
	for _, port := range ports {
		out := p.Egress
		if port.NoEthernet {
			out = p.EgressWithoutEthernet
		}
		all = append(all, hook{port, hookOut, out})
	}
	for _, port := range ports {
		in := p.Ingress
		if port.NoEthernet {
			in = p.IngressWithoutEthernet
		}
		all = append(all, hook{port, hookIn, in})
	}
	for _, port := range ports {
		if port.Mode != TC {
			all = append(all, hook{port, hookXDP, p.Forward})
		}
	}
	return all
}

// attach attaches the program, before those of others.
func (h *hook) attach() (link.Link, error) {
	if err := permit.Change("attach eBPF programs"); err != nil {
		return nil, err
	}
	if h.name != hookXDP {
		return link.AttachTCX(link.TCXOptions{Interface: h.port.Index, Program: h.program, Attach: attachTypes[h.name], Anchor: link.Head()})
	}
	flags := link.XDPDriverMode
	if h.port.Mode == XDPGeneric {
		flags = link.XDPGenericMode
	}
	return link.AttachXDP(link.XDPOptions{Interface: h.port.Index, Program: h.program, Flags: flags})
}

// explained adds to the kernel's reason why an interface takes no program what that means there.
func (h *hook) explained(err error) error {
	if h.name != hookXDP {
		return netns.Denied(err, netns.BPF, netns.NetAdmin)
	}
	for errno, what := range map[unix.Errno]string{
		unix.EBUSY:      "another XDP program is attached to it",
		unix.EEXIST:     "another XDP program is attached to it, or to the interface it belongs to",
		unix.EOPNOTSUPP: "its driver runs no XDP programs",
		unix.ERANGE:     "its MTU is too large for XDP",
		unix.ENOSPC:     "it has fewer receive queues than its peer has transmit queues ('ethtool -L')",
		unix.EINVAL:     "its driver refuses XDP programs as it is configured, such as by its MTU",
	} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return netns.Denied(err, netns.BPF, netns.NetAdmin)
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

// Attach attaches programs to interfaces of the network namespace that the thread is in. Where others of the pins are
// attached they are replaced, without a moment between; what belongs to other interfaces is detached. Where it fails,
// what was attached before is attached again. An interface that takes no XDP program has those at tc alone; refused says
// why.
func (p Pins) Attach(programs *Programs, ports []Port) (refused []*Refused, err error) {
	if err := permit.Change("attach eBPF programs"); err != nil {
		return nil, err
	}
	err = alone(func() error { refused, err = p.attach(programs, ports); return err })
	return refused, err
}

func (p Pins) attach(programs *Programs, ports []Port) (refused []*Refused, err error) {
	s, err := p.open(true)
	if err != nil {
		return nil, err
	}
	defer s.close()
	_, former, err := s.list()
	if err != nil {
		return nil, err
	}
	load := strconv.Itoa(1 + slices.Max(append(former, 0)))
	back := []func() error{func() error { return s.forget(load) }}
	defer func() {
		if err == nil {
			return
		}
		for _, undo := range slices.Backward(back) {
			err = errors.Join(err, undo())
		}
		if os.Remove(s.dir) == nil { // it is empty
			s.leave()
		}
	}()
	if err := s.keep(programs, load); err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, h := range programs.hooks(ports) {
		undo, err := s.put(&h)
		if err != nil && h.name == hookXDP {
			refused = append(refused, &Refused{h.port, h.name, err})
			continue
		}
		if err != nil {
			return nil, &Refused{h.port, h.name, err}
		}
		wanted[h.pin()] = true
		back = append(back, undo)
	}
	if err := s.removeOthers(programs, wanted); err != nil {
		return nil, err
	}
	if err := programs.redirect(ports, wanted); err != nil {
		return nil, err
	}
	for _, n := range former {
		_ = s.forget(strconv.Itoa(n)) // the next one does it otherwise
	}
	s.handOver()
	return refused, nil
}

// removeOthers detaches what is attached to other hooks. Many drivers take redirected frames only as long as they have an XDP
// program themselves: none may be sent to them any more.
func (s *shelf) removeOthers(programs *Programs, wanted map[string]bool) error {
	links, _, err := s.list()
	if err != nil {
		return err
	}
	lose := func(i *Interface) bool {
		pin := (&hook{Port{Index: i.Index}, hookXDP, nil}).pin()
		return i.Redirect && slices.Contains(links, pin) && !wanted[pin]
	}
	if err := programs.change(lose, false); err != nil {
		return err
	}
	return s.removeBut(wanted)
}

// redirect has frames sent to those interfaces that take them, now that they have their programs.
func (p *Programs) redirect(ports []Port, wanted map[string]bool) error {
	features := readFeatures()
	return p.change(func(i *Interface) bool {
		at := slices.IndexFunc(ports, func(port Port) bool { return port.Index == i.Index })
		if i.Redirect || at < 0 {
			return false
		}
		f, known := features[uint32(i.Index)]
		h := hook{ports[at], hookXDP, nil}
		return f&FeatureNDOXmit != 0 || !known && wanted[h.pin()] && h.port.Mode == XDP && sends(h.port.Name)
	}, true)
}

// change changes which interfaces take redirected frames.
func (p *Programs) change(which func(*Interface) bool, to bool) error {
	changed := false
	for n := range p.interfaces {
		if i := &p.interfaces[n]; which(i) {
			i.Redirect, changed = to, true
			if err := p.Interfaces.Put(uint32(i.Index), i.value()); err != nil {
				return fmt.Errorf("change what is known of interface %d: %w", i.Index, err)
			}
		}
	}
	if !changed {
		return nil
	}
	var epoch uint32
	if err := errors.Join(p.Epoch.Get(&epoch), p.Epoch.Set(epoch+1)); err != nil { // what was decided before is not valid
		return fmt.Errorf("have the programs decide again: %w", err)
	}
	return nil
}

// keep pins what was loaded, by its number.
func (s *shelf) keep(programs *Programs, load string) error {
	if err := os.MkdirAll(s.at(load), 0o700); err != nil {
		return fmt.Errorf("make a directory for pinned programs: %w", netns.Denied(err, netns.WriteAll))
	}
	for name, program := range map[string]*ebpf.Program{
		planeProgForward: programs.Forward, planeProgIngress: programs.Ingress, planeProgIngressWithoutEthernet: programs.IngressWithoutEthernet,
		planeProgEgress: programs.Egress, planeProgEgressWithoutEthernet: programs.EgressWithoutEthernet,
	} {
		if err := pin(program, s.at(load, name)); err != nil {
			return err
		}
	}
	for name, m := range map[string]*ebpf.Map{
		planeMapRules: programs.Rules, planeMapReasons: programs.Reasons, pinAbout: programs.About, pinChanging: programs.Changing, planeMapInterfaces: programs.Interfaces,
		planeMapDestinations: programs.Destinations, planeMapDestinationServices: programs.DestinationServices, planeMapDestinationPrefixes: programs.DestinationPrefixes,
		planeMapSources: programs.Sources, planeMapSourceServices: programs.SourceServices, planeMapSourcePrefixes: programs.SourcePrefixes,
	} {
		if err := pin(m, s.at(load, name)); err != nil {
			return err
		}
	}
	return nil
}

// pin pins a copy: one that was pinned before would be moved.
func pin[T interface {
	Clone() (T, error)
	Pin(path string) error
	Close() error
}](object T, path string) error {
	c, err := object.Clone()
	if err == nil {
		err = errors.Join(c.Pin(path), c.Close())
	}
	if err != nil {
		return fmt.Errorf("pin %s: %w", filepath.Base(path), netns.Denied(err, netns.BPF, netns.WriteAll))
	}
	return nil
}

// forget unpins what was loaded.
func (s *shelf) forget(load string) error {
	if err := os.RemoveAll(s.at(load)); err != nil {
		return fmt.Errorf("unpin programs: %w", err)
	}
	return nil
}

// put attaches the program of a hook, or has it take the place of the one that is pinned; undo takes it back.
func (s *shelf) put(h *hook) (undo func() error, err error) {
	l, err := link.LoadPinnedLink(s.at(h.pin()), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return s.attach(h)
	}
	if err != nil {
		return nil, fmt.Errorf("open the link that is pinned at %s: %w; remove that file", filepath.Join(s.path, h.pin()), err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	if !isAttached(h.port.Index, h.name, info) {
		if err := l.Unpin(); err != nil {
			return nil, err
		}
		return s.attach(h)
	}
	was := *h
	if was.program, err = s.program(info.Program); err != nil {
		return nil, fmt.Errorf("open the program that is attached: %w", netns.Denied(err, netns.SysAdmin))
	}
	if is, _ := modeOf(h.port.Index); h.name == hookXDP && is != h.port.Mode {
		was.port.Mode = is
		return s.change(l, h, &was)
	}
	if err := l.Update(h.program); err != nil {
		return nil, fmt.Errorf("exchange the program: %w", netns.Denied(err, netns.NetAdmin))
	}
	return func() error {
		defer was.program.Close()
		l, err := link.LoadPinnedLink(s.at(h.pin()), nil)
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Update(was.program)
	}, nil
}

// change detaches a program and attaches one in another mode: an interface has one mode at a time.
func (s *shelf) change(l link.Link, h, was *hook) (undo func() error, err error) {
	back := func() error {
		defer was.program.Close()
		_, err := s.attach(was)
		return err
	}
	if err := errors.Join(l.Detach(), l.Unpin()); err != nil {
		return nil, err
	}
	detach, err := s.attach(h)
	if err != nil {
		return nil, errors.Join(err, back())
	}
	return func() error { return errors.Join(detach(), back()) }, nil
}

// attach attaches the program of a hook where natkit has none.
func (s *shelf) attach(h *hook) (undo func() error, err error) {
	l, err := h.attach()
	if errors.Is(err, ebpf.ErrNotSupported) && h.name != hookXDP {
		return s.putFilter(h)
	}
	if err != nil {
		return nil, h.explained(err)
	}
	defer l.Close()
	if err := l.Pin(s.at(h.pin())); err != nil {
		return nil, fmt.Errorf("pin it: %w", err)
	}
	return func() error { return s.unpin(h.pin()) }, nil
}

// program opens one by its number: it is one of those that are pinned, or of another version, which pins none.
func (s *shelf) program(id ebpf.ProgramID) (*ebpf.Program, error) {
	_, loads, err := s.list()
	if err != nil {
		return nil, err
	}
	for _, n := range loads {
		if path := s.programIDs(strconv.Itoa(n))[id]; path != "" {
			return ebpf.LoadPinnedProgram(path, nil)
		}
	}
	return ebpf.NewProgramFromID(id)
}

// programIDs are the numbers of the programs of a Load, with their paths.
func (s *shelf) programIDs(load string) map[ebpf.ProgramID]string {
	all := map[ebpf.ProgramID]string{}
	for _, name := range programNames {
		path := s.at(load, name)
		if program, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
			if id, err := idOf(program); err == nil {
				all[id] = path
			}
			program.Close()
		}
	}
	return all
}

func idOf(program *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := program.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// isAttached reports whether a link is that of an interface of this network namespace: it may have been detached by hand,
// or the interface has gone, elsewhere too, and another one has its number.
func isAttached(index int, name string, info *link.Info) bool {
	if x := info.XDP(); x != nil && name == hookXDP {
		_, id := modeOf(index)
		return int(x.Ifindex) == index && id == info.Program
	}
	x := info.TCX()
	if x == nil || int(x.Ifindex) != index || ebpf.AttachType(x.AttachType) != attachTypes[name] {
		return false
	}
	all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachType(x.AttachType)})
	return err == nil && slices.ContainsFunc(all.Programs, func(a link.AttachedProgram) bool {
		id, ok := a.LinkID()
		return ok && id == info.ID
	})
}

// modeOf is that of the XDP program of an interface, whosever it is, with its number; TC where it has none.
func modeOf(index int) (Mode, ebpf.ProgramID) {
	l, err := netlink.LinkByIndex(index)
	if err != nil || l.Attrs().Xdp == nil {
		return TC, 0
	}
	id := ebpf.ProgramID(l.Attrs().Xdp.ProgId)
	switch l.Attrs().Xdp.AttachMode {
	case nl.XDP_ATTACHED_NONE:
		return TC, 0
	case nl.XDP_ATTACHED_SKB:
		return XDPGeneric, id
	}
	return XDP, id
}

// unpin detaches what is pinned as a link: at once, while the kernel takes its time after the file is gone.
func (s *shelf) unpin(name string) error {
	l, err := link.LoadPinnedLink(s.at(name), nil)
	if err != nil {
		return os.Remove(s.at(name)) // something else
	}
	_ = l.Detach() // detached already, with its interface
	return errors.Join(l.Unpin(), l.Close())
}

// Detach takes the program at the way in of an interface off, and leaves its pin, as others may do it.
func (p Pins) Detach(name string) error {
	if err := permit.Change("detach eBPF programs"); err != nil {
		return err
	}
	s, err := p.open(false)
	if err != nil {
		return err
	}
	defer s.close()
	at, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	h := hook{Port{Index: at.Attrs().Index}, hookIn, nil}
	l, err := link.LoadPinnedLink(s.at(h.pin()), nil)
	if errors.Is(err, fs.ErrNotExist) { // before Linux 6.6
		return removeFilter(at, hookIn)
	}
	if err != nil {
		return fmt.Errorf("open the link that is pinned at %s: %w", filepath.Join(s.path, h.pin()), netns.Denied(err, netns.WriteAll))
	}
	return errors.Join(l.Detach(), l.Close())
}

// removeBut detaches all but some hooks: before the way out the way in.
func (s *shelf) removeBut(wanted map[string]bool) error {
	links, _, err := s.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{hookXDP, hookIn, hookOut} {
		for _, pin := range links {
			if strings.HasPrefix(pin, name+"-") && !wanted[pin] {
				errs = append(errs, s.unpin(pin))
			}
		}
	}
	return errors.Join(append(errs, removeFilters(wanted))...)
}

// Remove detaches all.
func (p Pins) Remove() error {
	if err := permit.Change("detach eBPF programs"); err != nil {
		return err
	}
	return alone(p.remove)
}

func (p Pins) remove() error {
	s, err := p.open(false)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.removeBut(nil); err != nil {
		return fmt.Errorf("detach the programs: %w", netns.Denied(err, netns.NetAdmin, netns.WriteAll))
	}
	if s.dir == "" {
		return nil
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("remove the directory of pinned programs: %w", netns.Denied(err, netns.WriteAll))
	}
	s.leave()
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

// clsact is the qdisc of an interface that has filters of both ways.
func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
}

// putFilter attaches the program of a hook as a filter.
func (s *shelf) putFilter(h *hook) (undo func() error, err error) {
	l, err := netlink.LinkByIndex(h.port.Index)
	if err != nil {
		return nil, err
	}
	former, err := filterOf(l, h.name)
	if err != nil {
		return nil, err
	}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: h.port.Index, Parent: filterParent(h.name),
		Priority: filterPriority, Protocol: unix.ETH_P_ALL}, Fd: h.program.FD(), Name: filterName, DirectAction: true}
	if former == nil {
		return addFilter(l, h.name, filter)
	}
	was, err := s.program(ebpf.ProgramID(former.Id))
	if err != nil {
		return nil, fmt.Errorf("open the program that is attached: %w", netns.Denied(err, netns.SysAdmin))
	}
	filter.Handle = former.Handle
	if err := netlink.FilterReplace(filter); err != nil {
		return nil, errors.Join(fmt.Errorf("exchange the filter at tc: %w", err), was.Close())
	}
	return func() error {
		defer was.Close()
		filter.Fd = was.FD()
		return netlink.FilterReplace(filter)
	}, nil
}

// addFilter adds a filter where natkit has none, and the qdisc for it.
func addFilter(l netlink.Link, name string, filter *netlink.BpfFilter) (undo func() error, err error) {
	filter.Handle = filterBeside
	other, err := filterOf(l, map[string]string{hookIn: hookOut, hookOut: hookIn}[name])
	if err != nil {
		return nil, err
	}
	switch err := netlink.QdiscAdd(clsact(filter.LinkIndex)); {
	case err == nil:
		filter.Handle = filterOwn
	case !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("add a clsact qdisc: %w", netns.Denied(err, netns.NetAdmin))
	case other != nil:
		filter.Handle = other.Handle
	case hasIngress(l): // it would take a filter of the way out for one of the way in
		return nil, errors.New("add a clsact qdisc: another program has the qdisc 'ingress', which has no way out: have it use 'clsact'")
	}
	if err = netlink.FilterAdd(filter); err == nil {
		return func() error { return removeFilter(l, name) }, nil
	}
	if filter.Handle == filterOwn && other == nil {
		err = errors.Join(err, netlink.QdiscDel(clsact(filter.LinkIndex)))
	}
	return nil, fmt.Errorf("add a filter at tc: %w", err)
}

func hasIngress(l netlink.Link) bool {
	all, err := netlink.QdiscList(l)
	return err != nil || slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "ingress" })
}

// filterOf is natkit's filter at a hook of an interface; nil where there is none.
func filterOf(l netlink.Link, name string) (*netlink.BpfFilter, error) {
	all, err := netlink.FilterList(l, filterParent(name))
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			return nil, nil // no such qdisc, or interface
		}
		return nil, err
	}
	for _, f := range all {
		if b, is := f.(*netlink.BpfFilter); is && isOwn(b) {
			return b, nil
		}
	}
	return nil, nil
}

func isOwn(f *netlink.BpfFilter) bool {
	return f.Priority == filterPriority && strings.HasPrefix(f.Name, filterName)
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
	return netlink.QdiscDel(clsact(l.Attrs().Index))
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
