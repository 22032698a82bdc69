package behaviour

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// sample draws gateways and packets.
type sample struct {
	t     *testing.T
	world *netnsWorld
	r     *rand.Rand
	// port is different for each packet, so that none finds the mapping of another.
	port, narrow uint16
	// ports are those that programs had, for the same reason.
	ports map[uint16]bool
	seen  map[string]int
	text  string
	plan  *gateway.Plan
	facts gateway.Facts
	// forms are the rules of IPv4 and of IPv6 that files are made of, ruleForms where empty.
	forms4, forms6 []string
	// sets are those that files have.
	sets string
	// classes are DSCPs that packets may have.
	classes []uint8
	// roles are interfaces of files, settings words beside them.
	roles, settings []string
}

func (s *sample) file() {
	s.draw()
	if err := s.world.Apply(s.plan); err != nil {
		s.t.Fatalf("%v\n%s", err, s.text)
	}
	for range samplePackets {
		if from, p, b := s.packet(); b != nil {
			s.send(from, p, b)
		}
	}
	for range 3 {
		s.program()
	}
}

// draw makes files until one compiles.
func (s *sample) draw() {
	for range 100 {
		s.text = s.rules()
		f, err := gateway.Parse("sample.yaml", []byte("gateway:\n"+indent(s.text)))
		if err != nil {
			s.t.Fatalf("%v\n%s", err, s.text)
		}
		if s.plan, err = gateway.Compile(&f.Config, s.facts); err == nil {
			return
		}
	}
	s.t.Fatal("no file of the sample compiles")
}

// ruleForms are rules with places for one of several words.
var ruleForms4 = []string{
	"masquerade: {from: FROM, except-to: EXCEPT}", "masquerade: {}", "masquerade: {from: FROM, out: OUT, random: RANDOM}",
	"snat: {from: FROM, to: POOL}", "snat: {from: FROM, to: POOL, ports: PORTS}", "snat: {from: FROM, to: [POOL, 203.0.113.90-203.0.113.95], persistent: off}",
	"snat: {from: FROM, to: POOL, random: RANDOM, except-to: EXCEPT}",
	"dnat: {on: ON, port: PORT, to: TARGET, hairpin: BOOL}", "dnat: {on: ON, port: PORT, to: TARGET, from: CLIENTS}",
	"dnat: {on: ON, port: PORT, to: [192.168.0.2, 192.168.0.3], balance: hash}",
	"dnat: {on: ON, to: TARGET, local: BOOL}", "dnat: {on: wan, port: udp/53, to: \"TARGET:5353\", hairpin: BOOL}",
	"static: {inside: HOST, outside: ON, hairpin: BOOL}", "static: {inside: HOST, outside: STATELESS, stateless: true}",
	"netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24, stateless: BOOL}",
	"notrack: {on: ON, port: PORT}", "notrack: {on: 198.18.0.1}",
}

var ruleForms6 = []string{
	"masquerade: {from: \"fd00:1::/64\"}", "snat: {from: \"fd00:1::2\", to: \"2001:db8:1::7\", ports: PORTS}",
	"dnat: {on: \"2001:db8:1::7\", port: PORT, to: \"fd00:2::2\", hairpin: BOOL}",
	"static: {inside: \"fd00:1::3\", outside: \"2001:db8:1::9\", hairpin: BOOL}",
	"netmap: {inside: \"fd00:1::/64\", outside: \"2001:db8:5::/64\", stateless: BOOL}",
	"netmap: {inside: \"fd00:2::/48\", outside: \"2001:db8:2::/48\", stateless: true}",
}

// ruleWords are in an order in which none is the beginning of a later one.
var ruleWords = []struct {
	word   string
	values []string
}{
	{"STATELESS", []string{"203.0.113.11", "203.0.113.12"}},
	{"CLIENTS", []string{"198.18.0.0/24", "198.18.1.1"}},
	{"EXCEPT", []string{"198.18.1.0/24", "198.18.0.1", "172.17.0.0/16"}},
	{"RANDOM", []string{"on", "fully"}},
	{"TARGET", []string{"192.168.0.2", "172.17.0.2", "192.168.0.3"}},
	{"SERVICES", []string{"[tcp/80, udp/53]", "tcp+udp/53", "udp/50-60", "[udp/53, udp/55, tcp/8080]", "[tcp/http, udp/domain, tcp/53-60]"}},
	{"MARK", []string{"0x10", "0x10/0xf0", "0x5/0x5", "0x1"}},
	{"HOURS", hoursAround(time.Now())},
	{"DAYS", daysAround(time.Now())},
	{"CLASS", []string{"cs1", "ef", "[cs2, 46]"}},
	{"PORTS", []string{"1024-65535", "2000-2999", "keep"}},
	{"PORT", []string{"tcp/80", "udp/53", "udp/50-60", "tcp", "icmp", "udp"}},
	{"POOL", []string{"203.0.113.7", "203.0.113.40-203.0.113.47", "203.0.113.64/29"}},
	{"FROM", []string{"192.168.0.0/16", "192.168.0.0/24", "192.168.0.2", "[192.168.0.3, 172.17.0.0/16]", "10.1.0.0/24"}},
	{"HOST", []string{"192.168.0.4", "192.168.0.5", "172.17.0.3"}},
	{"SET", []string{"$hosts", "$nets", "$wide", "$far"}},
	{"BOOL", []string{"true", "false"}},
	{"SEVERAL", []string{"\"l*\"", "\"w*\"", "[\"wa*\", lan, \"d*\"]", "group 7", "[group 7, group 0]", "[group 8]"}},
	{"OUT", []string{"wan", "lan", "dmz"}},
	{"ON", []string{"203.0.113.7", "203.0.113.9", "203.0.113.1"}},
}

// hoursAround are hours that a time is in or not, by far.
func hoursAround(t time.Time) []string {
	at := func(d time.Duration) string { return t.UTC().Add(d).Format("15:04") }
	return []string{at(-2*time.Hour) + "-" + at(2*time.Hour), at(2*time.Hour) + "-" + at(4*time.Hour), at(3*time.Hour) + "-" + at(-3*time.Hour),
		"[" + at(-5*time.Hour) + "-" + at(-4*time.Hour) + ", " + at(-time.Hour) + "-" + at(time.Hour) + "]"}
}

func daysAround(t time.Time) []string {
	day := func(n int) string { return nat.DayName(t.UTC().AddDate(0, 0, n).Weekday()) }
	return []string{day(0), day(2), day(-3) + "-" + day(-2), "[" + day(-1) + ", " + day(0) + ", " + day(1) + "]"}
}

func (s *sample) rules() string {
	var b strings.Builder
	if s.forms4 == nil {
		s.forms4, s.forms6 = ruleForms4, ruleForms6
	}
	roles := "wan: wan, lan: [lan, dmz]"
	if len(s.roles) > 0 {
		roles = pick(s.r, s.roles)
	}
	b.WriteString("interfaces: {" + roles + "}\n")
	if len(s.settings) > 0 && strings.Contains(roles, "wan:") {
		b.WriteString(pick(s.r, s.settings) + "\n")
	}
	b.WriteString(s.sets + "nat:\n")
	for range 2 + s.r.IntN(7) {
		fmt.Fprintf(&b, "  - %s\n", s.fill(pick(s.r, s.forms4)))
	}
	b.WriteString("ipv6:\n")
	for range 1 + s.r.IntN(3) {
		fmt.Fprintf(&b, "  - %s\n", strings.ReplaceAll(s.fill(pick(s.r, s.forms6)), "icmp,", "icmpv6,"))
	}
	return b.String()
}

func (s *sample) fill(form string) string {
	for _, w := range ruleWords {
		for strings.Contains(form, w.word) {
			form = strings.Replace(form, w.word, pick(s.r, w.values), 1)
		}
	}
	return form
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// ends4 and ends6 are who sends, destinations4 and destinations6 what is sent to.
var (
	ends4 = []end{at(A, "192.168.0.2:0"), at(A, "192.168.0.4:0"), at(A, "10.1.0.2:0"), at(B, "192.168.0.3:0"), at(B, "192.168.0.5:0"),
		at(C, "172.17.0.2:0"), at(C, "172.17.0.3:0"), at(X, "198.18.0.1:0"), at(X, "198.18.0.9:0"), at(Y, "198.18.1.1:0")}
	ends6 = []end{at(A, "[fd00:1::2]:0"), at(B, "[fd00:1::3]:0"), at(C, "[fd00:2::2]:0"), at(X, "[2001:db8:f:1::1]:0")}

	destinations4 = []string{"198.18.0.1", "198.18.0.10", "198.18.1.1", "198.18.1.20", "203.0.113.1", "203.0.113.7", "203.0.113.7", "203.0.113.9", "203.0.113.9",
		"203.0.113.11", "203.0.113.12", "198.51.100.2", "198.51.100.3", "192.168.0.2", "192.168.0.5", "172.17.0.2", "198.19.0.1"}
	destinations6 = []string{"2001:db8:f:1::10", "2001:db8:f:2::20", "2001:db8:1::7", "2001:db8:1::9", "2001:db8:5::2", "2001:db8:5::3", "fd00:2::2", "2001:db8:1::1",
		"2001:db8:5:0:cf43::2", "2001:db8:5:0:cf43::3", "2001:db8:2:cf47::2", "2001:db8:2:cf47::3"} // fd00:1::2, fd00:1::3 and so on, by NPTv6
)

// packet draws one, and its bytes.
func (s *sample) packet() (end, nat.Packet, []byte) {
	s.port++
	from, to := pick(s.r, ends4), pick(s.r, destinations4)
	if s.r.IntN(4) == 0 {
		from, to = pick(s.r, ends6), pick(s.r, destinations6)
	}
	at, _ := deviceOf(from.host)
	p := nat.Packet{Src: from.Addr(), Dst: netip.MustParseAddr(to), SrcPort: 3000 + s.port, DstPort: pick(s.r, []uint16{80, 53, 55, 8080}), In: at.dev}
	if s.r.IntN(5) == 0 && s.narrow < 1000 {
		p.SrcPort = 2000 + s.narrow // in the narrow range of ports
		s.narrow++
	}
	p.Protocol = pick(s.r, []uint8{unix.IPPROTO_UDP, unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP})
	if p.Protocol == unix.IPPROTO_ICMP {
		p.DstPort = p.SrcPort
		if p.Src.Is6() {
			p.Protocol = unix.IPPROTO_ICMPV6
		}
	}
	b := compose(p, false)
	p.At = time.Now()
	if len(s.classes) > 0 {
		p.DSCP = pick(s.r, s.classes)
		p.Mark = markedClasses[p.DSCP]
		giveClass(b, p.DSCP)
	}
	return from, p, b
}

// compose is a first packet, or an answer.
func compose(p nat.Packet, answer bool) []byte {
	src, dst := netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)
	switch p.Protocol {
	case unix.IPPROTO_UDP:
		return UDPPacket(src, dst, "")
	case unix.IPPROTO_TCP:
		h := frame.TCP{Flags: frame.SYN, SequenceNumber: 1000}
		if answer {
			h.Flags, h.AcknowledgmentNumber = frame.SYN|frame.ACK, 1001
		}
		return tcp(src, dst, h, nil).bytes()
	}
	if answer {
		return pong(p.Src, p.Dst, p.SrcPort, 1).bytes()
	}
	return ping(p.Src, p.Dst, p.SrcPort, 1).bytes()
}
