package gateway

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMarshal(t *testing.T) {
	f, err := Parse("every.yaml", []byte(every))
	if err != nil {
		t.Fatal(err)
	}
	const want = `gateway:
  engine: netfilter
  expect: {flows: 200k, rate: 5k/s}
  interfaces: {wan: eth0, lan: [eth1, br0]}
  mss: clamp
  flowtable: on
  limits: {connections-per-source: 2k}
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: 10.0.0.0/8, out: wan}
    - snat: {from: 192.168.0.2, to: 203.0.113.7}
    - snat: {from: 10.0.0.0/16, to: 203.0.113.8/29, ports: 1024-65535, random: fully, persistent: on}
    - snat: {from: 10.2.0.0/24, to: 203.0.113.32/27, ports: keep}
    - dnat: {on: 203.0.113.7, port: tcp/8080, to: 172.17.0.2:80, hairpin: on, local: on}
    - static: {inside: 192.168.0.3, outside: 203.0.113.9}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - notrack: {on: 203.0.113.10}
  ipv6:
    - netmap: {inside: fd00:1::/64, outside: 2001:db8:1::/64, stateless: on}
    - dnat: {on: wan, port: udp/53, to: "[fd00::2]:5353"}
`
	if diff := cmp.Diff(want, string(Marshal(&f.Config))); diff != "" {
		t.Error(diff)
	}
}

// Every field, and every value that YAML could misunderstand, comes back as it was.
func TestMarshalParse(t *testing.T) {
	for _, text := range []string{
		"gateway: {}",
		"gateway: {ipv6: [masquerade: {from: [fd00::/8, 2001:db8::5, ::5], except-to: [fd00:1:2::/64, 'fd00::']}]}",
		"gateway: {interfaces: {wan: [\"null\", \"-a\", \"a#b\", \"1e5\", \"0x1\", \"*x\", \"a'b\", \"on\", \"~\", \"{}\", \".a\", \"a-\", \"_\"]}}",
		"gateway: {mss: 1360, accounting: on, expect: {flows: 1}, nat: [masquerade: {ports: 4000, random: on}]}",
		"gateway: {ipv6: [static: {inside: 'fd00::', outside: '::2', stateless: on}, netmap: {inside: '::/0', outside: '::/0'}, snat: {to: ['::5-::7', '::8-::9'], persistent: off}]}",
		"gateway: {nat: [static: {inside: 1.1.1.1, outside: 2.2.2.2, hairpin: on, local: on}, notrack: {on: 1.1.1.1, port: udp/7-9}, dnat: {on: wan, from: [10.0.0.0/8], port: icmp, to: 1.1.1.1}]}",
		"gateway: {ipv6: [dnat: {on: wan, port: ip/89, to: '[fd02::10:80]'}, dnat: {on: wan, port: ip/6, to: 'fd00:1:2:3:4:5:6:80'}]}",
	} {
		marshalsBack(t, text)
	}
}

func marshalsBack(t *testing.T, text string) {
	t.Helper()
	f, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	written := Marshal(&f.Config)
	again, err := Parse("g", written)
	if err != nil {
		t.Fatalf("%s\nbecame\n%s%v", text, written, err)
	}
	if !reflect.DeepEqual(f.Config, again.Config) {
		t.Errorf("%s\nbecame\n%s", text, written)
	}
}
