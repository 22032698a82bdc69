package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/gateway"
)

// Packet is the first packet of a connection, as it comes to the gateway.
type Packet struct {
	// Protocol is its IP number.
	Protocol uint8      `json:"protocol_number"`
	Src      netip.Addr `json:"source"`
	Dst      netip.Addr `json:"destination"`
	// SrcPort and DstPort are 0 where the protocol has none; of an echo request both
	// are its identifier.
	SrcPort uint16 `json:"source_port,omitempty"`
	DstPort uint16 `json:"destination_port,omitempty"`
	// In is the interface by which it comes; empty for one of the gateway's own.
	In string `json:"in,omitempty"`
}

// String is the form that ParsePacket reads.
func (p Packet) String() string {
	src, dst := endpoint{p.Src, p.SrcPort}, endpoint{p.Dst, p.DstPort}
	if p.isEcho() {
		dst.port = 0
	}
	return fmt.Sprintf("%s %s -> %s", p.name(), src, dst)
}

func (p Packet) name() string { return conntrack.ProtocolName(p.Protocol) }

func (p Packet) hasPorts() bool { return gateway.HasPorts(p.name()) }

// isEcho: natkit speaks of ICMP only as of echo requests, which have an identifier.
func (p Packet) isEcho() bool { return p.name() == "icmp" || p.name() == "icmpv6" }

// endpoint is an address and a port, 0 where there is none.
type endpoint struct {
	addr netip.Addr
	port uint16
}

func (e endpoint) String() string {
	if e.port == 0 {
		return e.addr.String()
	}
	return netip.AddrPortFrom(e.addr, e.port).String()
}

// errArrow: a shell takes the arrow apart, into an argument "-" and a file that it
// writes to.
var errArrow = errors.New(`packet: the shell took "> ADDRESS" for a file to write to: put the packet into quotes, "tcp 192.168.0.2:4000 -> 198.51.100.9:443", or leave the arrow out`)

const packetWords = `expected PROTOCOL SOURCE -> DESTINATION such as "tcp 192.168.0.2:4000 -> 198.51.100.9:443" or "icmp 192.168.0.2 -> 198.51.100.9"`

// ParsePacket reads "tcp 192.168.0.2:4000 -> 198.51.100.9:443", given as one word or
// as several; the arrow may be missing.
func ParsePacket(words []string) (Packet, error) {
	fields := strings.Fields(strings.NewReplacer("→", " -> ", "->", " -> ").Replace(strings.Join(words, " ")))
	if len(fields) > 0 && fields[len(fields)-1] == "-" {
		return Packet{}, errArrow
	}
	fields = slices.DeleteFunc(fields, func(f string) bool { return f == "->" || f == "to" })
	if len(fields) != 3 {
		return Packet{}, fmt.Errorf("packet %q: %s", strings.Join(words, " "), packetWords)
	}
	number, err := match.ParseProtocol(fields[0])
	if err != nil {
		return Packet{}, fmt.Errorf("packet: %w", err)
	}
	src, err := parseEndpoint(fields[1])
	if err != nil {
		return Packet{}, err
	}
	dst, err := parseEndpoint(fields[2])
	if err != nil {
		return Packet{}, err
	}
	p := Packet{Protocol: number, Src: src.addr, Dst: dst.addr, SrcPort: src.port, DstPort: dst.port}
	return p.whole()
}

func parseEndpoint(text string) (endpoint, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		a, err = netip.ParseAddr(strings.Trim(text, "[]"))
		ap = netip.AddrPortFrom(a, 0)
	}
	switch a := ap.Addr(); {
	case err != nil:
		return endpoint{}, fmt.Errorf("packet: %q is no address and port; %s", text, packetWords)
	case a.Zone() != "":
		return endpoint{}, fmt.Errorf("packet: %q: what belongs to one link is not forwarded; leave out %%%s", text, a.Zone())
	default:
		return endpoint{a.Unmap(), ap.Port()}, nil
	}
}

// usualPort is the source port where none is given: a client's.
const usualPort = 40000

// whole puts in what may be left out, and refuses what cannot be.
func (p Packet) whole() (Packet, error) {
	switch {
	case p.Src.BitLen() != p.Dst.BitLen():
		return p, fmt.Errorf("packet: %s and %s are not of one family", p.Src, p.Dst)
	case p.Src.IsUnspecified() || isGroup(p.Src):
		return p, fmt.Errorf("packet: %s is the source of nothing that is forwarded", p.Src)
	case p.Dst.IsUnspecified() || isGroup(p.Dst):
		return p, fmt.Errorf("packet: %s is no host's: what is sent there is not forwarded", p.Dst)
	case p.isEcho() && (p.name() == "icmp") != p.Src.Is4():
		return p, fmt.Errorf("packet: %s is not for %s", p.name(), p.Src)
	case p.isEcho():
		p.DstPort = p.SrcPort
	case !p.hasPorts() && p.SrcPort+p.DstPort != 0:
		return p, fmt.Errorf("packet: %s has no ports", p.name())
	case p.hasPorts() && p.DstPort == 0:
		return p, fmt.Errorf("packet: %s needs a destination port: %s", p.name(), endpoint{p.Dst, 443})
	case p.hasPorts() && p.SrcPort == 0:
		p.SrcPort = usualPort
	}
	return p, nil
}

// isGroup tells addresses of many hosts.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
