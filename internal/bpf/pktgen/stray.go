package pktgen

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/packet"
)

// strays are the first misdelivered packet that each CPU has seen.
func (r *receiver) strays(ipv6 bool) ([]packet.Stray, error) {
	var cpus []pktgenStray
	if err := r.objects.Strays.Lookup(uint32(0), &cpus); err != nil {
		return nil, fmt.Errorf("read the misdelivered packets: %w", err)
	}
	var all []packet.Stray
	for _, s := range cpus {
		if s.Seen != 0 {
			all = append(all, packet.Stray{
				Flow:   s.Flow,
				Source: addrPort(s.Saddr, s.Sport, ipv6), Destination: addrPort(s.Daddr, s.Dport, ipv6),
			})
		}
	}
	return all, nil
}

// addrPort reads an address and a port as they lay in a packet.
func addrPort(words [4]uint32, port uint16, ipv6 bool) netip.AddrPort {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	var p [2]byte
	binary.NativeEndian.PutUint16(p[:], port)
	addr := netip.AddrFrom16(b)
	if !ipv6 {
		addr = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(p[:]))
}
