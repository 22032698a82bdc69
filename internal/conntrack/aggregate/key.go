// Package aggregate groups the entries of a connection table by what they have in
// common, and sums a table up on one screen.
package aggregate

import (
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
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
	nat
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
	case family, proto, state, nat, status:
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
	case nat:
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
