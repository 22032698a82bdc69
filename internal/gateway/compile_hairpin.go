package gateway

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// NoHairpin says why hairpins are not for a kernel; empty where they are. Before 5.5
// packets do not know in postrouting where they came in (28f8bfd1ac94 "Support iif
// matches in POSTROUTING"): the kernel takes a rule about that, which matches none.
func NoHairpin(k snapshot.Kernel) string {
	if !k.Before(5, 5) {
		return ""
	}
	return "hairpin needs Linux 5.5, this is " + k.Release
}

// hairpin adds what gives connections from inside to a, which come back inside, a's
// address as their source: answers then pass the gateway, and the host inside sees an
// external address (RFC 4787, REQ-9).
func (b *ruleCompiler) hairpin(a netip.Addr, port Port, from []netip.Prefix) error {
	if len(b.plan.WAN) == 0 && len(b.plan.LAN) == 0 {
		return errors.New("hairpin needs to know what is inside: name the wan interfaces, or the lan ones, below interfaces")
	}
	s := Source{Rule: b.ref, Hairpin: HairpinOf{Prefix: host(a), Port: port}, To: []Range{{a, a}}}
	for _, group := range byLength(from) {
		s.From = group
		b.plan.Sources = append(b.plan.Sources, s)
	}
	return nil
}

// hairpins lets hosts that have an external address of their own, or a pool, be seen
// inside under that one rather than under the address that they asked for: REQ-9 a)
// wants the source to be the one that the outside would see. A masqueraded host's is
// the WAN interface's; it is seen under the one it asked for.
func (b *compiler) hairpins() {
	families := map[int]bool{}
	for _, s := range b.plan.Sources {
		if s.Hairpin.Prefix.IsValid() {
			families[s.Hairpin.Prefix.Addr().BitLen()] = true
		}
	}
	for _, s := range slices.Clone(b.plan.Sources) {
		bits := s.givenBits()
		if s.Hairpin.Prefix.IsValid() || s.Masquerade || !families[bits] || !leavesBy(s.Out, b.plan.WAN) {
			continue
		}
		s.Hairpin.Prefix, s.Out, s.NotTo = anywhere(bits), nil, nil
		b.plan.Sources = append(b.plan.Sources, s)
	}
}

// leavesBy reports whether a source rule is one for the way to the WAN.
func leavesBy(out, wan []string) bool {
	return len(out) == 0 || slices.ContainsFunc(out, func(n string) bool { return slices.Contains(wan, n) })
}

// givenBits is the length of the addresses that s gives, 0 for masquerade.
func (s *Source) givenBits() int {
	switch {
	case s.Prefix.IsValid():
		return s.Prefix.Addr().BitLen()
	case len(s.To) > 0:
		return s.To[0].First.BitLen()
	}
	return 0
}
