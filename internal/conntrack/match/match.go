// Package match chooses entries of the connection table, by what the flags of
// conntrack(8) can say.
package match

import (
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// Opt is a value that a filter may ask for; the zero value asks for none.
type Opt[T comparable] struct {
	set   bool
	value T
}

// Is asks for a value.
func Is[T comparable](v T) Opt[T] { return Opt[T]{true, v} }

// Get is the value that is asked for, if one is.
func (o Opt[T]) Get() (T, bool) { return o.value, o.set }

func (o Opt[T]) matches(v T) bool { return !o.set || o.value == v }

// Side is what a filter asks of one direction's tuple.
type Side struct {
	// Src and Dst hold the addresses; the zero prefix holds all.
	Src, Dst netip.Prefix
	// The ports, or keys of GRE.
	SrcPort, DstPort Opt[uint16]
	// Zone is the conntrack zone of this direction, which may be that of both.
	Zone Opt[uint16]
}

// NAT asks for a translation that was made; Addr, where it is not zero, must hold
// the address that is put in place of the real one.
type NAT struct {
	On   bool
	Addr netip.Prefix
	Port Opt[uint16]
}

// Filter chooses entries. All that it asks for must hold; the zero value chooses
// every entry.
type Filter struct {
	// Family is unix.AF_INET, unix.AF_INET6 or 0 for both.
	Family      uint8
	Proto       Opt[uint8]
	Orig, Reply Side
	States      States
	// Status bits must all be set, Unset bits must all be clear.
	Status, Unset conntrack.Status
	// Mark is what the bits of MarkMask must be; a mask of 0 asks for none.
	Mark, MarkMask uint32
	// Zone is the conntrack zone of both directions.
	Zone Opt[uint16]
	ID   Opt[uint32]
	// ICMPType, ICMPCode and ICMPID are those of ICMP and ICMPv6 in the original
	// direction.
	ICMPType, ICMPCode Opt[uint8]
	ICMPID             Opt[uint16]
	// Labels are bits that must be set.
	Labels Labels
	// SrcNAT, DstNAT and AnyNAT ask for translations of the source, of the
	// destination, of either.
	SrcNAT, DstNAT, AnyNAT NAT
}

// Empty reports whether f chooses every entry. A nil filter does.
func (f *Filter) Empty() bool { return f == nil || *f == Filter{} }

// Match reports whether f chooses e. A nil filter chooses every entry.
func (f *Filter) Match(e *conntrack.Entry) bool {
	if f == nil {
		return true
	}
	return (f.Family == 0 || f.Family == e.Family) &&
		f.Proto.matches(e.Orig.Proto) &&
		e.Status.Has(f.Status) && e.Status&f.Unset == 0 &&
		e.Mark&f.MarkMask == f.Mark &&
		f.States.matches(e) &&
		f.Orig.matches(&e.Orig, e.Zone) && f.Reply.matches(&e.Reply, e.ReplyZone) &&
		f.Zone.matches(e.Zone) && f.Zone.matches(e.ReplyZone) && f.ID.matches(e.ID) &&
		f.matchesICMP(&e.Orig) && f.Labels.in(e.Labels) && f.matchesNAT(e)
}

func (s *Side) matches(t *conntrack.Tuple, zone uint16) bool {
	return s.SrcPort.matches(t.SrcPort) && s.DstPort.matches(t.DstPort) && s.Zone.matches(zone) &&
		holds(s.Src, t.Src) && holds(s.Dst, t.Dst)
}

func (f *Filter) matchesICMP(t *conntrack.Tuple) bool {
	if !f.ICMPType.set && !f.ICMPCode.set && !f.ICMPID.set {
		return true
	}
	return (t.Proto == unix.IPPROTO_ICMP || t.Proto == unix.IPPROTO_ICMPV6) &&
		f.ICMPType.matches(t.ICMPType) && f.ICMPCode.matches(t.ICMPCode) && f.ICMPID.matches(t.ICMPID)
}

// holds reports whether the zero prefix or this one has the address.
func holds(p netip.Prefix, a netip.Addr) bool { return p == netip.Prefix{} || p.Contains(a) }

func (f *Filter) matchesNAT(e *conntrack.Entry) bool {
	return f.SrcNAT.source(e) && f.DstNAT.destination(e) &&
		(!f.AnyNAT.On || f.AnyNAT.source(e) || f.AnyNAT.destination(e))
}

// source looks at what conntrack(8) does: an address or a port that is asked for
// must be one that was put in place of another.
func (n *NAT) source(e *conntrack.Entry) bool {
	return !n.On || e.IsSNAT() &&
		n.changed(e.Orig.Src, e.Reply.Dst) && n.changedPort(e.Orig.SrcPort, e.Reply.DstPort)
}

func (n *NAT) destination(e *conntrack.Entry) bool {
	return !n.On || e.IsDNAT() &&
		n.changed(e.Orig.Dst, e.Reply.Src) && n.changedPort(e.Orig.DstPort, e.Reply.SrcPort)
}

func (n *NAT) changed(from, to netip.Addr) bool {
	return n.Addr == netip.Prefix{} || from != to && n.Addr.Contains(to)
}

func (n *NAT) changedPort(from, to uint16) bool {
	return !n.Port.set || from != to && n.Port.value == to
}
