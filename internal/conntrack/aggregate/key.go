// Package aggregate groups the entries of a connection table by what they have in
// common, and sums a table up on one screen.
package aggregate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// kind is what a key looks at.
type kind uint8

const (
	family kind = iota
	proto
	state
	src
	dst
	sport
	dport
	replySrc
	replyDst
	replySport
	replyDport
	natKind
	snatAddress
	zone
	mark
	status
	kinds
)

var kindNames = [kinds]string{
	"family", "proto", "state", "src", "dst", "sport", "dport",
	"reply-src", "reply-dst", "reply-sport", "reply-dport",
	"nat", "snat-address", "zone", "mark", "status",
}

// isAddress reports whether a kind's values are addresses, of which a prefix can be taken.
func (k kind) isAddress() bool {
	switch k {
	case src, dst, replySrc, replyDst, snatAddress:
		return true
	}
	return false
}

// Key is one of the things that entries are grouped by.
type Key struct {
	kind kind
	// bits are the lengths of the prefixes of IPv4 and of IPv6 addresses.
	bits [versions]int
	name string
}

// Name is the key as it was asked for.
func (k Key) Name() string { return k.name }

// version is 0 for IPv4 and 1 for IPv6.
type version int

const (
	v4 version = iota
	v6
	versions
)

func versionOf(a netip.Addr) version {
	if a.Is4() {
		return v4
	}
	return v6
}

var addressBytes = [versions]int{4, 16}

// width is how many bytes a key's value takes in a group.
func (k Key) width(v version) int {
	switch k.kind {
	case family, proto, state, natKind, status:
		return 1
	case sport, dport, replySport, replyDport:
		return 2
	case zone, mark:
		return 4
	}
	return addressBytes[v]
}

// append adds what e has of a key to a group.
func (k *Key) append(b []byte, v version, e *conntrack.Entry) []byte {
	switch k.kind {
	case family:
		return append(b, byte(versionOf(e.Orig.Src)))
	case proto:
		return append(b, e.Orig.Proto)
	case state:
		return append(b, stateOf(e))
	case status:
		return append(b, statusOf(e))
	case natKind:
		return append(b, natOf(e))
	case zone:
		b = binary.BigEndian.AppendUint16(b, e.Zone)
		return binary.BigEndian.AppendUint16(b, e.ReplyZone)
	case mark:
		return binary.BigEndian.AppendUint32(b, e.Mark)
	case sport:
		return binary.BigEndian.AppendUint16(b, e.Orig.SrcPort)
	case dport:
		return binary.BigEndian.AppendUint16(b, e.Orig.DstPort)
	case replySport:
		return binary.BigEndian.AppendUint16(b, e.Reply.SrcPort)
	case replyDport:
		return binary.BigEndian.AppendUint16(b, e.Reply.DstPort)
	}
	return appendAddress(b, v, k.bits[v], k.address(e))
}

// address is what e has of a key of addresses; invalid where it has none.
func (k *Key) address(e *conntrack.Entry) netip.Addr {
	switch k.kind {
	case src:
		return e.Orig.Src
	case dst:
		return e.Orig.Dst
	case replySrc:
		return e.Reply.Src
	case replyDst:
		return e.Reply.Dst
	}
	if e.IsSNAT() {
		return e.Reply.Dst
	}
	return netip.Addr{}
}

// appendAddress adds the prefix of an address; zeros for none, and for one of the other
// version, which only a garbled entry has.
func appendAddress(b []byte, v version, bits int, a netip.Addr) []byte {
	switch {
	case v == v4 && a.Is4():
		raw := a.As4()
		return binary.BigEndian.AppendUint32(b, binary.BigEndian.Uint32(raw[:])&uint32(mask(bits, 32)))
	case v == v4:
		return append(b, 0, 0, 0, 0)
	case !a.Is6():
		return append(b, make([]byte, 16)...)
	}
	raw := a.As16()
	b = binary.BigEndian.AppendUint64(b, binary.BigEndian.Uint64(raw[:8])&mask(bits, 64))
	return binary.BigEndian.AppendUint64(b, binary.BigEndian.Uint64(raw[8:])&mask(bits-64, 64))
}

// mask has the first bits of so many set.
func mask(bits, of int) uint64 {
	bits = min(max(bits, 0), of)
	return ^uint64(0) << (of - bits) // in Go a shift by 64 gives 0
}

// The bytes that stand for a state: which protocol's, and its number.
const (
	sctpStates = 0x40
	dccpStates = 0x80
	stateMax   = 0x3f
	stateNone  = 0xff
)

// stateOf is the state of an entry as one byte.
func stateOf(e *conntrack.Entry) byte {
	state := e.State()
	switch {
	case state == nil || e.Fields.Has(conntrack.NoState):
		return stateNone
	case e.Orig.Proto == unix.IPPROTO_SCTP:
		return sctpStates | min(*state, stateMax)
	case e.Orig.Proto == unix.IPPROTO_DCCP:
		return dccpStates | min(*state, stateMax)
	}
	return min(*state, stateMax)
}

// stateName is TCP's name of the state, those of other protocols with the protocol's.
func stateName(b byte) string {
	switch {
	case b == stateNone:
		return none
	case b >= dccpStates:
		return "dccp " + conntrack.StateName(unix.IPPROTO_DCCP, b&stateMax)
	case b >= sctpStates:
		return "sctp " + conntrack.StateName(unix.IPPROTO_SCTP, b&stateMax)
	}
	return conntrack.TCPState(b).String()
}

// The bits of a status byte: of the many of an entry those that every form of a table
// tells, also text.
const (
	statusAnswered = 1 << iota
	statusAssured
	statusOffloaded
	statusHardware
	statuses
)

func statusOf(e *conntrack.Entry) (b byte) {
	if e.Status.Has(conntrack.SeenReply) {
		b |= statusAnswered
	}
	if e.Status.Has(conntrack.Assured) {
		b |= statusAssured
	}
	switch {
	// An entry in hardware is offloaded in software too; conntrack(8) tells the one.
	case e.Status.Has(conntrack.HWOffload):
		b |= statusHardware
	case e.Status.Has(conntrack.Offload):
		b |= statusOffloaded
	}
	return b
}

func statusName(b byte) string {
	var words []string
	switch {
	case b&statusAnswered == 0:
		words = append(words, "unreplied")
	case b&statusAssured == 0:
		words = append(words, "answered")
	}
	if b&statusAssured != 0 {
		words = append(words, "assured")
	}
	if b&statusOffloaded != 0 {
		words = append(words, "offloaded")
	}
	if b&statusHardware != 0 {
		words = append(words, "offloaded to hardware")
	}
	return strings.Join(words, " ")
}

// The bits of a byte that tells the translation.
const (
	natSource = 1 << iota
	natDestination
	translations
)

func natOf(e *conntrack.Entry) (b byte) {
	if e.IsSNAT() {
		b |= natSource
	}
	if e.IsDNAT() {
		b |= natDestination
	}
	return b
}

var natNames = [translations]string{"none", "snat", "dnat", "both"}

// none stands where an entry has no value of a key.
const none = "-"

// Text is the value of the i-th key, for people.
func (g Group) Text(i int) string {
	k, b := g.value(i)
	switch k.kind {
	case zone:
		return zoneText(b)
	case mark:
		return fmt.Sprintf("%#x", binary.BigEndian.Uint32(b))
	case sport, dport, replySport, replyDport:
		if b[0]|b[1] == 0 {
			return none
		}
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	}
	return g.word(k, b)
}

// word is a value that is the same text for people and for programs.
func (g Group) word(k *Key, b []byte) string {
	switch k.kind {
	case family:
		return [versions]string{"ipv4", "ipv6"}[b[0]]
	case proto:
		return nat.ProtocolName(b[0])
	case state:
		return stateName(b[0])
	case status:
		return statusName(b[0])
	case natKind:
		return natNames[b[0]]
	}
	a, _ := netip.AddrFromSlice(b)
	switch bits := k.bits[g.version]; {
	case k.kind == snatAddress && a.IsUnspecified():
		return none
	case bits < a.BitLen():
		return netip.PrefixFrom(a, bits).String()
	}
	return a.String()
}

// zoneText names the zone, or the zones of both directions where they differ.
func zoneText(b []byte) string {
	orig, reply := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if orig == reply {
		return strconv.Itoa(int(orig))
	}
	return fmt.Sprintf("orig %d, reply %d", orig, reply)
}

// Value is the value of the i-th key for JSON: a number, a string, or nil where the
// entry has none.
func (g Group) Value(i int) any {
	k, b := g.value(i)
	var text string
	switch k.kind {
	case mark:
		return binary.BigEndian.Uint32(b)
	case zone:
		if orig, reply := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]); orig == reply {
			return orig
		}
		return zoneText(b)
	case sport, dport, replySport, replyDport:
		if port := binary.BigEndian.Uint16(b); port != 0 {
			return port
		}
		return nil
	default:
		text = g.word(k, b)
	}
	if text == none {
		return nil
	}
	return text
}

// CSV is the value of the i-th key as other programs read it: that of JSON without
// quotes, and nothing where the entry has none.
func (g Group) CSV(i int) string {
	if v := g.Value(i); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}
