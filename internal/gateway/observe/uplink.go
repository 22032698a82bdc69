package observe

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

// Uplink is one of several WAN interfaces among which connections are divided.
type Uplink struct {
	Interface string `json:"interface"`
	// Weight is its share compared to others; 0 is a standby.
	Weight int `json:"weight"`
	// Share is the part of all hosts inside whose new connections leave by it now, of the families that the gateway
	// forwards the smallest.
	Share float64 `json:"share"`
	// Down says why it carries nothing now; empty where it may. Out says why new connections are kept from it all the
	// same, where it is not down.
	Down string `json:"down,omitempty"`
	Out  string `json:"out,omitempty"`
	// Flows are connections on it.
	Flows int64 `json:"flows"`
}

// UplinksOf are those of a plan on a host.
func UplinksOf(p *gateway.Plan, facts *gateway.Facts) []Uplink {
	all := make([]Uplink, len(p.Uplinks))
	for i := range p.Uplinks {
		u := &p.Uplinks[i]
		all[i] = Uplink{Interface: u.Interface, Weight: u.Weight, Share: 1, Down: facts.WhyDown(u, p), Out: facts.WhyOut(i, p)}
	}
	for _, v6 := range []bool{false, true} {
		if v6 && !p.IPv6 || !v6 && !p.IPv4 {
			continue
		}
		slots := facts.Slots(p, v6)
		has := make([]int, len(all))
		for _, i := range slots {
			has[i]++
		}
		for i := range all {
			all[i].Share = min(all[i].Share, float64(has[i])/float64(len(slots)))
		}
	}
	return all
}

// uplink marks the packet by the uplink that its connection is on from now on.
func (w *walk) uplink(s *Step) {
	p, up := w.plan, -1
	switch marked, in := p.Marked(w.packet.Mark), p.Uplink(w.packet.In); {
	case marked >= 0:
		up, s.Does = marked, "its mark says so"
	case w.packet.In == "":
		if up, s.Does = w.ofOwn(); up < 0 {
			return
		}
	case in >= 0:
		up, s.Does = in, "it comes in by it, and so answers leave by it"
	case p.Inside(w.packet.In):
		up, s.Does = w.divided()
	default:
		return
	}
	u := &p.Uplinks[up]
	w.mark, w.e.Uplink = w.packet.Mark&^p.Marks&^p.ZoneMarks|w.mark&p.ZoneMarks|u.Mark, u.Interface
	s.Does = fmt.Sprintf("the connection is on wan %s: %s (mark 0x%x/0x%x)", u.Interface, s.Does, u.Mark, p.Marks)
}

// ofOwn is the uplink of a connection of the gateway's own, and why; -1 where the host's routes decide: unless they lead to
// an uplink that is left out.
func (w *walk) ofOwn() (up int, why string) {
	hop, err := w.route(Lookup{Source: w.src.addr, Destination: w.dst.addr})
	if err != nil {
		w.err = err
		return -1, ""
	}
	at := w.plan.Uplink(hop.Out)
	if hop.Local || at < 0 || !w.facts.LeftOut(w.plan, at, w.src.addr.Is6()) {
		return -1, ""
	}
	up, why = w.divided()
	return up, "the host's routes lead to " + hop.Out + ", which gets no new connections; " + why
}

// ownSource translates the source of a connection of the gateway's own that ofOwn had leave by another uplink.
func (w *walk) ownSource(s *Step) {
	if w.srcDone || w.plan.Uplink(w.e.Out) < 0 || !w.facts.Has(w.src.addr) ||
		slices.ContainsFunc(w.facts.AddressesOf(w.e.Out), func(p netip.Prefix) bool { return p.Addr() == w.src.addr }) {
		return
	}
	own := &nat.Action{Kind: nat.Masquerade}
	w.e.Source, w.srcDone = w.give(own), true
	s.Does = "the source becomes " + w.words(w.e.Source, own) + ": the program's is of another interface"
}

// divided is the uplink of the packet's source, and why.
func (w *walk) divided() (up int, why string) {
	p, v6 := w.plan, w.src.addr.Is6()
	all, now := p.Slots(func(int) bool { return true }), w.facts.Slots(p, v6)
	slot := gateway.SlotOf(w.src.addr, len(now))
	share := 0
	for _, i := range now {
		if i == now[slot] {
			share++
		}
	}
	why = fmt.Sprintf("the hash of %s gives it, as %s of all sources", w.src.addr, units.Percent(float64(share)/float64(len(now))))
	is, would := now[slot], all[slot]
	if other := w.instead(slot, is); is != would {
		why += "; it would be on " + p.Uplinks[would].Interface
		if reason := w.facts.WhyDown(&p.Uplinks[would], p); reason != "" {
			why += ", which is down (" + reason + ")"
		} else if reason := w.facts.WhyOut(would, p); reason != "" {
			why += ", which gets no new connections: " + reason
		}
	} else if down := w.facts.WhyDown(&p.Uplinks[is], p); down != "" && other != is {
		w.note("%s is down (%s), and the rules in force send new connections by it all the same: no 'natkit gateway run' takes it out", p.Uplinks[is].Interface, down)
	} else if other != is {
		w.note("while %s is down new connections of %s are on %s", p.Uplinks[is].Interface, w.src.addr, p.Uplinks[other].Interface)
	}
	return is, why
}

// instead is the uplink that a slot has while one is down.
func (w *walk) instead(slot, down int) int {
	return w.plan.Slots(func(i int) bool { return i != down && !w.facts.UplinkDown(&w.plan.Uplinks[i], w.src.addr.Is6()) })[slot]
}

// byUplink has a packet that only a default route leads on leave by its uplink: so do the rules of policy routing,
// also where they are not in force yet. Where they are, the kernel was asked with the mark, and what it says holds.
func (w *walk) byUplink(hop Hop) Hop {
	if w.e.Uplink == "" || hop.Local || !hop.Default {
		return hop
	}
	u := &w.plan.Uplinks[w.plan.Uplink(w.e.Uplink)]
	next, ok := w.facts.NextHop(u, w.dst.addr.Is6())
	switch {
	case !ok:
		w.note("no next hop is known by %s: the host's own default route counts", u.Interface)
		return hop
	case w.facts.Steering != nil:
		if hop.Unreachable == "" && hop.Out != u.Interface {
			w.note("it leaves by %s, not by its wan: rules or routes of natkit's policy routing are missing or changed ('natkit gateway status' names them)", hop.Out)
		}
		return hop
	}
	return Hop{Out: u.Interface, Gateway: next.Via, Source: hop.Source, Default: true}
}
