package bpf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
	"golang.org/x/sys/unix"
)

// The pools are small, so that filters often match; some values are others with their
// bytes swapped, or the beginning of others.
var (
	addresses4  = addresses("10.0.0.1", "10.0.0.2", "10.1.2.3", "1.0.0.10", "10.255.0.0", "203.0.113.7", "0.0.0.0", "255.255.255.255")
	addresses6  = addresses("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db9::1", "100:0:0:0:0:0:b80d:120", "::", "::ffff:10.0.0.1", "fe80::1")
	portNumbers = []uint16{80, 443, 20480, 53, 0, 65535, 1024, 1025, 2047, 2048}
	protocols   = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_FRAGMENT, 47, 0}
)

func addresses(texts ...string) (all [][]byte) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text).AsSlice())
	}
	return all
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func ethernet(etherType int, packet ...[]byte) []byte {
	return slices.Concat([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, be16(etherType), slices.Concat(packet...))
}

// ipv4 is a header with words of options.
func ipv4(proto byte, fragment, options int, from, to []byte, length int) []byte {
	h := slices.Concat([]byte{byte(0x45 + options), 0}, be16(20+4*options+length), be16(7), be16(fragment), []byte{61, proto, 0, 0}, from, to)
	return append(h, bytes.Repeat([]byte{1}, 4*options)...)
}

func ipv6(next byte, from, to []byte, length int) []byte {
	return slices.Concat([]byte{0x60, 0, 0, 0}, be16(length), []byte{next, 62}, from, to)
}

// transport has ports, or what looks like some, and TCP's flags.
func transport(from, to uint16) []byte {
	return slices.Concat(be16(int(from)), be16(int(to)), make([]byte, 9), []byte{0x12}, bytes.Repeat([]byte{0, 80}, 6))
}

// arp is a request or an answer about addresses of IPv4.
func arp(hardware, protocol, hardwareLen int, from, to []byte) []byte {
	mac := []byte{2, 0, 0, 0, 0, 1}
	return slices.Concat(be16(hardware), be16(protocol), []byte{byte(hardwareLen), 4}, be16(1), mac, from, mac, to, make([]byte, 32))
}

func someTransport(random *rand.Rand) []byte {
	return transport(pick(random, portNumbers), pick(random, portNumbers))
}

// someFrame has all that a filter looks at.
func someFrame(random *rand.Rand) []byte {
	from, to := pick(random, addresses4), pick(random, addresses4)
	l4 := someTransport(random)
	switch random.IntN(9) {
	case 0:
		etherType := pick(random, []int{etherTypeARP, etherTypeRARP})
		return ethernet(etherType, arp(1, frame.EtherTypeIPv4, 6, from, to))
	case 1:
		etherType := pick(random, []int{0x88cc, 0x8100, 0x0008, 0xdd86, 0x0608, 0x0805})
		return ethernet(etherType, ipv4(unix.IPPROTO_TCP, 0, 0, from, to, len(l4)), l4)
	case 2, 3, 4, 5:
		fragment := pick(random, []int{0, 0, 0x4000, 0x2000, 0x2001, 0x0100, 0x1fff, 0x8000})
		return ethernet(frame.EtherTypeIPv4, ipv4(pick(random, protocols), fragment, random.IntN(11), from, to, len(l4)), l4)
	}
	from, to = pick(random, addresses6), pick(random, addresses6)
	next := pick(random, append(protocols, unix.IPPROTO_FRAGMENT, 0, 43, 60))
	if slices.Contains([]byte{unix.IPPROTO_FRAGMENT, 0, 43, 60}, next) {
		offset := pick(random, []int{0, 1, 8, 80, 443})
		l4 = slices.Concat([]byte{pick(random, protocols), 0}, be16(offset), be16(80), be16(443), l4)
	}
	return ethernet(frame.EtherTypeIPv6, ipv6(next, from, to, len(l4)), l4)
}

// wholeFrames are of all kinds, and long enough for all that a filter asks.
func wholeFrames(random *rand.Rand) (frames [][]byte) {
	a, b := addresses4[0], addresses4[1]
	l4 := transport(80, 443)
	for _, version := range []byte{0x05, 0x65, 0xf5} { // no IPv4, but the frame says so
		ip := ipv4(unix.IPPROTO_TCP, 0, 0, a, b, len(l4))
		ip[0] = version
		frames = append(frames, ethernet(frame.EtherTypeIPv4, ip, l4))
	}
	ip := ipv6(unix.IPPROTO_TCP, addresses6[0], addresses6[1], len(l4))
	ip[0] = 0x45
	frames = append(frames, ethernet(frame.EtherTypeIPv6, ip, l4))
	for len(frames) < 160 {
		frames = append(frames, someFrame(random))
	}
	return frames
}

// cutFrames end in each header, and between two; boundary is set for the latter.
func cutFrames() (frames [][]byte, boundary []bool) {
	a, b := addresses4[0], addresses4[1]
	l4 := transport(80, 443)
	fragment := append([]byte{unix.IPPROTO_TCP, 0, 0, 1, 0, 0, 0, 0}, l4...)
	for _, c := range []struct {
		frame []byte
		ends  []int // of headers, behind Ethernet's
	}{
		{ethernet(frame.EtherTypeIPv4, ipv4(unix.IPPROTO_TCP, 0, 0, a, b, len(l4)), l4), []int{0, 20, 24, 33, 34}},
		{ethernet(frame.EtherTypeIPv4, ipv4(unix.IPPROTO_UDP, 0, 2, a, b, len(l4)), l4), []int{0, 28, 32, 36}},
		{ethernet(frame.EtherTypeIPv6, ipv6(unix.IPPROTO_TCP, addresses6[0], addresses6[1], len(l4)), l4), []int{0, 40, 44, 54}},
		{ethernet(frame.EtherTypeIPv6, ipv6(unix.IPPROTO_FRAGMENT, addresses6[0], addresses6[1], len(fragment)), fragment), []int{0, 40, 41}},
		{ethernet(etherTypeARP, arp(1, frame.EtherTypeIPv4, 6, a, b)), []int{0, 28}},
	} {
		for _, end := range c.ends {
			for _, near := range []int{-3, -2, -1, 0, 1, 2, 3} {
				if n := 14 + end + near; n >= 14 {
					frames = append(frames, c.frame[:n])
					boundary = append(boundary, near == 0)
				}
			}
		}
	}
	return frames, boundary
}

// oddFrames are those that matches handles differently, as its comment says.
func oddFrames() [][]byte {
	a, b := addresses4[0], addresses4[1]
	short := ipv4(unix.IPPROTO_TCP, 0, 0, a, b, 26)
	short[0] = 0x44
	return [][]byte{
		ethernet(frame.EtherTypeIPv4, short, transport(80, 443)),
		ethernet(etherTypeARP, arp(32, frame.EtherTypeIPv4, 20, a, b)),
		ethernet(etherTypeARP, arp(1, frame.EtherTypeIPv6, 6, a, b)),
	}
}
