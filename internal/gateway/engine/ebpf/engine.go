package ebpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

// Check asks the kernel whether it takes the programs, without attaching them; it finds nothing where natkit may not
// load them.
func (Engine) Check(p *gateway.Plan) error {
	if permit.IsReadOnly() || plane.CheckPrivilege() != nil {
		return nil
	}
	programs, err := plane.Load(plane.Config{Marks: plane.MarksOf(p.Bypass)})
	if err != nil {
		return err
	}
	return programs.Close()
}

// Apply loads programs for a plan, and attaches them to all interfaces in the place of those that are attached: each
// packet meets the old ones or the new ones. Needs CAP_BPF, CAP_NET_ADMIN and, where no bpf file system is mounted,
// CAP_SYS_ADMIN.
func (e Engine) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (seal string, err error) {
	attach, closes, err := e.Prepare(ns, p, digest)
	if err != nil {
		return "", err
	}
	defer closes()
	return attach()
}

// Prepare loads the programs and fills their maps.
func (Engine) Prepare(ns *netns.Handle, p *gateway.Plan, digest string) (attach func() (seal string, err error), closes func(), err error) {
	pins, err := plane.PinsIn(ns)
	if err != nil {
		return nil, nil, err
	}
	c := compile(p)
	var programs *plane.Programs
	var ports []plane.Port
	err = ns.Do(func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		for i := range found {
			f := &found[i]
			mode, _ := modeFor(f, p)
			ports = append(ports, plane.Port{Index: f.Index, Name: f.Name, Mode: mode, NoEthernet: f.NoEthernet})
		}
		programs, err = load(c, p, found, digest)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return func() (string, error) {
		return digest, ns.Do(func() error {
			_, err := pins.Attach(programs, ports)
			return err
		})
	}, func() { programs.Close() }, nil
}

// load loads programs for a plan and the interfaces that there are.
func load(c *compiled, p *gateway.Plan, found []plane.Found, digest string) (*plane.Programs, error) {
	config := plane.Config{Tables: c.Tables, Marks: plane.MarksOf(p.Bypass), Digest: digest}
	for _, f := range found {
		f.Roles, f.WantsXDP = c.roles.Of(described(&f)), wantsXDP(&f, p)
		config.Interfaces = append(config.Interfaces, f.Interface)
	}
	return plane.Load(config)
}

// described is an interface as plans know them.
func described(f *plane.Found) gateway.Interface {
	return gateway.Interface{Name: f.Name, Index: f.Index, Group: f.Group}
}

// wantsXDP reports whether the file asks for XDP at an interface, and nothing in its nature is against it: by xdp: native
// also of hardware whose driver runs no XDP programs.
func wantsXDP(f *plane.Found, p *gateway.Plan) bool {
	mode, _ := modeFor(f, p)
	return mode != plane.TC || p.XDP == gateway.XDPNative && f.Kind == "device" && !f.NoEthernet && !f.VLANs
}

// modeFor returns how the programs are attached to an interface, and why not at XDP.
func modeFor(f *plane.Found, p *gateway.Plan) (mode plane.Mode, because string) {
	switch {
	case p.XDP == gateway.XDPOff:
		return plane.TC, "xdp: off"
	case f.NoEthernet:
		return plane.TC, "it has no Ethernet header"
	case f.VLANs:
		return plane.TC, "there are VLANs on it, whose tags the driver may take off before"
	case p.XDP == gateway.XDPGeneric && !f.Native():
		return plane.XDPGeneric, ""
	case !f.Native():
		return plane.TC, "its driver runs no XDP programs"
	case (f.Kind == "veth" || f.Kind == "tuntap") && p.XDP != gateway.XDPNative:
		return plane.TC, "frames of a " + f.Kind + " may have no checksums; xdp: native where they have"
	}
	return plane.XDP, ""
}

// Sweep removes what is left of programs in network namespaces that are gone, and returns where it was.
func (Engine) Sweep() ([]string, error) {
	return plane.Sweep(func(name string) bool {
		found := false
		err := netns.Each(func(ns *netns.Handle) error {
			id, err := netns.IDOf(ns)
			found = found || err == nil && plane.NameOf(id) == name
			return err
		})
		return found || err != nil // it may be one that was not found
	})
}

// Forget has the programs ask routes and neighbours again, of which some have changed. They do so on their own within
// plane.DefaultKeep.
func (Engine) Forget(ns *netns.Handle) error {
	pins, err := plane.PinsIn(ns)
	if err != nil {
		return err
	}
	return pins.Forget()
}

// Remove detaches the programs.
func (Engine) Remove(ns *netns.Handle) error {
	pins, err := plane.PinsIn(ns)
	if err != nil {
		return err
	}
	return ns.Do(pins.Remove)
}

// Present reports whether programs are attached.
func (Engine) Present(ns *netns.Handle) (there bool, err error) {
	pins, err := plane.PinsIn(ns)
	if err != nil {
		return false, err
	}
	err = ns.Do(func() error { there, err = pins.Present(); return err })
	return there, err
}

// Read returns what is attached, and what has come of it. Needs CAP_SYS_ADMIN.
func (Engine) Read(ns *netns.Handle, _ string, plan func(digest string) *gateway.Plan) (s *gateway.State, err error) {
	pins, err := plane.PinsIn(ns)
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() error {
		if there, err := pins.Present(); err != nil || !there {
			s = &gateway.State{}
			return err
		}
		is, err := pins.Read()
		if err != nil {
			return err
		}
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		s = judge(is, found, plan)
		s.Name, s.Removal = "eBPF programs pinned in "+pins.Dir(), "natkit gateway undo"
		return nil
	})
	return s, err
}

// judge compares what is attached with the interfaces, and names counters by the plan that it is of.
func judge(is *plane.State, found []plane.Found, plan func(digest string) *gateway.Plan) *gateway.State {
	s := &gateway.State{Present: true, Integrity: gateway.RulesIntact, Modes: map[string]string{}}
	if len(is.Digests) > 0 {
		s.Digest = is.Digests[0]
	}
	if len(is.Digests) != 1 {
		s.Change("the programs are of %d plans: an exchange was interrupted", len(is.Digests))
	}
	var p *gateway.Plan
	if plan != nil {
		p = plan(s.Digest)
	}
	for i := range found {
		f := &found[i]
		switch mode, attached := is.Modes[f.Index]; {
		case !attached:
			s.Change("interface %s: the programs are not attached", f.Name)
		case len(is.Missing[f.Index]) > 0:
			s.Change("interface %s: the programs are not attached at tc (%s)", f.Name, strings.Join(is.Missing[f.Index], ", "))
		default:
			s.Modes[f.Name] = modeText(mode, f, p, is.Others[f.Index])
			if p == nil || mode == plane.TC {
				break
			}
			if wanted, because := modeFor(f, p); wanted == plane.TC { // a VLAN has come, say
				s.Change("interface %s: the programs are attached at %s, and should be at tc: %s", f.Name, mode, because)
			}
		}
	}
	if p != nil && p.Part(gateway.EngineEBPF) != nil {
		s.Counts = counts(is, compile(p.Part(gateway.EngineEBPF)).rules)
	}
	return s
}

// modeText is a mode with why it is not XDP; other is the number of another's XDP program.
func modeText(mode plane.Mode, f *plane.Found, p *gateway.Plan, other ebpf.ProgramID) string {
	if p == nil || mode == plane.XDP {
		return string(mode)
	}
	wanted, because := modeFor(f, p)
	switch {
	case because != "" || wanted == mode:
	case other != 0:
		because = fmt.Sprintf("another XDP program is attached, number %d", other)
	default:
		because = "its driver refuses XDP programs as it is configured, such as by its MTU"
	}
	if because == "" {
		return string(mode)
	}
	return fmt.Sprintf("%s: %s", mode, because)
}

// counts are the counters of rules, and of what was not forwarded.
func counts(is *plane.State, rules []gateway.Ref) (all []gateway.Counted) {
	for i, c := range is.Rules {
		if i > 0 && i < len(rules) {
			all = append(all, gateway.Counted{Rule: &rules[i], Packets: c.Packets, Bytes: c.Bytes, Each: true})
		}
	}
	for i, c := range is.Reasons {
		if c.Packets > 0 {
			r := plane.Reason(i)
			all = append(all, gateway.Counted{What: r.String(), Dropped: r.Dropped(), Packets: c.Packets, Bytes: c.Bytes})
		}
	}
	return slices.Clip(all)
}
