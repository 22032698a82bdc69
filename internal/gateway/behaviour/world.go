package behaviour

import (
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
)

// World is where a case takes place: a gateway with interfaces "lan", "dmz" and
// "wan", and hosts at them. It passes packets to the gateway and reports what the
// gateway did with them. The hosts answer nothing on their own.
//
// One implementation is Namespaces; an engine of eBPF programs can have one that runs
// them by BPF_PROG_TEST_RUN.
type World interface {
	// Apply has the engine carry out a plan, in place of the one before.
	Apply(*gateway.Plan) error
	// Remove has the engine take away what it has applied.
	Remove() error
	// Send lets a host send IP packets one after the other, and gives all that arrives
	// at any host in consequence. When it returns the gateway has done all it does
	// about them, so that what is not there does not come any more.
	Send(from Host, packets ...[]byte) (Arrivals, error)
	// Pass lets time pass.
	Pass(time.Duration) error
	// Timers sets how long the engine keeps mappings. Whole seconds.
	Timers(map[Timer]time.Duration) error
	// Mappings are what the engine holds, in no order.
	Mappings() ([]Mapping, error)
	// Failures is how many packets were dropped since the start as no mapping could
	// be made for them.
	Failures() (uint64, error)
	// MTU sets that of one of the gateway's interfaces, in bytes of IP.
	MTU(dev string, bytes int) error
	// Sysctl sets one of the gateway's.
	Sysctl(name, value string) error
	// Neighbour has the gateway know the link-layer address of a host's address, or not, and gives what arrives in
	// consequence. It asks for one that it does not know, and gets no answer.
	Neighbour(h Host, a netip.Addr, known bool) (Arrivals, error)
	// Mark has a rule of another program mark all that a host sends (skb->mark), before any rule of the engine.
	Mark(from Host, mark uint32) error
	// Group puts one of the gateway's interfaces into a link group.
	Group(dev string, group uint32) error
	// Use has the engine leave hosts of a plan that is in force out of the choice of new connections, by rule, as
	// checks that fail do. Steer divides new connections among the uplinks that are up.
	Use(p *gateway.Plan, out map[gateway.Ref][]bool) error
	Steer(p *gateway.Plan, up func(u *gateway.Uplink, v6 bool) bool) error
	// Program is a UDP socket of a program on the gateway itself. The error wraps
	// errors.ErrUnsupported where the world has none.
	Program(Socket) (Program, error)
	// Close removes the world.
	Close() error
}

// Socket says what a program on the gateway opens, and who runs it. Port 0 is any, users and groups 0 are root's.
type Socket struct {
	Port        uint16
	User, Group int
}

// Program is a UDP socket on the gateway.
type Program interface {
	// Send is World's.
	Send(to netip.AddrPort, payload string) (Arrivals, error)
	// Receive gives what has come, one datagram; ok is false where nothing has.
	Receive() (payload string, from netip.AddrPort, ok bool, err error)
	Close() error
}

// Host is one at an interface of the gateway.
type Host string

// The hosts, and what addresses they have. A and B share the LAN.
const (
	// A has the even addresses from 192.168.0.2 to .62 and of fd00:1::/64, 10.1.0.2, and
	// all of fd01:203:405::/48 and fd03::/48.
	A Host = "a"
	// B has the odd ones from 192.168.0.3 to .63, 10.1.0.3.
	B Host = "b"
	// C is in another network inside: 172.17.0.0/24 and fd00:2::/64 behind "dmz". It has 10.1.0.2 there, too.
	C Host = "c"
	// X has all of 198.18.0.0/24 and 2001:db8:f:1::/64, behind "wan".
	X Host = "x"
	// Y has all of 198.18.1.0/24 and 2001:db8:f:2::/64.
	Y Host = "y"
)

// Interfaces of the gateway.
const (
	LAN = "lan"
	DMZ = "dmz"
	WAN = "wan"
)

// Addresses of the gateway itself. It answers for them as any host does.
var (
	LANAddress = netip.MustParsePrefix("192.168.0.1/24")
	DMZAddress = netip.MustParsePrefix("172.17.0.1/24")
	WANAddress = netip.MustParsePrefix("203.0.113.1/24")

	LANAddress6 = netip.MustParsePrefix("fd00:1::1/64")
	DMZAddress6 = netip.MustParsePrefix("fd00:2::1/64")
	WANAddress6 = netip.MustParsePrefix("2001:db8:1::1/64")
)

// DefaultGateway masquerades everything from inside, of both families.
const DefaultGateway = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {}
ipv6:
  - masquerade: {}
`

// Arrival is a packet that came to a host.
type Arrival struct {
	At Host
	// Packet is the IP packet, Frame what it says.
	Packet []byte
	Frame  frame.Frame
}

// Arrivals are in the order in which they came to each host.
type Arrivals []Arrival

// At are those at one host.
func (a Arrivals) At(h Host) Arrivals {
	var at Arrivals
	for i := range a {
		if a[i].At == h {
			at = append(at, a[i])
		}
	}
	return at
}

// Timer names what a mapping's life depends on.
type Timer string

// The timers. Engines without one of them ignore it.
const (
	// UDP is that of a mapping that has seen no answer, UDPStream of one that has.
	UDP       Timer = "udp"
	UDPStream Timer = "udp-stream"
	ICMP      Timer = "icmp"
	ICMPv6    Timer = "icmpv6"
	// Other protocols.
	Generic Timer = "generic"
	// The states of TCP.
	TCPSynSent     Timer = "tcp-syn-sent"
	TCPSynRecv     Timer = "tcp-syn-recv"
	TCPEstablished Timer = "tcp-established"
	TCPFinWait     Timer = "tcp-fin-wait"
	TCPCloseWait   Timer = "tcp-close-wait"
	TCPLastAck     Timer = "tcp-last-ack"
	TCPTimeWait    Timer = "tcp-time-wait"
	TCPClose       Timer = "tcp-close"
)

// Mapping is one that an engine holds.
type Mapping struct {
	Protocol uint8
	// Inside is the host's own address and port (the identifier of an echo), Outside
	// what it is seen as, Remote the other side; Remote is not valid where the
	// mapping is for all.
	Inside, Outside, Remote netip.AddrPort
	// Left is how long it lives without another packet, in whole seconds.
	Left time.Duration
	// State is that of TCP, in the engine's words; for errors, not for outcomes.
	State string
}
