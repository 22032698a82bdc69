// Package packets describes runs of generated packets: their flows, sizes and headers, the
// token that identifies each of them at the receiver, the expected translation, and the result.
package packets

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/unix"
)

// MaxCycle is how many sizes or flag sets follow each other before they come again.
const MaxCycle = 64

// maxFrame fits into one page with the kernel's part (TEST_XDP_FRAME_SIZE less
// XDP_PACKET_HEADROOM and skb_shared_info in net/bpf/test_run.c), FCS included.
const maxFrame = 3072

// ParseFlagCycle parses the flags of a flow's segments in turn: "syn", or "syn,ack:10,fin+ack",
// where :10 repeats a segment ten times.
func ParseFlagCycle(text string) ([]frame.TCPFlags, error) {
	var cycle []frame.TCPFlags
	for part := range strings.SplitSeq(text, ",") {
		names, times, counted := strings.Cut(strings.TrimSpace(part), ":")
		n := 1
		if counted {
			var err error
			if n, err = strconv.Atoi(times); err != nil || n < 1 || n > MaxCycle {
				return nil, fmt.Errorf("TCP flags %q: %q must be a number from 1 to %d", text, times, MaxCycle)
			}
		}
		flags, err := frame.ParseTCPFlags(names)
		if err != nil {
			return nil, fmt.Errorf("TCP flags %q: %w", text, err)
		}
		if len(cycle)+n > MaxCycle {
			return nil, fmt.Errorf("TCP flags %q: more than %d segments", text, MaxCycle)
		}
		cycle = append(cycle, slices.Repeat([]frame.TCPFlags{flags}, n)...)
	}
	return cycle, nil
}

// Spec is what all packets of a run have in common.
type Spec struct {
	IPv6 bool `json:"ipv6"`
	// Protocol is IPPROTO_UDP or IPPROTO_TCP.
	Protocol uint8 `json:"protocol"`
	// TCPFlags are those of a flow's segments, one after the other, then again.
	TCPFlags []frame.TCPFlags `json:"tcp_flags,omitempty"`
	// Sizes are those of frames, FCS included, one after the other, then again.
	Sizes []int `json:"frame_bytes"`
	// VLAN is the tag's VLAN identifier; 0 for no tag.
	VLAN uint16 `json:"vlan,omitempty"`
	// DSCP is the code point (RFC 2474).
	DSCP     uint8 `json:"dscp,omitempty"`
	HopLimit uint8 `json:"hop_limit"`
}

// HeaderLen is the length of all from the Ethernet header to the token.
func (s Spec) HeaderLen() int {
	n := frame.EthernetLen + frame.IPv4Len + frame.UDPLen + TokenLen
	if s.VLAN != 0 {
		n += frame.VLANLen
	}
	if s.IPv6 {
		n += frame.IPv6Len - frame.IPv4Len
	}
	if s.Protocol == unix.IPPROTO_TCP {
		n += frame.TCPLen - frame.UDPLen
	}
	return n
}

// MinSize returns the smallest frame with a token, FCS included; at least Ethernet's 64.
func (s Spec) MinSize() int { return max(64, s.HeaderLen()+frame.FCSLen) }

// MaxSize is the greatest of Sizes.
func (s Spec) MaxSize() int { return slices.Max(s.Sizes) }

// Check finds what cannot be sent.
func (s Spec) Check() error {
	switch {
	case s.Protocol != unix.IPPROTO_UDP && s.Protocol != unix.IPPROTO_TCP:
		return fmt.Errorf("protocol %d: only UDP and TCP are sent", s.Protocol)
	case s.Protocol == unix.IPPROTO_TCP && len(s.TCPFlags) == 0:
		return fmt.Errorf("TCP without flags: give them, for instance syn")
	case len(s.TCPFlags) > MaxCycle || len(s.Sizes) > MaxCycle:
		return fmt.Errorf("%d flag sets and %d sizes: at most %d of each", len(s.TCPFlags), len(s.Sizes), MaxCycle)
	case len(s.Sizes) == 0:
		return fmt.Errorf("no frame size is given")
	case s.VLAN > 4094:
		return fmt.Errorf("VLAN %d: must be 1 to 4094", s.VLAN)
	case s.DSCP > 63:
		return fmt.Errorf("DSCP %d: must be 0 to 63", s.DSCP)
	case s.HopLimit == 0:
		return fmt.Errorf("hop limit 0: must be 1 to 255")
	}
	for _, size := range s.Sizes {
		if size < s.MinSize() || size > maxFrame {
			return fmt.Errorf("frame size %d: %s with a token needs %d to %d bytes, FCS included", size, s.stack(), s.MinSize(), maxFrame)
		}
	}
	return nil
}

func (s Spec) stack() string {
	name := "UDP"
	if s.Protocol == unix.IPPROTO_TCP {
		name = "TCP"
	}
	if s.IPv6 {
		name += " over IPv6"
	} else {
		name += " over IPv4"
	}
	if s.VLAN != 0 {
		name += " in a VLAN"
	}
	return name
}

// Token begins every payload, in network byte order.
type Token struct {
	// Run identifies the packets of one run.
	Run uint32
	// Flow counts from 0.
	Flow uint32
	// Sequence counts the packets of the flow from 0; it wraps after 2^32.
	Sequence uint32
}

// TokenLen is the length of a Token on the wire, in bytes.
const TokenLen = 12

// Put writes the token to the start of b, which has room for TokenLen bytes.
func (t Token) Put(b []byte) {
	binary.BigEndian.PutUint32(b, t.Run)
	binary.BigEndian.PutUint32(b[4:], t.Flow)
	binary.BigEndian.PutUint32(b[8:], t.Sequence)
}

// ParseToken parses the token at the start of a payload; false if that is too short.
func ParseToken(b []byte) (t Token, ok bool) {
	if len(b) < TokenLen {
		return Token{}, false
	}
	return Token{
		Run:      binary.BigEndian.Uint32(b),
		Flow:     binary.BigEndian.Uint32(b[4:]),
		Sequence: binary.BigEndian.Uint32(b[8:]),
	}, true
}

// maxSize is the largest frame of a list: the largest IP packet with Ethernet header, 802.1Q tag
// and FCS. The caller checks what the link carries.
const maxSize = 65535 + frame.EthernetLen + frame.VLANLen + frame.FCSLen

// imix is the simple Internet mix (RFC 6985, section 2: 7:4:1): frame sizes and their weights.
var imix = []struct{ size, weight int }{{64, 7}, {594, 4}, {1518, 1}}

// ParseSizes parses sizes of Ethernet frames with FCS (RFC 2544): one number, several separated
// by commas, or "imix". Packets take them in turn. The caller checks the least size.
func ParseSizes(s string) ([]int, error) {
	if strings.EqualFold(s, "imix") {
		return mixed(), nil
	}
	fields := strings.Split(s, ",")
	if len(fields) > MaxCycle {
		return nil, fmt.Errorf("sizes: %d of them, at most %d are taken", len(fields), MaxCycle)
	}
	sizes := make([]int, 0, len(fields))
	for _, field := range fields {
		size, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("size %q: want a number of bytes, several with commas between, or imix", field)
		}
		if size < 1 || size > maxSize {
			return nil, fmt.Errorf("size %d: want 1 to %d bytes", size, maxSize)
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// mixed spreads the parts of the mix evenly: each step credits every part with its weight, and
// takes the total from the one with most.
func mixed() []int {
	total := 0
	for _, part := range imix {
		total += part.weight
	}
	credit := make([]int, len(imix))
	sizes := make([]int, 0, total)
	for range total {
		most := 0
		for i, part := range imix {
			credit[i] += part.weight
			if credit[i] > credit[most] {
				most = i
			}
		}
		credit[most] -= total
		sizes = append(sizes, imix[most].size)
	}
	return sizes
}

// Build appends one of the frames that s describes: headers, token and zeros, length bytes in all
// without FCS, at least HeaderLen. flags are those of a TCP segment; t is of s's family. It is
// the reference for the generator's eBPF program.
func Build(b []byte, link frame.Link, s *Spec, t frame.Tuple, token Token, length int, flags frame.TCPFlags) []byte {
	etherType := uint16(frame.EtherTypeIPv4)
	if s.IPv6 {
		etherType = frame.EtherTypeIPv6
	}
	payload := make([]byte, TokenLen+max(0, length-s.HeaderLen()))
	token.Put(payload)
	var segment []byte
	if s.Protocol == unix.IPPROTO_TCP {
		segment = frame.AppendTCP(nil, t, tcpHeader(token.Flow, flags), payload)
	} else {
		segment = frame.AppendUDP(nil, t, payload, false)
	}
	ip := frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: s.Protocol, TTL: s.HopLimit, DSCP: s.DSCP, DontFragment: true}
	return ip.Append(link.Append(b, s.VLAN, etherType), segment)
}

// tcpHeader returns the header of a segment at the start of its flow's sequence space. The
// initial sequence number is the flow's number times 0x9e3779b1 (2^32 divided by the golden
// ratio), which spreads flows; only SYNs have it, others the next one.
func tcpHeader(flow uint32, flags frame.TCPFlags) frame.TCP {
	h := frame.TCP{SequenceNumber: flow * 0x9e3779b1, Flags: flags, Window: 0xffff}
	if flags&frame.SYN == 0 {
		h.SequenceNumber++
	}
	if flags&frame.ACK != 0 {
		h.AcknowledgmentNumber = 1
	}
	return h
}
