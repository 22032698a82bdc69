package behaviour

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
)

// attachment is a host's place and addresses.
type attachment struct {
	host Host
	dev  string
	mac  frame.MAC
	// next hops lead to networks that are the host's as a whole.
	next     []netip.Addr
	networks []netip.Prefix
	// neighbours are single addresses in networks of the gateway.
	neighbours []netip.Addr
}

func mac(last byte) frame.MAC { return frame.MAC{0x02, 'n', 'a', 't', 0, last} }

// gatewayMAC is that of an interface of the gateway.
var gatewayMAC = map[string]frame.MAC{LAN: mac(0x11), DMZ: mac(0x12), WAN: mac(0x13)}

var devices = []string{LAN, DMZ, WAN}

var gatewayAddresses = map[string][]netip.Prefix{
	LAN: {LANAddress, LANAddress6},
	DMZ: {DMZAddress, DMZAddress6},
	WAN: {WANAddress, WANAddress6},
}

// netmapInside is routed to the LAN: A has .2 there, B .3. The same network is behind the DMZ, where C has .2; the main table
// has the LAN's route first.
var netmapInside = netip.MustParsePrefix("10.1.0.0/24")

// attachments are the hosts of every world.
func attachments() []attachment {
	return []attachment{
		{host: A, dev: LAN, mac: mac(0xa), neighbours: insideAddresses(0),
			next:     []netip.Addr{netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:1::2")},
			networks: []netip.Prefix{netip.MustParsePrefix("fd01:203:405::/48"), netip.MustParsePrefix("fd03::/48")}},
		{host: B, dev: LAN, mac: mac(0xb), neighbours: insideAddresses(1)},
		{host: C, dev: DMZ, mac: mac(0xc), neighbours: []netip.Addr{
			netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("172.17.0.3"), netip.MustParseAddr("10.1.0.2"),
			netip.MustParseAddr("fd00:2::2"), netip.MustParseAddr("fd00:2::3")}},
		outside(X, 1, 0x1a), outside(Y, 2, 0x1b),
	}
}

func outside(h Host, n, last byte) attachment {
	return attachment{host: h, dev: WAN, mac: mac(last),
		next: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 250 + n}), netip.MustParseAddr(fmt.Sprintf("2001:db8:1::fff%d", n))},
		networks: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, n - 1, 0}), 24),
			netip.MustParsePrefix(fmt.Sprintf("2001:db8:f:%d::/64", n))},
	}
}

// insideAddresses are those of A (odd is 0) and of B (1) in the LAN.
func insideAddresses(odd byte) []netip.Addr {
	var all []netip.Addr
	for last := 2 + odd; last < 64; last += 2 {
		all = append(all, netip.AddrFrom4([4]byte{192, 168, 0, last}), netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", last)))
	}
	return append(all, netip.AddrFrom4([4]byte{10, 1, 0, 2 + odd}))
}

// deviceOf is where a host is attached.
func deviceOf(h Host) (attachment, bool) {
	for _, a := range attachments() {
		if a.host == h {
			return a, true
		}
	}
	return attachment{}, false
}

// hostOf returns the host that a frame leaving by an interface of the gateway is for.
func hostOf(dev string, to frame.MAC) (Host, bool) {
	for _, a := range attachments() {
		if a.dev == dev && a.mac == to {
			return a.host, true
		}
	}
	return "", false
}

// Facts are what Compile needs to know of the world's gateway.
func Facts() gateway.Facts {
	f := gateway.Facts{Known: true}
	for i, dev := range devices {
		f.Interfaces = append(f.Interfaces, gateway.Interface{
			Name: dev, Index: i + 2, Up: true, MTU: 1500, Addresses: gatewayAddresses[dev]})
	}
	return f
}
