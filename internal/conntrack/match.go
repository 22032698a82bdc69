package conntrack

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	Status, Unset Status
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
func (f *Filter) Match(e *Entry) bool {
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

func (s *Side) matches(t *Tuple, zone uint16) bool {
	return s.SrcPort.matches(t.SrcPort) && s.DstPort.matches(t.DstPort) && s.Zone.matches(zone) &&
		holds(s.Src, t.Src) && holds(s.Dst, t.Dst)
}

func (f *Filter) matchesICMP(t *Tuple) bool {
	if !f.ICMPType.set && !f.ICMPCode.set && !f.ICMPID.set {
		return true
	}
	return (t.Proto == unix.IPPROTO_ICMP || t.Proto == unix.IPPROTO_ICMPV6) &&
		f.ICMPType.matches(t.ICMPType) && f.ICMPCode.matches(t.ICMPCode) && f.ICMPID.matches(t.ICMPID)
}

// holds reports whether the zero prefix or this one has the address.
func holds(p netip.Prefix, a netip.Addr) bool { return p == netip.Prefix{} || p.Contains(a) }

func (f *Filter) matchesNAT(e *Entry) bool {
	return f.SrcNAT.source(e) && f.DstNAT.destination(e) &&
		(!f.AnyNAT.On || f.AnyNAT.source(e) || f.AnyNAT.destination(e))
}

// source looks at what conntrack(8) does: an address or a port that is asked for
// must be one that was put in place of another.
func (n *NAT) source(e *Entry) bool {
	return !n.On || e.IsSNAT() &&
		n.changed(e.Orig.Src, e.Reply.Dst) && n.changedPort(e.Orig.SrcPort, e.Reply.DstPort)
}

func (n *NAT) destination(e *Entry) bool {
	return !n.On || e.IsDNAT() &&
		n.changed(e.Orig.Dst, e.Reply.Src) && n.changedPort(e.Orig.DstPort, e.Reply.SrcPort)
}

func (n *NAT) changed(from, to netip.Addr) bool {
	return n.Addr == netip.Prefix{} || from != to && n.Addr.Contains(to)
}

func (n *NAT) changedPort(from, to uint16) bool {
	return !n.Port.set || from != to && n.Port.value == to
}

// Kernel is the part of f that the kernel can apply itself. Match must look at what
// it lets through, which may be more, and for a doubtful filter less
// (KernelFilter).
func (f *Filter) Kernel() KernelFilter {
	if f == nil {
		return KernelFilter{}
	}
	return KernelFilter{
		Family: f.family(), Proto: f.Proto.value, Orig: f.Orig.kernel(), Reply: f.reply(),
		Status: f.Status, StatusMask: f.Status | f.Unset,
		Mark: f.Mark, MarkMask: f.MarkMask, Zone: f.Zone.value,
	}
}

// reply is what is asked of answers: they come from and go to what a translation
// has put in place.
func (f *Filter) reply() KernelTuple {
	t := f.Reply.kernel()
	if !t.Dst.IsValid() {
		t.Dst = single(f.SrcNAT.Addr)
	}
	if !t.Src.IsValid() {
		t.Src = single(f.DstNAT.Addr)
	}
	t.DstPort = cmp.Or(t.DstPort, f.SrcNAT.Port.value)
	t.SrcPort = cmp.Or(t.SrcPort, f.DstNAT.Port.value)
	return t
}

func (s *Side) kernel() KernelTuple {
	return KernelTuple{Src: single(s.Src), Dst: single(s.Dst), SrcPort: s.SrcPort.value, DstPort: s.DstPort.value}
}

// family is the one asked for, or that of an address that is.
func (f *Filter) family() uint8 {
	if f.Family != 0 {
		return f.Family
	}
	for _, p := range []netip.Prefix{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst,
		f.SrcNAT.Addr, f.DstNAT.Addr, f.AnyNAT.Addr} {
		if !p.IsValid() {
			continue
		}
		if p.Addr().Is4() {
			return unix.AF_INET
		}
		return unix.AF_INET6
	}
	return 0
}

// single is the address of a prefix that holds only one.
func single(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return p.Addr()
	}
	return netip.Addr{}
}

// labelsMax is the number of labels of an entry (NF_CT_LABELS_MAX_SIZE,
// include/net/netfilter/nf_conntrack_labels.h).
const labelsMax = 128

// Labels is a set of labels; the bits of Entry.Labels on a
// little-endian machine.
type Labels [labelsMax / 8]byte

// in reports whether all of l are among an entry's.
func (l *Labels) in(of []byte) bool {
	if *l == (Labels{}) {
		return true
	}
	for i, bits := range l {
		if bits == 0 {
			continue
		}
		if i >= len(of) || of[i]&bits != bits {
			return false
		}
	}
	return true
}

// ParseLabels reads numbers of labels, separated by commas, or names that are in
// named (connlabel.conf).
func ParseLabels(words string, named *[labelsMax]string) (l Labels, err error) {
	for word := range strings.SplitSeq(words, ",") {
		word = strings.TrimSpace(word)
		n, err := label(word, named)
		if err != nil {
			return Labels{}, err
		}
		l[n/8] |= 1 << (n % 8)
	}
	return l, nil
}

func label(word string, named *[labelsMax]string) (int, error) {
	if named != nil && word != "" {
		if n := slices.Index(named[:], word); n >= 0 {
			return n, nil
		}
	}
	n, err := ParseNumber(word, 7)
	if err != nil {
		return 0, fmt.Errorf("label %q is neither a number from 0 to %d nor a name in connlabel.conf", word, labelsMax-1)
	}
	return int(n), nil
}

// States are the states that an entry may be in, a bit for each number, by
// protocol. All zero asks for none; otherwise entries of protocols without a bit
// are left out.
type States struct{ TCP, SCTP, DCCP uint32 }

func (s States) matches(e *Entry) bool {
	if s == (States{}) {
		return true
	}
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return has(s.TCP, uint8(e.TCPState))
	case unix.IPPROTO_SCTP:
		return has(s.SCTP, uint8(e.SCTPState))
	case unix.IPPROTO_DCCP:
		return has(s.DCCP, uint8(e.DCCPState))
	}
	return false
}

func has(bits uint32, n uint8) bool { return n < 32 && bits>>n&1 == 1 }

// stateNumbers bounds the numbers whose names are asked for.
const stateNumbers = 32

// noState is what the types of conntrack call a number that they do not know.
var noState = TCPState(255).String()

// StateNames are the words that ParseStates knows.
var StateNames = stateNames()

func stateNames() (names []string) {
	for n := range uint8(stateNumbers) {
		for _, name := range namesOf(n) {
			if name != noState && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func namesOf(n uint8) [3]string {
	return [3]string{TCPState(n).String(), SCTPState(n).String(), DCCPState(n).String()}
}

// ParseStates reads names of states, separated by commas: an entry is to be in one
// of them. A name that several protocols have is meant for all of them.
func ParseStates(text string) (s States, err error) {
	for word := range strings.SplitSeq(text, ",") {
		if !s.add(strings.ToUpper(strings.TrimSpace(word))) {
			return States{}, fmt.Errorf("%q is no state; the names are %s", word, strings.Join(StateNames, ", "))
		}
	}
	return s, nil
}

func (s *States) add(name string) (known bool) {
	if name == "LISTEN" { // what conntrack(8) still calls it
		name = TCPSynSent2.String()
	}
	for n := range uint8(stateNumbers) {
		for i, bits := range [...]*uint32{&s.TCP, &s.SCTP, &s.DCCP} {
			if namesOf(n)[i] == name && name != noState {
				*bits |= 1 << n
				known = true
			}
		}
	}
	return known
}
