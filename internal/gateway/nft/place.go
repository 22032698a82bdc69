package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// place is where in a packet an address stands, and the checksums that it is part of.
type place struct {
	base     expr.PayloadBase
	offset   uint32
	checksum uint32 // offset of a checksum to mend, where mends
	mends    bool
	pseudo   bool // the transport's checksum covers it by the pseudo header
	// quoted is the offset of the quoted packet's transport checksum, which covers it by
	// its pseudo header; 0 where it is not known.
	quoted uint32
}

// header is the source or destination of the packet itself.
func (f *family) header(destination bool) place {
	p := place{base: expr.PayloadBaseNetworkHeader, offset: f.saddr, pseudo: true}
	if destination {
		p.offset = f.daddr
	}
	if !f.v6 {
		p.mends, p.checksum = true, 10
	}
	return p
}

// quoted is an address in the packet that an ICMP error quotes, after 8 bytes of its
// own. In IPv4 the quoted header's checksum is mended, and the sum that ICMP's is made
// of stays what it was; IPv6 has none, and ICMPv6's own is mended.
func (f *family) quoted(destination bool) place {
	p := place{base: expr.PayloadBaseTransportHeader, offset: 8 + f.saddr, mends: true, checksum: icmpChecksum}
	if destination {
		p.offset = 8 + f.daddr
	}
	if !f.v6 {
		p.checksum = 8 + 10
	}
	return p
}

func (p place) load(length uint32) expression { return payload(p.base, p.offset, length, reg1) }

// write puts what reg1 has in the place, and mends all checksums that cover it. Each
// write mends one. A quoted IPv4 address stands in two checksums that themselves are in
// ICMP's: it is written for the first one, taken back for ICMP's, and written for the
// second one. In IPv6 ICMP's stays, as the quoted checksum makes up for the address.
func (p place) write(f *family, length uint32) []expression {
	first := p
	if p.quoted > 0 {
		first.checksum = p.quoted
	}
	if p.quoted == 0 || f.v6 {
		return []expression{first.store(length, reg1)}
	}
	back := p
	back.checksum = icmpChecksum
	return []expression{
		payload(p.base, p.offset, length, reg2),
		first.store(length, reg1), back.store(length, reg2), p.store(length, reg1),
	}
}

// icmpChecksum is its offset in ICMP and ICMPv6.
const icmpChecksum = 2

// store writes what a register has. google/nftables leaves the flag out where there is
// no checksum of the header itself, as in IPv6.
func (p place) store(length, register uint32) expression {
	w := raw{name: "payload"}
	w.data.u32(unix.NFTA_PAYLOAD_SREG, register)
	w.data.u32(unix.NFTA_PAYLOAD_BASE, uint32(p.base))
	w.data.u32(unix.NFTA_PAYLOAD_OFFSET, p.offset)
	w.data.u32(unix.NFTA_PAYLOAD_LEN, length)
	if p.mends {
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_OFFSET, p.checksum)
	}
	if p.pseudo {
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	}
	return w
}

// within asks whether the address at the place is in a prefix.
func (p place) within(f *family, prefix netip.Prefix) []expression {
	all := []expression{p.load(uint32(f.bytes))}
	if prefix.Bits() < f.bits() {
		all = append(all, f.masked(reg1, prefix.Bits()))
	}
	return append(all, equal(reg1, prefix.Masked().Addr().AsSlice()))
}
