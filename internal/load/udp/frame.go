package udp

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/packet"
)

// Bytes of a datagram's frame that are not payload.
const (
	etherOverhead = 14 + 4 // header and FCS (IEEE 802.3)
	ipv4Header    = 20
	ipv6Header    = 40
	udpHeader     = 8
	maxIPv4       = 65535 // total length
)

// LeastFrame is the smallest frame of a datagram with a token to an address.
func LeastFrame(to netip.Addr) int { return etherOverhead + headers(to) + packet.TokenLen }

// PayloadBytes is what a frame to an address holds besides headers and FCS.
func PayloadBytes(frame int, to netip.Addr) int { return frame - etherOverhead - headers(to) }

// PacketBytes is the length of the IP packet in a frame.
func PacketBytes(frame int) int { return frame - etherOverhead }

func headers(to netip.Addr) int {
	if to.Unmap().Is4() {
		return ipv4Header + udpHeader
	}
	return ipv6Header + udpHeader
}

// frames reads the sizes. One that was named must be possible; those of the default
// and of IMIX, which have IPv4 in mind, are made as small as they can be: IPv6 needs
// 78 bytes.
func (c Config) frames() ([]int, error) {
	size := c.Size
	if size == "" {
		size = "64"
	}
	sizes, err := packet.ParseSizes(size)
	if err != nil {
		return nil, err
	}
	least := LeastFrame(c.To.Addr())
	named := c.Size != "" && !strings.EqualFold(c.Size, "imix")
	for i, s := range sizes {
		switch {
		case s-etherOverhead > maxIPv4:
			return nil, fmt.Errorf("size %d: an IP packet has at most %d bytes, its frame %d", s, maxIPv4, maxIPv4+etherOverhead)
		case s >= least:
		case named:
			return nil, fmt.Errorf("size %d: a frame to %v needs %d bytes for headers, FCS and the token that tells datagrams apart", s, c.To.Addr(), least)
		default:
			sizes[i] = least
		}
	}
	return sizes, nil
}
