package aggregate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// keptControls limits the control connections that are told apart.
const keptControls = 64

// controlKey is what control connections have in common that are translated alike.
type controlKey struct {
	protocol        uint8
	dnat            bool
	service, target netip.AddrPort
}

// controls counts translated control connections of protocols that name other addresses or ports in what they
// send, so that translation needs a helper, and the connections that belong to them.
type controls struct {
	found map[controlKey]*snapshot.Control
	// gre are entries of GRE by one end: which were answered.
	gre map[netip.Addr]bool
}

func newControls() controls {
	return controls{found: map[controlKey]*snapshot.Control{}, gre: map[netip.Addr]bool{}}
}

// helperOf is the helper for a port; empty where there is none.
func helperOf(proto uint8, port uint16) string {
	switch {
	case proto == unix.IPPROTO_TCP && port == 21:
		return "ftp"
	case proto == unix.IPPROTO_TCP && port == 1723:
		return "pptp"
	case proto == unix.IPPROTO_UDP && port == 69:
		return "tftp"
	}
	return ""
}

// add takes an entry.
func (c *controls) add(e *conntrack.Entry) {
	if e.Orig.Proto == unix.IPPROTO_GRE {
		if _, seen := c.gre[e.Orig.Dst]; seen || len(c.gre) < keptControls {
			c.gre[e.Orig.Dst] = c.gre[e.Orig.Dst] || e.Status.Has(conntrack.SeenReply)
		}
		return
	}
	helper := cmp.Or(helperOf(e.Orig.Proto, e.Orig.DstPort), helperOf(e.Orig.Proto, e.Reply.SrcPort))
	if helper == "" || !e.IsDNAT() && !e.IsSNAT() {
		return
	}
	k := controlKey{e.Orig.Proto, e.IsDNAT(), netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort)}
	one := c.found[k]
	if one == nil {
		if len(c.found) == keptControls {
			return
		}
		one = &snapshot.Control{Helper: helper, Protocol: nat.ProtocolName(k.protocol), DNAT: k.dnat, Service: k.service, Target: k.target}
		c.found[k] = one
	}
	one.Connections++
	if len(e.Helper) > 0 || e.Status.Has(conntrack.Helper) {
		one.Helped++
	}
	if e.Status.Has(conntrack.SeenReply) {
		one.Answered++
	}
}

func (c *controls) list() (all []snapshot.Control) {
	for _, one := range c.found {
		if answered, seen := c.gre[one.Service.Addr()]; seen {
			one.GREUnanswered = !answered
		}
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b snapshot.Control) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), a.Service.Compare(b.Service), a.Target.Compare(b.Target))
	})
	return all
}
