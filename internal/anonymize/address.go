package anonymize

import (
	"math/bits"
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
)

// Addresses are replaced by the construction of Crypto-PAn (J. Xu, J. Fan, M. Ammar, S. Moon: Prefix-Preserving IP
// Address Anonymization, ICNP 2002): whether bit i is flipped depends on the bits before it and on the key, so that
// two addresses share as many leading bits as before. What fills a block up behind these bits is another text for
// each i, as two bits in a row would else depend on the same block half of the time. natkit's findings ask two things
// more of addresses:
//
//   - Their class stays. A bit is flipped only where all addresses that share the bits before it are of the same
//     class; so the replacement of a public address is public, and what is next to a special range keeps more bits.
//   - The last eight bits stay, so that pools such as .10-.20, the addresses of networks and those of their
//     broadcasts remain what they are. Where the class leaves fewer than eight bits to flip before them, they are
//     flipped as well.

// addressBytes is the size of an IPv6 address.
const addressBytes = 16

// hostBits are the last bits, which stay.
const hostBits = 8

// class is a range of addresses that means something.
type class struct {
	netip.Prefix
	// keep is for addresses that are the same everywhere, and name nobody.
	keep bool
}

// classes are those of the IANA special-purpose address registries (RFC 6890) that NAT or routes treat apart.
// Of several, the longest one decides what is kept.
var classes = []class{
	in("0.0.0.0/8", keep),         // this network
	in("10.0.0.0/8", replace),     // private (RFC 1918)
	in("100.64.0.0/10", replace),  // shared, of carrier-grade NAT (RFC 6598)
	in("127.0.0.0/8", keep),       // loopback
	in("169.254.0.0/16", keep),    // link-local (RFC 3927): drawn by chance, or a service on the host
	in("172.16.0.0/12", replace),  // private
	in("192.0.0.0/24", keep),      // IETF protocol assignments
	in("192.0.2.0/24", keep),      // documentation (RFC 5737)
	in("192.88.99.0/24", keep),    // 6to4 relays
	in("192.168.0.0/16", replace), // private
	in("198.18.0.0/15", replace),  // benchmarking (RFC 2544)
	in("198.51.100.0/24", keep),   // documentation
	in("203.0.113.0/24", keep),    // documentation
	in("224.0.0.0/4", keep),       // multicast groups
	in("240.0.0.0/4", keep),       // reserved, and the limited broadcast

	in("::/64", keep),             // unspecified, loopback
	in("64:ff9b:1::/48", replace), // local-use NAT64 (RFC 8215)
	in("100::/64", keep),          // discard-only (RFC 6666)
	in("2000::/3", replace),       // global unicast
	in("2001::/23", replace),      // IETF protocol assignments
	in("2001::/32", replace),      // Teredo
	in("2001:db8::/32", keep),     // documentation (RFC 3849)
	in("2002::/16", replace),      // 6to4
	in("3fff::/20", keep),         // documentation (RFC 9637)
	in("fc00::/8", replace),       // unique local (RFC 4193), by an authority that there is not
	in("fd00::/8", replace),       // unique local
	in("fe80::/10", replace),      // link-local: the identifier may be a hardware address
	in("fe80::/64", replace),
	in("fec0::/10", replace),          // site-local, deprecated
	in("ff00::/8", keep),              // multicast groups
	in("ff02::1:ff00:0/104", replace), // solicited-node: the last bits of an address (RFC 4291, 2.7.1)
}

const (
	keep    = true
	replace = false
)

func in(prefix string, keep bool) class { return class{netip.MustParsePrefix(prefix), keep} }

// embedding are the prefixes behind which an IPv4 address stands, which is replaced as such (RFC 4291, 2.5.5; RFC
// 6052, 2.1).
var embedding = []netip.Prefix{netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("64:ff9b::/96")}

// network is what the bits to flip of an address depend on: all but its last hostBits.
type network struct {
	is4  bool
	bits [addressBytes - hostBits/8]byte
}

// Addr returns the replacement of an address. A zone is the name of an interface.
func (a *Anonymizer) Addr(address netip.Addr) netip.Addr {
	switch {
	case !address.IsValid():
		return address
	case address.Zone() != "":
		return a.Addr(address.WithZone("")).WithZone(a.Name(address.Zone()))
	}
	for _, p := range embedding {
		if p.Contains(address) || address.Is4In6() {
			b := address.As16()
			inner := a.Addr(netip.AddrFrom4([4]byte(b[12:]))).As4()
			copy(b[12:], inner[:])
			return netip.AddrFrom16(b)
		}
	}
	if address.Is4() {
		b := address.As4()
		flips := a.flips(true, b[:])
		for i := range b {
			b[i] ^= flips[i]
		}
		return netip.AddrFrom4(b)
	}
	b := address.As16()
	flips := a.flips(false, b[:])
	for i := range b {
		b[i] ^= flips[i]
	}
	return netip.AddrFrom16(b)
}

// flips are the bits of an address that change.
func (a *Anonymizer) flips(is4 bool, b []byte) [addressBytes]byte {
	of := network{is4: is4}
	copy(of.bits[:], b[:len(b)-hostBits/8])
	if flips, known := a.networks[of]; known {
		return flips
	}
	first, last := changing(b)
	var flips [addressBytes]byte
	for i := first; i < last; i++ {
		flips[i/8] |= a.flip(is4, b, i) << (7 - i%8)
	}
	if last < len(b)*8 { // they do not depend on the last bits
		if len(a.networks) >= mostCached {
			clear(a.networks)
		}
		a.networks[of] = flips
	}
	return flips
}

// flip is 1 where bit i changes, for the bits before it.
func (a *Anonymizer) flip(is4 bool, b []byte, i int) byte {
	block := a.padding[i]
	if is4 {
		block = a.padding[addressBytes*8+i]
	}
	copy(block[:], b[:i/8])
	mask := byte(0xff) << (8 - i%8)
	block[i/8] = b[i/8]&mask | block[i/8]&^mask
	a.block.Encrypt(block[:], block[:])
	return block[0] >> 7
}

// changing are the bits of an address that may change, from first up to last.
func changing(b []byte) (first, last int) {
	all := len(b) * 8
	longest, keep := -1, false
	for _, c := range classes {
		of := c.Addr().AsSlice()
		if len(of) != len(b) {
			continue
		}
		switch same := common(b, of); {
		case same < c.Bits():
			first = max(first, same+1)
		default:
			first = max(first, c.Bits())
			if c.Bits() > longest {
				longest, keep = c.Bits(), c.keep
			}
		}
	}
	switch {
	case keep:
		return all, all
	case first > all-2*hostBits:
		return first, all
	}
	return first, all - hostBits
}

// common is how many leading bits two addresses share.
func common(a, b []byte) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return i*8 + bits.LeadingZeros8(x)
		}
	}
	return len(a) * 8
}

// Prefix returns the replacement of a network, or of an address with the length of its network.
func (a *Anonymizer) Prefix(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	replaced := netip.PrefixFrom(a.Addr(p.Addr()), p.Bits())
	if p == p.Masked() {
		return replaced.Masked()
	}
	return replaced
}

// AddrPort returns the replacement of a socket's address.
func (a *Anonymizer) AddrPort(s netip.AddrPort) netip.AddrPort {
	if !s.IsValid() {
		return s
	}
	return netip.AddrPortFrom(a.Addr(s.Addr()), s.Port())
}

// Range returns the replacement of the addresses from first to last: exact within a network of 256 addresses, and
// of a whole network; the smallest network that has all of them otherwise.
func (a *Anonymizer) Range(first, last netip.Addr) (netip.Addr, netip.Addr) {
	if !first.IsValid() || first.BitLen() != last.BitLen() {
		return a.Addr(first), a.Addr(last)
	}
	b := first.AsSlice()
	same, all := common(b, last.AsSlice()), len(b)*8
	if from, to := changing(b); same >= all-hostBits && (from == all || to < all) { // nothing changes behind what they share
		return a.Addr(first), a.Addr(last)
	}
	shared := a.Prefix(netip.PrefixFrom(first, same).Masked())
	return shared.Addr(), nat.LastAddr(shared)
}

// hardware is the replacement of a hardware address: a local one (IEEE 802, 8.2), of a group where it was of one.
// What is the same everywhere stays: none, all, and the virtual routers of VRRP (RFC 9568, 7.3).
func (a *Anonymizer) hardware(mac [6]byte) [6]byte {
	virtual := mac[0] == 0 && mac[1] == 0 && mac[2] == 0x5e
	if mac == [6]byte{} || mac == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} || virtual {
		return mac
	}
	m := [6]byte(a.mac("hardware", string(mac[:])))
	m[0] = m[0]&^3 | 2 | mac[0]&1
	return m
}
