package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// Facts is what Compile and Check need to know of a host. The zero value knows
// nothing: then only the file itself is checked.
type Facts struct {
	// Known is false if the host was not read.
	Known      bool        `json:"known"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Local are the prefixes of IPv4 that routes make addresses of this host, by 'ip route add
	// local': it answers ARP for them as for the addresses of its interfaces.
	Local []netip.Prefix `json:"local,omitempty"`
	// Sessions are the administrator's own connections to this host.
	Sessions []Session `json:"sessions,omitempty"`
	// Foreign are other programs' base chains that packets pass before or after ours.
	Foreign []Foreign `json:"foreign,omitempty"`
	// IPsecPolicies is how many there are, Qdiscs are those that interfaces do not have by themselves, Filters those at tc that
	// are not natkit's; all are read where a file asks for EngineEBPF.
	IPsecPolicies int      `json:"ipsec_policies,omitempty"`
	Qdiscs        []Qdisc  `json:"qdiscs,omitempty"`
	Filters       []Filter `json:"filters,omitempty"`
	// Ways are the interfaces by which hosts inside are reached that rules lead to and that
	// are on no network of the Interfaces; without those that no route leads to.
	Ways map[netip.Addr]string `json:"ways,omitempty"`
	// Defaults are the default routes of the main table, and Rules those of policy routing that may be in the way;
	// both are read where a file divides connections among uplinks.
	Defaults []DefaultRoute `json:"default_routes,omitempty"`
	Rules    []PolicyRule   `json:"policy_rules,omitempty"`
	// Inside are the routes of the main table to zones; read where a file has some.
	Inside []RouteInside `json:"routes_inside,omitempty"`
	// Down are uplinks through which nothing answers, as 'natkit gateway run' has found, and why.
	Down map[string]string `json:"uplinks_down,omitempty"`
	// Steering is how a plan in force divides connections; nil where what a plan will do is asked for.
	Steering *Steering `json:"-"`
	// Kernel is the running one; without a release where it is not known.
	Kernel snapshot.Kernel `json:"kernel"`
	// Conntrack is the connection table's size, Sysctls the values that a plan may
	// change.
	Conntrack *snapshot.ConntrackSize `json:"conntrack,omitempty"`
	Sysctls   snapshot.Sysctls        `json:"sysctls,omitempty"`
	// Initial is true in the initial network namespace.
	Initial bool `json:"initial"`
	// Enter is the command by which a shell runs others in the network namespace:
	// "ip netns exec gw"; empty where that is the shell's own.
	Enter string `json:"enter,omitempty"`
	// Flowtable reports whether the kernel has flowtables, and if not why.
	Flowtable Support `json:"flowtable"`
	// Unknown lists what could not be read of a known host, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Support says whether the kernel can do something; Reason where it cannot, or where
// it is Unknown, as it could not be tried.
type Support struct {
	OK      bool   `json:"ok"`
	Unknown bool   `json:"unknown,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// Interface is one of the host's.
type Interface struct {
	Name      string         `json:"name"`
	Index     int            `json:"index"`
	Up        bool           `json:"up"`
	MTU       int            `json:"mtu_bytes"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// NoCarrier is set for one that is up and connected to nothing (IFF_UP without IFF_LOWER_UP).
	NoCarrier bool `json:"no_carrier,omitempty"`
	// PointToPoint has one host at its other end (IFF_POINTOPOINT).
	PointToPoint bool `json:"point_to_point,omitempty"`
	// Group is its link group (ip link set group).
	Group uint32 `json:"link_group,omitempty"`
	// VRF is the one that it is in; nil for none.
	VRF *VRF `json:"vrf,omitempty"`
	// Bridge is set for one that takes what it carries through netfilter.
	Bridge *Bridge `json:"bridge,omitempty"`
}

// VRF is a device whose interfaces have a routing table of their own (Documentation/networking/vrf.rst).
type VRF struct {
	Name  string `json:"name"`
	Table uint32 `json:"table"`
}

// VRFOf is that of an interface; nil where it is in none.
func (f *Facts) VRFOf(name string) *VRF { return f.interfaceOf(name).VRF }

// Is reports whether a name of a file stands for the interface: its own, a pattern, or its link group.
func (i Interface) Is(name string) bool {
	group, grouped := nat.LinkGroup(name)
	return i.Name == name || grouped && group == i.Group || !grouped && nat.InName(name, i.Name)
}

// Named are the interfaces of the host that a name of a file stands for.
func (f *Facts) Named(name string) (all []Interface) {
	for _, i := range f.Interfaces {
		if i.Is(name) {
			all = append(all, i)
		}
	}
	return all
}

// concrete are names without patterns and link groups, for which the interfaces of the host stand.
func (f *Facts) concrete(names []string) (all []string) {
	for _, n := range names {
		if !nat.IsSeveral(n) {
			all = append(all, n)
			continue
		}
		for _, i := range f.Named(n) {
			all = append(all, i.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Bridge is an interface's as br_netfilter makes it: where the destination of a packet is
// translated to a host behind it, the bridge itself takes the packet there.
type Bridge struct {
	// IPv4 and IPv6 are the families whose packets it takes there.
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
	// OneWay are ports that send nothing back that came in by them; Hairpin those that do.
	OneWay  []string `json:"one_way_ports,omitempty"`
	Hairpin []string `json:"hairpin_ports,omitempty"`
}

// Cuts reports whether a host behind the bridge may not reach itself by an address that is
// translated to its own.
func (b *Bridge) Cuts(v6 bool) bool {
	return b != nil && len(b.OneWay) > 0 && (v6 && b.IPv6 || !v6 && b.IPv4)
}

// Session is a TCP connection from Client to Server, which is an address of this host.
type Session struct {
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
}

// Foreign is a base chain that is not natkit's.
type Foreign ruleset.BaseChain

// Finding is what Check says about a place in the file.
type Finding struct {
	// ID is stable kebab-case: "rule-shadowed".
	ID string `json:"id"`
	// Severity is Refuse (apply will not do it) or Warn.
	Severity Severity `json:"severity"`
	// File is the one that it stands in, where that is not the first one but is included.
	File string `json:"file,omitempty"`
	// Line and Column are counted from 1; 0 where it concerns the whole file.
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Rule    *Ref   `json:"rule,omitempty"`
	Message string `json:"message"`
	// Advice is what to do about it: a sentence, or commands, one a line.
	Advice string `json:"advice,omitempty"`
	// Excerpt is the line of the file with a mark below the column.
	Excerpt string `json:"-"`
}

// Placed is the message behind its line, where it concerns one.
func (f *Finding) Placed() string {
	switch {
	case f.Line == 0:
		return f.Message
	case f.File != "":
		return fmt.Sprintf("%s line %d: %s", f.File, f.Line, f.Message)
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.Message)
}

// Severity of a Finding.
type Severity string

const (
	Refuse Severity = "refuse"
	Warn   Severity = "warn"
	// Notice is no fault: something to know.
	Notice Severity = "notice"
)

// Commands are commands, one a line, that run in the network namespace, the substituted ones
// in them as well.
func (f *Facts) Commands(text string) string {
	if f.Enter == "" {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "#") {
			lines[i] = f.Enter + " " + strings.ReplaceAll(line, "$(", "$("+f.Enter+" ")
		}
	}
	return strings.Join(lines, "\n")
}

// AddressesOf are those of an interface; none where it is not there.
func (f *Facts) AddressesOf(name string) (all []netip.Prefix) {
	for _, i := range f.Named(name) {
		all = append(all, i.Addresses...)
	}
	return all
}

// Has reports whether the address is this host's.
func (f *Facts) Has(a netip.Addr) bool { return f.HasAny(nat.OneAddr(a)) }

// HasAny reports whether an address of r is this host's.
func (f *Facts) HasAny(r nat.AddrRange) bool {
	return slices.ContainsFunc(f.Local, func(p netip.Prefix) bool { return r.Overlaps(nat.RangeOf(p)) }) || slices.ContainsFunc(f.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return r.Contains(p.Addr()) })
	})
}

// Masquerades reports whether masquerade may give an address to what leaves by one of the
// interfaces (none: by any). Of IPv4 it is the first address of a network of one
// (inet_select_addr), of IPv6 any.
func (f *Facts) Masquerades(out []string, a netip.Addr) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool {
		if len(out) > 0 && !slices.ContainsFunc(out, i.Is) {
			return false
		}
		networks := map[netip.Prefix]bool{}
		for _, p := range i.Addresses {
			network := p.Masked()
			if p.Addr() == a {
				return a.Is6() || !networks[network] && (len(networks) == 0 || !network.IsSingleIP())
			}
			if p.Addr().Is4() {
				networks[network] = true
			}
		}
		return false
	})
}

// Near reports whether an address is on the network of an interface.
func (f *Facts) Near(a netip.Addr) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// BridgeOf is that of an interface; nil where it is none, or leaves packets alone.
func (f *Facts) BridgeOf(name string) *Bridge {
	for _, i := range f.Interfaces {
		if i.Name == name {
			return i.Bridge
		}
	}
	return nil
}

// Names of the sysctls by which a host forwards.
const (
	Forward4 = "net.ipv4.ip_forward"
	Forward6 = "net.ipv6.conf.all.forwarding"
)

// ForwardSysctl is the one of an interface that decides, of IPv4, what comes in by it
// (IN_DEV_FORWARD); of IPv6 it may forward where Forward6 is off (Linux 6.17).
func ForwardSysctl(v6 bool, in string) string {
	in = strings.ReplaceAll(in, ".", "/")
	if v6 {
		return "net.ipv6.conf." + in + ".force_forwarding"
	}
	return "net.ipv4.conf." + in + ".forwarding"
}

// NotForwarded is the sysctl by which the host does not forward what comes in by an
// interface; empty where it does, or where that is not known.
func (f *Facts) NotForwarded(v6 bool, in string) string {
	all := Forward4
	if v6 {
		all = Forward6
	}
	general, known := f.Sysctls.Int(all)
	own, has := f.Sysctls.Int(ForwardSysctl(v6, in))
	switch {
	case has && own != 0:
		return ""
	case known && general == 0:
		return all
	case has && !v6:
		return ForwardSysctl(v6, in)
	}
	return ""
}

// NotForwarding are the sysctls by which the host does not forward what a plan is for: what
// comes in by the interfaces that it names, or by any where it names none.
func (f *Facts) NotForwarding(p *Plan) (names []string) {
	for _, v6 := range []bool{false, true} {
		if v6 && !p.IPv6 || !v6 && !p.IPv4 {
			continue
		}
		in := slices.DeleteFunc(f.concrete(slices.Concat(p.WAN, p.LAN)), func(name string) bool { return !f.has(name) })
		if len(in) == 0 {
			in = []string{""}
		}
		for _, name := range in {
			if off := f.NotForwarded(v6, name); off != "" && !slices.Contains(names, off) {
				names = append(names, off)
			}
		}
	}
	return names
}

// Forwarding are the facts when the host forwards what a plan is for, as applying it makes
// it do: to turn it on for IPv4 does so for every interface (inet_forward_change).
func (f Facts) Forwarding(p *Plan) Facts {
	f.Sysctls = maps.Clone(f.Sysctls)
	if value, known := f.Sysctls.Int(Forward4); p.IPv4 && known && value == 0 {
		f.Sysctls[Forward4] = "1"
		for _, i := range f.Interfaces {
			delete(f.Sysctls, ForwardSysctl(false, i.Name))
		}
	}
	if _, known := f.Sysctls.Int(Forward6); p.IPv6 && known {
		f.Sysctls[Forward6] = "1"
	}
	return f
}

// State is what engines have in force in a network namespace.
type State struct {
	// Present is false where there is nothing; the rest is then empty.
	Present bool
	// Name is what an administrator knows it by: "table inet natkit". Removal is the
	// command that removes it without natkit.
	Name, Removal string
	// Digest is that of the plan that it was written for; empty where nothing says so.
	Digest string
	// Integrity reports whether it is as natkit wrote it; Changes says what is not: "chain
	// prerouting: 3 rules instead of 2".
	Integrity Integrity
	Changes   []string
	// Locked reports whether another program alone may change it.
	Locked bool
	// Modes are how an engine is attached to an interface, by interface; empty for engines
	// that are not attached to any.
	Modes map[string]string
	// Counts are the counters of engines, in an order of theirs. A rule of the file may
	// have several.
	Counts []Counted
	// Engines are the states of single engines of which this one is made.
	Engines map[Engine]*State
}

// Integrity is whether rules in force are as natkit wrote them.
type Integrity string

// The values of Integrity. RulesUnknown: it could not be kept how they were written, or an
// earlier version wrote them.
const (
	RulesIntact  Integrity = "intact"
	RulesChanged Integrity = "changed"
	RulesUnknown Integrity = "unknown"
)

// Change adds what is not as natkit wrote it.
func (s *State) Change(format string, args ...any) {
	s.Integrity, s.Changes = RulesChanged, append(s.Changes, fmt.Sprintf(format, args...))
}

// Join adds the state of one more engine.
func (s *State) Join(name Engine, one *State) {
	if s.Engines == nil {
		s.Engines = map[Engine]*State{}
	}
	s.Engines[name] = one
	switch {
	case !one.Present:
		return
	case !s.Present:
		engines := s.Engines
		*s = *one
		s.Engines = engines
		return
	}
	s.Name, s.Removal = s.Name+" and "+one.Name, s.Removal+"; "+one.Removal
	if one.Digest != s.Digest {
		s.Change("%s is of another plan (%.12s)", one.Name, one.Digest)
	}
	if s.Integrity != RulesChanged && one.Integrity != RulesIntact {
		s.Integrity = one.Integrity
	}
	s.Changes = append(s.Changes, one.Changes...)
	s.Locked, s.Counts = s.Locked || one.Locked, append(s.Counts, one.Counts...)
	if len(one.Modes) > 0 {
		s.Modes = maps.Clone(s.Modes)
		if s.Modes == nil {
			s.Modes = map[string]string{}
		}
		maps.Copy(s.Modes, one.Modes)
	}
}

// Kept is what natkit remembers of what it put in force.
type Kept interface {
	// Plan returns the plan of a digest; nil where it is not kept.
	Plan(digest string) *Plan
	// Seal returns what PutSeal kept last of an engine in the network namespace of an
	// inode; empty for nothing.
	Seal(inode uint64, e Engine) string
	PutSeal(inode uint64, e Engine, seal string) error
	// Leases returns those of the network namespace of an inode and a cookie that have not expired.
	Leases(inode, cookie uint64) []Lease
}

// Counted is what something in force has counted since it was written.
type Counted struct {
	// Rule is what it was made for; nil for what else the engine counts, which What names.
	Rule *Ref
	What string
	// Dropped is true if the packets counted were dropped.
	Dropped bool
	// Packets of a rule that translates are new connections: their first packets. Where Each is true they are all packets.
	Packets, Bytes uint64
	Each           bool
}
