package pktgen

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
)

// TestSinkExpects compares the receiver with packets.End.Fits: all rules of both ends,
// with addresses and ports that fit, nearly fit, and do not.
func TestSinkExpects(t *testing.T) {
	fits, misses := 0, 0
	for _, kind := range []stack{{"IPv4", false, false, 0}, {"IPv6", true, true, 0}} {
		cfg := kind.config()
		cfg.Flows.Count = 4
		ends := everyEnd(kind.ipv6)
		for i := range ends {
			cfg.Expect = packets.Expectation{Source: ends[i], Destination: ends[(i*7+3)%len(ends)]}
			s := loadSink(t, cfg, false)
			for range 60 {
				if s.expectOne() {
					fits++
				} else {
					misses++
				}
			}
		}
	}
	if fits < 1000 || misses < 1000 {
		t.Errorf("%d packets fit, %d do not: too few of one kind", fits, misses)
	}
}

// everyEnd has all rules, with prefixes that end at and within bytes and words.
func everyEnd(ipv6 bool) (ends []packets.End) {
	prefixes := []string{"203.0.113.7/32", "203.0.113.64/26", "203.0.0.0/15", "0.0.0.0/0"}
	if ipv6 {
		prefixes = []string{"2001:db8:77::7/128", "2001:db8:77::/64", "2001:db8:77:8000::/49", "2001:db8::/32", "::/0"}
	}
	addresses := []packets.End{{}, {Address: packets.Same}}
	for _, p := range prefixes {
		prefix := netip.MustParsePrefix(p)
		addresses = append(addresses, packets.End{Address: packets.Inside, Prefix: prefix}, packets.End{Address: packets.Netmap, Prefix: prefix})
	}
	for _, a := range addresses {
		for _, ports := range []packets.End{
			{}, {Port: packets.Same}, {Port: packets.Inside, Ports: nat.Ports{First: 80, Last: 80}},
			{Port: packets.Inside, Ports: nat.Ports{First: 255, Last: 33000}}, // as bytes, the last one is less
		} {
			end := a
			end.Port, end.Ports = ports.Port, ports.Ports
			ends = append(ends, end)
		}
	}
	return ends
}

// expectOne sends a packet of a flow with what a NAT might have made of it.
func (s *sinkTest) expectOne() (fits bool) {
	s.t.Helper()
	flow := s.random.IntN(len(s.flows))
	sent := s.flows[flow]
	got := frame.Tuple{
		Src: s.translated(s.cfg.Expect.Source, sent.Src, sent.Dst),
		Dst: s.translated(s.cfg.Expect.Destination, sent.Dst, sent.Src),
	}
	fits = s.cfg.Expect.Source.Fits(sent.Src, got.Src) && s.cfg.Expect.Destination.Fits(sent.Dst, got.Dst)
	frame := s.frame(got, uint32(flow), 0, 100)
	want := pktgenSinkCounters{Misdelivered: 1}
	if fits {
		want = pktgenSinkCounters{Received: 1, Octets: uint64(len(frame))}
	}
	verdict, c := s.put(frame)
	c.Duplicated = 0 // the sequence number is always the same
	if verdict != xdpDrop || c != want {
		s.t.Fatalf("expected %+v, sent %v, got %v: verdict %d, %+v", s.cfg.Expect, sent, got, verdict, c)
	}
	return fits
}

func (s *sinkTest) translated(end packets.End, sent, other netip.AddrPort) netip.AddrPort {
	address := []netip.Addr{sent.Addr(), other.Addr()}[s.random.IntN(8)/7]
	if end.Prefix.IsValid() && s.random.IntN(4) > 0 {
		address = mapInto(end.Prefix, sent.Addr())
	}
	if s.random.IntN(3) == 0 { // one bit is wrong, which a prefix may leave open
		b := address.AsSlice()
		b[s.random.IntN(len(b))] ^= 1 << s.random.IntN(8)
		address, _ = netip.AddrFromSlice(b)
	}
	ports := []uint16{sent.Port(), sent.Port(), sent.Port(), 80, 79, 81, 254, 255, 256, 32999, 33000, 33001, 0, 65535}
	if s.random.IntN(3) > 0 && end.Port == packets.Inside {
		ports = []uint16{end.Ports.First, end.Ports.Last}
	}
	return netip.AddrPortFrom(address, ports[s.random.IntN(len(ports))])
}

// mapInto is what NETMAP does: the prefix's bits, and the address's behind them.
func mapInto(p netip.Prefix, a netip.Addr) netip.Addr {
	b, net := a.AsSlice(), p.Addr().AsSlice()
	for i := range p.Bits() {
		mask := byte(0x80) >> (i % 8)
		b[i/8] = b[i/8]&^mask | net[i/8]&mask
	}
	mapped, _ := netip.AddrFromSlice(b)
	return mapped
}
