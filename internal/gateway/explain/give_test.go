package explain

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
)

func TestGivenAllows(t *testing.T) {
	one := func(text string) []gateway.Range {
		a := netip.MustParseAddr(text)
		return []gateway.Range{{First: a, Last: a}}
	}
	a, b := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	for _, c := range []struct {
		given Given
		addr  netip.Addr
		port  uint16
		want  bool
	}{
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, a, 4000, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, a, 4001, false},
		{Given{Addresses: one("203.0.113.1"), Port: 4000, First: 1024, Last: 65535}, a, 4001, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000, First: 1024, Last: 65535}, a, 80, false},
		{Given{Addresses: one("203.0.113.1")}, a, 0, true},
		{Given{Addresses: one("203.0.113.1"), First: 1024, Last: 2048}, a, 2048, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, b, 4000, false},
		{Given{Addresses: []gateway.Range{{First: a, Last: b}}, Port: 4000}, b, 4000, true},
	} {
		if got := c.given.Allows(c.addr, c.port); got != c.want {
			t.Errorf("%+v allows %s %d: %t", c.given, c.addr, c.port, got)
		}
	}
}

// TestIdentifiers: what an echo request has is no port, and where it was not given it stays
// all the same where it can.
func TestIdentifiers(t *testing.T) {
	a := netip.MustParseAddr("203.0.113.1")
	for _, c := range []struct {
		ports  gateway.Ports
		random gateway.Random
		id     uint16
		want   string
	}{
		{gateway.Ports{}, "", 77, "203.0.113.1:77; if that identifier is taken towards this destination, another of 0-65535"},
		{gateway.Ports{}, "", 0, "203.0.113.1; if its identifier is taken towards this destination, another of 0-65535"},
		{gateway.Ports{}, gateway.RandomFully, 0, "203.0.113.1 with a free identifier of 0-65535, at random"},
		{gateway.Ports{First: 5, Last: 9}, "", 0, "203.0.113.1 with its identifier where that is one of 5-9 and free, otherwise another of them"},
		{gateway.Ports{Keep: true}, "", 0, "203.0.113.1; if its identifier is taken towards this destination the packet is dropped"},
	} {
		s := gateway.Source{To: []gateway.Range{{First: a, Last: a}}, Ports: c.ports, Random: c.random}
		w := newWalk(&gateway.Plan{}, &gateway.Facts{}, nil, Packet{Protocol: 1, Src: a, Dst: a, SrcPort: c.id, DstPort: c.id})
		if got := w.words(w.give(&s), &s); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

func TestPorts(t *testing.T) {
	tcp, echo, gre := Packet{Protocol: 6}, Packet{Protocol: 1}, Packet{Protocol: 47}
	for _, c := range []struct {
		name               string
		ports              gateway.Ports
		random             gateway.Random
		packet             Packet
		port               uint16
		given, first, last uint16
	}{
		{"as it was", gateway.Ports{}, "", tcp, 4000, 4000, 1024, 65535},
		{"low", gateway.Ports{}, "", tcp, 511, 511, 1, 511},
		{"privileged", gateway.Ports{}, "", tcp, 700, 700, 600, 1023},
		{"between", gateway.Ports{}, "", tcp, 550, 550, 550, 1023},
		{"bounded", gateway.Ports{First: 2000, Last: 2999}, "", tcp, 2500, 2500, 2000, 2999},
		{"out of bounds", gateway.Ports{First: 2000, Last: 2999}, "", tcp, 4000, 0, 2000, 2999},
		{"random", gateway.Ports{}, gateway.RandomFully, tcp, 4000, 0, 1024, 65535},
		{"kept", gateway.Ports{Keep: true}, "", tcp, 4000, 4000, 0, 0},
		{"echo", gateway.Ports{}, "", echo, 7, 7, 0, 65535},
		{"echo, bounded", gateway.Ports{First: 1024, Last: 65535}, "", echo, 7, 0, 1024, 65535},
		{"no ports", gateway.Ports{First: 1024, Last: 65535}, "", gre, 0, 0, 0, 0},
	} {
		s := gateway.Source{Ports: c.ports, Random: c.random}
		given, first, last := givenPort(&s, c.packet, c.port)
		if given != c.given || first != c.first || last != c.last {
			t.Errorf("%s: %d of %d-%d, want %d of %d-%d", c.name, given, first, last, c.given, c.first, c.last)
		}
	}
}
