package gateway

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCapacity(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - snat: {from: [10.0.0.0/16, 10.2.0.0/24], to: 203.0.113.8-203.0.113.15, ports: 10000-19999}
    - snat: {from: 10.3.0.0/16, to: [203.0.113.15, 203.0.113.20/30], ports: keep}
    - static: {inside: 192.168.0.3, outside: 203.0.113.30, hairpin: true}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - masquerade: {from: 10.4.0.0/16, out: ppp0}
  ipv6:
    - snat: {from: "fd00::/8", to: "2001:db8::/32"}`, router)
	ref := func(list string, i int, kind string) Ref { return Ref{List: list, Index: i, Kind: kind} }
	pool, keep, static := ref("nat", 1, "snat"), ref("nat", 2, "snat"), ref("nat", 3, "static")
	want := []PoolCapacity{
		{Rule: ref("nat", 0, "masquerade"), Addresses: 1, Ports: 64512, AtOnce: 64512, PerSecond: 537.6},
		{Rule: pool, Addresses: 8, Ports: 10000, AtOnce: 80000, PerSecond: 80000. / 120, SharedWith: []Ref{keep}},
		{Rule: keep, Addresses: 5, Ports: 64512, AtOnce: 5 * 64512, PerSecond: 2688, SharedWith: []Ref{pool}},
		{Rule: static, Addresses: 1, Ports: 64512, OneForOne: true, AtOnce: 64512, PerSecond: 537.6},
		{Rule: ref("nat", 4, "netmap"), Addresses: 256, Ports: 64512, OneForOne: true, AtOnce: 256 * 64512, PerSecond: 256 * 537.6},
		{Rule: ref("nat", 5, "masquerade"), Ports: 64512},
		{Rule: ref("ipv6", 0, "snat"), Addresses: math.MaxInt64, Ports: 64512, AtOnce: math.MaxInt64, PerSecond: math.MaxInt64 / 120.},
	}
	got := Capacity(p, router, 120)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Rules share an address where they may give the same of its ports.
func TestCapacityShared(t *testing.T) {
	body := roles + "\n  nat:\n"
	for i := range 16 {
		body += fmt.Sprintf("    - snat: {from: 192.168.1.%d/32, to: 203.0.113.9, ports: %d-%d}\n", i+1, 1024+4032*i, 1024+4032*i+4031)
	}
	shared := func(body string) (refs [][]Ref) {
		for _, c := range Capacity(compile(t, body, router), router, 120) {
			refs = append(refs, c.SharedWith)
		}
		return refs
	}
	if diff := cmp.Diff(make([][]Ref, 16), shared(body)); diff != "" {
		t.Error(diff)
	}
	got := shared(body + "    - snat: {from: 192.168.2.0/24, to: 203.0.113.8/31, ports: 5000-5100}\n")
	want := make([][]Ref, 17)
	want[0], want[16] = []Ref{{List: "nat", Index: 16, Kind: "snat"}}, []Ref{{List: "nat", Kind: "snat"}, {List: "nat", Index: 1, Kind: "snat"}}
	want[1] = want[0]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMissingInterfaces(t *testing.T) {
	p := compile(t, `
  interfaces: {wan: [eth0, wwan0]}
  nat:
    - masquerade: {out: ppp0}
    - dnat: {on: eth9, port: tcp/1, to: 192.168.0.2}`, router)
	if diff := cmp.Diff([]string{"eth9", "ppp0", "wwan0"}, MissingInterfaces(p, router)); diff != "" {
		t.Error(diff)
	}
	if got := MissingInterfaces(p, Facts{}); got != nil {
		t.Error("of a host that was not read:", got)
	}
}
