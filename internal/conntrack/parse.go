package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/unix"
)

// ParsePrefix reads 198.18.0.1, 198.18.0.0/16, 198.18.0.0/255.255.0.0 or the same
// of IPv6. Bits behind the prefix are cleared.
func ParsePrefix(text string) (netip.Prefix, error) {
	addrText, mask, masked := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(addrText)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is no address; give 198.18.0.1, 198.18.0.0/16 or 2001:db8::/32", text)
	}
	addr = addr.Unmap()
	bits := addr.BitLen()
	if masked {
		if bits, err = maskBits(mask, addr); err != nil {
			return netip.Prefix{}, fmt.Errorf("%q: %w", text, err)
		}
	}
	return addr.Prefix(bits)
}

// maskBits reads the length of a prefix, as a number or as a mask.
func maskBits(text string, addr netip.Addr) (int, error) {
	if n, err := strconv.ParseUint(text, 10, 8); err == nil && int(n) <= addr.BitLen() {
		return int(n), nil
	}
	mask, err := netip.ParseAddr(text)
	if err != nil || mask.BitLen() != addr.BitLen() {
		return 0, fmt.Errorf("the length must be from 0 to %d, or a mask of the same family", addr.BitLen())
	}
	bits, zero := 0, false
	for _, b := range mask.AsSlice() {
		for i := 7; i >= 0; i-- {
			one := b>>i&1 == 1
			if one && zero {
				return 0, fmt.Errorf("the ones of the mask %s are not all in front", text)
			}
			if one {
				bits++
			}
			zero = !one
		}
	}
	return bits, nil
}

// ParseNumber parses a number of at most the given bits: decimal, or hexadecimal after 0x.
func ParseNumber(text string, bits int) (uint32, error) {
	digits, base := text, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is no number from 0 to %d", text, uint64(1)<<bits-1)
	}
	return uint32(n), nil
}

// ParseMark reads MARK or MARK/MASK. A mark with bits that the mask leaves out
// would choose nothing and is refused.
func ParseMark(text string) (mark, mask uint32, err error) {
	value, maskText, masked := strings.Cut(text, "/")
	if mark, err = ParseNumber(value, 32); err != nil {
		return 0, 0, err
	}
	mask = ^uint32(0)
	if masked {
		if mask, err = ParseNumber(maskText, 32); err != nil {
			return 0, 0, err
		}
	}
	if mark&^mask != 0 {
		return 0, 0, fmt.Errorf("%q has bits in the mark that are not in the mask: no entry has that", text)
	}
	return mark, mask, nil
}

// Families are the words that ParseFamily knows.
var Families = []string{"ipv4", "ipv6"}

// ParseFamily reads ipv4 or ipv6.
func ParseFamily(text string) (uint8, error) {
	switch strings.ToLower(text) {
	case "ipv4", "inet", "4":
		return unix.AF_INET, nil
	case "ipv6", "inet6", "6":
		return unix.AF_INET6, nil
	}
	return 0, fmt.Errorf("%q is no address family; give ipv4 or ipv6", text)
}

// StatusBit is a word for bits of an entry's status.
type StatusBit struct {
	Name       string
	Set, Unset Status
}

// StatusBits are the words that ParseStatus knows.
var StatusBits = []StatusBit{
	{Name: "ASSURED", Set: Assured},
	{Name: "SEEN_REPLY", Set: SeenReply},
	{Name: "UNREPLIED", Unset: SeenReply},
	{Name: "UNASSURED", Unset: Assured},
	{Name: "UNSET", Unset: SeenReply | Assured},
	{Name: "CONFIRMED", Set: Confirmed},
	{Name: "EXPECTED", Set: Expected},
	{Name: "FIXED_TIMEOUT", Set: FixedTimeout},
	{Name: "SRC_NAT", Set: SrcNAT},
	{Name: "DST_NAT", Set: DstNAT},
	{Name: "SEQ_ADJUST", Set: SeqAdjust},
	{Name: "DYING", Set: Dying},
	{Name: "HELPER", Set: Helper},
	{Name: "OFFLOAD", Set: Offload},
	{Name: "HW_OFFLOAD", Set: HWOffload},
}

// ParseStatus reads words of StatusBits, separated by commas: all must hold.
func ParseStatus(text string) (set, unset Status, err error) {
	for word := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(StatusBits, func(b StatusBit) bool { return strings.EqualFold(b.Name, strings.TrimSpace(word)) })
		if i < 0 {
			return 0, 0, fmt.Errorf("%q is no status; the words are %s", word, strings.Join(StatusNames(), ", "))
		}
		set |= StatusBits[i].Set
		unset |= StatusBits[i].Unset
	}
	if both := set & unset; both != 0 {
		return 0, 0, fmt.Errorf("%q requires a bit to be both set and not set: no entry matches", text)
	}
	return set, unset, nil
}

// StatusNames are the words that ParseStatus knows.
func StatusNames() (names []string) {
	for _, b := range StatusBits {
		names = append(names, b.Name)
	}
	return names
}

// ParseNAT reads what a translation must have put in place: ADDRESS,
// ADDRESS/PREFIX, ADDRESS:PORT, [ADDRESS]:PORT or :PORT.
func ParseNAT(text string) (n NAT, err error) {
	n.On = true
	if port, ok := strings.CutPrefix(text, ":"); ok && !strings.Contains(port, ":") {
		return n, n.port(port)
	}
	if ap, err := netip.ParseAddrPort(text); err == nil && ap.Addr().Zone() == "" {
		addr := ap.Addr().Unmap()
		n.Addr, n.Port = netip.PrefixFrom(addr, addr.BitLen()), Is(ap.Port())
		return n, nil
	}
	n.Addr, err = ParsePrefix(text)
	return n, err
}

func (n *NAT) port(text string) error {
	p, err := ParseNumber(text, 16)
	n.Port = Is(uint16(p))
	return err
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

// stateProtocols are those that have states.
var stateProtocols = [...]uint8{unix.IPPROTO_TCP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP}

// States are the states that an entry may be in, a bit for each number, in the order of
// stateProtocols. All zero asks for none; otherwise entries of protocols without a bit
// are left out.
type States [len(stateProtocols)]uint32

func (s *States) matches(e *Entry) bool {
	if *s == (States{}) {
		return true
	}
	i, state := slices.Index(stateProtocols[:], e.Orig.Proto), e.State()
	return i >= 0 && *state < 32 && s[i]>>*state&1 == 1
}

// StateNames are the words that ParseStates reads.
var StateNames = slices.Compact(slices.Sorted(slices.Values(slices.Concat(tcpStateNames[:], sctpStateNames[:], dccpStateNames[:]))))

// ParseStates reads names of states, separated by commas: an entry is to be in one
// of them. A name that several protocols have is meant for all of them.
func ParseStates(text string) (s States, err error) {
	for word := range strings.SplitSeq(text, ",") {
		known := false
		for i, proto := range stateProtocols {
			if n, ok := ParseState(proto, []byte(strings.ToUpper(strings.TrimSpace(word)))); ok {
				s[i] |= 1 << n
				known = true
			}
		}
		if !known {
			return States{}, fmt.Errorf("%q is no state; the names are %s", word, strings.Join(StateNames, ", "))
		}
	}
	return s, nil
}
