package observe

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
)

// router is a host with one interface outside and one inside.
var router = gateway.Facts{Known: true, Flowtable: gateway.Support{OK: true}, Interfaces: []gateway.Interface{
	{Name: "lo", Index: 1, Up: true, Addresses: prefixes("127.0.0.1/8", "::1/128")},
	{Name: "eth0", Index: 2, Up: true, MTU: 1500, Addresses: prefixes("203.0.113.1/24", "203.0.113.2/24", "2001:db8::1/64", "fe80::1/64")},
	{Name: "eth1", Index: 3, Up: true, MTU: 1500, Addresses: prefixes("192.168.0.1/24", "fd00:1::1/64")},
}}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

const roles = `
  interfaces: {wan: eth0, lan: eth1}`

const manyKinds = roles + `
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: 10.0.0.0/8}
    - snat: {from: 192.168.0.2, to: 203.0.113.7}
    - snat: {from: 10.0.0.0/16, to: [203.0.113.8-203.0.113.15]}
    - dnat: {on: 203.0.113.7, port: tcp/8080, to: "172.17.0.2:80", hairpin: true}
    - dnat: {on: 203.0.113.7, port: udp/5000-5600, to: 172.17.0.3, from: 198.51.100.0/24}
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, hairpin: true}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - dnat: {on: 203.0.113.7, to: 172.17.0.4}`

// compile makes the plan of what stands below the key gateway.
func compile(t testing.TB, body string, facts gateway.Facts) *gateway.Plan {
	t.Helper()
	f, err := gateway.Parse("test.yaml", []byte("gateway:"+body+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, facts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// routes returns the routes of the host in facts: to its own addresses, to its networks, all else
// by eth0.
func routes(f gateway.Facts) Router {
	return func(w Lookup) (Hop, error) {
		for _, i := range f.Interfaces {
			for _, p := range i.Addresses {
				if p.Addr() == w.Destination {
					return Hop{Local: true}, nil
				}
			}
		}
		for _, i := range f.Interfaces {
			for _, p := range i.Addresses {
				if p.Contains(w.Destination) {
					return Hop{Out: i.Name}, nil
				}
			}
		}
		if w.Destination == netip.MustParseAddr("198.18.9.9") {
			return Hop{Unreachable: "there is no route"}, nil
		}
		return Hop{Out: "eth0", Gateway: netip.MustParseAddr("203.0.113.254")}, nil
	}
}

// BenchmarkFollow asks a plan of 10,000 port forwards.
func BenchmarkFollow(b *testing.B) {
	var rules strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&rules, "\n    - dnat: {on: 203.0.113.7, port: tcp/%d, to: \"192.168.0.2:80\"}", 1000+i)
	}
	p := compile(b, roles+"\n  nat:"+rules.String(), router)
	packet, err := ParsePacket([]string{"tcp 192.168.0.9:4000 -> 203.0.113.7:1500"})
	if err != nil {
		b.Fatal(err)
	}
	packet.In = "eth1"
	for b.Loop() {
		if _, err := Follow(p, router, routes(router), packet); err != nil {
			b.Fatal(err)
		}
	}
}
