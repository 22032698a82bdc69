package netfilter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

const uplinksText = `gateway:
  interfaces: {wan: [{interface: eth0, weight: 3, via: 203.0.113.1}, {interface: ppp0}], lan: lan0}
  nat: [masquerade: {}]
  ipv6: [masquerade: {}]
`

// nft(8) has no words for a named map that a hash is looked up in, so that what it shows is compared, and not what
// it makes of a file.
func TestUplinks(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	ns, p := testutil.Namespace(t), planOfText(t, "uplinks", uplinksText)
	if err := Apply(ns, p); err != nil {
		t.Fatal(err)
	}
	text := listing(t, ns)
	for _, want := range []string{
		`meta mark set meta mark & 0xf1ffffff | 0x01000000 comment "wan eth0"`, `ct mark set ct mark & 0xf1ffffff | 0x01000000 comment "wan eth0"`, `accept comment "wan eth0"`,
		`meta mark set meta mark & 0xf2ffffff | 0x02000000 comment "wan ppp0"`, `ct mark set ct mark & 0xf2ffffff | 0x02000000 comment "wan ppp0"`, `accept comment "wan ppp0"`,
		`type filter hook prerouting priority mangle + 5; policy accept;`, `type route hook output priority mangle + 5; policy accept;`,
		`ct mark & 0x0f000000 vmap { 0x01000000 : jump uplink-1, 0x02000000 : jump uplink-2 } comment "wan of the connection"`,
		`meta mark & 0x0f000000 vmap { 0x01000000 : jump uplink-1, 0x02000000 : jump uplink-2 } comment "wan by another program's mark"`,
		`ct state new,untracked iifname vmap { "eth0" : jump uplink-1, "ppp0" : jump uplink-2 } comment "wan in"`,
		`ct state new,untracked iifname "lan0" jhash ip saddr mod 128 seed 0x6e61746b vmap @uplinks4 comment "wan out"`,
		`ct state new,untracked iifname "lan0" jhash ip6 saddr mod 128 seed 0x6e61746b vmap @uplinks6 comment "wan out"`,
		`ct state new oifname @uplinks-out4 jhash ip saddr mod 128 seed 0x6e61746b vmap @uplinks4 comment "wan of own connections"`,
		`ct mark & 0x0f000000 != 0x00000000 fib saddr type local oifname vmap { "eth0" : jump uplink-1, "ppp0" : jump uplink-2 } comment "wan of own connections"`,
		`ct mark & 0x0f000000 != 0x00000000 fib saddr type local oifname { "eth0", "ppp0" } fib saddr . oif type != local masquerade comment "wan of own connections"`,
		"0x00000000 : jump uplink-1", "0x0000007f : jump uplink-1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(text, "jump uplink-1"); n != 6+2*96 {
		t.Errorf("%d times uplink-1", n)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Steer changes which uplink slots have, and nothing else: the table counts as it was written.
func TestSteer(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	ns, p := testutil.Namespace(t), planOfText(t, "uplinks", uplinksText)
	seal, err := Engine{}.Apply(ns, p, "d")
	if err != nil {
		t.Fatal(err)
	}
	before := listing(t, ns)
	steered := func(want [2][]bool) {
		t.Helper()
		if got, err := (Engine{}).Steered(ns, p); err != nil || !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
			t.Errorf("in use: %v, want %v, %v", got, want, err)
		}
	}
	all := []bool{true, true}
	steered([2][]bool{all, all})
	slots := p.Slots(func(i int) bool { return i == 1 })
	if err := (Engine{}).Steer(ns, p, [2][]bool{{true, false}, nil}); err != nil {
		t.Fatal(err)
	}
	steered([2][]bool{{false, true}, all})
	after := listing(t, ns)
	of := func(text, name string) string {
		_, text, _ = strings.Cut(text, "map "+name+" {")
		text, _, _ = strings.Cut(text, "\n\t}\n")
		return text
	}
	if got := of(after, "uplinks4"); strings.Contains(got, "uplink-1") || strings.Count(got, "jump uplink-2") != len(slots) {
		t.Errorf("IPv4: %s", got)
	}
	if of(after, "uplinks6") != of(before, "uplinks6") {
		t.Errorf("IPv6: %s", of(after, "uplinks6"))
	}
	if s, err := (Engine{}).Read(ns, seal, nil); err != nil || len(s.Changes) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := (Engine{}).Steer(ns, p, [2][]bool{{true, true}, nil}); err != nil { // nobody is left: all are used
		t.Fatal(err)
	}
	steered([2][]bool{all, all})
	lines := func(text string) []string {
		words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
		for i := range words {
			words[i] = strings.Trim(words[i], " \t={}elmns")
		}
		slices.Sort(words)
		return words
	}
	if again := listing(t, ns); !slices.Equal(lines(again), lines(before)) {
		t.Errorf("back again:\n%s\nbefore:\n%s", again, before)
	}
	// A map that is as no choice of natkit's would be is reported, and left alone.
	run(t, ns, "nft", "delete element inet natkit uplinks4 { 5 }")
	steered([2][]bool{nil, all})
	if err := (Engine{}).Steer(ns, p, [2][]bool{{false, true}, nil}); !errors.Is(err, ErrOtherHosts) {
		t.Errorf("a map that was changed: %v", err)
	}
	s, err := Engine{}.Read(ns, seal, func(string) *gateway.Plan { return p })
	if err != nil || s.Integrity != gateway.RulesChanged || len(s.Changes) != 1 || !strings.Contains(s.Changes[0], "uplinks4") {
		t.Errorf("%+v, %v", s, err)
	}
}
