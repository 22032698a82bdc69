// Package aggregate groups the entries of a connection table by what they have in
// common, and sums a table up on one screen.
package aggregate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// kind is what entries may be grouped by: the one function that is set returns an entry's
// value.
type kind struct {
	name string
	// address is of a prefix that the key has; invalid where an entry has none.
	address func(*conntrack.Entry) netip.Addr
	port    func(*conntrack.Entry) uint16
	// number is four bytes, value what they stand for.
	number func(*conntrack.Entry) uint32
	value  func(uint32) any
	// byte is a byte that has a name.
	byte func(*conntrack.Entry) byte
	word func(byte) string
}

var kinds = [...]kind{
	{name: "family", byte: func(e *conntrack.Entry) byte { return byte(versionOf(e.Orig.Src)) }, word: func(b byte) string { return versionNames[b] }},
	{name: "proto", byte: func(e *conntrack.Entry) byte { return e.Orig.Proto }, word: nat.ProtocolName},
	{name: "state", byte: stateOf, word: stateName},
	{name: "src", address: func(e *conntrack.Entry) netip.Addr { return e.Orig.Src }},
	{name: "dst", address: func(e *conntrack.Entry) netip.Addr { return e.Orig.Dst }},
	{name: "sport", port: func(e *conntrack.Entry) uint16 { return e.Orig.SrcPort }},
	{name: "dport", port: func(e *conntrack.Entry) uint16 { return e.Orig.DstPort }},
	{name: "reply-src", address: func(e *conntrack.Entry) netip.Addr { return e.Reply.Src }},
	{name: "reply-dst", address: func(e *conntrack.Entry) netip.Addr { return e.Reply.Dst }},
	{name: "reply-sport", port: func(e *conntrack.Entry) uint16 { return e.Reply.SrcPort }},
	{name: "reply-dport", port: func(e *conntrack.Entry) uint16 { return e.Reply.DstPort }},
	{name: "nat", byte: natOf, word: func(b byte) string { return natNames[b] }},
	{name: snatAddress, address: func(e *conntrack.Entry) (a netip.Addr) {
		if e.IsSNAT() {
			a = e.Reply.Dst
		}
		return a
	}},
	{name: "zone", number: func(e *conntrack.Entry) uint32 { return uint32(e.Zone)<<16 | uint32(e.ReplyZone) }, value: zoneValue},
	{name: "mark", number: func(e *conntrack.Entry) uint32 { return e.Mark }, value: func(n uint32) any { return n }},
	{name: "status", byte: statusOf, word: statusName},
}

// snatAddress is the only kind of address that an entry may have none of.
const snatAddress = "snat-address"

var versionNames = [versions]string{"ipv4", "ipv6"}

// zoneValue is the zone, or the zones of both directions where they differ.
func zoneValue(zones uint32) any {
	if orig, reply := uint16(zones>>16), uint16(zones); orig != reply {
		return fmt.Sprintf("orig %d, reply %d", orig, reply)
	}
	return uint16(zones)
}

// Key is one of the things that entries are grouped by.
type Key struct {
	kind *kind
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

// width returns the number of bytes of a key's value in a group.
func (k Key) width(v version) int {
	switch {
	case k.kind.byte != nil:
		return 1
	case k.kind.port != nil:
		return 2
	case k.kind.number != nil:
		return 4
	}
	return addressBytes[v]
}

// append adds what e has of a key to a group.
func (k *Key) append(b []byte, v version, e *conntrack.Entry) []byte {
	switch {
	case k.kind.byte != nil:
		return append(b, k.kind.byte(e))
	case k.kind.port != nil:
		return binary.BigEndian.AppendUint16(b, k.kind.port(e))
	case k.kind.number != nil:
		return binary.BigEndian.AppendUint32(b, k.kind.number(e))
	}
	return appendAddress(b, v, k.bits[v], k.kind.address(e))
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

// mask returns an of-bit mask with the first bits set.
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

// The bits of a status byte: those status bits of an entry that every form of a table
// contains, also text.
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
	// An entry in hardware is offloaded in software too; conntrack(8) prints only the former.
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

// The bits of a byte that holds the kind of translation.
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

// Value is the value of the i-th key for JSON: a number, a string, or nil where the
// entry has none.
func (g Group) Value(i int) any {
	k, b := g.value(i)
	switch {
	case k.kind.number != nil:
		return k.kind.value(binary.BigEndian.Uint32(b))
	case k.kind.port != nil:
		if port := binary.BigEndian.Uint16(b); port != 0 {
			return port
		}
		return nil
	case k.kind.byte != nil:
		if word := k.kind.word(b[0]); word != none {
			return word
		}
		return nil
	}
	a, _ := netip.AddrFromSlice(b)
	switch bits := k.bits[g.version]; {
	case k.kind.name == snatAddress && a.IsUnspecified():
		return nil
	case bits < a.BitLen():
		return netip.PrefixFrom(a, bits).String()
	}
	return a.String()
}

// Text is the value of the i-th key, for people.
func (g Group) Text(i int) string {
	switch v := g.Value(i).(type) {
	case nil:
		return none
	case uint32: // a mark
		return fmt.Sprintf("%#x", v)
	default:
		return fmt.Sprint(v)
	}
}

// CSV is the value of the i-th key as other programs read it: that of JSON without
// quotes, and nothing where the entry has none.
func (g Group) CSV(i int) string {
	if v := g.Value(i); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}
