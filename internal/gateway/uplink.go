package gateway

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
)

// Uplink is one of several WAN interfaces among which connections are divided. A connection stays on its uplink:
// its mark (ct mark) has the uplink's bits, and by them rules of policy routing find the uplink's table.
type Uplink struct {
	Interface string `json:"interface"`
	// Weight is how many connections it gets compared to others; 0: none, unless all others are down.
	Weight int `json:"weight"`
	// Via are the next hops of the file, of one family each; otherwise that of the host's default route counts.
	Via []netip.Addr `json:"via,omitempty"`
	// Probe is what has to answer through it; nil: the next hop.
	Probe *Probe `json:"probe,omitempty"`
	// Mark are its bits of Plan.Marks, Table its routing table.
	Mark  uint32 `json:"mark"`
	Table uint32 `json:"table"`
}

// Probe is an address that answers ICMP echo requests, or, with a port, takes TCP connections.
type Probe struct{ netip.AddrPort }

// String is the written form.
func (p Probe) String() string {
	if p.Port() == 0 {
		return p.Addr().String()
	}
	return p.AddrPort.String()
}

const (
	// DefaultMarks are bits that neither kube-proxy (0x4000, 0x8000), Tailscale (0xff0000), Cilium (0xf00) nor
	// wg-quick (its port, below 0x10000) uses.
	DefaultMarks Bits = 0x0f000000
	// UplinkRule is the priority of the first rule of policy routing, those of uplinks follow; UplinkTable the
	// number before the first uplink's table. UplinkLast is the number before the rule for what of the host's own its other
	// rules have no route for, which come behind that of the table "default" (32767).
	UplinkRule, UplinkTable, UplinkLast = 20000, 27000, 33000
	// UplinkSeed is that of the hash which gives a host its uplink.
	UplinkSeed = 0x6e61746b
)

// String is "eth0 weight 3 via 203.0.113.1 probe 192.0.2.1".
func (u *Uplink) String() string {
	text := u.Interface
	switch u.Weight {
	case 1:
	case 0:
		text += " standby"
	default:
		text += fmt.Sprintf(" weight %d", u.Weight)
	}
	for _, a := range u.Via {
		text += " via " + a.String()
	}
	if u.Probe != nil {
		text += " probe " + u.Probe.String()
	}
	return text
}

// uplinks makes those of a file that writes one of several WAN interfaces as a mapping.
func (b *compiler) uplinks() {
	wan := b.config.Interfaces.WAN
	if !wan.divided() || len(wan) < 2 {
		return
	}
	marks := b.config.marks()
	b.plan.Marks = uint32(marks)
	for i, w := range wan {
		u := Uplink{Interface: w.Interface, Weight: w.weight(), Probe: w.Probe, Mark: marks.of(i), Table: uint32(UplinkTable + 1 + i)}
		for _, a := range w.Via {
			u.Via = append(u.Via, a.Addr)
		}
		b.plan.Uplinks = append(b.plan.Uplinks, u)
	}
}

func (c *Config) marks() Bits {
	if c.Marks == 0 {
		return DefaultMarks
	}
	return c.Marks
}

// of is the mark of the uplink at a place.
func (b Bits) of(i int) uint32 { return uint32(i+1) << bits.TrailingZeros32(uint32(b)) }

// most is how many uplinks have a mark: 0 is that of connections without one.
func (b Bits) most() int { return 1<<bits.OnesCount32(uint32(b)) - 1 }

// bypass are the bits of packets that EngineEBPF hands to the stack, the lowest two: where it carries out something no
// uplink has them.
func (b Bits) bypass() uint32 { return 3 << bits.TrailingZeros32(uint32(b)) }

// Uplink is the index of the uplink of an interface; -1 where it is none.
func (p *Plan) Uplink(name string) int {
	return slices.IndexFunc(p.Uplinks, func(u Uplink) bool { return u.Interface == name })
}

// Marked is the index of the uplink that a mark names; -1 for none.
func (p *Plan) Marked(mark uint32) int {
	return slices.IndexFunc(p.Uplinks, func(u Uplink) bool { return u.Mark == mark&p.Marks })
}

// LeavingBy are interfaces, and where uplinks are among them all of those: by which one a packet leaves is not known
// before it has its mark.
func (p *Plan) LeavingBy(out []string) []string {
	if !slices.ContainsFunc(out, func(name string) bool { return p.Uplink(name) >= 0 }) {
		return out
	}
	out = slices.Clone(out)
	for _, u := range p.Uplinks {
		out = append(out, u.Interface)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Slots divides connections: slot i goes to uplink Slots[i]. Those of an uplink that is not up are divided among
// the others, so that only its own connections go elsewhere; where none of those with a weight is up the standbys
// take all, and where none at all is up everything is as if all were.
func (p *Plan) Slots(up func(i int) bool) []int {
	choice, out := nat.Choice{}, make([]bool, len(p.Uplinks))
	for i, u := range p.Uplinks {
		choice.Weights, out[i] = append(choice.Weights, u.Weight), !up(i)
	}
	if !slices.Contains(out, false) {
		out = nil
	}
	return choice.Seats(out)
}

// SlotOf is the slot of a source among n, as the kernel computes it (nft_jhash_eval).
func SlotOf(source netip.Addr, n int) int {
	return int(uint64(jhash(source.AsSlice(), UplinkSeed)) * uint64(n) >> 32)
}

// jhash is that of linux/jhash.h, for 4 bytes and 16.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	if len(key) > 12 {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		key = key[12:]
		mix := func(x, y, z *uint32, by int) {
			*x -= *z
			*x ^= bits.RotateLeft32(*z, by)
			*z += *y
		}
		for _, by := range [][3]int{{4, 6, 8}, {16, 19, 4}} { // __jhash_mix
			mix(&a, &b, &c, by[0])
			mix(&b, &c, &a, by[1])
			mix(&c, &a, &b, by[2])
		}
	}
	a += binary.LittleEndian.Uint32(key)
	last := func(x *uint32, y uint32, by int) {
		*x ^= y
		*x -= bits.RotateLeft32(y, by)
	}
	last(&c, b, 14) // __jhash_final
	last(&a, c, 11)
	last(&b, a, 25)
	last(&c, b, 16)
	last(&a, c, 4)
	last(&b, a, 14)
	last(&c, b, 24)
	return c
}

// DefaultRoute is one of the host's, in its main table.
type DefaultRoute struct {
	Interface string `json:"interface"`
	V6        bool   `json:"ipv6,omitempty"`
	// Via is not valid where the other end of the interface is the next hop.
	Via    netip.Addr `json:"via,omitzero"`
	Metric int        `json:"metric"`
}

// PolicyRule is a rule of policy routing of another program that asks for a mark, or has the priority of one of
// natkit's.
type PolicyRule struct {
	V6       bool   `json:"ipv6,omitempty"`
	Priority int    `json:"priority"`
	Mark     uint32 `json:"mark,omitempty"`
	Mask     uint32 `json:"mask,omitempty"`
	Table    int    `json:"table"`
}

// NextHop is where an uplink leads: by way of an address, or, where that is not valid, to the other end of the
// interface. OnLink: no network of the interface has the address.
type NextHop struct {
	Via    netip.Addr
	OnLink bool
}

// NextHop returns where an uplink leads on a host; false where there is nothing: the interface is not there or
// down, and neither the file nor a default route of the host names a next hop.
func (f *Facts) NextHop(u *Uplink, v6 bool) (hop NextHop, ok bool) {
	at := slices.IndexFunc(f.Interfaces, func(i Interface) bool { return i.Name == u.Interface })
	if at < 0 || !f.Interfaces[at].Up {
		return hop, false
	}
	i := &f.Interfaces[at]
	for _, a := range u.Via {
		if a.Is6() == v6 {
			near := slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
			return NextHop{a, !near && !a.IsLinkLocalUnicast()}, true
		}
	}
	best := -1
	for n, d := range f.Defaults {
		if d.Interface == u.Interface && d.V6 == v6 && (best < 0 || d.Metric < f.Defaults[best].Metric) {
			best = n
		}
	}
	if best >= 0 {
		return NextHop{Via: f.Defaults[best].Via}, true
	}
	global := slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 && !p.Addr().IsLinkLocalUnicast() })
	return hop, i.PointToPoint && global
}

// UplinkDown reports whether new connections of a family are kept from an uplink: it leads nowhere or has no carrier, as
// far as the host is known, or what is probed through it does not answer.
func (f *Facts) UplinkDown(u *Uplink, p *Plan, v6 bool) bool { return f.WhyDownFor(u, p, v6) != "" }

// WhyDownFor says why; empty where they are not.
func (f *Facts) WhyDownFor(u *Uplink, p *Plan, v6 bool) string {
	if f.Known && f.withoutCarrier(u) {
		return u.Interface + " has no carrier"
	}
	family := familyName(map[bool]int{false: 32, true: 128}[v6])
	_, leads := f.NextHop(u, v6)
	switch {
	case f.Down[u.Interface] != "" || !f.Known:
		return f.Down[u.Interface]
	case !leads:
		return "no next hop of " + family + " is known"
	case f.masqueradesWithout(u, p, v6):
		return u.Interface + " has no address of " + family
	}
	return ""
}

// masqueradesWithout reports whether connections of a family get the address of an uplink that has none.
func (f *Facts) masqueradesWithout(u *Uplink, p *Plan, v6 bool) bool {
	has := slices.ContainsFunc(f.AddressesOf(u.Interface), func(a netip.Prefix) bool { return a.Addr().Is6() == v6 && !a.Addr().IsLinkLocalUnicast() })
	return !has && slices.ContainsFunc(p.Sources, func(e Entry) bool {
		return e.Action.Kind == nat.Masquerade && e.isGeneral() && e.Rule.BitLen() == map[bool]int{false: 32, true: 128}[v6] && meet(e.Out, []string{u.Interface})
	})
}

// Steering is how rules in force divide new connections among uplinks.
type Steering struct {
	// Used are the uplinks that are not left out, of IPv4 and of IPv6; nil where that is not known.
	Used [2][]bool
	// Service is the `gateway run` that keeps them in force; empty where none does. Found are the uplinks through which it,
	// or the last one, found nothing to answer, with the reason, and Since when.
	Service string
	Found   map[string]string
	Since   map[string]time.Time
}

// Slots divides the connections of a family among uplinks: as rules in force do, and otherwise by what is up.
func (f *Facts) Slots(p *Plan, v6 bool) []int {
	return p.Slots(func(i int) bool { return f.uses(p, i, v6) })
}

func (f *Facts) uses(p *Plan, i int, v6 bool) bool {
	if used := f.used(v6); used != nil {
		return used[i]
	}
	return !f.UplinkDown(&p.Uplinks[i], p, v6)
}

// LeftOut reports whether new connections of a family are kept from an uplink while others get them.
func (f *Facts) LeftOut(p *Plan, i int, v6 bool) bool {
	others := false
	for n := range p.Uplinks {
		others = others || f.uses(p, n, v6)
	}
	return others && !f.uses(p, i, v6)
}

// used are the uplinks that new connections of a family leave by; nil where nothing is in force, or that is not known.
func (f *Facts) used(v6 bool) []bool {
	switch {
	case f.Steering == nil:
		return nil
	case v6:
		return f.Steering.Used[1]
	}
	return f.Steering.Used[0]
}

// WhyOut says why rules in force keep new connections from an uplink that is not down; empty where they do not.
func (f *Facts) WhyOut(i int, p *Plan) string {
	name, out := p.Uplinks[i].Interface, false
	for _, v6 := range p.families() {
		used := f.used(v6)
		out = out || used != nil && !used[i] && !f.UplinkDown(&p.Uplinks[i], p, v6)
	}
	if !out {
		return ""
	}
	since := ""
	if at := f.Steering.Since[name]; !at.IsZero() {
		since = " since " + at.Format(time.DateTime)
	}
	switch found := f.Steering.Found[name]; {
	case f.Steering.Service != "":
		return "it was down until now; " + f.Steering.Service + " is about to use it again"
	case found != "":
		return "out" + since + ", taken out by a 'natkit gateway run' that runs no more (" + found + "); apply the file to use it again"
	}
	return "taken out while it was down, and no 'natkit gateway run' is there to use it again; apply the file to do so"
}

func (f *Facts) withoutCarrier(u *Uplink) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Name == u.Interface && i.NoCarrier })
}

// WhyDown says why new connections are kept from an uplink, of all families that are forwarded; empty where they are not.
func (f *Facts) WhyDown(u *Uplink, p *Plan) string {
	var whys []string
	for _, v6 := range p.families() {
		why := f.WhyDownFor(u, p, v6)
		if why == "" {
			return ""
		}
		whys = append(whys, why)
	}
	if len(whys) == 2 && strings.HasPrefix(whys[0], "no next hop") && strings.HasPrefix(whys[1], "no next hop") {
		return "no next hop of IPv4 and IPv6 is known"
	}
	return strings.Join(slices.Compact(whys), "; ")
}

// Lacks says what keeps new connections of one family from an uplink that takes those of the other; empty for nothing.
func (f *Facts) Lacks(u *Uplink, p *Plan) string {
	families := p.families()
	if len(families) < 2 || f.UplinkDown(u, p, false) == f.UplinkDown(u, p, true) {
		return ""
	}
	return f.WhyDownFor(u, p, false) + f.WhyDownFor(u, p, true)
}

// families are those that a plan forwards, true for IPv6.
func (p *Plan) families() (all []bool) {
	if p.IPv4 {
		all = append(all, false)
	}
	if p.IPv6 {
		all = append(all, true)
	}
	return all
}

// RoutingStep is a rule or a route of policy routing that a plan needs, as a change of tune.Routing has it, and why.
type RoutingStep struct{ Target, Value, Why string }

// Routing are the rules and routes of a plan's zones and uplinks, in the order in which they are made: as long as packets
// have no mark nothing follows from them.
func (p *Plan) Routing(facts *Facts) (all []RoutingStep) {
	for _, v6 := range p.families() {
		all = append(all, p.zoneRouting(facts, v6)...)
		if len(p.Uplinks) == 0 {
			continue
		}
		rule := func(n int, r tune.RoutingRule, why string) {
			t := tune.RoutingTarget{V6: v6, Number: uint32(n)}
			all = append(all, RoutingStep{t.String(), r.String(), why})
		}
		for i := range p.Uplinks {
			u := &p.Uplinks[i]
			if hop, ok := facts.NextHop(u, v6); ok {
				t := tune.RoutingTarget{V6: v6, Table: true, Number: u.Table}
				all = append(all, RoutingStep{t.String(), tune.RoutingRoute{Via: hop.Via, Dev: u.Interface, OnLink: hop.OnLink}.String(), "the way out of connections on " + u.Interface})
			}
		}
		rule(UplinkRule, tune.RoutingRule{Mask: p.Marks, Except: true, Specific: true}, "routes that are more specific than a default route come first")
		for i, u := range p.Uplinks {
			rule(UplinkRule+i+1, tune.RoutingRule{Mark: u.Mark, Mask: p.Marks, Table: u.Table}, "connections on "+u.Interface+" leave by it")
		}
		for i, u := range p.Uplinks {
			rule(UplinkLast+i+1, tune.RoutingRule{Mask: p.Marks, Own: true, Table: u.Table}, "connections of the host's own that no other route is for leave by "+u.Interface)
		}
	}
	return all
}

// Routes reports whether a file has natkit make rules of policy routing: connections are divided among WAN interfaces, or
// there are zones.
func (c *Config) Routes() bool { return c.Interfaces.WAN.divided() || len(c.Zoned()) > 0 }

// divided reports whether connections are divided among the interfaces.
func (w WANs) divided() bool { return slices.ContainsFunc(w, func(w WAN) bool { return w.Mapping }) }

// Names are those of the interfaces.
func (w WANs) Names() (names Names) {
	for _, one := range w {
		names = append(names, one.Interface)
	}
	return names
}

func (w WAN) weight() int {
	if w.Weight == nil {
		return 1
	}
	return int(*w.Weight)
}

// uplinksString says how connections are divided.
func uplinksString(p *Plan) string {
	if len(p.Uplinks) == 0 {
		return strings.Join(p.WAN, ", ")
	}
	texts := make([]string, len(p.Uplinks))
	for i := range p.Uplinks {
		texts[i] = p.Uplinks[i].String()
	}
	return strings.Join(texts, ", ")
}
