// Package packet builds and parses the frames of load generators: flows, sizes,
// headers with their checksums, and the token by which a receiver tells what
// became of each packet.
package packet

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Lengths of headers on the wire, in bytes.
const (
	EthernetLen = 14
	FCSLen      = 4
	VLANLen     = 4
	IPv4Len     = 20
	IPv6Len     = 40
	UDPLen      = 8
	TCPLen      = 20
)

// MaxCycle is how many sizes or flag sets follow each other before they come again.
const MaxCycle = 64

// maxFrame is what one page holds besides the kernel's own part, FCS included
// (TEST_XDP_FRAME_SIZE less XDP_PACKET_HEADROOM and skb_shared_info in
// net/bpf/test_run.c, with room to spare for other configurations).
const maxFrame = 3072

// TCPFlags are the flag bits of a TCP header (RFC 9293, section 3.1).
type TCPFlags uint8

// The flags by their bits.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

var tcpFlagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

func (f TCPFlags) String() string {
	var names []string
	for i, name := range tcpFlagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// MarshalText lets JSON have the names; a list of bare flag sets would become base64.
func (f TCPFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (f *TCPFlags) UnmarshalText(text []byte) (err error) {
	*f = 0
	if len(text) > 0 {
		*f, err = parseFlagSet(string(text))
	}
	return err
}

// ParseTCPFlags reads what the segments of a flow carry one after the other:
// "syn", or "syn,ack:10,fin+ack", where :10 stands for ten such segments.
func ParseTCPFlags(text string) ([]TCPFlags, error) {
	var cycle []TCPFlags
	for part := range strings.SplitSeq(text, ",") {
		names, times, counted := strings.Cut(strings.TrimSpace(part), ":")
		n := 1
		if counted {
			var err error
			if n, err = strconv.Atoi(times); err != nil || n < 1 || n > MaxCycle {
				return nil, fmt.Errorf("TCP flags %q: %q must be a number from 1 to %d", text, times, MaxCycle)
			}
		}
		flags, err := parseFlagSet(names)
		if err != nil {
			return nil, fmt.Errorf("TCP flags %q: %w", text, err)
		}
		if len(cycle)+n > MaxCycle {
			return nil, fmt.Errorf("TCP flags %q: more than %d segments", text, MaxCycle)
		}
		cycle = append(cycle, slices.Repeat([]TCPFlags{flags}, n)...)
	}
	return cycle, nil
}

func parseFlagSet(names string) (set TCPFlags, err error) {
	for name := range strings.SplitSeq(strings.ToLower(names), "+") {
		i := slices.Index(tcpFlagNames, name)
		if i < 0 {
			return 0, fmt.Errorf("%q is none of %s (joined by +)", name, strings.Join(tcpFlagNames, ", "))
		}
		set |= 1 << i
	}
	return set, nil
}

// Spec is what all packets of a run have in common.
type Spec struct {
	IPv6 bool `json:"ipv6"`
	// Protocol is IPPROTO_UDP or IPPROTO_TCP.
	Protocol uint8 `json:"protocol"`
	// TCPFlags are those of a flow's segments, one after the other, then again.
	TCPFlags []TCPFlags `json:"tcp_flags,omitempty"`
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
	n := EthernetLen + IPv4Len + UDPLen + TokenLen
	if s.VLAN != 0 {
		n += VLANLen
	}
	if s.IPv6 {
		n += IPv6Len - IPv4Len
	}
	if s.Protocol == unix.IPPROTO_TCP {
		n += TCPLen - UDPLen
	}
	return n
}

// MinSize is the least frame that carries a token, FCS included; never less than
// Ethernet's 64.
func (s Spec) MinSize() int { return max(64, s.HeaderLen()+FCSLen) }

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

// Token is the first part of every test packet's payload. All fields are in
// network byte order on the wire.
type Token struct {
	// Run tells the packets of one run from all others on the wire.
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

// ParseToken reads the token at the start of a payload; ok is false where the
// payload is too short for one.
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
